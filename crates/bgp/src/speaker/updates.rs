//! UPDATE messages: what they change in the table.

use super::Speaker;
use crate::bandwidth::Bandwidth;
use crate::config::{Config, PeerConfig};
use crate::names::{Encapsulation, Family, RouteTarget};
use crate::notification::{self, Notification, cease};
use crate::peer::Peer;
use crate::rib::{Attributes, AttributesId, Key, PeerId, Put, Rib, Route, Way};
use crate::route::{LEAVING, Mobility};
use crate::status::Counts;
use crate::update::nlri::{self, Form, Item, Kind, Place};
use crate::update::read::{self, Context, Reach, Update};
use ipnet::IpNet;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// LOCAL_PREF of routes that have none.
const PREFERENCE: u32 = 100;
/// Targets that are kept of a route, besides those that the host imports.
const TARGETS: usize = 32;
/// MPLS labels below have meanings of their own (RFC 3032, 2.1).
const FIRST_LABEL: u32 = 16;

/// A counter of routes that are not kept.
type Count = fn(&mut Counts) -> &mut u64;

/// The fate of the routes of an UPDATE.
#[derive(Clone, Copy)]
enum Taken {
    /// They are kept with these attributes.
    With(AttributesId),
    /// They are withdrawn, and counted here.
    Without(Count),
}

impl Speaker {
    /// Handles an UPDATE.
    pub(super) fn update(&mut self, id: PeerId, body: &[u8], now: Duration) -> Result<(), Notification> {
        let Self { peers, rib, config, .. } = self;
        let Some(peer) = peers.get_mut(&id) else { return Ok(()) };
        let Some(session) = peer.up() else { return Ok(()) };
        let external = peer.config.asn != config.asn;
        let context =
            Context { as4: session.agreed.as4, external, asn: config.asn, router_id: config.router_id };
        let mut update = read::read(body, &context)?;
        let (families, paths) = (session.agreed.families.clone(), session.agreed.paths.clone());
        let router_id = session.agreed.router_id.unwrap_or(config.router_id);
        peer.counts.updates_received += 1;
        peer.heard = now;
        // Families that were not agreed on are not for this speaker.
        if update.reach.is_some_and(|reach| !families.contains(&reach.family)) {
            update.reach = None;
            update.foreign = true;
        }
        if update.unreach.is_some_and(|(family, _)| !families.contains(&family)) {
            update.unreach = None;
            update.foreign = true;
        }
        let takes_plain = families.contains(&Family::Ipv4Unicast);
        update.foreign |= !takes_plain && update.plain != (&[], &[]);
        peer.counts.foreign += u64::from(update.foreign);
        if let Some(family) = update.end_of_rib().filter(|family| families.contains(family)) {
            self.end_of_rib(id, family);
            return Ok(());
        }
        let has_paths = |family| paths.contains(&family);
        let plain = takes_plain.then_some((Family::Ipv4Unicast, update.plain.0));
        for (family, bytes) in update.unreach.into_iter().chain(plain) {
            let form = Form { family, has_paths: has_paths(family), is_withdrawn: true };
            nlri::read(form, bytes, |item| match item {
                Some(item) => peer.routes -= usize::from(rib.remove(&Key::new(item.name, id, item.path))),
                None => peer.counts.unknown += u64::from(family != Family::Rtc),
            })?;
        }
        if let Some(reach) = &update.reach {
            self.reached(id, &update, (reach, has_paths(reach.family)), router_id)?;
        }
        if takes_plain && !update.plain.1.is_empty() {
            let next_hop = update.attributes.next_hop.unwrap_or(Ipv4Addr::UNSPECIFIED).into();
            let reach = Reach { family: Family::Ipv4Unicast, next_hop, nlri: update.plain.1 };
            self.reached(id, &update, (&reach, false), router_id)?;
        }
        Ok(())
    }

    /// Handles the routes of an UPDATE that have one next hop.
    fn reached(
        &mut self,
        id: PeerId,
        update: &Update<'_>,
        (reach, has_paths): (&Reach<'_>, bool),
        router_id: Ipv4Addr,
    ) -> Result<(), Notification> {
        let Self { peers, rib, config, .. } = self;
        let Some(peer) = peers.get_mut(&id) else { return Ok(()) };
        let mut take = |is_default| match attributes(
            update,
            (reach, is_default),
            config,
            &peer.config,
            rib,
            router_id,
        ) {
            Ok(attributes) => Taken::With(rib.hold(attributes)),
            Err(count) => Taken::Without(count),
        };
        // Default routes may go where others do not.
        let other = take(false);
        let default = if reach.family.is_plain() { take(true) } else { other };
        let flood_label = update.attributes.flood_label;
        let result = put(id, peer, rib, &[other, default], (reach, has_paths), flood_label);
        for taken in [other, default].iter().take(if reach.family.is_plain() { 2 } else { 1 }) {
            if let Taken::With(attributes) = taken {
                rib.release(*attributes);
            }
        }
        result?;
        self.check_number(id, reach.family)
    }

    /// Checks that a peer has not sent too many routes. Stale ones go first.
    fn check_number(&mut self, id: PeerId, family: Family) -> Result<(), Notification> {
        let too_many = |speaker: &Self| {
            let peer = speaker.peers.get(&id).filter(|peer| peer.routes > peer.config.max_routes)?;
            Some(peer.config.max_routes)
        };
        if too_many(self).is_some() {
            self.expired(id);
        }
        let Some(most) = too_many(self) else { return Ok(()) };
        let [a, b, _, safi] = family.codes();
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let data = [&[a, b, safi][..], &most.to_be_bytes()].concat();
        Err(Notification::with(notification::CEASE, cease::MAX_ROUTES, &data))
    }
}

fn put(
    id: PeerId,
    peer: &mut Peer,
    rib: &mut Rib,
    taken: &[Taken; 2],
    (reach, has_paths): (&Reach<'_>, bool),
    flood_label: Option<[u8; 3]>,
) -> Result<(), Notification> {
    let (round, counts) = (peer.rounds[reach.family as usize], &mut peer.counts);
    let mut routes = peer.routes;
    let form = Form { family: reach.family, has_paths, is_withdrawn: false };
    let result = nlri::read(form, reach.nlri, |item| {
        let Some(item) = item else {
            counts.unknown += u64::from(reach.family != Family::Rtc);
            return;
        };
        let key = Key::new(item.name, id, item.path);
        let is_default = matches!(item.name.place, Place::Prefix(prefix) if prefix.prefix_len() == 0);
        let route = match taken[usize::from(is_default)] {
            Taken::With(attributes) => {
                let route = route(&item, flood_label, rib.attributes(attributes));
                counts.unusable += u64::from(route.is_none());
                route.map(|(label, routed)| Route { attributes, label, routed, round })
            }
            Taken::Without(count) => {
                *count(counts) += 1;
                None
            }
        };
        match route {
            Some(route) => match rib.put(key, route) {
                Put::New => routes += 1,
                Put::Replaced => {}
                Put::Crowded => counts.crowded += 1,
            },
            None => routes -= usize::from(rib.remove(&key)),
        }
    });
    peer.routes = routes;
    Ok(result?)
}

/// Returns the attributes to keep routes with, or where to count those that are not kept.
fn attributes(
    update: &Update<'_>,
    (reach, is_default): (&Reach<'_>, bool),
    config: &Config,
    peer: &PeerConfig,
    rib: &Rib,
    router_id: Ipv4Addr,
) -> Result<Attributes, Count> {
    let its = &update.attributes;
    let path = its.path.unwrap_or_default();
    if update.fault.is_some() {
        return Err(|counts| &mut counts.malformed);
    }
    let links = || rib.imports().links(is_default, peer.address).filter(|_| reach.family.is_plain());
    if reach.family.is_plain() && links().next().is_none() {
        return Err(|counts| &mut counts.unused);
    }
    let is_on_link = links().any(|(_, link)| link.reaches(reach.next_hop));
    let is_own = !is_on_link && links().any(|(_, link)| link.is_own(reach.next_hop));
    if config.own.contains(&reach.next_hop) || is_own {
        return Err(|counts| &mut counts.own);
    }
    if its.looped || path.looped {
        return Err(|counts| &mut counts.looped);
    }
    let communities = Communities::read(its.communities, rib);
    let way = if reach.family.is_plain() {
        Way::Link { is_default, router: peer.address }
    } else {
        communities.way(reach, config, peer)?
    };
    if !is_host(reach.next_hop) || (reach.family.is_plain() && !is_on_link) {
        return Err(|counts| &mut counts.unusable);
    }
    Ok(Attributes {
        next_hop: reach.next_hop,
        way,
        router_mac: communities.router_mac,
        mobility: communities.mobility,
        bandwidth: communities.bandwidth,
        preference: if its.leaves { LEAVING } else { its.preference.unwrap_or(PREFERENCE) },
        path: path.length,
        neighbour: path.neighbour,
        origin: its.origin.unwrap_or(2),
        med: its.med.unwrap_or(0),
        external: peer.asn != config.asn,
        originator: its.originator.unwrap_or(router_id),
        clusters: its.clusters,
        targets: communities.targets.into(),
    })
}

/// Extended communities that matter.
#[derive(Debug, Default)]
struct Communities {
    /// All that the host imports, and some others, sorted.
    targets: Vec<RouteTarget>,
    /// Whether the host imports one of them.
    wanted: bool,
    encapsulations: Vec<Encapsulation>,
    /// Whether encapsulations are named, known or not.
    named: bool,
    router_mac: Option<Mac>,
    mobility: Mobility,
    /// The first one.
    bandwidth: Option<Bandwidth>,
}

impl Communities {
    fn read(bytes: &[u8], rib: &Rib) -> Self {
        let mut all = Self::default();
        for community in bytes.as_chunks().0 {
            match *community {
                [3, 0x0c, _, _, _, _, high, low] => {
                    all.named = true;
                    all.encapsulations.extend(Encapsulation::of_code(u16::from_be_bytes([high, low])));
                }
                [6, 3, mac @ ..] => {
                    all.router_mac = Some(Mac(mac)).filter(|mac| !mac.is_group() && !mac.is_zero())
                }
                [6, 0, flags, _, a, b, c, d] => {
                    all.mobility =
                        Mobility { sticky: flags & 1 != 0, sequence: u32::from_be_bytes([a, b, c, d]) };
                }
                // Transitive or not; an AS number follows, which says only who set it.
                [0x00 | 0x40, 4, _, _, a, b, c, d] => {
                    all.bandwidth = all.bandwidth.or(Bandwidth::read([a, b, c, d]));
                }
                bytes => {
                    let Some(target) = RouteTarget::of_community(bytes) else { continue };
                    let imported = rib.imports().has(target);
                    all.wanted |= imported;
                    if imported || all.targets.len() < TARGETS {
                        all.targets.push(target);
                    }
                }
            }
        }
        all.targets.sort_unstable();
        all.targets.dedup();
        all
    }

    /// Returns the way of routes that networks import by targets, or where to count those that are not kept.
    fn way(&self, reach: &Reach<'_>, config: &Config, peer: &PeerConfig) -> Result<Way, Count> {
        if !self.wanted {
            return Err(|counts| &mut counts.unwanted);
        }
        match self.choose(reach.family, config, peer) {
            Some(encapsulation) => Ok(Way::Tunnel(encapsulation)),
            None => Err(|counts| &mut counts.encapsulation),
        }
    }

    /// Returns the encapsulation by which to send: of those named the preferred one, else that of the peer.
    fn choose(&self, family: Family, config: &Config, peer: &PeerConfig) -> Option<Encapsulation> {
        let is_mpls = |one: Encapsulation| one != Encapsulation::Vxlan;
        let fits = |one: Encapsulation| family == Family::Evpn || is_mpls(one);
        let usual = if fits(peer.encapsulation) { peer.encapsulation } else { Encapsulation::MplsUdp };
        let offered = |one: Encapsulation| {
            if self.named { self.encapsulations.contains(&one) } else { one == usual }
        };
        config.encapsulations.iter().copied().find(|one| fits(*one) && offered(*one))
    }
}

/// Returns the label of a route, and that of routed packets to a host (0: none). Nothing: the route can't be used.
fn route(item: &Item, flood_label: Option<[u8; 3]>, attributes: &Attributes) -> Option<(u32, u32)> {
    let vxlan = attributes.way == Way::Tunnel(Encapsulation::Vxlan);
    let read = |[a, b, c]: [u8; 3]| {
        let field = u32::from_be_bytes([0, a, b, c]);
        let (label, first) = if vxlan { (field, 1) } else { (field >> 4, FIRST_LABEL) };
        (label >= first).then_some(label)
    };
    // Routed packets in VXLAN have a MAC header.
    let routable = !vxlan || attributes.router_mac.is_some();
    if item.is_indirect {
        return None;
    }
    match item.name.place {
        Place::Prefix(prefix) if item.name.kind == Kind::Plain => is_unicast(prefix).then_some((0, 0)),
        Place::Prefix(prefix) => {
            let good = is_unicast(prefix) && (item.name.kind != Kind::Evpn || routable);
            Some((read(item.label).filter(|_| good)?, 0))
        }
        Place::Mac(mac, address) => {
            let good = !mac.is_group() && !mac.is_zero() && address.is_none_or(is_host);
            let routed = item.routed.filter(|_| routable && address.is_some()).and_then(read);
            Some((read(item.label).filter(|_| good)?, routed.unwrap_or(0)))
        }
        Place::Flood(_) => Some((read(flood_label?)?, 0)),
    }
}

fn is_unicast(prefix: IpNet) -> bool {
    !prefix.addr().is_multicast()
}

/// Returns whether an address can be a host's.
fn is_host(address: IpAddr) -> bool {
    let special = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    match address {
        IpAddr::V4(address) => !special && !address.is_broadcast(),
        IpAddr::V6(address) => !special && !address.is_unicast_link_local(),
    }
}
