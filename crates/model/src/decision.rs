//! The result of `decide`: a verdict, and the effects of the packet.

use crate::{
    DropReason, FlowChange, FragmentKey, MeterId, NeighbourScope, NexthopId, RuleId, Transport, VifId, Vrf,
    ovs,
};
use arrayvec::ArrayVec;
use packet::{IcmpError, Mac, TunnelKind};
use std::net::{IpAddr, Ipv6Addr};

/// A verdict and its effects.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The packet's destination, if it has one.
    pub verdict: Verdict,
    /// All else that happens, whatever the verdict.
    pub effects: Effects,
}

/// The destination of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// To one port.
    Forward(Forward),
    /// To every member of a network's bridge except the sender; or, if only other hosts' gateways need it, to the
    /// tunnels.
    Flood(Flood),
    /// To the ports that a flow of an Open vSwitch names.
    Outputs(Vec<ovs::Output>),
    /// Nowhere: Viaduct answers it.
    Reply(Reply),
    /// The packet waits for this neighbour, for which a solicitation is sent. Then it is decided again.
    Hold {
        /// The wire or network in which to look for the neighbour.
        scope: NeighbourScope,
        /// The neighbour's address.
        addr: IpAddr,
    },
    /// A fragment of a tunnel packet: it waits for the others. Then the whole packet is decided.
    Reassemble,
    /// To a service of the network, whose answers go to the guest's port.
    Serve {
        /// The service.
        service: Service,
        /// The guest that asks; for one of its VLANs, the interface that stands for it. For [`Service::Bfd`], the wire.
        guest: VifId,
    },
    /// The packet was for Viaduct; nothing remains but its effects (an answer to ARP or ND).
    Consumed,
    /// Nowhere.
    Drop(DropReason),
}

/// A service that the host itself gives the guests of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// DHCP for IPv4.
    Dhcp,
    /// DHCP for IPv6.
    Dhcpv6,
    /// Router advertisements.
    Router,
    /// DNS.
    Dns,
    /// Metadata of guests, by HTTP.
    Metadata,
    /// BFD of a tunnel's remote (RFC 5883): no guest asks, but a wire.
    Bfd,
}

/// One destination, and how the packet is rewritten for it. The rewrite applies the fields in their order:
/// strip, traffic class, TTL, NAT, MSS, fragments, Ethernet, VLAN, encapsulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Interface by which the packet leaves.
    pub port: VifId,
    /// Bytes removed from the front of the frame: tunnel headers, and the Ethernet header if a new one is written.
    /// Padding after the packet is removed too ([`crate::rewrite::kept`]).
    pub strip: u16,
    /// New traffic class of the (inner) IP header: with the ECN field that decapsulation leaves (RFC 6040), or with its
    /// guest's DSCP.
    pub tos: Option<u8>,
    /// Decrements of TTL or hop limit: 0 bridged, 1 routed.
    pub ttl_decrement: u8,
    /// Address translation of the (inner) IP packet.
    pub nat: Nat,
    /// The value to which the MSS of the (inner) TCP SYN is lowered ([`packet::mss()`]).
    pub mss: Option<u16>,
    /// Fragmentation, if the packet is too big.
    pub cut: Option<Cut>,
    /// New Ethernet header before the remaining bytes.
    pub ethernet: Option<EthernetRewrite>,
    /// 802.1Q tag pushed after the addresses (a network attached to a wire by VLAN).
    pub push_vlan: Option<u16>,
    /// 802.1Q tags popped, from the outermost on, if the Ethernet header is kept: the attachment's tag, and priority
    /// tags.
    pub pop_tags: u8,
    /// Tunnel that the packet goes through.
    pub encap: Option<Encap>,
}

/// Fragmentation of an IPv4 packet (RFC 791, 3.2) that is longer than this, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The packet itself is cut into fragments, a large send into smaller segments. Each goes through a tunnel by itself.
    Packet(u16),
    /// The tunnel packet is cut, whose other end reassembles it.
    Tunnel(u16),
}

impl Forward {
    /// Returns a delivery by this port that changes nothing.
    #[must_use]
    pub const fn unchanged(port: VifId) -> Self {
        Self {
            port,
            strip: 0,
            tos: None,
            ttl_decrement: 0,
            nat: Nat { src: None, dst: None, src_port: None, dst_port: None, quoted: None },
            mss: None,
            cut: None,
            ethernet: None,
            push_vlan: None,
            pop_tags: 0,
            encap: None,
        }
    }

    /// Returns the flow entropy for the tunnel that the packet goes through; 0 without a tunnel.
    #[must_use]
    pub fn entropy(&self) -> u32 {
        self.encap.as_ref().map_or(0, |encap| encap.entropy)
    }

    /// Returns whether the frame leaves as it came, perhaps in a tunnel.
    pub(crate) fn keeps_frame(&self) -> bool {
        Self { encap: None, ..self.clone() } == Self::unchanged(self.port)
    }
}

impl Verdict {
    /// Returns the deliveries to ports. There are none for an answer, nor for packets that a flow of an Open
    /// vSwitch sends ([`Self::outputs`]).
    #[must_use]
    pub fn deliveries(&self) -> &[Forward] {
        match self {
            Self::Forward(forward) => std::slice::from_ref(forward),
            Self::Flood(flood) => &flood.to,
            _ => &[],
        }
    }

    /// Returns the deliveries that a flow of an Open vSwitch makes.
    #[must_use]
    pub fn outputs(&self) -> &[ovs::Output] {
        match self {
            Self::Outputs(outputs) => outputs,
            _ => &[],
        }
    }
}

/// Address translation.
///
/// In an ICMP error, the packet that it quotes went in the opposite direction (RFC 5508, 4.2): its destination is
/// translated as the source of the error, and the reverse, if they are the same, or if ports are translated as well. Or
/// its destination has a translation of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nat {
    /// New source address.
    pub src: Option<IpAddr>,
    /// New destination address.
    pub dst: Option<IpAddr>,
    /// New source port of TCP or UDP; or the new identifier of an ICMP query.
    pub src_port: Option<u16>,
    /// New destination port of TCP or UDP; or the new identifier of an ICMP query.
    pub dst_port: Option<u16>,
    /// New destination of the packet that an ICMP error of a router quotes.
    pub quoted: Option<IpAddr>,
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
    /// Don't Fragment in an outer IPv4 header. Without it, executors number the packets (RFC 6864); the reference rewrite
    /// leaves the identification zero.
    pub dont_fragment: bool,
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
    /// The content of the answer.
    pub kind: ReplyKind,
    /// The delivery of the answer. The answer is built from its L3 header on (ARP body, IP header); `forward`
    /// puts the Ethernet header or the tunnel before it. `strip` is the offset of the L3 header in the frame
    /// that is answered.
    pub forward: Forward,
    /// The reason that is counted, if the packet was refused rather than served.
    pub dropped: Option<DropReason>,
    /// For an error: the sender to inform. Executors limit how often (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f).
    pub asker: Option<Asker>,
}

/// A sender who is informed that its packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// The network that the packet was in.
    pub vrf: Vrf,
    /// The packet's source address in that network.
    pub addr: IpAddr,
}

impl Reply {
    /// Returns the same answer without the tunnel.
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
        /// The MAC in the answer.
        mac: Mac,
    },
    /// Neighbour advertisement: the target is at `mac`.
    NeighbourAdvertisement {
        /// The MAC in the answer.
        mac: Mac,
        /// Whether the router flag is set.
        router: bool,
        /// For an anycast address: the unicast address from which the answer comes. The answer overrides no other
        /// (RFC 4861, 7.2.7).
        anycast: Option<Ipv6Addr>,
    },
    /// ICMP or ICMPv6 echo reply.
    Echo {
        /// Source address of the reply.
        src: IpAddr,
    },
    /// ICMP or ICMPv6 error about the packet.
    IcmpError {
        /// Source address of the error.
        src: IpAddr,
        /// The error.
        error: IcmpError,
    },
    /// TCP RST (RFC 9293, 3.10.7).
    TcpReset,
}

/// The passage of a packet through a tunnel's port, which no executor has among its own ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// The port.
    pub port: VifId,
    /// Growth of the packet there, compared with the frame that came in, bytes.
    pub grown: i16,
}

/// The ports of tunnels that a packet passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// The port by which the packet comes out of a tunnel.
    pub came: Option<Crossing>,
    /// The ports by which the packet is sent into tunnels.
    pub sent: Vec<Crossing>,
}

impl Crossings {
    /// Returns the growth, in bytes, of the packet that flows see, compared with the frame that came in. It
    /// is negative if the packet came out of a tunnel.
    #[must_use]
    pub fn grown(all: Option<&Self>) -> i16 {
        all.and_then(|all| all.came).map_or(0, |crossing| crossing.grown)
    }
}

/// All that happens besides the verdict.
///
/// Meters come first: a packet over its rate is dropped, and nothing else happens. A dropped packet leaves
/// behind its source MAC, its counters and the copies of the frame as it came in, but never a connection. A
/// held packet's meters, copies and connection wait until it is decided again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// A source MAC to learn.
    pub learn: Option<Learn>,
    /// A neighbour that announced itself.
    pub neighbour: Option<NeighbourFound>,
    /// A path MTU of the underlay that a router reported.
    pub path: Option<PathMtu>,
    /// A change to the connection table.
    pub flow: Option<FlowChange>,
    /// Whether the decision must not be cached because a similar packet may be decided differently: the rules
    /// allow this packet, which belongs to no connection, but a similar one may; or it is too big for some of
    /// the ports to which it goes.
    pub once: bool,
    /// The protocol and ports, to remember for later fragments.
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
    /// The counter of the Open vSwitch flow that decided.
    pub ovs_counter: Option<u32>,
}

/// A source MAC seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// The network.
    pub vrf: Vrf,
    /// The MAC.
    pub mac: Mac,
    /// The location of the MAC.
    pub at: crate::BridgeTarget,
}

/// The largest outer IP packet that the underlay carries to a tunnel's remote, as a router reports it (RFC 1191; RFC
/// 8201).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The remote.
    pub remote: IpAddr,
    /// The MTU, bytes.
    pub mtu: u16,
}

impl PathMtu {
    /// Seconds after which a path MTU expires and larger packets are tried again (RFC 1191, 6.3; RFC 8201,
    /// 4).
    pub const AGE: crate::Seconds = 600;
}

/// A neighbour seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourFound {
    /// The neighbour's wire or network.
    pub scope: NeighbourScope,
    /// The neighbour's address.
    pub addr: IpAddr,
    /// The neighbour's MAC.
    pub mac: Mac,
}
