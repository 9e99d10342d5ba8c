//! The result of `decide`: a verdict, and the effects of the packet.

use crate::{
    DropReason, FlowChange, FragmentKey, MeterId, NeighbourScope, NexthopId, RuleId, Transport, VifId, Vrf,
    ovs,
};
use arrayvec::ArrayVec;
use packet::{IcmpError, Mac, TunnelKind};
use std::net::IpAddr;

/// The whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Where the packet goes.
    pub verdict: Verdict,
    /// What else happens, whatever the verdict.
    pub effects: Effects,
}

/// Where the packet goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// To one port.
    Forward(Forward),
    /// To every member of a network's bridge except the sender; or, if only other hosts' gateways need it, to the
    /// tunnels.
    Flood(Flood),
    /// To one port or several, as a flow of an Open vSwitch says.
    Outputs(Vec<ovs::Output>),
    /// Nowhere: Viaduct answers it.
    Reply(Reply),
    /// It waits for this neighbour, for which a solicitation is sent; then it is decided again.
    Hold {
        /// Where the neighbour is looked for.
        scope: NeighbourScope,
        /// Its address.
        addr: IpAddr,
    },
    /// It was for Viaduct; nothing remains but its effects (an answer to ARP or ND).
    Consumed,
    /// Nowhere.
    Drop(DropReason),
}

/// One destination, and how the packet is rewritten for it. The fields apply in their order: strip, ECN, TTL, NAT,
/// MSS, Ethernet, VLAN, encapsulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Interface it leaves by.
    pub port: VifId,
    /// Bytes removed from the front of the frame: tunnel headers, and the Ethernet header if a new one is written.
    /// Padding after the packet is removed too ([`crate::rewrite::kept`]).
    pub strip: u16,
    /// New ECN field of the (inner) IP header (RFC 6040 decapsulation).
    pub ecn: Option<u8>,
    /// Decrements of TTL or hop limit: 0 bridged, 1 routed.
    pub ttl_decrement: u8,
    /// Address translation of the (inner) IP packet.
    pub nat: Nat,
    /// The value to which the MSS of the (inner) TCP SYN is lowered ([`packet::mss()`]).
    pub mss: Option<u16>,
    /// New Ethernet header before the remaining bytes.
    pub ethernet: Option<EthernetRewrite>,
    /// 802.1Q tag pushed after the addresses (a network attached to a wire by VLAN).
    pub push_vlan: Option<u16>,
    /// 802.1Q tags popped, from the outermost on, if the Ethernet header is kept: the attachment's tag, and priority
    /// tags.
    pub pop_tags: u8,
    /// Tunnel it goes through.
    pub encap: Option<Encap>,
}

impl Forward {
    /// Out of this port, unchanged.
    #[must_use]
    pub const fn unchanged(port: VifId) -> Self {
        Self {
            port,
            strip: 0,
            ecn: None,
            ttl_decrement: 0,
            nat: Nat { src: None, dst: None },
            mss: None,
            ethernet: None,
            push_vlan: None,
            pop_tags: 0,
            encap: None,
        }
    }

    /// Flow entropy for the tunnel it goes through; 0 without a tunnel.
    #[must_use]
    pub fn entropy(&self) -> u32 {
        self.encap.as_ref().map_or(0, |encap| encap.entropy)
    }

    /// Whether the frame leaves as it came, perhaps in a tunnel.
    pub(crate) fn keeps_frame(&self) -> bool {
        Self { encap: None, ..self.clone() } == Self::unchanged(self.port)
    }
}

impl Verdict {
    /// The ports that the packet goes to, and how; none for an answer, or for what a flow of an Open vSwitch sends
    /// ([`Self::outputs`]).
    #[must_use]
    pub fn deliveries(&self) -> &[Forward] {
        match self {
            Self::Forward(forward) => std::slice::from_ref(forward),
            Self::Flood(flood) => &flood.to,
            _ => &[],
        }
    }

    /// The ports that the packet goes to as a flow of an Open vSwitch says.
    #[must_use]
    pub fn outputs(&self) -> &[ovs::Output] {
        match self {
            Self::Outputs(outputs) => outputs,
            _ => &[],
        }
    }
}

/// Address translation, one to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nat {
    /// New source address.
    pub src: Option<IpAddr>,
    /// New destination address.
    pub dst: Option<IpAddr>,
}

/// A new Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetRewrite {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// EtherType.
    pub ethertype: u16,
}

/// Tunnel headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encap {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// MPLS label or VXLAN network identifier.
    pub id: u32,
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// Outer Ethernet source: the wire's MAC.
    pub src_mac: Mac,
    /// Outer Ethernet destination: the underlay next hop's MAC.
    pub dst_mac: Mac,
    /// Flow entropy: UDP source port 49152 + (entropy & 0x3fff) (RFC 7510, RFC 7348); IPv6 flow label.
    pub entropy: u32,
    /// Outer traffic class: DSCP copied from the inner header, ECN by RFC 6040.
    pub tos: u8,
}

/// Delivery to all members of a bridge: guests, the attached wire, flood tunnels. A frame from a tunnel goes to no
/// tunnel (split horizon). Members that can't be sent to are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Flood {
    /// The network.
    pub vrf: Vrf,
    /// Each delivery, rewritten for its port.
    pub to: Vec<Forward>,
}

/// An answer by Viaduct itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What it says.
    pub kind: ReplyKind,
    /// How it is sent. The answer is built from its L3 header on (ARP body, IP header); `forward` puts the Ethernet
    /// header or the tunnel before it. `strip` is the offset of the L3 header in the frame that is answered.
    pub forward: Forward,
    /// If the packet was refused rather than served: the reason that is counted.
    pub dropped: Option<DropReason>,
    /// For an error: who is informed, by network and address. Executors limit how often (RFC 1812, 4.3.2.8; RFC 4443,
    /// 2.4 f).
    pub asker: Option<Asker>,
}

/// A sender who is informed that its packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// The network in which the packet was.
    pub vrf: Vrf,
    /// Its source address there.
    pub addr: IpAddr,
}

impl Reply {
    /// The same, without the tunnel.
    #[must_use]
    pub fn bare(&self) -> Self {
        Self { forward: Forward { encap: None, ..self.forward.clone() }, ..self.clone() }
    }
}

/// Kinds of answers.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyKind {
    /// ARP reply: `addr` is at `mac`.
    Arp {
        /// The answer.
        mac: Mac,
    },
    /// Neighbour advertisement: the target is at `mac`.
    NeighbourAdvertisement {
        /// The answer.
        mac: Mac,
        /// Whether the router flag is set.
        router: bool,
    },
    /// ICMP or ICMPv6 echo reply.
    Echo,
    /// ICMP or ICMPv6 error about the packet.
    IcmpError {
        /// Source address of the error.
        src: IpAddr,
        /// Which.
        error: IcmpError,
    },
    /// TCP RST (RFC 9293, 3.10.7).
    TcpReset,
}

/// A packet's way through the port of a tunnel, which no executor has among its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// The port.
    pub port: VifId,
    /// By how many bytes the packet is longer there than the frame that came in.
    pub grown: i16,
}

/// The ports of tunnels that a packet passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// The one by which it comes out of a tunnel.
    pub came: Option<Crossing>,
    /// Those by which it is sent into tunnels.
    pub sent: Vec<Crossing>,
}

impl Crossings {
    /// By how many bytes the packet that flows see is longer than the frame that came in. It is negative if the packet
    /// came out of a tunnel.
    #[must_use]
    pub fn grown(all: Option<&Self>) -> i16 {
        all.and_then(|all| all.came).map_or(0, |crossing| crossing.grown)
    }
}

/// What else happens.
///
/// Meters come first: a packet over its rate is dropped, and nothing else happens. A dropped packet leaves behind its
/// source MAC, its counters and the copies of the frame as it came in, but never a connection. A held packet's meters,
/// copies and connection wait until it is decided again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// A source MAC to learn.
    pub learn: Option<Learn>,
    /// A neighbour that announced itself.
    pub neighbour: Option<NeighbourFound>,
    /// A path MTU of the underlay that a router reported.
    pub path: Option<PathMtu>,
    /// Connection table.
    pub flow: Option<FlowChange>,
    /// A similar packet may be decided otherwise, so the decision must not be cached: the rules allow this packet,
    /// which belongs to no connection, but a similar one may; or it is too big for some of the ports to which it goes.
    pub once: bool,
    /// Protocol and ports for later fragments.
    pub fragment: Option<(FragmentKey, Transport)>,
    /// Policers, asked in this order. Each drops packets over its rate, with its own reason (`rate_limited`,
    /// `policed`); the guest's rate comes first. Police rules beyond the capacity are ignored.
    pub meters: ArrayVec<(MeterId, DropReason), 4>,
    /// Guests that get a copy of the frame as it came in.
    pub mirror_in: ArrayVec<VifId, 4>,
    /// Guests that get a copy of the frame as it is delivered, or of the answer.
    pub mirror_out: ArrayVec<VifId, 4>,
    /// Ports of tunnels that the packet passes, for their counters. In a box, because few packets pass one.
    pub crossings: Option<Box<Crossings>>,
    /// A neighbour to solicit although the packet does not wait for it: the next hop of one of a flood's tunnels, or
    /// of a mirror on another host.
    pub solicit: Option<(NeighbourScope, IpAddr)>,
    /// The rules that applied in both networks, for their counters: modifiers, then the one that decided.
    pub rules: ArrayVec<RuleId, 10>,
    /// The nexthop used, for its counter.
    pub nexthop: Option<NexthopId>,
    /// The counter of the Open vSwitch's flow that decided.
    pub ovs_counter: Option<u32>,
}

/// A source MAC seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// The network.
    pub vrf: Vrf,
    /// The MAC.
    pub mac: Mac,
    /// Where it is.
    pub at: crate::BridgeTarget,
}

/// The largest outer IP packet that the underlay carries to a tunnel's remote, as a router reports it (RFC 1191; RFC
/// 8201).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The remote.
    pub remote: IpAddr,
    /// Bytes.
    pub mtu: u16,
}

impl PathMtu {
    /// Seconds after which it expires and larger packets are tried again (RFC 1191, 6.3; RFC 8201, 4).
    pub const AGE: crate::Seconds = 600;
}

/// A neighbour seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourFound {
    /// Where.
    pub scope: NeighbourScope,
    /// Its address.
    pub addr: IpAddr,
    /// Its MAC.
    pub mac: Mac,
}
