//! Any order of events ends in the table of a naive model.

use super::net::{AS, Net, Table, address, import, peer, rd, target};
use crate::{
    Announcement, Encapsulation, Import, Label, MacPath, Mobility, Nlri, Path, PeerConfig, Speaker, Tunnel,
    VrfId,
};
use ipnet::IpNet;
use packet::Mac;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Peers of the speaker under test, which is node 0.
const PEERS: usize = 3;
/// Seconds for which routes of a lost peer are kept.
const KEPT: u64 = 120;

#[derive(Clone, Debug)]
enum Step {
    Announce(usize, Nlri, Announcement),
    Withdraw(usize, Nlri),
    Import(Vec<Import>),
    /// The connection breaks. It can't be had again until it is mended.
    Cut(usize),
    Mend(usize),
    /// The peer begins anew, with nothing to announce.
    Restart(usize),
    Wait(u64),
    /// The peer's tunnels are down, or up again.
    Down(usize, bool),
}

/// Routes that one peer has sent, as far as they count.
#[derive(Clone, Debug, Default)]
struct Said {
    /// Routes that it announces.
    now: BTreeMap<Nlri, Announcement>,
    /// Routes that were known of it when the connection broke, and until when they count.
    cut: Option<(BTreeMap<Nlri, Announcement>, u64)>,
}

#[derive(Default)]
struct Model {
    peers: [Said; PEERS],
    imports: Vec<Import>,
    time: u64,
    down: BTreeSet<IpAddr>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Announce(peer, nlri, announcement) => {
                self.peers[*peer].now.insert(*nlri, announcement.clone());
            }
            Step::Withdraw(peer, nlri) => {
                self.peers[*peer].now.remove(nlri);
            }
            Step::Import(imports) => {
                // Routes that nobody wants are not kept, and a peer that is lost can't be asked again.
                for said in &mut self.peers {
                    let Some((known, _)) = &mut said.cut else { continue };
                    known.retain(|_, its| its.targets.iter().any(|target| wants(imports, target)));
                }
                self.imports.clone_from(imports);
            }
            Step::Cut(peer) => {
                let said = &mut self.peers[*peer];
                if said.cut.is_none() {
                    let mut known = said.now.clone();
                    known.retain(|_, its| its.targets.iter().any(|target| wants(&self.imports, target)));
                    said.cut = Some((known, self.time + KEPT));
                }
            }
            Step::Mend(peer) => self.peers[*peer].cut = None,
            Step::Restart(peer) => self.peers[*peer].now.clear(),
            Step::Wait(seconds) => self.time += seconds,
            Step::Down(peer, true) => drop(self.down.insert(address(peer + 1))),
            Step::Down(peer, false) => drop(self.down.remove(&address(peer + 1))),
        }
    }

    fn known(&self) -> Vec<(usize, Nlri, Announcement)> {
        let of = |(peer, said): (usize, &Said)| {
            let known = match &said.cut {
                None => said.now.clone(),
                Some((known, until)) if self.time < *until => known.clone(),
                Some(_) => BTreeMap::new(),
            };
            known.into_iter().map(move |(nlri, its)| (peer, nlri, its)).collect::<Vec<_>>()
        };
        self.peers.iter().enumerate().flat_map(of).collect()
    }

    /// Works out the table from all that is known.
    fn table(&self) -> Table {
        let known = self.known();
        let mut table = Table::default();
        for import in &self.imports {
            let routes = |its: &Announcement| its.targets.iter().any(|target| import.routes.contains(target));
            let macs = |its: &Announcement| its.targets.iter().any(|target| import.macs.contains(target));
            let mut prefixes: BTreeMap<IpNet, Vec<(Nlri, usize, Announcement, Path)>> = BTreeMap::new();
            let mut owned: BTreeMap<Mac, Vec<(Nlri, usize, Announcement)>> = BTreeMap::new();
            let mut floods = Vec::new();
            for (peer, nlri, its) in &known {
                let prefix = match nlri {
                    Nlri::Vpn { prefix, .. } | Nlri::Prefix { prefix, .. } => Some((*prefix, label(its))),
                    Nlri::Mac { address: Some(address), .. } => {
                        its.routed.filter(|_| !macs(its)).map(|routed| (IpNet::from(*address), routed))
                    }
                    _ => None,
                };
                if let Some((prefix, label)) = prefix.filter(|_| routes(its)) {
                    let path = Path::Tunnel { tunnel: tunnel(its, label), router_mac: its.router_mac };
                    prefixes.entry(prefix).or_default().push((*nlri, *peer, its.clone(), path));
                }
                match nlri {
                    Nlri::Mac { mac, .. } if macs(its) => {
                        owned.entry(*mac).or_default().push((*nlri, *peer, its.clone()));
                    }
                    Nlri::Flood { .. } if macs(its) => floods.push((*nlri, *peer, its.clone())),
                    _ => {}
                }
            }
            for (prefix, all) in prefixes {
                let is_down = |path: &Path| path.tunnel().is_some_and(|to| self.down.contains(&to.remote));
                let mut paths = best_paths(all.clone());
                if paths.iter().all(is_down) {
                    let up: Vec<_> = all.into_iter().filter(|(.., path)| !is_down(path)).collect();
                    paths = if up.is_empty() { paths } else { best_paths(up) };
                }
                table.routes.insert((import.vrf, prefix), paths);
            }
            for (mac, all) in owned {
                let (_, its) = &self.best_mac(all);
                let path =
                    MacPath { tunnel: tunnel(its, label(its)), mobility: its.mobility.unwrap_or_default() };
                table.macs.insert((import.vrf, mac), path);
            }
            self.neighbours(&known, import, &mut table);
            let best = best_of_each(floods);
            let mut tunnels: Vec<_> = best.iter().map(|(_, its)| tunnel(its, label(its))).collect();
            tunnels.sort();
            tunnels.dedup_by_key(|tunnel| tunnel.remote);
            if !tunnels.is_empty() {
                table.floods.insert(import.vrf, tunnels);
            }
        }
        table
    }

    fn neighbours(&self, known: &[(usize, Nlri, Announcement)], import: &Import, table: &mut Table) {
        let mut owners: BTreeMap<IpAddr, Vec<(Nlri, usize, Announcement)>> = BTreeMap::new();
        for (peer, nlri, its) in known {
            if let Nlri::Mac { address: Some(address), .. } = nlri
                && its.targets.iter().any(|target| import.macs.contains(target))
            {
                owners.entry(*address).or_default().push((*nlri, *peer, its.clone()));
            }
        }
        for (address, all) in owners {
            table.neighbours.insert((import.vrf, address), mac(&self.best_mac(all).0));
        }
    }

    /// Chooses the best of several MAC routes; if that is down, the best of those that are up.
    fn best_mac(&self, all: Vec<(Nlri, usize, Announcement)>) -> (Nlri, Announcement) {
        let best =
            |all: Vec<_>| best_of_each(all).into_iter().min_by_key(|(nlri, its)| (order(its), mac(nlri)));
        let is_up = |its: &Announcement| !self.down.contains(&its.next_hop);
        let first = best(all.clone()).filter(|(_, its)| is_up(its));
        let second = || best(all.iter().filter(|(.., its)| is_up(its)).cloned().collect());
        first.or_else(second).or_else(|| best(all.clone())).unwrap()
    }
}

fn mac(nlri: &Nlri) -> Mac {
    match nlri {
        Nlri::Mac { mac, .. } => *mac,
        _ => unreachable!(),
    }
}

fn wants(imports: &[Import], target: &crate::RouteTarget) -> bool {
    imports.iter().any(|import| import.routes.contains(target) || import.macs.contains(target))
}

fn label(its: &Announcement) -> u32 {
    match its.label {
        Label::Mpls(label) | Label::Vni(label) => label,
        Label::None => 0,
    }
}

fn tunnel(its: &Announcement, label: u32) -> Tunnel {
    let encapsulation = match its.label {
        Label::Mpls(_) | Label::None => Encapsulation::MplsUdp,
        Label::Vni(_) => Encapsulation::Vxlan,
    };
    Tunnel { remote: its.next_hop, encapsulation, label }
}

fn order(its: &Announcement) -> impl Ord + use<> {
    let mobility = std::cmp::Reverse(its.mobility.unwrap_or_default());
    (mobility, std::cmp::Reverse(its.preference), tunnel(its, label(its)))
}

/// Chooses for each route among peers: the preferred one counts, then that of the lowest identifier.
fn best_of_each(all: Vec<(Nlri, usize, Announcement)>) -> Vec<(Nlri, Announcement)> {
    let mut best: BTreeMap<Nlri, (usize, Announcement)> = BTreeMap::new();
    for (nlri, peer, its) in all {
        let rank = |peer: usize, its: &Announcement| (std::cmp::Reverse(its.preference), peer);
        match best.get(&nlri) {
            Some((other, best)) if rank(*other, best) < rank(peer, &its) => {}
            _ => drop(best.insert(nlri, (peer, its))),
        }
    }
    best.into_iter().map(|(nlri, (_, its))| (nlri, its)).collect()
}

fn best_paths(all: Vec<(Nlri, usize, Announcement, Path)>) -> Vec<Path> {
    let paths: BTreeMap<_, _> = all.iter().map(|(nlri, peer, _, path)| ((*nlri, *peer), *path)).collect();
    let best = best_of_each_with_peer(all);
    let most = best.iter().map(|(_, _, its)| its.preference).max().unwrap();
    let best = best.into_iter().filter(|(_, _, its)| its.preference == most);
    let mut paths: Vec<_> = best.map(|(nlri, peer, _)| paths[&(nlri, peer)]).collect();
    paths.sort();
    paths.dedup();
    paths
}

fn best_of_each_with_peer(all: Vec<(Nlri, usize, Announcement, Path)>) -> Vec<(Nlri, usize, Announcement)> {
    let mut best: BTreeMap<Nlri, (usize, Announcement)> = BTreeMap::new();
    for (nlri, peer, its, _) in all {
        match best.get(&nlri) {
            Some((other, old)) if (old.preference, PEERS - other) >= (its.preference, PEERS - peer) => {}
            _ => drop(best.insert(nlri, (peer, its))),
        }
    }
    best.into_iter().map(|(nlri, (peer, its))| (nlri, peer, its)).collect()
}

fn nlris() -> impl Strategy<Value = Nlri> {
    let prefix = prop::sample::select(vec!["10.1.0.0/16", "10.0.0.5/32", "fd00::/64", "0.0.0.0/0"]);
    let address = prop::option::of(prop::sample::select(vec!["10.0.0.5", "fd00::5"]));
    (0..2_u16, 0..5, prefix, 0..2_u8, address, 0..PEERS).prop_map(
        |(number, kind, prefix, mac, address, node)| {
            let (rd, prefix) = (rd(number), prefix.parse().unwrap());
            match kind {
                0 => Nlri::Vpn { rd, prefix },
                1 => Nlri::Prefix { rd, prefix },
                2 => {
                    let mac = Mac([2, 0, 0, 0, 0, mac]);
                    Nlri::Mac { rd, mac, address: address.map(|address| address.parse().unwrap()) }
                }
                3 => Nlri::Flood { rd, originator: super::net::address(node + 1) },
                // No network takes it, whatever targets it has.
                _ => Nlri::Unicast { prefix },
            }
        },
    )
}

fn announcement(peer: usize, nlri: Nlri) -> impl Strategy<Value = Announcement> {
    let targets = prop::collection::btree_set(1..5_u32, 1..3);
    (16..20_u32, targets, any::<bool>(), 0..3_u32, 100..102_u32, any::<bool>()).prop_map(
        move |(number, targets, vxlan, sequence, preference, routed)| {
            let vxlan = vxlan && !matches!(nlri, Nlri::Vpn { .. });
            let has_address = matches!(nlri, Nlri::Mac { address: Some(_), .. });
            Announcement {
                next_hop: address(peer + 1),
                label: if vxlan { Label::Vni(number) } else { Label::Mpls(number) },
                routed: (routed && has_address).then_some(number + 100),
                targets: targets.into_iter().map(target).collect(),
                router_mac: vxlan.then_some(Mac([2, 0xaa, 0, 0, 0, peer as u8])),
                mobility: (sequence > 0).then_some(Mobility { sticky: false, sequence }),
                preference,
            }
        },
    )
}

fn imports() -> impl Strategy<Value = Vec<Import>> {
    let one = prop::collection::btree_set(1..5_u32, 0..3);
    prop::collection::vec((one.clone(), one), 0..3).prop_map(|all| {
        let targets = |numbers: std::collections::BTreeSet<u32>| numbers.into_iter().map(target).collect();
        let import =
            |(vrf, (routes, macs))| Import { vrf, routes: targets(routes), macs: targets(macs), link: None };
        (1 as VrfId..).zip(all).map(import).collect()
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let announce = (0..PEERS, nlris())
        .prop_flat_map(|(peer, nlri)| (Just(peer), Just(nlri), announcement(peer, nlri)))
        .prop_map(|(peer, nlri, announcement)| Step::Announce(peer, nlri, announcement));
    prop_oneof![
        12 => announce,
        4 => (0..PEERS, nlris()).prop_map(|(peer, nlri)| Step::Withdraw(peer, nlri)),
        2 => imports().prop_map(Step::Import),
        1 => (0..PEERS).prop_map(Step::Cut),
        2 => (0..PEERS).prop_map(Step::Mend),
        1 => (0..PEERS).prop_map(Step::Restart),
        2 => (20..80_u64).prop_map(Step::Wait),
        4 => (0..PEERS, any::<bool>()).prop_map(|(peer, is_down)| Step::Down(peer, is_down)),
    ]
}

/// Does a step in the network.
fn apply(net: &mut Net, step: &Step) {
    let now = net.now;
    match step {
        Step::Announce(peer, nlri, announcement) => {
            net.speaker(peer + 1).announce(*nlri, announcement.clone())
        }
        Step::Withdraw(peer, nlri) => net.speaker(peer + 1).withdraw(nlri),
        Step::Import(imports) => net.speaker(0).set_imports(imports, now),
        Step::Cut(peer) => {
            if net.cut.insert((0, peer + 1)) {
                net.reset(0, peer + 1);
            }
        }
        Step::Mend(peer) => drop(net.cut.remove(&(0, peer + 1))),
        Step::Restart(peer) => {
            net.reset(0, peer + 1);
            let mut new = Speaker::new(super::net::config(peer + 1, AS), now.as_secs(), now);
            new.set_peers(vec![usual(0)], now);
            net.nodes[peer + 1].speaker = new;
        }
        Step::Wait(seconds) => net.settle(*seconds),
        Step::Down(peer, is_down) => net.speaker(0).set_down(&[(address(peer + 1), *is_down)]),
    }
}

fn usual(node: usize) -> PeerConfig {
    PeerConfig { restart_time: KEPT as u16, ..peer(node, AS) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_order_ends_in_the_table_of_a_naive_model(
        steps in prop::collection::vec(steps(), 1..60),
        piece in prop::sample::select(vec![1_usize, 23, 4096]),
    ) {
        let mut net = Net::new(&[AS; PEERS + 1]);
        net.piece = piece;
        let start = net.now;
        net.speaker(0).set_peers((1..=PEERS).map(usual).collect(), start);
        for peer in 1..=PEERS {
            net.speaker(peer).set_peers(vec![usual(0)], start);
        }
        let first = vec![import(1, &[1, 2]), import(2, &[2, 3])];
        let (mut model, now) = (Model::default(), net.now);
        net.speaker(0).set_imports(&first, now);
        model.imports = first;
        net.settle(5);
        for step in &steps {
            apply(&mut net, step);
            model.step(step);
            // After a minute even a peer that was away is back.
            let quiet = match step {
                Step::Mend(_) | Step::Restart(_) => 61,
                Step::Cut(_) => 0,
                _ => 2,
            };
            net.settle(quiet);
            model.time += quiet;
            prop_assert_eq!(&net.nodes[0].table, &model.table());
        }
        let routes: usize = net.nodes[0].speaker.peers().iter().map(|peer| peer.routes).sum();
        prop_assert_eq!(routes, net.nodes[0].speaker.routes_kept());
        let is_kept = |(_, nlri, its): &(usize, Nlri, Announcement)| {
            let is_wanted = its.targets.iter().any(|target| wants(&model.imports, target));
            is_wanted && !matches!(nlri, Nlri::Unicast { .. })
        };
        let named: BTreeSet<_> =
            model.known().into_iter().filter(is_kept).map(|(.., its)| its.next_hop).collect();
        prop_assert_eq!(net.nodes[0].speaker.remotes().collect::<BTreeSet<_>>(), named);
    }
}
