//! What `decide` says about a packet: a verdict, and what else happens because of it.

use crate::{
    DropReason, FlowChange, FragmentKey, MeterId, NeighbourScope, NexthopId, RuleId, Transport, VifId, Vrf,
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
    /// To every member of a network's bridge but the one it came from; what only other hosts' gateways are to hear,
    /// to its tunnels.
    Flood(Flood),
    /// Nowhere: Viaduct answers it.
    Reply(Reply),
    /// Nowhere yet: it waits for this neighbour, for which a solicitation goes out; then it is decided again.
    Hold {
        /// Where the neighbour is sought.
        scope: NeighbourScope,
        /// Its address.
        addr: IpAddr,
    },
    /// Nowhere: it was for Viaduct, and its effects are all there is to it (an answer to ARP or ND).
    Consumed,
    /// Nowhere.
    Drop(DropReason),
}

/// One destination and how the packet is rewritten for it, applied in the order of the fields:
/// strip, ECN, TTL, NAT, MSS, Ethernet, VLAN, encapsulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Interface it leaves by.
    pub port: VifId,
    /// Bytes taken off the front of the frame: tunnel headers, and the Ethernet header where a new one is written.
    /// What lies behind the packet as padding goes too ([`crate::rewrite::kept`]).
    pub strip: u16,
    /// New ECN field of the (inner) IP header (RFC 6040 decapsulation).
    pub ecn: Option<u8>,
    /// Decrements of TTL or hop limit: 0 bridged, 1 routed.
    pub ttl_decrement: u8,
    /// Address translation of the (inner) IP packet.
    pub nat: Nat,
    /// What the MSS that the (inner) TCP SYN tells is lowered to ([`packet::mss`]).
    pub mss: Option<u16>,
    /// New Ethernet header in front of what is left.
    pub ethernet: Option<EthernetRewrite>,
    /// 802.1Q tag pushed behind the addresses (a network attached to a wire by VLAN).
    pub push_vlan: Option<u16>,
    /// 802.1Q tags popped, from the outermost on: the attachment's, and those that bear a priority alone. Where the
    /// frame is kept from its Ethernet header.
    pub pop_tags: u8,
    /// Tunnel it goes through.
    pub encap: Option<Encap>,
}

impl Forward {
    /// Out of this port as it is.
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

    /// Whether the frame leaves as it came, if in a tunnel.
    pub(crate) fn keeps_frame(&self) -> bool {
        Self { encap: None, ..self.clone() } == Self::unchanged(self.port)
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

/// Delivery to all members of a bridge: guests, the attached wire, flood tunnels. What came from a tunnel goes to no
/// tunnel (split horizon). Members the frame can't be sent to are left out.
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
    /// How it is sent. The answer is built from its L3 header on (ARP body, IP header); this puts the Ethernet
    /// header or the tunnel in front of it. `strip` is where the L3 header of what it answers lies in the frame.
    pub forward: Forward,
    /// Where the packet was refused rather than served: the reason that is counted.
    pub dropped: Option<DropReason>,
    /// Of an error: who is told, by network and address. Executors bound how often (RFC 1812, 4.3.2.8; RFC 4443, 2.4
    /// f).
    pub asker: Option<Asker>,
}

/// Somebody who is told that a packet of his was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// The network that the packet was in.
    pub vrf: Vrf,
    /// Its source address there.
    pub addr: IpAddr,
}

impl Reply {
    /// The same before it is encapsulated.
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

/// What else happens.
///
/// Meters come first: a packet that is over a rate is dropped, and nothing else happens. What a dropped packet leaves
/// behind are its source MAC, its counters and the copies of what came in; never a connection. A held packet's meters,
/// copies and connection wait until it is decided again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// A source MAC to learn.
    pub learn: Option<Learn>,
    /// A neighbour that made itself known.
    pub neighbour: Option<NeighbourFound>,
    /// A bound of the underlay that made itself known.
    pub path: Option<PathMtu>,
    /// Connection table.
    pub flow: Option<FlowChange>,
    /// The rules allow this packet, which is of no connection; but another like it may be of one. So the decision is
    /// not for those.
    pub once: bool,
    /// Protocol and ports for later fragments.
    pub fragment: Option<(FragmentKey, Transport)>,
    /// Policers, asked in this order, each dropping what does not conform for its reason (`rate_limited`, `policed`):
    /// the guest's rate first. Past the capacity, police rules are ignored.
    pub meters: ArrayVec<(MeterId, DropReason), 4>,
    /// Guests that get a copy of the frame as it came in.
    pub mirror_in: ArrayVec<VifId, 4>,
    /// Guests that get a copy of the frame as it is delivered, or of the answer.
    pub mirror_out: ArrayVec<VifId, 4>,
    /// A neighbour to solicit though the packet does not wait for it: the next hop of one of a flood's tunnels, or of
    /// a mirror on another host.
    pub solicit: Option<(NeighbourScope, IpAddr)>,
    /// The rules that applied, for their counters: of both networks, those that go on before the one that decided.
    pub rules: ArrayVec<RuleId, 10>,
    /// The nexthop used, for its counter.
    pub nexthop: Option<NexthopId>,
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

/// The largest outer IP packet that the underlay carries to a tunnel's remote, as a router of it says (RFC 1191; RFC
/// 8201).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The remote.
    pub remote: IpAddr,
    /// Bytes.
    pub mtu: u16,
}

impl PathMtu {
    /// Seconds after which it is forgotten, and larger packets are tried again (RFC 1191, 6.3; RFC 8201, 4).
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
