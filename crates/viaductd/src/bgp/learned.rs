//! The way of learned routes into the tables.

use super::held::{self, Held};
use bgp::{Change, Encapsulation, Path, VrfId};
use control::{BridgeChange, Core, Error};
use ipnet::IpNet;
use model::{GATEWAY_MAC, Tunnel, TunnelKind, Vrf};
use packet::Mac;
use rib::{PathSet, SourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The rank of these routes among those of programs.
const PREFERENCE: u8 = 20;
/// Most routes, in all networks. The speaker bounds those of a peer, but a network can take what another takes as well.
const MOST_ROUTES: usize = 4_000_000;

/// Changed routes by network.
pub(super) type Routes = BTreeMap<Vrf, Vec<(IpNet, Option<PathSet>)>>;
/// Changed bridges by network.
pub(super) type Bridges = BTreeMap<Vrf, BridgeChange>;

pub struct Learned {
    source: SourceId,
    routes: Routes,
    bridges: Bridges,
    /// MAC addresses, floods and owners of addresses of the daemon before, which peers have not sent again.
    inherited_macs: BTreeSet<(Vrf, Mac)>,
    inherited_floods: BTreeSet<Vrf>,
    inherited_owners: BTreeSet<(Vrf, IpAddr)>,
    is_inherited: bool,
    /// Routes that were too many.
    refused: u64,
}

impl Learned {
    /// Puts what the daemon before held into the tables, until peers have sent it again or took too long.
    pub fn new(core: &Core, held: Vec<Held>) -> Result<Self, Error> {
        let source = core.source_of_routes("bgp", PREFERENCE, MOST_ROUTES)?;
        let is_inherited = !held.is_empty();
        let (routes, bridges) = held::sorted(held);
        let inherited_floods =
            bridges.iter().filter(|(_, change)| change.flood.is_some()).map(|(vrf, _)| *vrf);
        let macs = |(vrf, change): (&Vrf, &BridgeChange)| {
            change.macs.iter().map(|(mac, _)| (*vrf, *mac)).collect::<Vec<_>>()
        };
        let owners = |(vrf, change): (&Vrf, &BridgeChange)| {
            change.owners.iter().map(|(address, _)| (*vrf, *address)).collect::<Vec<_>>()
        };
        let mut learned = Self {
            source,
            inherited_macs: bridges.iter().flat_map(macs).collect(),
            inherited_floods: inherited_floods.collect(),
            inherited_owners: bridges.iter().flat_map(owners).collect(),
            is_inherited,
            routes,
            bridges,
            refused: 0,
        };
        learned.take(core, Vec::new());
        core.begin_routes(source)?;
        Ok(learned)
    }

    /// Returns whether a daemon before this one held routes, by which the host forwards.
    pub(super) const fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Returns the source of these routes.
    pub(super) const fn source(&self) -> SourceId {
        self.source
    }

    /// Returns whether changes wait, because another daemon is taking over. It may fail to, and then this one goes on.
    pub(super) fn waits(&self) -> bool {
        !self.routes.is_empty() || !self.bridges.is_empty()
    }

    /// Notes that another speaker begins: what was learned goes unless it learns that again.
    pub(super) fn begin_again(&mut self, core: &Core) {
        self.is_inherited = true;
        for (vrf, change) in core.learned_bridges() {
            self.inherited_macs.extend(change.macs.iter().map(|(mac, _)| (vrf, *mac)));
            self.inherited_owners.extend(change.owners.iter().map(|(address, _)| (vrf, *address)));
            self.inherited_floods.extend(change.flood.map(|_| vrf));
        }
        if let Err(e) = core.begin_routes(self.source) {
            tracing::debug!("routes do not become stale: {e}");
        }
    }

    /// Withdraws what was learned before and not again. Returns whether that was done.
    pub(super) fn complete(&mut self, core: &Core) -> bool {
        for (vrf, mac) in std::mem::take(&mut self.inherited_macs) {
            self.bridges.entry(vrf).or_default().macs.push((mac, None));
        }
        for vrf in std::mem::take(&mut self.inherited_floods) {
            self.bridges.entry(vrf).or_default().flood = Some(Vec::new());
        }
        for (vrf, address) in std::mem::take(&mut self.inherited_owners) {
            self.bridges.entry(vrf).or_default().owners.push((address, None));
        }
        self.take(core, Vec::new());
        match core.end_routes(self.source) {
            Ok(0) => true,
            Ok(swept) => {
                tracing::info!(swept, "routes that BGP peers no longer have are gone");
                true
            }
            // Another daemon takes over, and may fail to.
            Err(_) => false,
        }
    }

    /// Puts changes into the tables.
    pub(super) fn take(&mut self, core: &Core, changes: Vec<Change>) {
        changes.into_iter().for_each(|change| self.sort(change));
        for (vrf, change) in std::mem::take(&mut self.bridges) {
            if let Err(Error::Conflict(_)) = core.update_bridge(vrf, &change) {
                self.bridges.insert(vrf, change);
            }
        }
        for (vrf, routes) in std::mem::take(&mut self.routes) {
            match core.update_routes(self.source, vrf, &routes) {
                Err(Error::Conflict(_)) => drop(self.routes.insert(vrf, routes)),
                Err(Error::Routes(_)) => self.one_by_one(core, vrf, &routes),
                // The network is gone, and the speaker is told so.
                _ => {}
            }
        }
    }

    fn sort(&mut self, change: Change) {
        match change {
            Change::Route { vrf, prefix, paths } => {
                let paths = PathSet::new(paths.iter().take(rib::MAX_PATHS).map(path));
                self.routes.entry(of(vrf)).or_default().push((prefix, paths));
            }
            // The gateways' MAC is every host's own.
            Change::Mac { mac, .. } if mac == GATEWAY_MAC || mac.is_group() => {}
            Change::Mac { vrf, mac, path } => {
                let to = path.map(|path| tunnel(&path.tunnel));
                self.inherited_macs.remove(&(of(vrf), mac));
                self.bridges.entry(of(vrf)).or_default().macs.push((mac, to));
            }
            Change::Flood { vrf, tunnels } => {
                let tunnels = tunnels.iter().map(tunnel).collect();
                self.inherited_floods.remove(&of(vrf));
                self.bridges.entry(of(vrf)).or_default().flood = Some(tunnels);
            }
            Change::Neighbour { vrf, address, mac } => {
                // The gateways' MAC is every host's own.
                let mac = mac.filter(|mac| *mac != GATEWAY_MAC && !mac.is_group());
                self.inherited_owners.remove(&(of(vrf), address));
                self.bridges.entry(of(vrf)).or_default().owners.push((address, mac));
            }
        }
    }

    /// Takes as many routes as there is room for.
    fn one_by_one(&mut self, core: &Core, vrf: Vrf, routes: &[(IpNet, Option<PathSet>)]) {
        for route in routes {
            if let Err(e) = core.update_routes(self.source, vrf, std::slice::from_ref(route)) {
                self.refused += 1;
                if self.refused.is_power_of_two() {
                    tracing::warn!(times = self.refused, "a route of a BGP peer is not used: {e}");
                }
            }
        }
    }
}

/// Returns the network of a number that this daemon gave to the speaker.
fn of(vrf: VrfId) -> Vrf {
    Vrf(u16::try_from(vrf).unwrap_or_default())
}

fn path(path: &Path) -> rib::Path {
    match path {
        Path::Tunnel { tunnel: of, router_mac } => {
            rib::Path::Tunnel(Tunnel { mac: *router_mac, ..tunnel(of) })
        }
        Path::Via(router) => rib::Path::Via(*router),
    }
}

fn tunnel(tunnel: &bgp::Tunnel) -> Tunnel {
    let bgp::Tunnel { remote, encapsulation, label } = *tunnel;
    let kind = match encapsulation {
        Encapsulation::MplsUdp => TunnelKind::MplsUdp,
        Encapsulation::MplsGre => TunnelKind::MplsGre,
        Encapsulation::Vxlan => TunnelKind::Vxlan,
    };
    Tunnel { kind, remote, id: label, mac: None }
}
