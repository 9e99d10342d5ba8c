//! The kernel's paths to the remotes of tunnels.

use control::{Underlay, UnderlayWire};
use model::{Change, KernelPath, VifId};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Event, Hop, Subnet, Way};

/// Most remotes that are followed.
const MOST_REMOTES: usize = 4096;
/// Most remotes for which the kernel is asked in one turn.
const MOST_ASKED: usize = 256;
/// Most neighbours in one request to the kernel, and in one turn.
pub(super) const MOST_SOUGHT: usize = 64;
const MOST_SOUGHT_IN_A_TURN: usize = 8 * MOST_SOUGHT;
/// Most remotes without a path that are told of.
const MOST_TOLD: usize = 8;
/// How often the kernel looks for a neighbour that it does not find, and whether one that it knows is still there. Packets
/// of ours show the kernel neither that the neighbour is in use, nor that it answers.
const AGAIN: Duration = Duration::from_secs(2);
const STALE: Duration = Duration::from_secs(20);

/// Questions to the kernel.
pub(super) trait Kernel {
    fn way(&self, from: IpAddr, to: IpAddr) -> io::Result<Way>;
    fn neighbour(&self, device: i32, addr: IpAddr) -> io::Result<Option<[u8; 6]>>;
    fn has(&self, addr: IpAddr) -> io::Result<bool>;
    fn device(&self, name: &str) -> io::Result<i32>;
}

/// A neighbour: the index of its device, and its address.
type Neighbour = (i32, IpAddr);

#[derive(Default)]
pub(super) struct Paths {
    wanted: Underlay,
    /// Remotes that are followed besides, because they are watched, or BGP routes name them: no tunnel may lead there.
    besides: Arc<BTreeSet<IpAddr>>,
    /// The wires that the kernel keeps, by the index of their device.
    wires: HashMap<i32, VifId>,
    remotes: BTreeMap<IpAddr, Remote>,
    /// Remotes for which the kernel is to be asked.
    due: BTreeSet<IpAddr>,
    neighbours: BTreeMap<Neighbour, Known>,
}

/// A remote as it was last found.
#[derive(Default)]
struct Remote {
    hops: Vec<Neighbour>,
    paths: Vec<KernelPath>,
    /// The reason why there are no paths.
    lacks: Option<String>,
    /// Whether the kernel did not answer.
    is_unknown: bool,
}

/// A neighbour as it was last found.
#[derive(Default)]
struct Known {
    is_found: bool,
    sought: Option<Instant>,
    /// The remotes to which it leads.
    remotes: BTreeSet<IpAddr>,
}

impl Paths {
    /// Follows other wires and remotes from now on. All are asked for again if the wires or sources are different.
    pub(super) fn want(&mut self, kernel: &dyn Kernel, wanted: Underlay, besides: Arc<BTreeSet<IpAddr>>) {
        let is_other = wanted.wires != self.wanted.wires
            || wanted.sources != self.wanted.sources
            || wanted.subnets != self.wanted.subnets;
        (self.wanted, self.besides) = (wanted, besides);
        if is_other {
            self.due.extend(self.remotes.keys());
            self.find_wires(kernel);
        }
        self.find_due();
    }

    /// Follows other remotes besides from now on.
    pub(super) fn follow(&mut self, besides: Arc<BTreeSet<IpAddr>>) {
        if !Arc::ptr_eq(&besides, &self.besides) {
            self.besides = besides;
            self.find_due();
        }
    }

    /// Notes the remotes that are new, and those that are gone.
    fn find_due(&mut self) {
        let all = self.wanted.remotes.iter().chain(&*self.besides);
        let new = all.filter(|remote| !self.remotes.contains_key(*remote) && self.follows(remote));
        let gone = self.remotes.keys().filter(|remote| !self.follows(remote));
        let due: Vec<_> = new.chain(gone).copied().collect();
        self.due.extend(due);
    }

    fn follows(&self, remote: &IpAddr) -> bool {
        self.wanted.remotes.contains(remote) || self.is_spare(remote)
    }

    /// Returns whether a remote is only followed besides.
    fn is_spare(&self, remote: &IpAddr) -> bool {
        !self.wanted.remotes.contains(remote)
            && self.besides.contains(remote)
            && self.wanted.is_by_kernel(remote)
    }

    fn find_wires(&mut self, kernel: &dyn Kernel) {
        let of = |wire: &UnderlayWire| Some((kernel.device(&wire.device).ok()?, wire.vif));
        self.wires = self.wanted.wires.iter().filter(|wire| wire.shared).filter_map(of).collect();
    }

    /// Notes what changed. Returns whether the kernel is to be asked because of it.
    pub(super) fn note(&mut self, kernel: &dyn Kernel, events: &[Event]) -> bool {
        let before = self.due.len();
        for event in events {
            match event {
                Event::Route(prefix) => {
                    let (first, last) = range(*prefix);
                    self.due.extend(self.remotes.range(first..=last).map(|(remote, _)| *remote));
                }
                Event::Neighbour(device, addr) => {
                    let of = self.neighbours.get(&(*device, *addr));
                    self.due.extend(of.into_iter().flat_map(|known| &known.remotes));
                }
                Event::Other => {}
            }
        }
        if events.contains(&Event::Other) {
            self.find_wires(kernel);
            self.due.extend(self.remotes.keys());
        }
        self.due.len() > before
    }

    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Asks the kernel for the paths to some remotes, and returns the changes.
    pub(super) fn ask(&mut self, kernel: &dyn Kernel) -> Vec<Change> {
        let mut found = HashMap::new();
        let due: Vec<_> = self.due.iter().take(MOST_ASKED).copied().collect();
        let asked = due.into_iter().filter_map(|remote| {
            self.due.remove(&remote);
            self.ask_for(kernel, remote, &mut found)
        });
        asked.collect()
    }

    fn ask_for(
        &mut self,
        kernel: &dyn Kernel,
        remote: IpAddr,
        found: &mut HashMap<Neighbour, Option<Mac>>,
    ) -> Option<Change> {
        let before = self.remotes.remove(&remote).unwrap_or_default();
        // Those that are followed besides take nobody's place.
        let has_room = || self.remotes.len() < MOST_REMOTES + self.besides.len();
        let is_wanted = self.is_spare(&remote) || self.wanted.remotes.contains(&remote) && has_room();
        let now = if is_wanted { self.look(kernel, remote, found) } else { Remote::default() };
        for hop in before.hops.iter().filter(|hop| !now.hops.contains(hop)) {
            self.leave(*hop, remote);
        }
        for (hop, path) in now.hops.iter().zip(&now.paths) {
            let known = self.neighbours.entry(*hop).or_default();
            known.remotes.insert(remote);
            known.is_found = path.mac.is_some();
        }
        let change =
            (now.paths != before.paths).then(|| Change::PutPaths { remote, paths: now.paths[..].into() });
        if is_wanted {
            self.remotes.insert(remote, now);
        }
        change
    }

    /// Forgets that a neighbour leads to a remote.
    fn leave(&mut self, hop: Neighbour, remote: IpAddr) {
        if let Some(known) = self.neighbours.get_mut(&hop) {
            known.remotes.remove(&remote);
            if known.remotes.is_empty() {
                self.neighbours.remove(&hop);
            }
        }
    }

    fn look(
        &self,
        kernel: &dyn Kernel,
        remote: IpAddr,
        found: &mut HashMap<Neighbour, Option<Mac>>,
    ) -> Remote {
        let lacks = |why: String| Remote { lacks: Some(why), ..Remote::default() };
        let Some(source) = self.wanted.sources.iter().find(|source| source.is_ipv4() == remote.is_ipv4())
        else {
            return lacks(
                "`tunnel_source` of [host] has no address of its family that is the kernel's; add one"
                    .to_owned(),
            );
        };
        let hops = match kernel.way(*source, remote) {
            Ok(Way::Hops(hops)) => hops,
            Ok(Way::Own) => return lacks("the kernel has this address itself".to_owned()),
            Ok(Way::None) => {
                return lacks(format!(
                    "the kernel has no route to it; add one (`ip route get {remote} from {source}` shows it)"
                ));
            }
            Err(e) => {
                let why = format!("the kernel does not tell a route from {source}: {e}");
                return Remote { is_unknown: true, ..lacks(why) };
            }
        };
        let is_alive = hops.iter().any(|hop| !hop.is_dead);
        let mut of = Remote::default();
        for Hop { device, router, weight, mtu, .. } in hops.iter().filter(|hop| hop.is_dead != is_alive) {
            let Some(wire) = self.wires.get(device) else { continue };
            let hop = (*device, router.unwrap_or(remote));
            let ask = || kernel.neighbour(hop.0, hop.1).ok().flatten().map(Mac);
            let mac = *found.entry(hop).or_insert_with(ask);
            of.hops.push(hop);
            of.paths.push(KernelPath { wire: *wire, hop: hop.1, mac, weight: *weight, mtu: *mtu });
        }
        if of.paths.is_empty() {
            return lacks(format!(
                "the kernel's route to it (`ip route get {remote} from {source}`) leaves by no shared wire"
            ));
        }
        of
    }

    /// Returns the neighbours that the kernel is to look for now.
    pub(super) fn take_sought(&mut self, now: Instant) -> Vec<Neighbour> {
        let is_due = |known: &Known| {
            let pause = if known.is_found { STALE } else { AGAIN };
            // One that the kernel knew before is looked after with the others.
            known.sought.is_none_or(|sought| now.duration_since(sought) >= pause)
        };
        let due = self.neighbours.iter_mut().filter(|(_, known)| is_due(known)).take(MOST_SOUGHT_IN_A_TURN);
        due.map(|(neighbour, known)| {
            known.sought = Some(now);
            *neighbour
        })
        .collect()
    }

    /// Returns the remotes that the kernel can't reach by a shared wire. A neighbour that it does not find is not among
    /// them: at each start it finds none for a moment.
    pub(super) fn unreachable(&self) -> BTreeSet<IpAddr> {
        let lacking = self.remotes.iter().filter(|(_, of)| of.lacks.is_some() && !of.is_unknown);
        lacking.map(|(remote, _)| *remote).filter(|remote| !self.has_router(remote)).collect()
    }

    /// Returns whether a router of another wire takes what the kernel has no route for.
    fn has_router(&self, remote: &IpAddr) -> bool {
        self.wanted.gateways.iter().any(|router| router.is_ipv4() == remote.is_ipv4())
    }

    /// Returns which remotes have no path, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        let shared = self.wanted.wires.iter().find(|wire| wire.shared);
        let object = shared.map(super::trouble::object).unwrap_or_default();
        let is_told = |remote: &IpAddr| self.wanted.remotes.contains(remote) && !self.has_router(remote);
        let lacking = self.remotes.iter().filter(|(remote, _)| is_told(remote));
        let mut lacking = lacking.filter_map(|(remote, of)| Some((remote, of.lacks.as_ref()?)));
        let told: Vec<_> = lacking.by_ref().take(MOST_TOLD).collect();
        let told = told.into_iter().map(|(remote, why)| format!("tunnels to {remote} are dead: {why}"));
        let more = lacking.count();
        let more = (more > 0)
            .then(|| format!("tunnels to {more} more hosts are dead; `viaduct explain` says why for one"));
        let beyond = self.wanted.remotes.len().saturating_sub(MOST_REMOTES);
        let beyond =
            (beyond > 0).then(|| format!("tunnels to {beyond} hosts are dead: {MOST_REMOTES} are followed"));
        told.chain(more).chain(beyond).map(move |what| (object.clone(), what)).collect::<Vec<_>>().into_iter()
    }
}

/// Returns the first and last address of a prefix.
fn range(Subnet { addr, len }: Subnet) -> (IpAddr, IpAddr) {
    match addr {
        IpAddr::V4(addr) => {
            let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);
            let bits = addr.to_bits();
            (Ipv4Addr::from_bits(bits & !host).into(), Ipv4Addr::from_bits(bits | host).into())
        }
        IpAddr::V6(addr) => {
            let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
            let bits = addr.to_bits();
            (Ipv6Addr::from_bits(bits & !host).into(), Ipv6Addr::from_bits(bits | host).into())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A kernel whose routes a test sets, and which counts the questions.
    #[derive(Default)]
    struct Fake {
        ways: BTreeMap<IpAddr, Way>,
        macs: BTreeMap<Neighbour, [u8; 6]>,
        asked: RefCell<Vec<IpAddr>>,
    }

    impl Kernel for Fake {
        fn way(&self, _: IpAddr, to: IpAddr) -> io::Result<Way> {
            self.asked.borrow_mut().push(to);
            Ok(self.ways.get(&to).cloned().unwrap_or(Way::None))
        }

        fn neighbour(&self, device: i32, addr: IpAddr) -> io::Result<Option<[u8; 6]>> {
            Ok(self.macs.get(&(device, addr)).copied())
        }

        fn has(&self, _: IpAddr) -> io::Result<bool> {
            Ok(true)
        }

        fn device(&self, name: &str) -> io::Result<i32> {
            name.strip_prefix("eth").unwrap().parse().map_err(io::Error::other)
        }
    }

    fn ip(addr: &str) -> IpAddr {
        addr.parse().unwrap()
    }

    fn hop(device: i32, router: Option<&str>, is_dead: bool) -> Hop {
        Hop { device, router: router.map(ip), weight: 1, is_dead, mtu: None }
    }

    fn underlay(remotes: &[&str]) -> Underlay {
        let wire = |index: u16| UnderlayWire {
            vif: VifId(index),
            name: format!("up{index}"),
            device: format!("eth{index}"),
            shared: true,
            addresses: Vec::new(),
        };
        let remotes = remotes.iter().map(|remote| ip(remote)).collect();
        Underlay {
            wires: vec![wire(1), wire(2)],
            remotes,
            sources: vec![ip("192.0.2.1")],
            ..Underlay::default()
        }
    }

    fn mac(last: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0, last]
    }

    fn puts(changes: Vec<Change>) -> Vec<(IpAddr, Vec<KernelPath>)> {
        let put = |change| match change {
            Change::PutPaths { remote, paths } => (remote, paths.to_vec()),
            other => panic!("{other:?}"),
        };
        changes.into_iter().map(put).collect()
    }

    #[test]
    fn paths_follow_routes_and_neighbours() {
        let (remote, router) = (ip("198.51.100.7"), ip("192.0.2.254"));
        let mut kernel = Fake::default();
        kernel.ways.insert(remote, Way::Hops(vec![hop(1, Some("192.0.2.254"), false), hop(2, None, true)]));
        let mut paths = Paths::default();
        paths.want(&kernel, underlay(&["198.51.100.7"]), Arc::default());
        let path = |mac: Option<u8>| KernelPath {
            wire: VifId(1),
            hop: router,
            mac: mac.map(|last| Mac([2, 0, 0, 0, 0, last])),
            weight: 1,
            mtu: None,
        };
        assert_eq!(puts(paths.ask(&kernel)), [(remote, vec![path(None)])]);
        let start = Instant::now();
        assert_eq!(paths.take_sought(start), [(1, router)], "the kernel is to find it");
        assert_eq!(paths.take_sought(start), [], "and looks for it");
        assert_eq!(paths.take_sought(start + AGAIN), [(1, router)]);

        kernel.macs.insert((1, router), mac(9));
        assert!(!paths.note(&kernel, &[Event::Neighbour(2, router), Event::Neighbour(1, remote)]));
        assert!(paths.note(&kernel, &[Event::Neighbour(1, router)]));
        assert_eq!(puts(paths.ask(&kernel)), [(remote, vec![path(Some(9))])]);
        assert_eq!(paths.take_sought(start + AGAIN + AGAIN), [], "it is found");
        assert_eq!(paths.take_sought(start + AGAIN + STALE), [(1, router)]);

        kernel.macs.insert((2, remote), mac(7));
        kernel.ways.insert(
            remote,
            Way::Hops(vec![
                hop(1, Some("192.0.2.254"), false),
                Hop { mtu: Some(1400), ..hop(2, None, false) },
            ]),
        );
        let direct =
            KernelPath { wire: VifId(2), hop: remote, mac: Some(Mac(mac(7))), weight: 1, mtu: Some(1400) };
        assert!(!paths.note(&kernel, &[Event::Route(Subnet { addr: ip("198.51.101.0"), len: 24 })]));
        assert!(paths.note(&kernel, &[Event::Route(Subnet { addr: ip("198.51.100.0"), len: 24 })]));
        assert_eq!(puts(paths.ask(&kernel)), [(remote, vec![path(Some(9)), direct])]);

        kernel.ways.clear();
        assert!(paths.note(&kernel, &[Event::Other]));
        assert_eq!(puts(paths.ask(&kernel)), [(remote, Vec::new())]);
        let told: Vec<_> = paths.problems().collect();
        assert_eq!(told[0].0, "wire \"up1\"");
        assert!(told[0].1.contains("198.51.100.7") && told[0].1.contains("no route"), "{told:?}");
        assert!(paths.neighbours.is_empty());
    }

    #[test]
    fn an_event_asks_about_what_it_names() {
        let mut kernel = Fake::default();
        let remotes: Vec<String> = (0..1000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)).collect();
        for remote in &remotes {
            kernel.ways.insert(ip(remote), Way::Hops(vec![hop(1, None, false)]));
        }
        let mut paths = Paths::default();
        let words: Vec<&str> = remotes.iter().map(String::as_str).collect();
        paths.want(&kernel, underlay(&words), Arc::default());
        let mut turns = 0;
        while paths.is_due() {
            let changes = paths.ask(&kernel).len();
            assert!(changes <= MOST_ASKED);
            turns += 1;
        }
        assert_eq!((turns, kernel.asked.take().len()), (4, 1000));
        paths.note(&kernel, &[Event::Route(Subnet { addr: ip("10.3.7.0"), len: 24 })]);
        assert_eq!(paths.ask(&kernel), []);
        assert_eq!(kernel.asked.take(), [ip("10.3.7.1")]);
        paths.note(&kernel, &[Event::Route(Subnet { addr: ip("::"), len: 0 })]);
        assert!(!paths.is_due(), "a route of the other family");
        paths.want(&kernel, underlay(&words[..999]), Arc::default());
        assert_eq!(puts(paths.ask(&kernel)), [(ip("10.3.249.1"), Vec::new())]);
        assert!(kernel.asked.take().is_empty());
    }

    #[test]
    fn a_remote_behind_another_device_has_no_path() {
        let mut kernel = Fake::default();
        kernel.ways.insert(ip("198.51.100.7"), Way::Hops(vec![hop(3, None, false)]));
        kernel.ways.insert(ip("198.51.100.8"), Way::Own);
        let mut paths = Paths::default();
        paths.want(&kernel, underlay(&["198.51.100.7", "198.51.100.8", "2001:db8::1"]), Arc::default());
        assert_eq!(paths.ask(&kernel), []);
        let told: Vec<_> = paths.problems().map(|(_, what)| what).collect();
        for (what, expected) in
            told.iter().zip(["leaves by no shared wire", "has this address", "`tunnel_source`"])
        {
            assert!(what.contains(expected), "{what}");
        }
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn prefixes_are_ranges_of_addresses() {
        let range = |addr: &str, len| range(Subnet { addr: ip(addr), len });
        assert_eq!(range("10.1.2.3", 24), (ip("10.1.2.0"), ip("10.1.2.255")));
        assert_eq!(range("10.1.2.3", 32), (ip("10.1.2.3"), ip("10.1.2.3")));
        assert_eq!(range("10.1.2.3", 0), (ip("0.0.0.0"), ip("255.255.255.255")));
        assert_eq!(range("2001:db8::1", 64), (ip("2001:db8::"), ip("2001:db8::ffff:ffff:ffff:ffff")));
        assert_eq!(range("::", 0).1, ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    }
}
