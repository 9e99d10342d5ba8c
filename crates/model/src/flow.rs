//! Connections: the state behind stateful rules.

use crate::{RuleId, VifId, Vrf};
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
    /// Port; ICMP echo identifier; 0 where the protocol has none, and for the source of UDP 4791 (RoCEv2: both
    /// directions go to that port, so flows track the address pair).
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
    /// The other direction. RoCEv2's is to port 4791 again.
    #[must_use]
    pub fn reverse(&self) -> Self {
        let roce = self.protocol == packet::proto::UDP
            && self.dst.port == packet::proto::PORT_ROCE
            && self.src.port == 0;
        let (src, dst) = if roce {
            (Endpoint { port: 0, ..self.dst }, Endpoint { port: packet::proto::PORT_ROCE, ..self.src })
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
            (packet::proto::TCP, Self::New) => 30,
            (packet::proto::TCP, Self::Established) => 7440, // RFC 5382, REQ-5
            (packet::proto::TCP, Self::Closing) => 120,
            (packet::proto::TCP, Self::Closed) => 10,
            (packet::proto::UDP, Self::Established) => 300, // RFC 4787, REQ-5
            (packet::proto::ICMP | packet::proto::ICMPV6, _) => 60, // RFC 5508, REQ-2
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
    /// IP protocol.
    pub protocol: u8,
    /// Identification.
    pub id: u32,
}

impl FragmentKey {
    /// Seconds for which later fragments find the ports of their first.
    pub const TIMEOUT: Seconds = 30;
}
