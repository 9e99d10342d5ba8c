//! Routes and targets that the host announces, in the codec's types.

use crate::names::{Family, Rd};
use crate::own::Own;
use crate::route::{Announcement, Label, Nlri};
use ipnet::IpNet;
use netgauze_bgp_pkt::nlri::{
    EthernetSegmentIdentifier, EthernetTag, InclusiveMulticastEthernetTagRoute, Ipv4MplsVpnUnicastAddress,
    Ipv4Unicast, Ipv4UnicastAddress, Ipv6MplsVpnUnicastAddress, Ipv6Unicast, Ipv6UnicastAddress,
    L2EvpnAddress, L2EvpnIpPrefixRoute, L2EvpnIpv4PrefixRoute, L2EvpnIpv6PrefixRoute, L2EvpnRoute,
    LabeledIpv4NextHop, LabeledIpv6NextHop, LabeledNextHop, MacAddress, MacIpAdvertisement, MplsLabel,
    RouteDistinguisher, RouteTargetMembership, RouteTargetMembershipAddress,
};
use netgauze_bgp_pkt::path_attribute::{MpReach, MpUnreach};
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFrom;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One route.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    V4(Ipv4MplsVpnUnicastAddress),
    V6(Ipv6MplsVpnUnicastAddress),
    Evpn(L2EvpnAddress),
    Rtc(RouteTargetMembershipAddress),
    Unicast4(Ipv4UnicastAddress),
    Unicast6(Ipv6UnicastAddress),
}

/// The part of a message that has the routes.
#[derive(Debug)]
pub(super) enum Part {
    Reach(MpReach),
    Unreach(MpUnreach),
    /// IPv4 routes outside of attributes, whose next hop is one of its own (RFC 4271, 4.3).
    Plain(Ipv4Addr, Vec<Ipv4UnicastAddress>),
    PlainWithdrawn(Vec<Ipv4UnicastAddress>),
}

/// Label fields of withdrawn routes: of VPN families (RFC 8277, 2.4), and of EVPN.
const WITHDRAWN: ([u8; 3], [u8; 3]) = ([0x80, 0, 0], [0; 3]);

impl Piece {
    /// Makes the route of a name; without an announcement, it is withdrawn. Nothing: the codec has no form for it.
    pub(super) fn new(own: &Own, route: Option<&Announcement>, asn: u32) -> Option<Self> {
        let evpn = |route| Some(Self::Evpn(L2EvpnAddress::new(None, route)));
        let nlri = match own {
            Own::Target(target) => {
                let membership = RouteTargetMembership::new(asn, target.0);
                return Some(Self::Rtc(RouteTargetMembershipAddress::new(None, Some(membership))));
            }
            Own::Route(nlri) => nlri,
        };
        match *nlri {
            Nlri::Vpn { rd, prefix } => vpn(rd, prefix, route),
            Nlri::Prefix { rd, prefix } => evpn(L2EvpnRoute::IpPrefixRoute(type_5(rd, prefix, route)?)),
            Nlri::Mac { rd, mac, address } => {
                let mac = MacAddress::new(mac.0);
                let routed = route.and_then(|route| Some(evpn_label(route.label.with(route.routed?))));
                let (rd, routed) = (distinguisher(rd)?, routed.map(MplsLabel::new));
                let route = MacIpAdvertisement::new(rd, SEGMENT, TAG, mac, address, label_of(route), routed);
                evpn(L2EvpnRoute::MacIpAdvertisement(route))
            }
            Nlri::Flood { rd, originator } => {
                let route = InclusiveMulticastEthernetTagRoute::new(distinguisher(rd)?, TAG, originator);
                evpn(L2EvpnRoute::InclusiveMulticastEthernetTagRoute(route))
            }
            Nlri::Unicast { prefix: IpNet::V4(prefix) } => {
                let prefix = Ipv4Unicast::from_net(prefix).ok()?;
                Some(Self::Unicast4(Ipv4UnicastAddress::new(None, prefix)))
            }
            Nlri::Unicast { prefix: IpNet::V6(prefix) } => {
                let prefix = Ipv6Unicast::from_net(prefix).ok()?;
                Some(Self::Unicast6(Ipv6UnicastAddress::new(None, prefix)))
            }
        }
    }

    pub(super) fn length(&self) -> usize {
        match self {
            Self::V4(piece) => piece.len(),
            Self::V6(piece) => piece.len(),
            Self::Evpn(piece) => piece.len(),
            Self::Rtc(piece) => piece.len(),
            Self::Unicast4(piece) => piece.len(),
            Self::Unicast6(piece) => piece.len(),
        }
    }
}

/// No segment, no tag: the host is attached once, and a network is one broadcast domain.
const SEGMENT: EthernetSegmentIdentifier = EthernetSegmentIdentifier::new([0; 10]);
const TAG: EthernetTag = EthernetTag::new(0);

fn vpn(rd: Rd, prefix: IpNet, route: Option<&Announcement>) -> Option<Piece> {
    let label = match route.map(|route| route.label) {
        Some(Label::Mpls(label)) => mpls(label),
        Some(Label::Vni(_) | Label::None) => return None,
        None => WITHDRAWN.0,
    };
    let (rd, labels) = (distinguisher(rd)?, vec![MplsLabel::new(label)]);
    Some(match prefix {
        IpNet::V4(prefix) => {
            let prefix = Ipv4Unicast::from_net(prefix).ok()?;
            Piece::V4(Ipv4MplsVpnUnicastAddress::new(None, rd, labels, prefix))
        }
        IpNet::V6(prefix) => {
            let prefix = Ipv6Unicast::from_net(prefix).ok()?;
            Piece::V6(Ipv6MplsVpnUnicastAddress::new(None, rd, labels, prefix))
        }
    })
}

fn type_5(rd: Rd, prefix: IpNet, route: Option<&Announcement>) -> Option<L2EvpnIpPrefixRoute> {
    let (rd, label) = (distinguisher(rd)?, label_of(route));
    Some(match prefix {
        IpNet::V4(prefix) => {
            let none = Ipv4Addr::UNSPECIFIED;
            L2EvpnIpPrefixRoute::V4(L2EvpnIpv4PrefixRoute::new(rd, SEGMENT, TAG, prefix, none, label))
        }
        IpNet::V6(prefix) => {
            let none = Ipv6Addr::UNSPECIFIED;
            L2EvpnIpPrefixRoute::V6(L2EvpnIpv6PrefixRoute::new(rd, SEGMENT, TAG, prefix, none, label))
        }
    })
}

impl Label {
    /// Returns another label of the same kind.
    const fn with(self, value: u32) -> Self {
        match self {
            Self::Mpls(_) => Self::Mpls(value),
            Self::Vni(_) => Self::Vni(value),
            Self::None => Self::None,
        }
    }
}

/// Returns the label field of a label at the bottom of its stack.
const fn mpls(label: u32) -> [u8; 3] {
    let [_, a, b, c] = ((label << 4) | 1).to_be_bytes();
    [a, b, c]
}

/// Returns the label field of EVPN: 24 bits of a VNI, or a label as in VPN families.
pub(super) const fn evpn_label(label: Label) -> [u8; 3] {
    match label {
        Label::Mpls(label) => mpls(label),
        Label::Vni(vni) => {
            let [_, a, b, c] = vni.to_be_bytes();
            [a, b, c]
        }
        Label::None => [0; 3],
    }
}

fn label_of(route: Option<&Announcement>) -> MplsLabel {
    MplsLabel::new(route.map_or(WITHDRAWN.1, |route| evpn_label(route.label)))
}

fn distinguisher(rd: Rd) -> Option<RouteDistinguisher> {
    RouteDistinguisher::parse(&mut SliceReader::new(&rd.0)).ok()
}

/// Makes the part that announces routes of a family.
pub(super) fn reach(family: Family, pieces: Vec<Piece>, next_hop: IpAddr) -> Part {
    let none = RouteDistinguisher::As2Administrator { asn2: 0, number: 0 };
    let v6 = match next_hop {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let labeled = match next_hop {
        IpAddr::V4(address) if family != Family::Vpnv6 => {
            LabeledNextHop::Ipv4(LabeledIpv4NextHop::new(none, address))
        }
        _ => LabeledNextHop::Ipv6(LabeledIpv6NextHop::new(none, v6, None)),
    };
    let all = Sorted::of(pieces);
    Part::Reach(match family {
        Family::Vpnv4 => MpReach::Ipv4MplsVpnUnicast { next_hop: labeled, nlri: all.v4.into() },
        Family::Vpnv6 => MpReach::Ipv6MplsVpnUnicast { next_hop: labeled, nlri: all.v6.into() },
        Family::Evpn => MpReach::L2Evpn { next_hop, nlri: all.evpn.into() },
        Family::Rtc => MpReach::RouteTargetMembership { next_hop, nlri: all.rtc.into() },
        Family::Ipv4Unicast => match next_hop {
            IpAddr::V4(next_hop) => return Part::Plain(next_hop, all.unicast4),
            IpAddr::V6(_) => {
                MpReach::Ipv4Unicast { next_hop, next_hop_local: None, nlri: all.unicast4.into() }
            }
        },
        Family::Ipv6Unicast => {
            MpReach::Ipv6Unicast { next_hop_global: v6, next_hop_local: None, nlri: all.unicast6.into() }
        }
    })
}

/// Makes the part that withdraws routes of a family.
pub(super) fn unreach(family: Family, pieces: Vec<Piece>) -> Part {
    let all = Sorted::of(pieces);
    Part::Unreach(match family {
        Family::Vpnv4 => MpUnreach::Ipv4MplsVpnUnicast { nlri: all.v4.into() },
        Family::Vpnv6 => MpUnreach::Ipv6MplsVpnUnicast { nlri: all.v6.into() },
        Family::Evpn => MpUnreach::L2Evpn { nlri: all.evpn.into() },
        Family::Rtc => MpUnreach::RouteTargetMembership { nlri: all.rtc.into() },
        Family::Ipv4Unicast => return Part::PlainWithdrawn(all.unicast4),
        Family::Ipv6Unicast => MpUnreach::Ipv6Unicast { nlri: all.unicast6.into() },
    })
}

#[derive(Default)]
struct Sorted {
    v4: Vec<Ipv4MplsVpnUnicastAddress>,
    v6: Vec<Ipv6MplsVpnUnicastAddress>,
    evpn: Vec<L2EvpnAddress>,
    rtc: Vec<RouteTargetMembershipAddress>,
    unicast4: Vec<Ipv4UnicastAddress>,
    unicast6: Vec<Ipv6UnicastAddress>,
}

impl Sorted {
    fn of(pieces: Vec<Piece>) -> Self {
        let mut all = Self::default();
        for piece in pieces {
            match piece {
                Piece::V4(piece) => all.v4.push(piece),
                Piece::V6(piece) => all.v6.push(piece),
                Piece::Evpn(piece) => all.evpn.push(piece),
                Piece::Rtc(piece) => all.rtc.push(piece),
                Piece::Unicast4(piece) => all.unicast4.push(piece),
                Piece::Unicast6(piece) => all.unicast6.push(piece),
            }
        }
        all
    }
}
