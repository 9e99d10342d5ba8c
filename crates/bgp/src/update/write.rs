//! Writing UPDATE messages: routes with equal attributes share them.

use super::piece::{self, Part, Piece};
use crate::config::{Config, PeerConfig};
use crate::message::{self, Kind};
use crate::names::{Encapsulation, Family, RouteTarget};
use crate::open::AS_TRANS;
use crate::own::{Own, Routes};
use crate::route::{Announcement, LEAVING, Label, Mobility, Nlri};
use crate::session::{Agreed, OUTPUT};
use netgauze_bgp_pkt::community::{Community, ExtendedCommunity, UnknownExtendedCommunity};
use netgauze_bgp_pkt::path_attribute::{
    As2PathSegment, As4Path, As4PathSegment, AsPath, AsPathSegmentType, Communities, ExtendedCommunities,
    LocalPreference, NextHop, Origin, PathAttribute, PathAttributeValue, UnknownAttribute,
};
use netgauze_bgp_pkt::update::BgpUpdateMessage;
use netgauze_parse_utils::WritablePdu;
use packet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most targets of a route: more would leave no room for it in a message.
const MAX_TARGETS: usize = 256;

/// How often the own AS is in the path of a route that is about to end.
const LEAVING_TIMES: usize = 3;

/// Octets of a message besides other attributes and routes: its header, two lengths, and MP_REACH_NLRI without routes.
const FIXED: usize = 19 + 4 + 4 + 5 + 24;

/// Everything that writing depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) config: &'a Config,
    pub(crate) peer: &'a PeerConfig,
    pub(crate) agreed: &'a Agreed,
}

/// Everything that routes of one message have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shared<'a> {
    family: Family,
    next_hop: IpAddr,
    encapsulation: Option<Encapsulation>,
    targets: &'a [RouteTarget],
    router_mac: Option<Mac>,
    mobility: Option<Mobility>,
    preference: u32,
    /// The label and the end of a tunnel for floods.
    flood: Option<([u8; 3], IpAddr)>,
}

impl Writer<'_> {
    /// Writes announcements, and withdrawals of what is not announced, until there is enough output. Returns the number
    /// of messages, and those for which there was no room.
    pub(crate) fn write<'a>(
        &self,
        names: impl Iterator<Item = Own>,
        routes: &'a Routes,
        has_target: impl Fn(RouteTarget) -> bool,
        out: &mut Vec<u8>,
    ) -> (u64, Vec<Own>) {
        let mut groups: BTreeMap<Option<Shared<'a>>, BTreeMap<Family, Vec<Own>>> = BTreeMap::new();
        for own in names {
            let shared = match &own {
                Own::Target(target) => has_target(*target).then(|| self.shared_by_targets()),
                Own::Route(nlri) => routes.get(nlri).map(|route| self.shared(nlri, route)),
            };
            let unsent = |Shared { family, next_hop, .. }: &Shared<'_>| {
                family.is_v4() && next_hop.is_ipv6() && !self.agreed.v6_next_hops.contains(family)
            };
            let group = groups.entry(shared.filter(|shared| !unsent(shared))).or_default();
            group.entry(own.family()).or_default().push(own);
        }
        let (mut messages, mut left) = (0, Vec::new());
        for (shared, families) in groups {
            for (family, names) in families {
                if out.len() >= OUTPUT {
                    left.extend(names);
                    continue;
                }
                messages += self.group(shared.as_ref(), family, &names, routes, out);
            }
        }
        (messages, left)
    }

    /// Writes the mark that all routes of a family were sent (RFC 4724, 2).
    pub(crate) fn end_of_rib(&self, family: Family, out: &mut Vec<u8>) {
        update(piece::unreach(family, Vec::new()), &[], out);
    }

    fn shared_by_targets(&self) -> Shared<'static> {
        Shared {
            family: Family::Rtc,
            next_hop: self.config.router_id.into(),
            encapsulation: None,
            targets: &[],
            router_mac: None,
            mobility: None,
            preference: 100,
            flood: None,
        }
    }

    fn shared<'a>(&self, nlri: &Nlri, route: &'a Announcement) -> Shared<'a> {
        let encapsulation = match (route.label, self.peer.encapsulation) {
            (Label::None, _) => None,
            (Label::Vni(_), _) => Some(Encapsulation::Vxlan),
            (Label::Mpls(_), Encapsulation::Vxlan) => Some(Encapsulation::MplsUdp),
            (Label::Mpls(_), chosen) => Some(chosen),
        };
        let flood = match nlri {
            Nlri::Flood { originator, .. } => Some((piece::evpn_label(route.label), *originator)),
            _ => None,
        };
        Shared {
            family: Own::Route(*nlri).family(),
            next_hop: route.next_hop,
            encapsulation,
            targets: &route.targets[..route.targets.len().min(MAX_TARGETS)],
            router_mac: route.router_mac,
            mobility: route.mobility,
            preference: route.preference,
            flood,
        }
    }

    fn group(
        &self,
        shared: Option<&Shared<'_>>,
        family: Family,
        names: &[Own],
        routes: &Routes,
        out: &mut Vec<u8>,
    ) -> u64 {
        let attributes = shared.map_or_else(Vec::new, |shared| self.attributes(shared));
        let length: usize = attributes.iter().map(WritablePdu::len).sum();
        let room = self.agreed.longest() - FIXED - length;
        let (mut pieces, mut used, mut messages) = (Vec::new(), 0, 0);
        let mut flush = |pieces: Vec<Piece>| {
            let first = match shared {
                Some(shared) => piece::reach(family, pieces, shared.next_hop),
                None => piece::unreach(family, pieces),
            };
            update(first, &attributes, out);
            messages += 1;
        };
        for own in names {
            let route = match own {
                Own::Route(nlri) if shared.is_some() => routes.get(nlri),
                _ => None,
            };
            let Some(piece) = Piece::new(own, route, self.config.asn) else { continue };
            if used + piece.length() > room {
                flush(std::mem::take(&mut pieces));
                used = 0;
            }
            used += piece.length();
            pieces.push(piece);
        }
        if !pieces.is_empty() {
            flush(pieces);
        }
        messages
    }

    /// Makes all attributes but the routes.
    fn attributes(&self, shared: &Shared<'_>) -> Vec<PathAttribute> {
        let external = self.peer.asn != self.config.asn;
        let mut all = vec![PathAttributeValue::Origin(Origin::IGP)];
        all.extend(self.path(external, shared.preference == LEAVING));
        if !external {
            all.push(PathAttributeValue::LocalPreference(LocalPreference::new(shared.preference)));
        }
        if shared.preference == LEAVING {
            let leaves = Community::new(super::GRACEFUL_SHUTDOWN);
            all.push(PathAttributeValue::Communities(Communities::new([leaves])));
        }
        let communities = communities(shared);
        if !communities.is_empty() {
            all.push(PathAttributeValue::ExtendedCommunities(ExtendedCommunities::new(communities)));
        }
        if let Some((label, end)) = shared.flood {
            // Flags, ingress replication, label, the address of its end (RFC 6514, 5).
            let mut value = vec![0, 6];
            value.extend(label);
            match end {
                IpAddr::V4(end) => value.extend(end.octets()),
                IpAddr::V6(end) => value.extend(end.octets()),
            }
            all.push(PathAttributeValue::UnknownAttribute(UnknownAttribute::new(22, value)));
        }
        all.into_iter().filter_map(attribute).collect()
    }

    fn path(&self, external: bool, leaves: bool) -> Vec<PathAttributeValue> {
        let (asn, sequence) = (self.config.asn, AsPathSegmentType::AsSequence);
        // A longer path is avoided also by who knows no community for that.
        let times = if leaves { LEAVING_TIMES } else { 1 };
        let wide =
            || if external { vec![As4PathSegment::new(sequence, vec![asn; times])] } else { Vec::new() };
        if self.agreed.as4 {
            return vec![PathAttributeValue::AsPath(AsPath::as4_path_segments(wide()))];
        }
        let narrow = u16::try_from(asn).unwrap_or(AS_TRANS);
        let narrow =
            if external { vec![As2PathSegment::new(sequence, vec![narrow; times])] } else { Vec::new() };
        let mut all = vec![PathAttributeValue::AsPath(AsPath::as2_path_segments(narrow))];
        if external && asn > u32::from(u16::MAX) {
            all.push(PathAttributeValue::As4Path(As4Path::new(wide())));
        }
        all
    }
}

fn communities(shared: &Shared<'_>) -> Vec<ExtendedCommunity> {
    let mut all: Vec<[u8; 8]> = shared.targets.iter().map(|target| target.0).collect();
    if let Some(encapsulation) = shared.encapsulation {
        let [high, low] = encapsulation.code().to_be_bytes();
        all.push([3, 0x0c, 0, 0, 0, 0, high, low]);
    }
    if let Some(Mac([a, b, c, d, e, f])) = shared.router_mac {
        all.push([6, 3, a, b, c, d, e, f]);
    }
    if let Some(Mobility { sticky, sequence }) = shared.mobility {
        let [a, b, c, d] = sequence.to_be_bytes();
        all.push([6, 0, sticky.into(), 0, a, b, c, d]);
    }
    let raw = |[code, kind, rest @ ..]: [u8; 8]| UnknownExtendedCommunity::new(code, kind, rest);
    all.into_iter().map(|bytes| ExtendedCommunity::Unknown(raw(bytes))).collect()
}

/// Gives an attribute the flags that it must have.
fn attribute(value: PathAttributeValue) -> Option<PathAttribute> {
    let unknown = matches!(value, PathAttributeValue::UnknownAttribute(_));
    let optional = value.can_be_optional().unwrap_or(unknown);
    let transitive = value.can_be_transitive().unwrap_or(unknown);
    let long = match &value {
        PathAttributeValue::MpReach(_) | PathAttributeValue::MpUnreach(_) => true,
        PathAttributeValue::ExtendedCommunities(value) => value.communities().len() > 31,
        _ => false,
    };
    PathAttribute::from(optional, transitive, false, long, value).ok()
}

fn update(part: Part, rest: &[PathAttribute], out: &mut Vec<u8>) {
    let (mut withdrawn, mut plain) = (Vec::new(), Vec::new());
    let first = match part {
        Part::Reach(reach) => Some(PathAttributeValue::MpReach(reach)),
        Part::Unreach(unreach) => Some(PathAttributeValue::MpUnreach(unreach)),
        Part::Plain(next_hop, routes) => {
            plain = routes;
            Some(PathAttributeValue::NextHop(NextHop::new(next_hop)))
        }
        Part::PlainWithdrawn(routes) => {
            withdrawn = routes;
            None
        }
    };
    let attributes: Vec<_> = first.and_then(attribute).into_iter().chain(rest.iter().cloned()).collect();
    let mut body = Vec::new();
    // Memory takes all that is written, and the pieces fit.
    let written = BgpUpdateMessage::new(withdrawn, attributes, plain).write(&mut body);
    debug_assert_eq!(written, Ok(()));
    message::write(out, Kind::Update, &body);
}
