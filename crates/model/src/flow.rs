//! Connections: the state behind stateful rules.

use crate::transport::{Query, is_icmp, query};
use crate::{RuleId, VifId, Vrf};
use packet::{L4, proto};
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
    /// Port, or what stands for it ([`crate::Transport::ports`]); 0 for the source of UDP 4791 (RoCEv2: both directions go to
    /// that port, so flows track the address pair).
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
    /// The key of a packet between two inside addresses, with its ports. Of RoCEv2 the source port does not count.
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

    /// The other direction. RoCEv2's is to port 4791 again.
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

/// Where a connection stands (after RFC 9293 for TCP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// TCP before the end of its handshake (or picked up in mid-stream and not answered yet), or another protocol
    /// without a reply yet. First to be evicted.
    New,
    /// Packets seen in both directions (TCP: acknowledged in both).
    Established,
    /// TCP FIN seen from one side.
    Closing,
    /// TCP FIN from both sides, or RST.
    Closed,
}

impl FlowState {
    /// Seconds without a packet after which the connection is forgotten.
    #[must_use]
    pub const fn timeout(self, protocol: u8) -> Seconds {
        match (protocol, self) {
            (proto::TCP, Self::New) => 30,
            (proto::TCP, Self::Established) => 7440, // RFC 5382, REQ-5
            (proto::TCP, Self::Closing) => 120,
            (proto::TCP, Self::Closed) => 10,
            (proto::UDP, Self::Established) => 300, // RFC 4787, REQ-5
            (proto::ICMP | proto::ICMPV6, _) => 60, // RFC 5508, REQ-2
            (_, Self::New) => 30,
            _ => 600,
        }
    }
}

/// What is remembered of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The direction of its first packet.
    pub original: FlowKey,
    /// Where it stands.
    pub state: FlowState,
    /// What was seen so far: a set of [`Connection::FIN`], [`Connection::REPLY_FIN`] and [`Connection::REPLIED`].
    pub seen: u8,
}

impl Connection {
    /// A FIN in the original direction.
    pub const FIN: u8 = 1;
    /// A FIN in the reply direction.
    pub const REPLY_FIN: u8 = 2;
    /// A packet in the reply direction.
    pub const REPLIED: u8 = 4;

    /// The connection that a first packet makes, if it makes one: resets do not, nor ICMP but requests, nor does what
    /// goes to a group, which nobody answers.
    #[must_use]
    pub fn first(original: FlowKey, l4: &L4) -> Option<Self> {
        let v6 = original.src.addr.is_ipv6();
        let makes = match *l4 {
            L4::Tcp { flags, .. } => flags & proto::TCP_RST == 0,
            L4::Icmp { kind, .. } => matches!(query(v6, kind), Some(Query::Request)),
            // A later fragment, whose type is not known.
            L4::Other if is_icmp(original.protocol) => false,
            _ => true,
        };
        let dst = original.dst.addr;
        let group = dst.is_multicast() || matches!(dst, IpAddr::V4(v4) if v4.is_broadcast());
        let new = Self { original, state: FlowState::New, seen: 0 };
        (makes && !group).then(|| new.after(false, original.protocol, l4))
    }

    /// The connection after a packet of it.
    ///
    /// TCP's states are coarse (sequence numbers are not followed): established once the original direction acknowledges
    /// something of the other, or the other acknowledges without a SYN.
    #[must_use]
    pub fn after(mut self, reply: bool, protocol: u8, l4: &L4) -> Self {
        if reply {
            self.seen |= Self::REPLIED;
        }
        let replied = self.seen & Self::REPLIED != 0;
        self.state = match *l4 {
            L4::Tcp { flags, .. } => self.after_tcp(reply, replied, flags),
            // A later fragment, whose flags are not known.
            _ if protocol == proto::TCP => self.state,
            _ if replied => FlowState::Established,
            _ => self.state,
        };
        self
    }

    fn after_tcp(&mut self, reply: bool, replied: bool, flags: u8) -> FlowState {
        if flags & proto::TCP_FIN != 0 {
            self.seen |= if reply { Self::REPLY_FIN } else { Self::FIN };
        }
        let acknowledges = flags & (proto::TCP_ACK | proto::TCP_SYN) == proto::TCP_ACK;
        match (self.state, self.seen & (Self::FIN | Self::REPLY_FIN)) {
            _ if flags & proto::TCP_RST != 0 => FlowState::Closed,
            (FlowState::Closed, _) | (_, 3) => FlowState::Closed,
            (_, 1 | 2) => FlowState::Closing,
            (FlowState::New, _) if replied && acknowledges => FlowState::Established,
            (state, _) => state,
        }
    }
}

/// What a packet does to the connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowChange {
    /// A new connection, with the rule that allowed it (`None`: the network's default).
    Create {
        /// Its first state.
        connection: Connection,
        /// The rule.
        rule: Option<RuleId>,
    },
    /// A packet of a known one.
    Update {
        /// The state after this packet.
        connection: Connection,
        /// Whether the packet goes in the reply direction.
        reply: bool,
    },
}

/// What fragments of one datagram share (RFC 791): where they came in, and the header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// Interface (the wire, for what came in a tunnel).
    pub ingress: VifId,
    /// Network.
    pub vrf: Vrf,
    /// Source address as on the packet.
    pub src: IpAddr,
    /// Destination address as on the packet.
    pub dst: IpAddr,
    /// IPv4's protocol.
    pub protocol: Option<u8>,
    /// Identification.
    pub id: u32,
}

impl FragmentKey {
    /// Seconds for which later fragments find the ports of their first.
    pub const TIMEOUT: Seconds = 30;
}
