//! Connections: the state behind stateful rules.

use crate::tcp::Reset;
use crate::transport::{Query, is_icmp, query};
use crate::{Binding, RuleId, Segment, Tcp, VifId, Vrf};
use packet::{Headers, L4, proto};
use std::net::IpAddr;

/// Coarse time: whole seconds since the executor started.
pub type Seconds = u32;

/// One end of a connection, by its inside address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Network of the address.
    pub vrf: Vrf,
    /// Address before source NAT or after destination NAT.
    pub addr: IpAddr,
    /// Port, or its substitute ([`crate::Transport::ports`]). 0 for the source of UDP 4791: RoCEv2's packets go to
    /// that port in both directions, so flows track the address pair.
    pub port: u16,
}

/// Key of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Sender.
    pub src: Endpoint,
    /// Receiver.
    pub dst: Endpoint,
    /// IP protocol.
    pub protocol: u8,
}

impl FlowKey {
    /// Returns the key of a packet between two inside addresses, with its ports. For RoCEv2 the source port
    /// is ignored.
    #[must_use]
    pub fn new(src: (Vrf, IpAddr), dst: (Vrf, IpAddr), protocol: u8, ports: (u16, u16)) -> Self {
        let roce = protocol == proto::UDP && ports.1 == proto::PORT_ROCE;
        let sport = if roce { 0 } else { ports.0 };
        Self {
            src: Endpoint { vrf: src.0, addr: src.1, port: sport },
            dst: Endpoint { vrf: dst.0, addr: dst.1, port: ports.1 },
            protocol,
        }
    }

    /// Returns the key of the other direction. For RoCEv2 that also goes to port 4791.
    #[must_use]
    pub fn reverse(&self) -> Self {
        let roce = self.protocol == proto::UDP && self.dst.port == proto::PORT_ROCE && self.src.port == 0;
        let (src, dst) = if roce {
            (Endpoint { port: 0, ..self.dst }, Endpoint { port: proto::PORT_ROCE, ..self.src })
        } else {
            (self.dst, self.src)
        };
        Self { src, dst, protocol: self.protocol }
    }
}

/// The state of a connection (after RFC 9293 for TCP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// TCP before the end of its handshake (or picked up in mid-stream and not answered yet), or another protocol
    /// without a reply yet. Evicted first.
    New,
    /// Packets seen in both directions (TCP: acknowledged in both).
    Established,
    /// TCP FIN seen from one side.
    Closing,
    /// TCP FIN from both sides, or RST.
    Closed,
}

impl FlowState {
    /// Returns after how many seconds without a packet a connection is forgotten that has [`Connection::seen`] these
    /// events.
    #[must_use]
    pub const fn timeout(self, protocol: u8, seen: u8) -> Seconds {
        match (protocol, self) {
            (proto::TCP, Self::New) => 30,
            (proto::TCP, Self::Established) => 7440, // RFC 5382, REQ-5
            (proto::TCP, Self::Closing) => 240,      // the same
            // As long as the last FIN may be sent again: twice the MSL of Linux's TIME-WAIT.
            (proto::TCP, Self::Closed) if seen & Connection::FINS == Connection::FINS => 120,
            (proto::TCP, Self::Closed) => 10,
            (proto::UDP, Self::Established) => 300, // RFC 4787, REQ-5
            (proto::ICMP | proto::ICMPV6, _) => 60, // RFC 5508, REQ-2
            (_, Self::New) => 30,
            _ => 600,
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The direction of its first packet. For a connection picked up in mid-stream: the direction that rules allow.
    pub original: FlowKey,
    /// The phase of the connection.
    pub state: FlowState,
    /// The events seen so far: a set of [`Connection::FIN`], [`Connection::REPLY_FIN`],
    /// [`Connection::REPLIED`] and [`Connection::ASKED`].
    pub seen: u8,
    /// Sequence numbers, for TCP.
    pub tcp: Tcp,
    /// The end by which its guest is known outside, if guests share an address there.
    pub binding: Option<Binding>,
}

/// How a packet relates to a connection that has its addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The packet belongs to the connection, whose new state this is.
    Moves(Connection),
    /// The packet answers a SYN that came while the connection was open. The connection starts anew, with
    /// this state.
    Reopens(Connection),
    /// The packet passes with the connection but does not change it: a TCP segment outside the stream, with
    /// which its receiver deals, or a reset that its receiver must answer with a challenge ACK.
    Stray,
    /// A reset outside the window.
    Outside,
}

impl Connection {
    /// A FIN in the original direction.
    pub const FIN: u8 = 1;
    /// A FIN in the reply direction.
    pub const REPLY_FIN: u8 = 2;
    /// A packet in the reply direction.
    pub const REPLIED: u8 = 4;
    /// A packet in the original direction.
    pub const ASKED: u8 = 8;
    /// Packets in both directions.
    pub const BOTH_WAYS: u8 = Self::REPLIED | Self::ASKED;
    /// FINs of both sides.
    pub const FINS: u8 = Self::FIN | Self::REPLY_FIN;

    /// Returns after how many seconds without a packet it is forgotten.
    #[must_use]
    pub const fn timeout(&self) -> Seconds {
        self.state.timeout(self.original.protocol, self.seen)
    }

    /// Returns the connection that a first packet creates, if it creates one. Resets do not, nor do TCP segments that
    /// neither open nor acknowledge anything, nor ICMP messages other than requests, nor packets to a group, which
    /// nobody answers. With `reply`, the packet goes against `original`.
    #[must_use]
    pub fn first(original: FlowKey, reply: bool, headers: &Headers, liberal: bool) -> Option<Self> {
        let v6 = original.src.addr.is_ipv6();
        let segment = Segment::of(headers);
        let makes = match headers.l4 {
            L4::Tcp { .. } => segment.is_some_and(|tcp| tcp.begins()),
            L4::Icmp { kind, .. } => matches!(query(v6, kind), Some(Query::Request)),
            // A later fragment, whose flags or type are unknown.
            L4::Other if original.protocol == proto::TCP || is_icmp(original.protocol) => false,
            _ => true,
        };
        let dst = original.dst.addr;
        let group = dst.is_multicast() || matches!(dst, IpAddr::V4(v4) if v4.is_broadcast());
        if !makes || group {
            return None;
        }
        let tcp = segment.map_or_else(Tcp::default, |tcp| Tcp::first(reply.into(), &tcp, liberal));
        let mut new = Self { original, state: FlowState::New, seen: Self::way(reply), tcp, binding: None };
        if segment.is_some_and(|segment| segment.has(proto::TCP_FIN | proto::TCP_ACK)) {
            new.finish(reply);
        }
        Some(new)
    }

    /// Returns the connection after a packet of a protocol other than TCP, or after a fragment of TCP, whose flags
    /// are unknown: it moves nothing.
    #[must_use]
    pub fn after(mut self, reply: bool) -> Self {
        if self.original.protocol == proto::TCP {
            return self;
        }
        self.seen |= Self::way(reply);
        if self.goes_both_ways() {
            self.state = FlowState::Established;
        }
        self
    }

    /// Returns how a packet relates to the connection. With `reply`, the packet goes against the original
    /// direction.
    #[must_use]
    pub fn follow(self, reply: bool, headers: &Headers) -> Follow {
        match Segment::of(headers) {
            // Includes later fragments of TCP, whose flags are unknown.
            None => Follow::Moves(self.after(reply)),
            Some(segment) => self.follow_segment(reply, &segment),
        }
    }

    /// Returns how a TCP segment relates to the connection.
    ///
    /// TCP is established once the original direction acknowledges anything that the other side sent, or the
    /// other side acknowledges without a SYN. If some packets go unseen ([`Tcp::liberal`]), it is established
    /// once either side acknowledges without a SYN.
    #[must_use]
    pub fn follow_segment(self, reply: bool, segment: &Segment) -> Follow {
        match segment {
            segment if segment.has(proto::TCP_RST) => self.reset(reply, segment),
            segment if segment.opens() => self.opened(reply, segment),
            segment if segment.has(proto::TCP_SYN) => self.answered(reply, segment),
            segment => self.continued(reply, segment),
        }
    }

    /// Follows the connection over a segment that is neither SYN nor RST.
    fn continued(mut self, reply: bool, segment: &Segment) -> Follow {
        if !self.tcp.advance(reply.into(), segment) {
            return Follow::Stray;
        }
        self.seen |= Self::way(reply);
        if segment.has(proto::TCP_FIN) {
            self.finish(reply);
        }
        let open = self.goes_both_ways() || self.tcp.liberal;
        if self.state == FlowState::New && open {
            self.state = FlowState::Established;
        }
        Follow::Moves(self)
    }

    /// Follows the connection over a SYN without ACK. Such a SYN does not change an open connection (RFC
    /// 5961, 4), but its answer may.
    fn opened(mut self, reply: bool, segment: &Segment) -> Follow {
        let side = usize::from(reply);
        match self.state {
            FlowState::New if self.seen & Self::REPLIED == 0 || self.tcp.only(side, segment) => {
                self.tcp.open(side, segment);
                self.seen |= Self::way(reply);
            }
            FlowState::Established | FlowState::Closing if !reply => self.tcp.reopen = Some(segment.end()),
            _ => return Follow::Stray,
        }
        Follow::Moves(self)
    }

    /// Follows the connection over a SYN with ACK.
    fn answered(mut self, reply: bool, segment: &Segment) -> Follow {
        match self.state {
            FlowState::New if self.tcp.answers(reply.into(), segment) => {
                self.tcp.open(reply.into(), segment);
                self.seen |= Self::way(reply);
                Follow::Moves(self)
            }
            FlowState::Established | FlowState::Closing if reply => {
                let reopened = |tcp| Self { state: FlowState::New, seen: Self::BOTH_WAYS, tcp, ..self };
                self.tcp.reopened(segment).map_or(Follow::Stray, |tcp| Follow::Reopens(reopened(tcp)))
            }
            _ => Follow::Stray,
        }
    }

    /// Follows the connection over a reset (RFC 9293, 3.10.7.4; RFC 5961, 3.2).
    fn reset(mut self, reply: bool, segment: &Segment) -> Follow {
        let reset = self.tcp.reset(reply.into(), segment);
        // A host also resets the answer to an old SYN of its own (RFC 9293, 3.5.2), whose numbers are unrelated.
        let handshake = self.state == FlowState::New && !reply;
        self.state = match (reset, self.state) {
            (Reset::Exact, _) | (_, FlowState::Closed) => FlowState::Closed,
            // The receiver's next expected number is not well known: later packets show whether it accepted the reset.
            _ if self.tcp.liberal => FlowState::Closing,
            (Reset::Outside, _) if !handshake => return Follow::Outside,
            _ => return Follow::Stray,
        };
        self.seen |= Self::way(reply);
        Follow::Moves(self)
    }

    fn finish(&mut self, reply: bool) {
        self.seen |= if reply { Self::REPLY_FIN } else { Self::FIN };
        let closed = self.state == FlowState::Closed || self.seen & Self::FINS == Self::FINS;
        self.state = if closed { FlowState::Closed } else { FlowState::Closing };
    }

    const fn way(reply: bool) -> u8 {
        if reply { Self::REPLIED } else { Self::ASKED }
    }

    const fn goes_both_ways(&self) -> bool {
        self.seen & Self::BOTH_WAYS == Self::BOTH_WAYS
    }
}

/// A packet's effect on the connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// A new connection, with the rule that allowed it (`None`: the network's default).
    Create {
        /// The connection's first state.
        connection: Connection,
        /// The rule that allowed the packet.
        rule: Option<RuleId>,
    },
    /// A packet of a known connection.
    Update {
        /// The state after this packet.
        connection: Connection,
        /// Whether the packet goes in the reply direction.
        reply: bool,
    },
}

/// The ingress and header fields that fragments of one datagram share (RFC 791).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// Interface by which the fragments come; for fragments in a tunnel, the wire.
    pub ingress: VifId,
    /// Network that the fragments are in.
    pub vrf: Vrf,
    /// Source address as on the packet.
    pub src: IpAddr,
    /// Destination address as on the packet.
    pub dst: IpAddr,
    /// IPv4's protocol; `None` for IPv6.
    pub protocol: Option<u8>,
    /// Identification of the datagram.
    pub id: u32,
}

impl FragmentKey {
    /// Seconds for which later fragments find the ports of their first fragment.
    pub const TIMEOUT: Seconds = 30;
}
