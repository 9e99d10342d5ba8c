//! MAC addresses and floods that programs say are on other hosts.

use super::{Compiler, Desired, Ids, Index, Links, User};
use imbl::OrdMap;
use model::{Nexthop, NexthopId, Tunnel, Vrf};
use packet::Mac;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// The MAC addresses and floods of networks, as programs know them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bridges {
    /// The tunnels behind which MAC addresses are. They count where no object has the address.
    pub(crate) macs: OrdMap<(Vrf, Mac), (Tunnel, NexthopId)>,
    /// The tunnels to which floods go as well.
    floods: OrdMap<Vrf, Vec<Tunnel>>,
    /// The MAC addresses of hosts that have these addresses.
    pub(crate) owners: OrdMap<(Vrf, IpAddr), Mac>,
}

impl Bridges {
    /// Returns whether anything concerns a network.
    pub(crate) fn has_network(&self, vrf: Vrf) -> bool {
        let (mac, addr) = (Mac::default(), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.floods.contains_key(&vrf)
            || self.macs.range((vrf, mac)..).next().is_some_and(|((of, _), _)| *of == vrf)
            || self.owners.range((vrf, addr)..).next().is_some_and(|((of, _), _)| *of == vrf)
    }

    /// Returns what concerns these networks.
    pub(super) fn of_networks(&self, is_kept: impl Fn(Vrf) -> bool) -> Self {
        let macs = self.macs.iter().filter(|((vrf, _), _)| is_kept(*vrf));
        let floods = self.floods.iter().filter(|(vrf, _)| is_kept(**vrf));
        let owners = self.owners.iter().filter(|((vrf, _), _)| is_kept(*vrf));
        Self {
            owners: owners.map(|(place, mac)| (*place, *mac)).collect(),
            macs: macs.map(|(place, to)| (*place, *to)).collect(),
            floods: floods.map(|(vrf, to)| (*vrf, to.clone())).collect(),
        }
    }
}

impl Bridges {
    /// Returns all of it as changes from nothing, by network.
    pub(crate) fn as_changes(&self) -> BTreeMap<Vrf, BridgeChange> {
        let mut changes: BTreeMap<Vrf, BridgeChange> = BTreeMap::new();
        for ((vrf, mac), (tunnel, _)) in &self.macs {
            changes.entry(*vrf).or_default().macs.push((*mac, Some(*tunnel)));
        }
        for (vrf, tunnels) in &self.floods {
            changes.entry(*vrf).or_default().flood = Some(tunnels.clone());
        }
        for ((vrf, addr), mac) in &self.owners {
            changes.entry(*vrf).or_default().owners.push((*addr, Some(*mac)));
        }
        changes
    }
}

/// A change of a network's bridge.
#[derive(Clone, Debug, Default)]
pub struct BridgeChange {
    /// MAC addresses, each with the tunnel behind which it is now, if it is anywhere.
    pub macs: Vec<(Mac, Option<Tunnel>)>,
    /// The tunnels to which floods go from now on, if that changes.
    pub flood: Option<Vec<Tunnel>>,
    /// Addresses, each with the MAC address that has it now, if any has.
    pub owners: Vec<(IpAddr, Option<Mac>)>,
}

impl Compiler<'_> {
    /// Takes the nexthops of all learned MAC addresses and floods. They keep their numbers.
    pub(super) fn bridges(&mut self) {
        let Bridges { macs, floods, .. } = self.out.bridges.clone();
        for (tunnel, nexthop) in macs.values() {
            let taken = self.tunnel(*tunnel);
            debug_assert_eq!(taken, *nexthop);
        }
        for tunnel in floods.values().flatten() {
            self.tunnel(*tunnel);
        }
    }

    /// Takes the nexthop of a tunnel, or takes it back while removing.
    fn tunnel(&mut self, tunnel: Tunnel) -> NexthopId {
        self.user = User::Routes(1);
        let id = self.nexthop(Nexthop::Tunnel(tunnel));
        self.user = User::Other;
        id
    }

    /// Takes back the nexthop of a tunnel.
    fn put_back_tunnel(&mut self, tunnel: Tunnel) {
        self.removing = true;
        self.tunnel(tunnel);
        self.removing = false;
    }

    /// Has the floods of all networks go to learned tunnels as well.
    pub(super) fn extend_floods(&mut self) {
        let networks: Vec<_> = self.out.bridges.floods.keys().copied().collect();
        networks.into_iter().for_each(|vrf| self.extend_flood(vrf));
    }

    fn extend_flood(&mut self, vrf: Vrf) {
        let of = |floods: &OrdMap<Vrf, Vec<Tunnel>>| floods.get(&vrf).cloned().unwrap_or_default();
        let mut tunnels = of(&self.out.floods);
        let more: Vec<_> =
            of(&self.out.bridges.floods).into_iter().filter(|tunnel| !tunnels.contains(tunnel)).collect();
        tunnels.extend(more);
        let ids = tunnels.iter().filter_map(|tunnel| self.ids.nexthops.get(Nexthop::Tunnel(*tunnel)));
        let flood = ids.map(NexthopId).collect();
        let mut vnis: Vec<_> = tunnels.iter().map(|tunnel| (tunnel.remote, tunnel.id)).collect();
        vnis.sort_unstable();
        if let Some(network) = self.out.networks.get_mut(&vrf) {
            network.flood = flood;
            network.overlay.vnis = vnis;
        }
    }

    fn change_bridge(&mut self, vrf: Vrf, change: &BridgeChange) {
        for (mac, to) in &change.macs {
            let new = to.map(|tunnel| (tunnel, self.tunnel(tunnel)));
            let old = match new {
                Some(new) => self.out.bridges.macs.insert((vrf, *mac), new),
                None => self.out.bridges.macs.remove(&(vrf, *mac)),
            };
            old.into_iter().for_each(|(tunnel, _)| self.put_back_tunnel(tunnel));
        }
        if let Some(tunnels) = &change.flood {
            for tunnel in tunnels {
                self.tunnel(*tunnel);
            }
            let old = match tunnels.is_empty() {
                true => self.out.bridges.floods.remove(&vrf),
                false => self.out.bridges.floods.insert(vrf, tunnels.clone()),
            };
            old.into_iter().flatten().for_each(|tunnel| self.put_back_tunnel(tunnel));
            self.extend_flood(vrf);
        }
        for (addr, mac) in &change.owners {
            match mac {
                Some(mac) => drop(self.out.bridges.owners.insert((vrf, *addr), *mac)),
                None => drop(self.out.bridges.owners.remove(&(vrf, *addr))),
            }
        }
    }
}

/// Changes what is learned of a network's bridge in the tables `of`. The cost depends only on the change.
pub(crate) fn learn_bridge(
    of: &Desired,
    index: &Index,
    ids: &mut Ids,
    (vrf, change): (Vrf, &BridgeChange),
) -> Desired {
    let links = Links::default();
    let mut compiler = Compiler::new(index, ids, &links, of.clone());
    compiler.change_bridge(vrf, change);
    compiler.finish()
}
