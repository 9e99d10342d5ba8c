//! The naive tables: maps, scanned where necessary. Every faster form is tested against them.

mod apply;
mod dynamic;
mod ovs;

use crate::snat::SharedAddress;
use crate::{
    Action, BridgeEntry, BridgeTarget, Connection, Endpoint, FlowKey, FragmentKey, Host, KernelPath, Lookup,
    MeterConfig, MeterId, NeighbourScope, Network, Nexthop, NexthopId, OutsidePort, RouteEntry, Rule,
    RuleAction, RuleId, RuleMatch, RuleQuery, Seconds, Transport, Vif, VifId, Vrf,
};
use ipnet::IpNet;
use packet::{Mac, TunnelKind};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// All that `decide` reads: the configuration, and the state learned from packets.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    host: Host,
    vifs: BTreeMap<VifId, Vif>,
    wires: Vec<VifId>,
    networks: BTreeMap<Vrf, Network>,
    nexthops: BTreeMap<NexthopId, Nexthop>,
    routes: BTreeMap<(Vrf, IpNet), NexthopId>,
    macs: BTreeMap<(Vrf, Mac), BridgeTarget>,
    owners: BTreeMap<(Vrf, IpAddr), Mac>,
    mpls: BTreeMap<u32, NexthopId>,
    vxlan: BTreeMap<u32, Vrf>,
    /// Outside (network, address) to inside.
    floating: BTreeMap<(Vrf, IpAddr), (Vrf, IpAddr)>,
    meter_configs: BTreeMap<MeterId, MeterConfig>,
    /// In the order in which they are tried.
    rules: BTreeMap<(Vrf, u32, RuleId), Rule>,
    kernel_paths: BTreeMap<IpAddr, Arc<[KernelPath]>>,
    /// Remotes that are known to be out of reach.
    down: BTreeSet<IpAddr>,
    down_paths: BTreeSet<(IpAddr, VifId, IpAddr)>,
    watched: BTreeSet<IpAddr>,
    ovs_flows: BTreeMap<(VifId, crate::ovs::FlowId), Arc<crate::ovs::Flow>>,
    dynamic: dynamic::Dynamic,
}

impl Tables {
    /// Returns empty tables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the interfaces, in the order of their ids.
    pub fn vifs(&self) -> impl Iterator<Item = &Vif> {
        self.vifs.values()
    }

    /// Returns the guests of a network, each by its first interface.
    fn guests(&self, vrf: Vrf) -> impl Iterator<Item = &Vif> {
        self.vifs.values().filter(move |vif| vif.vrf == Some(vrf) && !vif.is_second())
    }

    /// Returns the networks, in the order of their VRFs.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// Returns the routes, by network and prefix.
    pub fn routes(&self) -> impl Iterator<Item = (Vrf, IpNet, NexthopId)> {
        self.routes.iter().map(|(&(vrf, prefix), &nexthop)| (vrf, prefix, nexthop))
    }

    /// Returns the labels and their nexthops.
    pub fn labels(&self) -> impl Iterator<Item = (u32, NexthopId)> {
        self.mpls.iter().map(|(&label, &nexthop)| (label, nexthop))
    }

    /// Returns the VXLAN network identifiers and their networks.
    pub fn vnis(&self) -> impl Iterator<Item = (u32, Vrf)> {
        self.vxlan.iter().map(|(&vni, &vrf)| (vni, vrf))
    }

    /// Returns the floating addresses.
    pub fn floating(&self) -> impl Iterator<Item = crate::FloatingAddress> {
        self.floating.iter().map(|(&(outside_vrf, outside), &(inside_vrf, inside))| crate::FloatingAddress {
            inside_vrf,
            inside,
            outside_vrf,
            outside,
        })
    }
}

impl Lookup for Tables {
    fn host(&self) -> &Host {
        &self.host
    }

    fn vif(&self, id: VifId) -> Option<&Vif> {
        self.vifs.get(&id)
    }

    fn wires(&self) -> &[VifId] {
        &self.wires
    }

    fn kernel_paths(&self, remote: IpAddr) -> &[KernelPath] {
        self.kernel_paths.get(&remote).map_or(&[], |paths| paths)
    }

    fn owner(&self, vrf: Vrf, addr: IpAddr) -> Option<Mac> {
        self.owners.get(&(vrf, addr)).copied()
    }

    fn is_down(&self, remote: IpAddr) -> bool {
        self.down.contains(&remote)
    }

    fn is_path_down(&self, remote: IpAddr, wire: VifId, hop: IpAddr) -> bool {
        self.down_paths.contains(&(remote, wire, hop))
    }

    fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.networks.get(&vrf)
    }

    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        self.guests(vrf).find(|v| v.addresses.contains(&addr)).map(|v| v.id)
    }

    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry> {
        let fixed = |target| BridgeEntry { target, is_static: true };
        let guest = || self.guests(vrf).find(|v| v.mac == Some(mac));
        let learned = || self.dynamic.learned(vrf, mac);
        let configured = self.macs.get(&(vrf, mac)).copied();
        configured
            .or_else(|| guest().map(|v| BridgeTarget::Vif(v.id)))
            .map(fixed)
            .or_else(|| learned().map(|target| BridgeEntry { target, is_static: false }))
    }

    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        self.routes
            .iter()
            .filter(|((v, prefix), _)| *v == vrf && prefix.contains(&addr))
            .max_by_key(|((_, prefix), _)| prefix.prefix_len())
            .map(|((_, prefix), &nexthop)| RouteEntry { nexthop, prefix_len: prefix.prefix_len() })
    }

    fn nexthop(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>> {
        self.nexthops.get(&id).map(Cow::Borrowed)
    }

    fn is_remote(&self, addr: IpAddr) -> bool {
        self.watched.contains(&addr) || self.nexthops.values().any(|nexthop| nexthop.remote() == Some(addr))
    }

    fn is_port_remote(&self, addr: IpAddr) -> bool {
        self.vifs.values().filter_map(Vif::tunnel).any(|tunnel| tunnel.remote == addr)
    }

    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId> {
        let key = (kind, remote, id);
        let is = |vif: &&Vif| vif.tunnel().is_some_and(|of| (of.kind, of.remote, of.id) == key);
        self.vifs.values().find(is).map(|vif| vif.id)
    }

    fn mpls(&self, label: u32) -> Option<NexthopId> {
        self.mpls.get(&label).copied()
    }

    fn vxlan(&self, vni: u32) -> Option<Vrf> {
        self.vxlan.get(&vni).copied()
    }

    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        self.dynamic.neighbour(scope, addr)
    }

    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        self.dynamic.is_unreachable(scope, addr)
    }

    fn is_silent(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        self.dynamic.is_unreachable(scope, addr)
    }

    fn any_is_silent(&self) -> bool {
        self.dynamic.any_is_silent()
    }

    fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.dynamic.path_mtu(remote)
    }

    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        self.floating
            .iter()
            .find(|((vrf, _), target)| *vrf == outside_vrf && **target == (inside_vrf, inside))
            .map(|((_, addr), _)| *addr)
    }

    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)> {
        self.floating.get(&(outside_vrf, outside)).copied()
    }

    fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf> {
        let address = SharedAddress { outside_vrf, outside };
        let shares = |network: &&Network| network.sharing.addresses.contains(&address);
        self.networks.values().find(shares).map(|network| network.vrf)
    }

    fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        self.dynamic.bound(key, now)
    }

    fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        self.dynamic.mapping(inside, protocol, is_usable)
    }

    fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        self.dynamic.is_mapped(vrf, outside, protocol)
    }

    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch {
        let default = self.networks.get(&vrf).map_or(Action::Drop, |n| n.default_action);
        let mut matched = RuleMatch { action: default, rule: None, modifiers: Default::default() };
        let first = (vrf, 0, RuleId(0));
        for (_, rule) in self.rules.range(first..).take_while(|((v, ..), _)| *v == vrf) {
            if !rule.matches(query) {
                continue;
            }
            match rule.action {
                RuleAction::Modify(modifier) => {
                    let _ = matched.modifiers.try_push((rule.id, modifier));
                }
                RuleAction::End(action) => {
                    (matched.action, matched.rule) = (action, Some(rule.id));
                    break;
                }
            }
        }
        matched
    }

    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        self.dynamic.connection(key, now)
    }

    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        self.dynamic.fragment(key, now)
    }

    fn ovs_flow(&self, port: VifId, key: &crate::ovs::Key) -> Option<&crate::ovs::Flow> {
        self.ovs_flows_of(port).find(|flow| flow.matching.matches(key))
    }

    fn ovs_flow_of_all(
        &self,
        port: VifId,
        key: &crate::ovs::Key,
        free: &crate::ovs::Key,
    ) -> Option<&crate::ovs::Flow> {
        let first = self.ovs_flows_of(port).find(|flow| flow.matching.may_match(key, free));
        first.filter(|flow| !flow.matching.looks_at(free))
    }
}
