//! One version of all tables except connections, and the view through which `decide` reads it.

use crate::cells::{Cell, Deps, FlowCell};
use crate::config::Config;
use crate::flow::Flows;
use crate::learned::Learned;
use crate::ovs::Ovs;
use model::{
    Action, BridgeEntry, Connection, DropReason, Endpoint, FloatingAddress, FlowKey, FragmentKey, Host,
    KernelPath, Lookup, MeterConfig, MeterId, NeighbourScope, Network, Nexthop, NexthopId, OutsidePort,
    RouteEntry, Rule, RuleMatch, RuleQuery, Seconds, Transport, Vif, VifId, Vrf, ovs,
};
use packet::{Mac, TunnelKind};
use std::borrow::Cow;
use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

/// One version of the tables. A clone is cheap.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) epoch: u64,
    pub(crate) config: Arc<Config>,
    pub(crate) learned: Learned,
    pub(crate) ovs: Ovs,
}

impl Snapshot {
    pub(crate) fn empty() -> Self {
        Self { epoch: 1, config: Arc::default(), learned: Learned::default(), ovs: Ovs::default() }
    }

    /// Returns the epoch, with which memoised decisions made from this snapshot are stamped.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    #[must_use]
    pub fn vif(&self, id: VifId) -> Option<&Vif> {
        self.config.vif(id)
    }

    /// Returns the interfaces, in the order of their ids.
    pub fn vifs(&self) -> impl Iterator<Item = &Vif> {
        self.config.vifs()
    }

    #[must_use]
    pub fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.config.network(vrf)
    }

    /// Returns the networks, in the order of their VRFs.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.config.vrfs.values().filter_map(|tables| tables.network.as_deref())
    }

    pub fn floating(&self) -> impl Iterator<Item = FloatingAddress> {
        let all = self.config.floating.iter();
        all.map(|(&(outside_vrf, outside), &(inside_vrf, inside))| FloatingAddress {
            inside_vrf,
            inside,
            outside_vrf,
            outside,
        })
    }

    /// Returns whether a different snapshot has the same configuration, so that at most learned state
    /// differs.
    #[must_use]
    pub fn is_configured_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }

    #[must_use]
    pub fn meter(&self, id: MeterId) -> Option<MeterConfig> {
        self.config.meters.get(&id).copied()
    }

    pub fn meters(&self) -> impl Iterator<Item = (MeterId, MeterConfig)> {
        self.config.meters.iter().map(|(id, config)| (*id, *config))
    }

    /// Returns the number of routes of a network, both families.
    #[must_use]
    pub fn route_count(&self, vrf: Vrf) -> usize {
        self.config.vrfs.get(&vrf).map_or(0, |tables| tables.v4.len() + tables.v6.len())
    }

    pub fn rules(&self, vrf: Vrf) -> impl Iterator<Item = &Rule> {
        self.config.vrfs.get(&vrf).into_iter().flat_map(|tables| tables.rules.iter()).map(|rule| &**rule)
    }

    /// Returns the path MTUs of remotes to which it is less than the wire's MTU: bytes of an outer IP packet.
    pub fn paths(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.learned.paths.iter().map(|(remote, (mtu, _))| (*remote, *mtu))
    }

    /// Returns the bits of packets at which some flow of a port looks, if an Open vSwitch programs the port.
    #[must_use]
    pub fn ovs_mask(&self, port: VifId) -> ovs::Key {
        self.ovs.mask(port)
    }

    /// Returns the bits of packets in tunnels at which some flow of these tunnels' ports looks; `None`
    /// without such ports.
    #[must_use]
    pub fn ovs_tunnel_mask(&self) -> Option<ovs::Key> {
        let ports = self.config.tunnels.iter().map(|(.., port)| self.ovs.mask(*port));
        ports.reduce(|all, mask| all.united(&mask))
    }

    /// Returns whether the treatment of packets of a port that an Open vSwitch programs never depends on
    /// their addresses and ports.
    #[must_use]
    pub fn ovs_is_coarse(&self, port: &Vif) -> bool {
        self.ovs.is_coarse(port, |id| self.vif(id))
    }

    /// Returns the view of this snapshot and these connections that `decide` reads at `now`.
    #[must_use]
    pub fn view<'a>(&'a self, flows: &'a Flows, now: Seconds) -> View<'a> {
        View { snapshot: self, flows, now, floods: None, unreachable: None, seen: RefCell::default() }
    }
}

/// Whether a packet may be flooded in a network ([`Lookup::may_flood`]).
pub type Floods<'a> = dyn Fn(Vrf) -> Result<(), DropReason> + 'a;

/// Whether a neighbour does not answer ([`Lookup::is_unreachable`]).
pub type Unreachable<'a> = dyn Fn(NeighbourScope, IpAddr) -> bool + 'a;

/// A snapshot and the connections as `decide` reads them. Records what a decision depends on.
pub struct View<'a> {
    snapshot: &'a Snapshot,
    flows: &'a Flows,
    now: Seconds,
    floods: Option<&'a Floods<'a>>,
    unreachable: Option<&'a Unreachable<'a>>,
    seen: RefCell<Seen>,
}

/// Records of look-ups.
#[derive(Clone, Copy)]
struct Seen {
    deps: Deps,
    /// The last flow of Open vSwitch that was looked up.
    flow: Option<FlowCell>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { deps: Deps::none(), flow: None }
    }
}

impl<'a> View<'a> {
    /// Returns the cells of everything looked up so far, hits and misses, except connections and fragments.
    #[must_use]
    pub fn deps(&self) -> Deps {
        let Seen { deps, flow } = *self.seen.borrow();
        flow.map_or(deps, |flow| deps.and(flow))
    }

    /// Returns the same, with the last flow of Open vSwitch apart from the rest.
    #[must_use]
    pub fn deps_and_flow(&self) -> (Deps, Option<FlowCell>) {
        let Seen { deps, flow } = *self.seen.borrow();
        (deps, flow)
    }

    /// Returns this view with a limit on floods.
    #[must_use]
    pub const fn flooding(mut self, floods: &'a Floods<'a>) -> Self {
        self.floods = Some(floods);
        self
    }

    /// Returns this view with unreachable neighbours. Without this call there are none.
    #[must_use]
    pub const fn without(mut self, unreachable: &'a Unreachable<'a>) -> Self {
        self.unreachable = Some(unreachable);
        self
    }

    #[must_use]
    pub const fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    #[must_use]
    pub const fn now(&self) -> Seconds {
        self.now
    }

    fn depend(&self, cell: Cell) {
        self.seen.borrow_mut().deps.add(cell);
    }
}

impl Lookup for View<'_> {
    fn host(&self) -> &Host {
        self.depend(Cell::host());
        &self.snapshot.config.host
    }

    fn vif(&self, id: VifId) -> Option<&Vif> {
        self.depend(Cell::vif(id));
        self.snapshot.config.vif(id)
    }

    fn wires(&self) -> &[VifId] {
        self.depend(Cell::wires());
        self.snapshot.config.wires()
    }

    fn kernel_paths(&self, remote: IpAddr) -> &[KernelPath] {
        self.depend(Cell::remote(remote));
        self.snapshot.config.kernel_paths.get(&remote).map_or(&[], |paths| paths)
    }

    fn owner(&self, vrf: Vrf, addr: IpAddr) -> Option<Mac> {
        self.depend(Cell::address(vrf, addr));
        self.snapshot.config.owners.get(&(vrf, addr)).copied()
    }

    fn is_down(&self, remote: IpAddr) -> bool {
        self.depend(Cell::remote(remote));
        self.snapshot.config.down.contains(&remote)
    }

    fn is_path_down(&self, remote: IpAddr, wire: VifId, hop: IpAddr) -> bool {
        self.depend(Cell::remote(remote));
        self.snapshot.config.down_paths.contains(&(remote, wire, hop))
    }

    fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.depend(Cell::network(vrf));
        self.snapshot.config.network(vrf)
    }

    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        self.depend(Cell::address(vrf, addr));
        self.snapshot.config.guest_by_address(vrf, addr)
    }

    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry> {
        self.depend(Cell::bridge(vrf, mac));
        let configured = self.snapshot.config.bridge(vrf, mac);
        configured.map(|target| BridgeEntry { target, is_static: true }).or_else(|| {
            let known = self.snapshot.learned.macs.get(&(vrf, mac))?;
            Some(BridgeEntry { target: known.value, is_static: false })
        })
    }

    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        Cell::routes(vrf, addr).into_iter().for_each(|cell| self.depend(cell));
        self.snapshot.config.route(vrf, addr)
    }

    fn nexthop(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>> {
        self.depend(Cell::nexthop(id));
        self.snapshot.config.nexthops.get(id)
    }

    fn is_remote(&self, addr: IpAddr) -> bool {
        self.depend(Cell::remote(addr));
        self.snapshot.config.is_remote(addr)
    }

    fn mpls(&self, label: u32) -> Option<NexthopId> {
        self.depend(Cell::mpls(label));
        self.snapshot.config.mpls.get(&label).copied()
    }

    fn vxlan(&self, vni: u32) -> Option<Vrf> {
        self.depend(Cell::vxlan(vni));
        self.snapshot.config.vxlan.get(&vni).copied()
    }

    fn is_port_remote(&self, addr: IpAddr) -> bool {
        self.depend(Cell::remote(addr));
        self.snapshot.config.is_port_remote(addr)
    }

    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId> {
        self.depend(Cell::vxlan(id));
        self.snapshot.config.tunnel_port(kind, remote, id)
    }

    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        self.depend(Cell::neighbour(scope, addr));
        let known = self.snapshot.learned.neighbours.get(&(scope, addr))?;
        known.note_use(self.now);
        Some(known.value)
    }

    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        self.unreachable.is_some_and(|unreachable| unreachable(scope, addr))
    }

    fn is_silent(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        // A change of any of these neighbours touches the cell of the wires.
        self.depend(Cell::wires());
        self.snapshot.learned.silent.contains_key(&(scope, addr))
    }

    fn any_is_silent(&self) -> bool {
        self.depend(Cell::wires());
        !self.snapshot.learned.silent.is_empty()
    }

    fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.depend(Cell::remote(remote));
        self.snapshot.learned.paths.get(&remote).map(|(mtu, _)| *mtu)
    }

    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        self.depend(Cell::floating(inside_vrf, inside));
        self.snapshot.config.floating_of(inside_vrf, inside, outside_vrf)
    }

    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)> {
        self.depend(Cell::inside(outside_vrf, outside));
        self.snapshot.config.floating.get(&(outside_vrf, outside)).copied()
    }

    fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf> {
        self.depend(Cell::inside(outside_vrf, outside));
        self.snapshot.config.shared_by(outside_vrf, outside)
    }

    fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection> {
        self.flows.bound(key, now)
    }

    fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort> {
        self.flows.mapping(inside, protocol, is_usable)
    }

    fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool {
        self.flows.is_mapped(vrf, outside, protocol)
    }

    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch {
        self.depend(Cell::rules(vrf));
        let tables = self.snapshot.config.vrfs.get(&vrf);
        let network = tables.and_then(|t| t.network.as_ref());
        let default = network.map_or(Action::Drop, |n| n.default_action);
        let mut out = RuleMatch { action: default, rule: None, modifiers: Default::default() };
        let modifiers = &mut out.modifiers;
        let found = tables.and_then(|t| t.rules.classify(query, |id, m| modifiers.try_push((id, m)).is_ok()));
        if let Some((id, action)) = found {
            (out.action, out.rule) = (action, Some(id));
        }
        out
    }

    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        let (connection, reply, _) = self.flows.get(key, now)?;
        Some((connection, reply))
    }

    fn may_flood(&self, vrf: Vrf) -> Result<(), DropReason> {
        self.floods.map_or(Ok(()), |floods| floods(vrf))
    }

    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        self.flows.fragments().get(key, now)
    }

    fn ovs_flow(&self, port: VifId, key: &ovs::Key) -> Option<&ovs::Flow> {
        let found = self.snapshot.ovs.find(port, key);
        match found {
            Some(flow) => {
                let before = self.seen.borrow_mut().flow.replace(FlowCell::of(flow.id));
                before.into_iter().for_each(|flow| self.depend(flow.cell()));
            }
            None => self.depend(Cell::ovs_misses(port)),
        }
        found
    }

    /// Finds a flow without noting a dependency: the caller must follow changes of the flows by itself.
    fn ovs_flow_of_all(&self, port: VifId, key: &ovs::Key, free: &ovs::Key) -> Option<&ovs::Flow> {
        self.snapshot.ovs.find_of_all(port, key, free)
    }
}
