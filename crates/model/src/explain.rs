//! A decision with its reasons: every table look-up that led to it.

mod step;
mod words;

pub use step::Step;
pub use words::{Names, Numbers};

use crate::{
    BridgeEntry, Connection, Decision, DropReason, Endpoint, FlowKey, FragmentKey, Host, KernelPath, Lookup,
    NeighbourScope, Network, Nexthop, NexthopId, OutsidePort, PacketView, RouteEntry, RuleMatch, RuleQuery,
    Seconds, Transport, Vif, VifId, Vrf, decide, ovs,
};
use packet::{Mac, TunnelKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::net::IpAddr;

/// The decision about a hypothetical packet, with its look-ups.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The look-ups, in their order.
    pub steps: Vec<Step>,
    /// The decision.
    pub decision: Decision,
}

/// Decides about a packet and records how.
#[must_use]
pub fn explain<T: Lookup>(tables: &T, packet: &PacketView<'_>, ingress: VifId, now: Seconds) -> Explanation {
    let traced = Traced::new(tables);
    let decision = decide(&traced, packet, ingress, now);
    let mut steps = traced.into_steps();
    steps.extend(shapers(tables, ingress, &decision));
    Explanation { steps, decision }
}

/// Returns the shapers for which the packet waits: that of its sender, then those of its receivers.
fn shapers<T: Lookup>(tables: &T, ingress: VifId, decision: &Decision) -> Vec<Step> {
    let rate = |id, inward| {
        let shape = tables.vif(id)?.shape;
        let bits_per_second = if inward { shape.inward } else { shape.outward }?;
        Some(Step::Shape { id, inward, bits_per_second })
    };
    let receivers = decision.verdict.egress();
    rate(ingress, false).into_iter().chain(receivers.into_iter().filter_map(|id| rate(id, true))).collect()
}

/// Tables that record every look-up.
#[derive(Debug)]
pub struct Traced<'a, T> {
    tables: &'a T,
    steps: RefCell<Vec<Step>>,
}

impl<'a, T> Traced<'a, T> {
    /// Records look-ups in these tables.
    pub const fn new(tables: &'a T) -> Self {
        Self { tables, steps: RefCell::new(Vec::new()) }
    }

    /// Returns the look-ups so far, in order, each only once.
    #[must_use]
    pub fn into_steps(self) -> Vec<Step> {
        self.steps.into_inner()
    }

    fn note(&self, step: Step) {
        let mut steps = self.steps.borrow_mut();
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
}

impl<T: Lookup> Lookup for Traced<'_, T> {
    fn host(&self) -> &Host {
        self.tables.host()
    }

    fn vif(&self, id: VifId) -> Option<&Vif> {
        let vif = self.tables.vif(id);
        self.note(Step::Vif { id, found: vif.map(|vif| (vif.kind, vif.vrf)) });
        vif
    }

    fn wires(&self) -> &[VifId] {
        self.tables.wires()
    }

    fn kernel_paths(&self, remote: IpAddr) -> &[KernelPath] {
        let found = self.tables.kernel_paths(remote);
        self.note(Step::KernelPaths { remote, found: found.into() });
        found
    }

    fn owner(&self, vrf: Vrf, addr: IpAddr) -> Option<Mac> {
        let found = self.tables.owner(vrf, addr)?;
        self.note(Step::Owner { vrf, addr, found });
        Some(found)
    }

    fn is_down(&self, remote: IpAddr) -> bool {
        let is_down = self.tables.is_down(remote);
        if is_down {
            self.note(Step::Down { remote });
        }
        is_down
    }

    fn is_path_down(&self, remote: IpAddr, wire: VifId, hop: IpAddr) -> bool {
        let is_down = self.tables.is_path_down(remote, wire, hop);
        if is_down {
            self.note(Step::PathDown { remote, wire, hop });
        }
        is_down
    }

    fn network(&self, vrf: Vrf) -> Option<&Network> {
        let network = self.tables.network(vrf);
        self.note(Step::Network { vrf, found: network.is_some() });
        network
    }

    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        let found = self.tables.guest_by_address(vrf, addr);
        self.note(Step::Guest { vrf, addr, found });
        found
    }

    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry> {
        let found = self.tables.bridge(vrf, mac);
        self.note(Step::Bridge { vrf, mac, found });
        found
    }

    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        let found = self.tables.route(vrf, addr);
        self.note(Step::Route { vrf, addr, found });
        found
    }

    fn nexthop(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>> {
        let nexthop = self.tables.nexthop(id);
        self.note(Step::Nexthop { id, found: nexthop.as_deref().cloned() });
        nexthop
    }

    fn is_remote(&self, addr: IpAddr) -> bool {
        let found = self.tables.is_remote(addr);
        self.note(Step::Remote { addr, found });
        found
    }

    fn is_port_remote(&self, addr: IpAddr) -> bool {
        self.tables.is_port_remote(addr)
    }

    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId> {
        let found = self.tables.tunnel_port(kind, remote, id)?;
        self.note(Step::Tunnel { kind, remote, id, found });
        Some(found)
    }

    fn mpls(&self, label: u32) -> Option<NexthopId> {
        let found = self.tables.mpls(label);
        self.note(Step::Mpls { label, found });
        found
    }

    fn vxlan(&self, vni: u32) -> Option<Vrf> {
        let found = self.tables.vxlan(vni);
        self.note(Step::Vxlan { vni, found });
        found
    }

    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        let found = self.tables.neighbour(scope, addr);
        self.note(Step::Neighbour { scope, addr, found });
        found
    }

    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        let unreachable = self.tables.is_unreachable(scope, addr);
        if unreachable {
            self.note(Step::Unreachable { scope, addr });
        }
        unreachable
    }

    fn is_silent(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        let is_silent = self.tables.is_silent(scope, addr);
        if is_silent {
            self.note(Step::Unreachable { scope, addr });
        }
        is_silent
    }

    fn any_is_silent(&self) -> bool {
        self.tables.any_is_silent()
    }

    fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        let found = self.tables.path_mtu(remote);
        self.note(Step::Path { remote, found });
        // Nobody asks where there is no other path.
        self.is_down(remote);
        found
    }

    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        let found = self.tables.floating_of(inside_vrf, inside, outside_vrf);
        self.note(Step::FloatingOf { vrf: inside_vrf, inside, outside_vrf, found });
        found
    }

    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)> {
        let found = self.tables.inside_of(outside_vrf, outside);
        self.note(Step::InsideOf { vrf: outside_vrf, outside, found });
        found
    }

    fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf> {
        let found = self.tables.shared_by(outside_vrf, outside);
        if found.is_some() {
            self.note(Step::SharedBy { vrf: outside_vrf, outside, found });
        }
        found
    }

    fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        let found = self.tables.bound(key, now);
        let end = found.as_ref().and_then(|connection| Some(connection.bound_ends()?.0));
        let (vrf, port, remote) = (key.src.vrf, key.src.port, key.dst);
        self.note(Step::Bound { vrf, port, remote, protocol: key.protocol, found: end });
        found
    }

    fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        let found = self.tables.mapping(inside, protocol, is_usable);
        self.note(Step::Mapping { inside: *inside, protocol, found: found.map(|found| found.port) });
        found
    }

    fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        let found = self.tables.is_mapped(vrf, outside, protocol);
        if found {
            self.note(Step::Mapped { vrf, outside, protocol });
        }
        found
    }

    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch {
        let matched = self.tables.rules(vrf, query);
        let is_found = matched.rule.is_some() || !matched.modifiers.is_empty();
        self.note(Step::Rules { vrf, query: *query, found: is_found.then(|| matched.clone()) });
        if matched.rule.is_none() {
            self.note(Step::Default { vrf, action: matched.action });
        }
        matched
    }

    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        let found = self.tables.connection(key, now);
        let state = found.as_ref().map(|(connection, is_reply)| (connection.state, *is_reply));
        self.note(Step::Flow { key: *key, found: state });
        found
    }

    fn may_flood(&self, vrf: Vrf) -> Result<(), DropReason> {
        self.tables.may_flood(vrf)
    }

    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        let found = self.tables.fragment(key, now);
        self.note(Step::Fragment { key: *key, found });
        found
    }

    fn ovs_flow(&self, port: VifId, key: &ovs::Key) -> Option<&ovs::Flow> {
        let found = self.tables.ovs_flow(port, key);
        self.note(Step::OvsFlow { port, key: Box::new(*key), found: found.cloned() });
        found
    }
}
