//! Unsolicited announcements, sent once a second: new addresses, three times each, and the groups that this
//! host listens to.
//!
//! It compares what should be announced with what was announced. So it does not matter whether an address is
//! new because of the configuration, because its guest's link came up, or because it moved to a different
//! MAC.

use model::{Announcement, Lookup, NeighbourScope, Nexthop, Seconds, Unasked, VifId, VifKind, Vrf};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use tables::{Snapshot, View};

/// How often an address is announced, one second apart (RFC 4861, 10: MAX_NEIGHBOR_ADVERTISEMENT; RFC 5227, 1.1:
/// ANNOUNCE_NUM).
const TIMES: u8 = 3;
/// Most attempts, if the path to a tunnel's other end must be found first.
const TRIES: u8 = 10;
/// Most announcements in a second: there are many after a start.
const PER_SECOND: usize = 64;
/// Seconds between reports of the same groups: there are two within the time for which a switch with the shortest
/// usual timers remembers them (RFC 3810, 9.2: Query Interval 125 s, twice and a bit).
const REPORT_EVERY: Seconds = 60;

/// The interface and MAC of each address.
type Places = BTreeMap<(Vrf, IpAddr), (Option<VifId>, Mac)>;
/// The groups to report, by the addresses from which they derive.
type Listening = BTreeMap<NeighbourScope, BTreeSet<Ipv6Addr>>;

/// The announcements made so far, and those that are due.
#[derive(Default)]
pub(crate) struct Announcer {
    /// The tables from which the rest was made, and the interfaces that were up.
    of: Option<(Snapshot, BTreeSet<VifId>)>,
    places: Places,
    listening: Listening,
    /// Addresses still to be announced.
    due: VecDeque<Due>,
    /// When groups are reported next, and how many reports follow without a pause.
    report: (Seconds, u8),
}

/// An address, how often it is still to be announced, and how many attempts remain.
struct Due {
    key: (Vrf, IpAddr),
    times: u8,
    tries: u8,
}

impl Announcer {
    /// Returns the announcements to send in this second.
    pub fn tell(&mut self, view: &View<'_>, up: BTreeSet<VifId>) -> Vec<Unasked> {
        let same = |(of, was_up): &(Snapshot, _)| of.is_configured_as(view.snapshot()) && *was_up == up;
        if !self.of.as_ref().is_some_and(same) {
            self.follow(view, &up);
            self.of = Some((view.snapshot().clone(), up));
        }
        let mut all = self.announcements(view);
        all.extend(self.reports(view));
        all
    }

    fn follow(&mut self, view: &View<'_>, up: &BTreeSet<VifId>) {
        let places = places(view, up);
        let news =
            places.iter().filter(|(key, place)| self.places.get(key) != Some(place)).map(|(key, _)| *key);
        let news: BTreeSet<_> = news.collect();
        self.due.retain(|due| places.contains_key(&due.key) && !news.contains(&due.key));
        self.due.extend(news.into_iter().map(|key| Due { key, times: TIMES, tries: TRIES }));
        self.places = places;
        let listening = listening(view, up, &self.places);
        if self.listening != listening {
            (self.listening, self.report) = (listening, (view.now(), TIMES));
        }
    }

    fn announcements(&mut self, view: &View<'_>) -> Vec<Unasked> {
        let mut all = Vec::new();
        for _ in 0..PER_SECOND.min(self.due.len()) {
            let Some(Due { key, mut times, tries }) = self.due.pop_front() else { break };
            let Some((guest, _)) = self.places.get(&key) else { continue };
            let (vrf, addr) = key;
            let told = model::announce(view, &Announcement { vrf, addr, guest: *guest });
            times -= u8::from(told.iter().all(|told| told.missing.is_none()));
            all.extend(told);
            if times > 0 && tries > 1 {
                self.due.push_back(Due { key, times, tries: tries - 1 });
            }
        }
        all
    }

    fn reports(&mut self, view: &View<'_>) -> Vec<Unasked> {
        let (at, left) = &mut self.report;
        if view.now() < *at {
            return Vec::new();
        }
        *left = left.saturating_sub(1);
        *at = view.now() + if *left > 0 { 1 } else { REPORT_EVERY };
        let listening = self.listening.iter();
        let reports = listening.map(|(scope, addresses)| {
            model::report(view, *scope, &addresses.iter().copied().collect::<Vec<_>>())
        });
        reports.flatten().collect()
    }
}

/// Returns the addresses of guests whose link is up, the floating addresses of this host's guests, and those that guests
/// share.
fn places(view: &View<'_>, up: &BTreeSet<VifId>) -> Places {
    let mut places = Places::new();
    let snapshot = view.snapshot();
    for vif in snapshot.vifs().filter(|vif| up.contains(&vif.id) && !vif.is_second()) {
        if let (Some(vrf), Some(mac)) = (vif.vrf, vif.mac) {
            places.extend(vif.addresses.iter().map(|addr| ((vrf, *addr), (Some(vif.id), mac))));
        }
    }
    for floating in snapshot.floating() {
        if is_here(view, up, floating.inside_vrf, floating.inside) {
            let place = (None, model::GATEWAY_MAC);
            places.insert((floating.outside_vrf, floating.outside), place);
        }
    }
    for network in snapshot.networks() {
        let place = (None, model::GATEWAY_MAC);
        let shared = network.sharing.addresses.iter();
        places.extend(shared.map(|shared| ((shared.outside_vrf, shared.outside), place)));
    }
    places
}

/// Returns whether an inside address is on this host: it belongs to a guest whose link is up, or, as far as
/// is known, to no other host.
fn is_here(view: &View<'_>, up: &BTreeSet<VifId>, vrf: Vrf, addr: IpAddr) -> bool {
    if let Some(guest) = view.guest_by_address(vrf, addr) {
        return up.contains(&guest);
    }
    let nexthop = view.route(vrf, addr).and_then(|route| view.nexthop(route.nexthop));
    nexthop.is_none_or(|nexthop| matches!(*nexthop, Nexthop::Encap { .. } | Nexthop::Resolve { .. }))
}

/// Returns the IPv6 addresses for which this host answers solicitations from wires: those of the underlay
/// and, in networks attached to a wire, those of gateways and guests and floating ones.
fn listening(view: &View<'_>, up: &BTreeSet<VifId>, places: &Places) -> Listening {
    let mut listening = Listening::new();
    let mut add = |scope, addr| {
        if let IpAddr::V6(v6) = addr {
            listening.entry(scope).or_default().insert(v6);
        }
    };
    let snapshot = view.snapshot();
    for vif in snapshot.vifs().filter(|vif| vif.kind == VifKind::Wire && up.contains(&vif.id)) {
        let addresses = vif.wire.iter().flat_map(|wire| &wire.addresses);
        addresses.for_each(|subnet| add(NeighbourScope::Wire(vif.id), subnet.addr()));
    }
    let is_attached =
        |vrf| view.network(vrf).and_then(|network| network.wire).is_some_and(|wire| up.contains(&wire.vif));
    for network in snapshot.networks().filter(|network| is_attached(network.vrf)) {
        let gateways =
            network.gateways.iter().map(|net| net.addr()).filter(|addr| !network.is_metadata(*addr));
        gateways.for_each(|addr| add(NeighbourScope::Network(network.vrf), addr));
    }
    for (vrf, addr) in places.keys().filter(|(vrf, _)| is_attached(*vrf)) {
        add(NeighbourScope::Network(*vrf), *addr);
    }
    listening
}
