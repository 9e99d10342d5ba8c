//! A decision with its reasons: every table look-up that led to it.

mod words;

use crate::{
    BridgeEntry, Connection, Decision, DropReason, FlowKey, FragmentKey, Host, Lookup, NeighbourScope,
    Network, Nexthop, NexthopId, PacketView, RouteEntry, RuleMatch, RuleQuery, Seconds, Transport, Vif,
    VifId, Vrf, decide,
};
use packet::Mac;
use std::cell::RefCell;
use std::net::IpAddr;

/// One table look-up of an explained packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The table: `bridge`, `flow`, `fragment`, `guest`, `mpls`, `nat`, `neighbour`, `network`, `nexthop`, `route`,
    /// `rule`, `vif` or `vxlan`.
    pub table: &'static str,
    /// The key, in words.
    pub key: String,
    /// What was found; `None`: a miss.
    pub result: Option<String>,
}

/// What `decide` says about a packet that nobody sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Look-ups in their order.
    pub steps: Vec<Step>,
    /// The decision.
    pub decision: Decision,
}

/// Decides about a packet, and tells how.
#[must_use]
pub fn explain<T: Lookup>(tables: &T, packet: &PacketView<'_>, ingress: VifId, now: Seconds) -> Explanation {
    let traced = Traced::new(tables);
    let decision = decide(&traced, packet, ingress, now);
    Explanation { steps: traced.into_steps(), decision }
}

/// Tables that note every look-up.
#[derive(Debug)]
pub struct Traced<'a, T> {
    tables: &'a T,
    steps: RefCell<Vec<Step>>,
}

impl<'a, T> Traced<'a, T> {
    /// Notes look-ups in these tables.
    pub const fn new(tables: &'a T) -> Self {
        Self { tables, steps: RefCell::new(Vec::new()) }
    }

    /// The look-ups so far, in their order; each once.
    #[must_use]
    pub fn into_steps(self) -> Vec<Step> {
        self.steps.into_inner()
    }

    fn note<R>(
        &self,
        table: &'static str,
        key: String,
        result: Option<R>,
        words: impl FnOnce(&R) -> String,
    ) -> Option<R> {
        let step = Step { table, key, result: result.as_ref().map(words) };
        let mut steps = self.steps.borrow_mut();
        if !steps.contains(&step) {
            steps.push(step);
        }
        result
    }
}

impl<T: Lookup> Traced<'_, T> {
    fn vif_name(&self, id: VifId) -> String {
        self.tables.vif(id).map_or_else(|| format!("vif {id}"), |vif| vif.name.to_string())
    }

    fn network_name(&self, vrf: Vrf) -> String {
        self.tables.network(vrf).map_or_else(|| format!("network {vrf}"), |network| network.name.to_string())
    }

    fn neighbour_key(&self, scope: NeighbourScope, addr: IpAddr) -> String {
        match scope {
            NeighbourScope::Wire(id) => format!("{} {addr}", self.vif_name(id)),
            NeighbourScope::Network(vrf) => format!("{} {addr}", self.network_name(vrf)),
        }
    }

    fn endpoint(&self, end: &crate::Endpoint) -> String {
        format!("{} {} port {}", self.network_name(end.vrf), end.addr, end.port)
    }
}

impl<T: Lookup> Lookup for Traced<'_, T> {
    fn host(&self) -> &Host {
        self.tables.host()
    }

    fn vif(&self, id: VifId) -> Option<&Vif> {
        let words = |vif: &&Vif| match vif.vrf {
            Some(vrf) => format!("{} ({:?}) in {}", vif.name, vif.kind, self.network_name(vrf)),
            None => format!("{} ({:?})", vif.name, vif.kind),
        };
        self.note("vif", id.to_string(), self.tables.vif(id), words)
    }

    fn wires(&self) -> &[VifId] {
        self.tables.wires()
    }

    fn network(&self, vrf: Vrf) -> Option<&Network> {
        self.note("network", vrf.to_string(), self.tables.network(vrf), |network| network.name.to_string())
    }

    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId> {
        let key = format!("{} {addr}", self.network_name(vrf));
        self.note("guest", key, self.tables.guest_by_address(vrf, addr), |id| self.vif_name(*id))
    }

    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry> {
        let key = format!("{} {mac}", self.network_name(vrf));
        self.note("bridge", key, self.tables.bridge(vrf, mac), |entry| {
            let how = if entry.is_static { "static" } else { "learned" };
            match entry.target {
                crate::BridgeTarget::Vif(id) => format!("{} ({how})", self.vif_name(id)),
                crate::BridgeTarget::Nexthop(id) => format!("nexthop {id} ({how})"),
                crate::BridgeTarget::Vtep { remote, .. } => format!("tunnel to {remote} ({how})"),
            }
        })
    }

    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry> {
        let key = format!("{} {addr}", self.network_name(vrf));
        self.note("route", key, self.tables.route(vrf, addr), |route| {
            let prefix = ipnet::IpNet::new(addr, route.prefix_len).map(|prefix| prefix.trunc());
            let prefix = prefix.map_or_else(|_| addr.to_string(), |prefix| prefix.to_string());
            format!("{prefix} to nexthop {}", route.nexthop)
        })
    }

    fn nexthop(&self, id: NexthopId) -> Option<&Nexthop> {
        self.note("nexthop", id.to_string(), self.tables.nexthop(id), |nexthop| match nexthop {
            Nexthop::Encap { vif, mac } => format!("encap {mac} to {}", self.vif_name(*vif)),
            Nexthop::VrfTranslate { vrf } => format!("to network {}", self.network_name(*vrf)),
            other => other.to_string(),
        })
    }

    fn is_remote(&self, addr: IpAddr) -> bool {
        let known = self.tables.is_remote(addr);
        self.note("remote", addr.to_string(), known.then_some(()), |()| "named by a nexthop".into());
        known
    }

    fn mpls(&self, label: u32) -> Option<NexthopId> {
        let result = self.tables.mpls(label);
        self.note("mpls", label.to_string(), result, |nexthop| format!("nexthop {nexthop}"))
    }

    fn vxlan(&self, vni: u32) -> Option<Vrf> {
        self.note("vxlan", vni.to_string(), self.tables.vxlan(vni), |vrf| self.network_name(*vrf))
    }

    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac> {
        self.note(
            "neighbour",
            self.neighbour_key(scope, addr),
            self.tables.neighbour(scope, addr),
            Mac::to_string,
        )
    }

    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        let unreachable = self.tables.is_unreachable(scope, addr);
        if unreachable {
            self.note("neighbour", self.neighbour_key(scope, addr), Some("does not answer"), |words| {
                (*words).into()
            });
        }
        unreachable
    }

    fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.note("path", remote.to_string(), self.tables.path_mtu(remote), |mtu| format!("mtu {mtu}"))
    }

    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr> {
        let (from, to) = (self.network_name(inside_vrf), self.network_name(outside_vrf));
        let result = self.tables.floating_of(inside_vrf, inside, outside_vrf);
        self.note("nat", format!("{from} {inside} in {to}"), result, IpAddr::to_string)
    }

    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)> {
        let key = format!("{} {outside}", self.network_name(outside_vrf));
        let words = |(vrf, addr): &(Vrf, IpAddr)| format!("{} {addr}", self.network_name(*vrf));
        self.note("nat", key, self.tables.inside_of(outside_vrf, outside), words)
    }

    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch {
        let port = query.dst_port.map_or_else(String::new, |port| format!(" port {port}"));
        let network = self.network_name(vrf);
        let key = format!("{network} {} > {} protocol {}{port}", query.src, query.dst, query.protocol);
        let matched = self.tables.rules(vrf, query);
        let found = matched.rule.is_some() || !matched.modifiers.is_empty();
        self.note("rule", key, found.then(|| matched.to_string()), String::clone);
        if matched.rule.is_none() {
            let default = words::action(matched.action).to_string();
            self.note("rule", format!("{network} default"), Some(default), String::clone);
        }
        matched
    }

    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)> {
        let text =
            format!("{} > {} protocol {}", self.endpoint(&key.src), self.endpoint(&key.dst), key.protocol);
        self.note("flow", text, self.tables.connection(key, now), |(connection, reply)| {
            let direction = if *reply { "reply" } else { "original" };
            format!("{}, {direction} direction", connection.state)
        })
    }

    fn may_flood(&self, vrf: Vrf) -> Result<(), DropReason> {
        self.tables.may_flood(vrf)
    }

    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        let text = format!("{} {} > {} id {}", self.network_name(key.vrf), key.src, key.dst, key.id);
        let words = |transport: &Transport| {
            let (src, dst) = transport.ports.unwrap_or_default();
            format!("protocol {}, ports {src} > {dst}", transport.protocol)
        };
        self.note("fragment", text, self.tables.fragment(key, now), words)
    }
}
