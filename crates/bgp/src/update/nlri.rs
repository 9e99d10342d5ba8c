//! Names in an UPDATE: prefixes, MAC addresses, floods.
//!
//! Pieces are found here by their lengths, and then read by the codec one by one: one that it does not take is left
//! out, and spoils no other. A reflector passes on what others sent, so ending its session would help nobody.

use crate::names::{Family, Rd};
use ipnet::IpNet;
use netgauze_bgp_pkt::nlri::{
    EthernetSegmentIdentifier, Ipv4MplsVpnUnicastAddress, Ipv6MplsVpnUnicastAddress, L2EvpnIpPrefixRoute,
    L2EvpnRoute, MplsLabel, RouteDistinguisher,
};
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::{ParseFrom, ParseFromWithThreeInputs};
use packet::Mac;
use std::net::IpAddr;

/// The subject of a route, in any network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Prefix(IpNet),
    Mac(Mac, Option<IpAddr>),
    Flood(IpAddr),
}

/// The kind of a route's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Vpn,
    Evpn,
    /// A prefix alone.
    Plain,
}

/// The name of a route among those of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) place: Place,
    pub(crate) rd: Rd,
    pub(crate) kind: Kind,
    /// The Ethernet tag. As bytes, the name needs no alignment.
    pub(crate) tag: [u8; 4],
}

impl Name {
    pub(crate) const fn family(&self) -> Family {
        match (self.kind, self.place) {
            (Kind::Evpn, _) => Family::Evpn,
            (Kind::Vpn, Place::Prefix(IpNet::V6(_))) => Family::Vpnv6,
            (Kind::Vpn, _) => Family::Vpnv4,
            (Kind::Plain, Place::Prefix(IpNet::V6(_))) => Family::Ipv6Unicast,
            (Kind::Plain, _) => Family::Ipv4Unicast,
        }
    }
}

/// The number by which a peer tells paths of one route apart (RFC 7911). As bytes, it needs no alignment.
pub(crate) type PathId = [u8; 4];

/// One route of an UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: Name,
    /// 0 of a peer that sends one path of each route.
    pub(crate) path: PathId,
    /// The label field. The encapsulation says how to read it.
    pub(crate) label: [u8; 3],
    /// The second label field of a MAC address.
    pub(crate) routed: Option<[u8; 3]>,
    /// Whether it needs more than its label: a prefix behind a gateway or segment, whose own route would have to be found;
    /// a broadcast domain of several in one network (an Ethernet tag).
    pub(crate) is_indirect: bool,
}

/// The pieces do not fill their room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The form in which routes are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) family: Family,
    /// If true, a number for the path is before each.
    pub(crate) has_paths: bool,
    pub(crate) is_withdrawn: bool,
}

/// Reads routes one by one. Nothing stands for one that can't be used: an unknown type, a wrong value, a target.
pub(crate) fn read(form: Form, bytes: &[u8], mut each: impl FnMut(Option<Item>)) -> Result<(), Malformed> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut path = PathId::default();
        if form.has_paths {
            (path, rest) = rest.split_first_chunk().map(|(path, rest)| (*path, rest)).ok_or(Malformed)?;
        }
        let length = match (form.family, rest) {
            (Family::Evpn, [_, length, ..]) => 2 + usize::from(*length),
            (Family::Evpn, _) | (_, []) => return Err(Malformed),
            (_, [bits, ..]) => 1 + usize::from(bits.div_ceil(8)),
        };
        let (piece, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
        each(item(form, path, piece));
        rest = behind;
    }
    Ok(())
}

fn item(Form { family, is_withdrawn: withdrawn, .. }: Form, path: PathId, piece: &[u8]) -> Option<Item> {
    let mut piece = SliceReader::new(piece);
    let (rd, prefix, labels) = match family {
        Family::Vpnv4 => {
            let route = Ipv4MplsVpnUnicastAddress::parse(&mut piece, false, withdrawn, 1).ok()?;
            (route.rd(), IpNet::V4(route.network().address()), route.label_stack().first().copied())
        }
        Family::Vpnv6 => {
            let route = Ipv6MplsVpnUnicastAddress::parse(&mut piece, false, withdrawn, 1).ok()?;
            (route.rd(), IpNet::V6(route.network().address()), route.label_stack().first().copied())
        }
        Family::Evpn => return evpn(path, L2EvpnRoute::parse(&mut piece).ok()?),
        Family::Ipv4Unicast => return Some(plain(path, prefix::<4>(piece.as_slice())?)),
        Family::Ipv6Unicast => return Some(plain(path, prefix::<16>(piece.as_slice())?)),
        Family::Rtc => return None,
    };
    let name = Name { place: Place::Prefix(prefix.trunc()), rd: rd_of(rd), kind: Kind::Vpn, tag: [0; 4] };
    // The codec takes one label. If there are more, the next one is no distinguisher.
    let label = *labels.filter(|label| withdrawn || label.is_bottom())?.value();
    Some(Item { name, path, label, routed: None, is_indirect: false })
}

fn plain(path: PathId, prefix: IpNet) -> Item {
    let name = Name { place: Place::Prefix(prefix.trunc()), rd: Rd([0; 8]), kind: Kind::Plain, tag: [0; 4] };
    Item { name, path, label: [0; 3], routed: None, is_indirect: false }
}

/// Reads a length in bits, and the first octets of an address, which may have `N`.
fn prefix<const N: usize>(piece: &[u8]) -> Option<IpNet>
where
    IpAddr: From<[u8; N]>,
{
    let (bits, octets) = piece.split_first()?;
    let mut address = [0; N];
    address.get_mut(..octets.len())?.copy_from_slice(octets);
    IpNet::new(address.into(), *bits).ok()
}

fn evpn(path: PathId, route: L2EvpnRoute) -> Option<Item> {
    let name = |place, rd, tag: u32| Name { place, rd: rd_of(rd), kind: Kind::Evpn, tag: tag.to_be_bytes() };
    let prefix = |prefix: IpNet, rd, tag, label: &MplsLabel, is_indirect: bool| Item {
        name: name(Place::Prefix(prefix.trunc()), rd, tag),
        path,
        label: *label.value(),
        routed: None,
        is_indirect: is_indirect || tag != 0,
    };
    let is_segment = |segment: &EthernetSegmentIdentifier| segment.value() != &[0; 10];
    match route {
        L2EvpnRoute::MacIpAdvertisement(route) => Some(Item {
            name: name(Place::Mac(Mac(*route.mac().value()), route.ip()), route.rd(), route.tag().value()),
            path,
            label: *route.mpls_label1().value(),
            routed: route.mpls_label2().map(|label| *label.value()),
            is_indirect: route.tag().value() != 0,
        }),
        // The label is in an attribute.
        L2EvpnRoute::InclusiveMulticastEthernetTagRoute(route) => Some(Item {
            name: name(Place::Flood(route.ip()), route.rd(), route.tag().value()),
            path,
            label: [0; 3],
            routed: None,
            is_indirect: route.tag().value() != 0,
        }),
        L2EvpnRoute::IpPrefixRoute(L2EvpnIpPrefixRoute::V4(route)) => {
            let is_indirect = !route.gateway().is_unspecified() || is_segment(route.segment_id());
            Some(prefix(route.prefix().into(), route.rd(), route.tag().value(), route.label(), is_indirect))
        }
        L2EvpnRoute::IpPrefixRoute(L2EvpnIpPrefixRoute::V6(route)) => {
            let is_indirect = !route.gateway().is_unspecified() || is_segment(route.segment_id());
            Some(prefix(route.prefix().into(), route.rd(), route.tag().value(), route.label(), is_indirect))
        }
        _ => None,
    }
}

fn rd_of(rd: RouteDistinguisher) -> Rd {
    Rd(u64::from(rd).to_be_bytes())
}
