//! The effects of a change: keys whose values may differ, and networks whose flows may differ.

use super::Image;
use ipnet::IpNet;
use model::snat::SharedAddress;
use model::{Change, Lookup, Nexthop, NexthopId, Vif, VifId, Vrf};
use packet::Mac;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The part of the configuration whose keys can't be queried from the tables.
#[derive(Debug, Default)]
pub struct Configured {
    vifs: BTreeMap<VifId, (Option<Vrf>, Option<Mac>)>,
    /// The addresses for which the gateways of each network answer.
    networks: BTreeMap<Vrf, Vec<IpAddr>>,
    /// Current nexthops, and deleted ones in their last form.
    nexthops: BTreeMap<NexthopId, Nexthop>,
    routes: BTreeMap<(Vrf, IpNet), NexthopId>,
    macs: BTreeSet<(Vrf, Mac)>,
    labels: BTreeSet<u32>,
    vnis: BTreeSet<u32>,
    /// Outside addresses of floating addresses, and those that guests share.
    floating: BTreeSet<(Vrf, IpNet)>,
    /// The addresses that the guests of a network share.
    shared: BTreeMap<Vrf, Vec<SharedAddress>>,
}

/// The keys whose values may differ after a change.
#[derive(Debug, Default)]
pub struct Touched {
    pub vifs: BTreeSet<VifId>,
    pub vrfs: BTreeSet<Vrf>,
    pub macs: BTreeSet<(Vrf, Mac)>,
    pub routes: BTreeSet<(Vrf, IpNet)>,
    pub labels: BTreeSet<u32>,
    pub vnis: BTreeSet<u32>,
    /// Addresses to which a tunnel leads or led.
    pub remotes: BTreeSet<IpAddr>,
    /// Whether lines of nexthops may differ.
    pub lines: bool,
    /// Whether all interfaces may differ, and with them all ports, MACs and labels.
    pub all_vifs: bool,
    /// Networks in which everything may differ.
    pub networks: BTreeSet<Vrf>,
    /// Networks whose flows may be invalid now.
    pub bump: BTreeSet<Vrf>,
    /// Whether flows of all networks may be invalid now.
    pub bump_all: bool,
    /// Whether flows of all ports of an Open vSwitch may be invalid now.
    pub bump_ports: bool,
    /// Whether flows may be invalid that depend on more than the rules of their network. Such flows also end whenever
    /// those of any network do.
    pub bump_far: bool,
}

impl Configured {
    pub fn route(&self, vrf: Vrf, prefix: &IpNet) -> Option<NexthopId> {
        self.routes.get(&(vrf, *prefix)).copied()
    }

    /// Records a change and its effects.
    pub fn note<T: Lookup>(&mut self, tables: &T, change: &Change, touched: &mut Touched) {
        match change {
            Change::SetHost(_) => {
                (touched.all_vifs, touched.lines, touched.bump_far) = (true, true, true);
                // Whether the card may route to other hosts' router MACs depends on the host's own.
                touched.networks.extend(self.networks.keys());
            }
            Change::PutVif(vif) => self.note_vif(vif.id, Some(vif), touched),
            Change::DelVif(id) => self.note_vif(*id, None, touched),
            Change::PutNetwork(network) => {
                let anycast = network.gateways.iter().map(IpNet::network);
                let anycast = anycast.filter(|addr| network.is_router_anycast(*addr));
                let gateways = network.gateways.iter().map(IpNet::addr).chain(anycast).collect();
                self.note_network(network.vrf, touched);
                self.networks.insert(network.vrf, gateways);
                self.note_network(network.vrf, touched);
                self.note_shared(network.vrf, &network.sharing.addresses, touched);
            }
            Change::DelNetwork(vrf) => {
                self.note_shared(*vrf, &[], touched);
                self.note_network(*vrf, touched);
                self.networks.remove(vrf);
            }
            Change::PutNexthop(id, nexthop) => self.note_nexthop(*id, nexthop, touched),
            // After the batch nothing refers to the nexthop. But within the batch, a new one may get its number, so
            // keep its former value.
            Change::DelNexthop(id) => {
                touched.remotes.extend(self.nexthops.get(id).and_then(Nexthop::remote));
            }
            Change::PutRoute { vrf, prefix, nexthop } => {
                self.note_route(tables, *vrf, prefix.trunc(), Some(*nexthop), touched);
            }
            Change::DelRoute { vrf, prefix } => self.note_route(tables, *vrf, prefix.trunc(), None, touched),
            Change::PutMac { vrf, mac, .. } | Change::DelMac { vrf, mac } => {
                let put = matches!(change, Change::PutMac { .. });
                note_key(&mut self.macs, &mut touched.macs, (*vrf, *mac), put);
                touched.bump_far = true;
            }
            Change::PutMpls { label, .. } | Change::DelMpls { label } => {
                let put = matches!(change, Change::PutMpls { .. });
                note_key(&mut self.labels, &mut touched.labels, *label, put);
            }
            Change::PutVxlan { vni, .. } | Change::DelVxlan { vni } => {
                let put = matches!(change, Change::PutVxlan { .. });
                note_key(&mut self.vnis, &mut touched.vnis, *vni, put);
            }
            Change::PutFloating(f) => self.note_floating(f.outside_vrf, f.outside, true, touched),
            Change::DelFloating { outside_vrf, outside } => {
                self.note_floating(*outside_vrf, *outside, false, touched);
            }
            Change::PutRule(rule) => {
                touched.bump.insert(rule.vrf);
            }
            Change::DelRule { vrf, .. } => {
                touched.bump.insert(*vrf);
            }
            // Flows go by other members of groups.
            Change::SetDown { .. } => touched.bump_far = true,
            Change::SetWatched { remote, .. } => drop(touched.remotes.insert(*remote)),
            // The card has no tunnels by wires that the kernel keeps, nor by several.
            Change::PutMeter(..)
            | Change::DelMeter(_)
            | Change::PutPaths { .. }
            | Change::SetPathDown { .. } => {}
            // Nor does it answer ARP and ND.
            Change::PutOwner { .. } | Change::DelOwner { .. } => {}
        }
    }

    /// Records that an interface changed, or is attached at a different place.
    pub fn note_vif(&mut self, id: VifId, vif: Option<&Vif>, touched: &mut Touched) {
        let old = self.vifs.remove(&id);
        let new = vif.map(|vif| (vif.vrf, vif.mac));
        if let Some(new) = new {
            self.vifs.insert(id, new);
        }
        for (vrf, mac) in [old, new].into_iter().flatten() {
            if let Some(vrf) = vrf {
                touched.bump.insert(vrf);
                touched.macs.extend(mac.map(|mac| (vrf, mac)));
            }
        }
        touched.vifs.insert(id);
        (touched.all_vifs, touched.lines, touched.bump_far) = (true, true, true);
        touched.bump_ports = true;
    }

    fn note_network(&mut self, vrf: Vrf, touched: &mut Touched) {
        let gateways = self.networks.get(&vrf).into_iter().flatten();
        touched.routes.extend(gateways.map(|gateway| (vrf, IpNet::from(*gateway))));
        touched.networks.insert(vrf);
        touched.vrfs.insert(vrf);
        touched.bump.insert(vrf);
        (touched.all_vifs, touched.lines) = (true, true);
    }

    /// Records a nexthop. A change affects everything that refers to it. Groups that contain it serve only flows.
    fn note_nexthop(&mut self, id: NexthopId, nexthop: &Nexthop, touched: &mut Touched) {
        let old = self.nexthops.insert(id, nexthop.clone());
        touched
            .remotes
            .extend([old.as_ref(), Some(nexthop)].into_iter().flatten().filter_map(Nexthop::remote));
        if old.is_some_and(|old| old != *nexthop) {
            let led = self.routes.iter().filter(|(_, to)| **to == id);
            for (key, _) in led {
                touched.routes.insert(*key);
                touched.bump.insert(key.0);
            }
            (touched.all_vifs, touched.bump_far) = (true, true);
        }
    }

    /// Records a route. If it leads or led to a different network, it determines which rules apply, and to which
    /// addresses.
    fn note_route<T: Lookup>(
        &mut self,
        tables: &T,
        vrf: Vrf,
        prefix: IpNet,
        nexthop: Option<NexthopId>,
        touched: &mut Touched,
    ) {
        let before = self.covering(vrf, &prefix);
        match nexthop {
            Some(nexthop) => self.routes.insert((vrf, prefix), nexthop),
            None => self.routes.remove(&(vrf, prefix)),
        };
        let after = self.covering(vrf, &prefix);
        if [before, after].into_iter().flatten().any(|id| !self.stays(tables, vrf, id)) {
            touched.bump.insert(vrf);
        }
        touched.routes.insert((vrf, prefix));
        touched.bump_far = true;
    }

    /// Returns the nexthop of the longest prefix that contains this one.
    fn covering(&self, vrf: Vrf, prefix: &IpNet) -> Option<NexthopId> {
        let mut lengths = (0..=prefix.prefix_len()).rev();
        lengths.find_map(|length| {
            let wider = IpNet::new(prefix.addr(), length).ok()?.trunc();
            self.routes.get(&(vrf, wider)).copied()
        })
    }

    /// Returns whether packets that are routed to this nexthop stay in their network, and are not dropped.
    fn stays<T: Lookup>(&self, tables: &T, vrf: Vrf, id: NexthopId) -> bool {
        match self.nexthops.get(&id).map(Cow::Borrowed).or_else(|| tables.nexthop(id)).as_deref() {
            Some(Nexthop::Encap { vif, .. }) => tables.vif(*vif).is_some_and(|vif| vif.vrf == Some(vrf)),
            Some(Nexthop::VrfTranslate { .. } | Nexthop::Discard) | None => false,
            Some(_) => true,
        }
    }

    /// Records a floating address. Any flow may use it, so all flows are affected.
    fn note_floating(&mut self, vrf: Vrf, outside: IpAddr, put: bool, touched: &mut Touched) {
        let key = (vrf, IpNet::from(outside));
        note_key(&mut self.floating, &mut touched.routes, key, put);
        touched.bump_all = true;
    }

    /// Records the addresses that the guests of a network share.
    fn note_shared(&mut self, vrf: Vrf, addresses: &[SharedAddress], touched: &mut Touched) {
        let old = self.shared.insert(vrf, addresses.to_vec()).unwrap_or_default();
        for shared in old.iter().filter(|shared| !addresses.contains(shared)) {
            self.note_floating(shared.outside_vrf, shared.outside, false, touched);
        }
        for shared in addresses.iter().filter(|shared| !old.contains(shared)) {
            self.note_floating(shared.outside_vrf, shared.outside, true, touched);
        }
    }
}

/// Records that a key now exists, or no longer does.
fn note_key<K: Copy + Ord>(known: &mut BTreeSet<K>, touched: &mut BTreeSet<K>, key: K, put: bool) {
    if put {
        known.insert(key);
    } else {
        known.remove(&key);
    }
    touched.insert(key);
}

impl Touched {
    /// Adds the affected keys.
    pub fn complete(&mut self, configured: &Configured, image: &Image) {
        if self.all_vifs {
            self.vifs.extend(configured.vifs.keys().chain(image.ports.keys()));
            let guests = configured.vifs.values().filter_map(|(vrf, mac)| vrf.zip(*mac));
            self.macs.extend(guests.chain(configured.macs.iter().copied()));
            self.macs.extend(image.macs.keys());
            self.labels.extend(&configured.labels);
        }
        if !self.networks.is_empty() {
            self.vnis.extend(&configured.vnis);
            let here = |(vrf, _): &(Vrf, IpNet)| self.networks.contains(vrf);
            let known = configured.routes.keys().chain(&configured.floating).chain(image.routes.keys());
            self.routes.extend(known.copied().filter(here));
        }
        let v6 = self.routes.iter().filter(|(_, prefix)| matches!(prefix, IpNet::V6(_)));
        self.vrfs.extend(v6.map(|(vrf, _)| *vrf));
    }
}
