//! A network of speakers: connections, a clock, and what each has learned.

use crate::{
    Announcement, Change, Config, Conn, Encapsulation, Event, Family, Import, Label, MacPath, Nlri, Path,
    PeerConfig, Rd, RouteTarget, Speaker, State, Tunnel, VrfId,
};
use ipnet::IpNet;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub(super) const AS: u32 = 64512;

/// Everything that a speaker has learned, by its changes alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) routes: BTreeMap<(VrfId, IpNet), Vec<Path>>,
    pub(super) macs: BTreeMap<(VrfId, Mac), MacPath>,
    pub(super) neighbours: BTreeMap<(VrfId, IpAddr), Mac>,
    pub(super) floods: BTreeMap<VrfId, Vec<Tunnel>>,
}

impl Table {
    pub(super) fn apply(&mut self, change: Change) {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
        match change {
            Change::Route { vrf, prefix, paths } => {
                set(&mut self.routes, (vrf, prefix), Some(paths).filter(|paths| !paths.is_empty()));
            }
            Change::Mac { vrf, mac, path } => set(&mut self.macs, (vrf, mac), path),
            Change::Neighbour { vrf, address, mac } => set(&mut self.neighbours, (vrf, address), mac),
            Change::Flood { vrf, tunnels } => {
                set(&mut self.floods, vrf, Some(tunnels).filter(|tunnels| !tunnels.is_empty()));
            }
        }
    }
}

pub(super) struct Node {
    pub(super) speaker: Speaker,
    pub(super) events: Vec<Event>,
    pub(super) table: Table,
    pub(super) bytes_sent: usize,
    address: IpAddr,
}

struct Link {
    ends: [(usize, Conn); 2],
}

pub(super) struct Net {
    pub(super) now: Duration,
    pub(super) nodes: Vec<Node>,
    links: Vec<Link>,
    /// Pairs of nodes that can't reach each other.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// Most bytes that go at a time.
    pub(super) piece: usize,
}

pub(super) fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 255, 0, node as u8 + 1).into()
}

pub(super) fn config(node: usize, asn: u32) -> Config {
    let IpAddr::V4(router_id) = address(node) else { unreachable!() };
    Config {
        asn,
        router_id,
        own: vec![address(node)],
        hold_time: 90,
        restarted: false,
        encapsulations: vec![Encapsulation::MplsUdp, Encapsulation::MplsGre, Encapsulation::Vxlan],
    }
}

pub(super) fn peer(node: usize, asn: u32) -> PeerConfig {
    PeerConfig {
        address: address(node),
        port: 179,
        asn,
        families: Family::ALL.into(),
        encapsulation: Encapsulation::MplsUdp,
        passive: false,
        password: 0,
        restart_time: 120,
        max_routes: 100_000,
    }
}

pub(super) fn target(number: u32) -> RouteTarget {
    RouteTarget::of_as(AS, number).unwrap()
}

pub(super) fn rd(number: u16) -> Rd {
    Rd::of_address(Ipv4Addr::new(192, 0, 2, 1), number)
}

pub(super) fn import(vrf: VrfId, targets: &[u32]) -> Import {
    let targets: Vec<_> = targets.iter().map(|number| target(*number)).collect();
    Import { vrf, routes: targets.clone(), macs: targets, link: None }
}

pub(super) fn vpn(rd_number: u16, prefix: &str) -> Nlri {
    Nlri::Vpn { rd: rd(rd_number), prefix: prefix.parse().unwrap() }
}

/// Returns an announcement of a node by MPLS.
pub(super) fn mpls(node: usize, label: u32, targets: &[u32]) -> Announcement {
    Announcement {
        next_hop: address(node),
        label: Label::Mpls(label),
        routed: None,
        targets: targets.iter().map(|number| target(*number)).collect(),
        router_mac: None,
        mobility: None,
        preference: 100,
    }
}

/// Returns an announcement of a node by VXLAN.
pub(super) fn vxlan(node: usize, vni: u32, targets: &[u32]) -> Announcement {
    let router_mac = Some(Mac([2, 0xaa, 0, 0, 0, node as u8]));
    Announcement { label: Label::Vni(vni), router_mac, ..mpls(node, 0, targets) }
}

pub(super) fn path(node: usize, label: u32) -> Path {
    let tunnel = Tunnel { remote: address(node), encapsulation: Encapsulation::MplsUdp, label };
    Path::Tunnel { tunnel, router_mac: None }
}

impl Net {
    /// Makes nodes of these systems, without peers.
    pub(super) fn new(systems: &[u32]) -> Self {
        let node = |(at, asn): (usize, &u32)| Node {
            speaker: Speaker::new(config(at, *asn), at as u64, Duration::ZERO),
            events: Vec::new(),
            table: Table::default(),
            bytes_sent: 0,
            address: address(at),
        };
        let nodes = systems.iter().enumerate().map(node).collect();
        Self { now: Duration::ZERO, nodes, links: Vec::new(), cut: BTreeSet::new(), piece: usize::MAX }
    }

    /// Makes two nodes of one system, peers of each other, that are up.
    pub(super) fn pair() -> Self {
        let mut net = Self::new(&[AS, AS]);
        net.nodes[0].speaker.set_peers(vec![peer(1, AS)], net.now);
        net.nodes[1].speaker.set_peers(vec![peer(0, AS)], net.now);
        net.settle(5);
        assert!(net.is_up(0) && net.is_up(1));
        net
    }

    pub(super) fn speaker(&mut self, node: usize) -> &mut Speaker {
        &mut self.nodes[node].speaker
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].speaker.peers().iter().all(|peer| peer.state == State::Established)
    }

    /// Lets so many seconds pass, doing all that is due.
    pub(super) fn settle(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            self.pump();
            let next = self.nodes.iter().filter_map(|node| node.speaker.deadline()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for node in &mut self.nodes {
                node.speaker.tick(self.now);
            }
        }
        self.now = end;
    }

    /// Moves bytes and events until there are none.
    pub(super) fn pump(&mut self) {
        loop {
            let mut moved = false;
            for node in 0..self.nodes.len() {
                while let Some(event) = self.nodes[node].speaker.next_event() {
                    moved = true;
                    self.event(node, event);
                }
                let Node { speaker, table, .. } = &mut self.nodes[node];
                for change in speaker.take_changes(usize::MAX) {
                    table.apply(change);
                }
            }
            for link in 0..self.links.len() {
                for end in 0..2 {
                    moved |= self.carry(link, end);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn carry(&mut self, link: usize, end: usize) -> bool {
        let Some(Link { ends }) = self.links.get(link) else { return false };
        let ((from, conn), (to, its)) = (ends[end], ends[1 - end]);
        if self.cut.contains(&(from.min(to), from.max(to))) {
            return false;
        }
        let bytes = self.nodes[from].speaker.output(conn, self.now).to_vec();
        let bytes = &bytes[..bytes.len().min(self.piece)];
        if bytes.is_empty() {
            return false;
        }
        self.nodes[from].bytes_sent += bytes.len();
        self.nodes[from].speaker.sent(conn, bytes.len(), self.now);
        self.nodes[to].speaker.received(its, bytes, self.now);
        true
    }

    fn event(&mut self, node: usize, event: Event) {
        match &event {
            Event::Connect { conn, to } => {
                let target = self.nodes.iter().position(|other| other.address == to.ip()).unwrap();
                let reachable = !self.cut.contains(&(node.min(target), node.max(target)));
                let from = self.nodes[node].address;
                let its = reachable.then(|| self.nodes[target].speaker.accepted(from, self.now)).flatten();
                match its {
                    Some(its) => {
                        self.links.push(Link { ends: [(node, *conn), (target, its)] });
                        self.nodes[node].speaker.connected(*conn, self.now);
                    }
                    None => self.nodes[node].speaker.closed(*conn, self.now),
                }
            }
            Event::Close { conn, last } => {
                let is_it = |link: &Link| link.ends.contains(&(node, *conn));
                if let Some(at) = self.links.iter().position(is_it) {
                    let link = self.links.remove(at);
                    let (other, its) = link.ends.into_iter().find(|end| *end != (node, *conn)).unwrap();
                    if !self.cut.contains(&(node.min(other), node.max(other))) {
                        self.nodes[other].speaker.received(its, last, self.now);
                        self.nodes[other].speaker.closed(its, self.now);
                    }
                }
            }
            _ => {}
        }
        self.nodes[node].events.push(event);
    }

    /// Ends the TCP connections between two nodes, as a crash does.
    pub(super) fn reset(&mut self, a: usize, b: usize) {
        let is_it = |link: &Link| link.ends.iter().all(|(node, _)| *node == a || *node == b);
        let (gone, stay) = std::mem::take(&mut self.links).into_iter().partition(is_it);
        self.links = stay;
        let gone: Vec<Link> = gone;
        for (node, conn) in gone.into_iter().flat_map(|link| link.ends) {
            self.nodes[node].speaker.closed(conn, self.now);
        }
    }

    /// Drops the connections between two nodes, and tells neither.
    pub(super) fn forget(&mut self, a: usize, b: usize) {
        self.links.retain(|link| !link.ends.iter().all(|(node, _)| *node == a || *node == b));
    }
}
