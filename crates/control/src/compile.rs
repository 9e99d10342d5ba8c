//! Compilation of the configured objects into the tables of the model.

mod bridges;
mod diff;
mod guests;
mod ids;
mod implied;
mod learned;
mod nexthops;
mod routes;
mod rules;
mod written;

pub use bridges::BridgeChange;
pub(crate) use bridges::learn_bridge;
pub(crate) use diff::Desired;
pub(crate) use guests::{ovs_side, verbs_vif, vlan_vif};
use ids::{Pool, User};
pub(crate) use implied::{WAY_OUT, way_out};
pub(crate) use learned::{kept_learned, learn, paths_of};
use nexthops::NexthopIds;
use routes::{ObjectRoute, To, is_away, is_on_standby, routes_of};
pub(crate) use routes::{Origins, places_of};
pub(crate) use rules::policer;

use crate::owner::{Objects, Owned, Routes, Written};
use crate::prefixes::Prefixes;
use config::{DefaultAction, Index, Key, Kind, Mode, Object, Target, Wire, router_id, router_mac};
use ipnet::IpNet;
use model::{
    Action, BridgeTarget, FloatingAddress, L2Gateway, Midstream, Network, Nexthop, NexthopId, Overlay,
    RuleId, Services, Sharing, TcpPaths, Tunnel, TunnelKind, Vif, VifId, VifKind, Vrf, WireAttachment,
    WireAttributes,
};
use packet::Mac;
use std::collections::{BTreeSet, HashMap};

/// The numbers of names and contents. They stay the same from one compilation to the next.
#[derive(Clone, Default)]
pub(crate) struct Ids {
    vifs: Pool<String>,
    nexthops: NexthopIds,
    rules: Pool<(String, String)>,
    meters: Pool<(&'static str, String)>,
}

impl Ids {
    pub(crate) fn vif(&self, name: &str) -> Option<VifId> {
        self.vifs.get(&name.to_owned()).map(vif_id)
    }

    fn reset_others(&mut self) {
        self.vifs.reset_others();
        self.nexthops.reset_others();
    }

    fn reset_rules(&mut self) {
        self.rules.reset_others();
        self.meters.reset_others();
    }

    fn reset(&mut self) {
        self.vifs.reset();
        self.nexthops.reset();
        self.rules.reset();
        self.meters.reset();
    }

    /// Begins with the numbers that rules had before.
    pub(crate) fn numbered(rules: impl IntoIterator<Item = (Key, u32)>) -> Self {
        let rules = rules.into_iter().filter_map(|(key, id)| Some(((key.network?, key.name), id)));
        Self { rules: Pool::numbered(rules), ..Self::default() }
    }

    /// Returns the number of a rule, which is stored with it.
    pub(crate) fn number(&self, key: &Key) -> Option<u32> {
        let network = key.network.as_deref().filter(|_| key.kind == Kind::Rule)?;
        self.rule(network, &key.name).map(|id| id.0)
    }

    pub(crate) fn nexthop(&self, nexthop: Nexthop) -> Option<NexthopId> {
        self.nexthops.get(nexthop).map(NexthopId)
    }

    pub(crate) fn rule(&self, network: &str, text: &str) -> Option<RuleId> {
        self.rules.get(&(network.to_owned(), text.to_owned())).map(RuleId)
    }

    /// Returns network and text of each rule, by its number.
    pub(crate) fn rules_by_number(&self) -> HashMap<u32, &(String, String)> {
        self.rules.iter().map(|(rule, id)| (id, rule)).collect()
    }
}

/// Converts a number to 16 bits, those of an interface. `config` bounds the objects long before it is too
/// large.
fn vif_id(id: u32) -> VifId {
    VifId(u16::try_from(id).unwrap_or(u16::MAX))
}

fn encapsulation(tunnel: &config::Tunnel) -> Tunnel {
    Tunnel {
        kind: match tunnel.kind {
            config::TunnelKind::MplsOverUdp => TunnelKind::MplsUdp,
            config::TunnelKind::MplsOverGre => TunnelKind::MplsGre,
            config::TunnelKind::Vxlan => TunnelKind::Vxlan,
        },
        remote: tunnel.remote,
        id: tunnel.id,
        mac: tunnel.mac,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireLink {
    /// Link-layer address of the wire's device, if it has one.
    pub(crate) mac: Option<Mac>,
    pub(crate) is_down: bool,
}

/// The state of ports on which a compilation depends.
#[derive(Default)]
pub(crate) struct Links {
    pub(crate) wires: HashMap<String, WireLink>,
    /// Guests on standby whose VMM is not connected.
    pub(crate) away: BTreeSet<String>,
}

/// Compiles objects, which were checked, into tables, beside what is learned in others.
pub(crate) fn compile(
    (host, index): (&config::Host, &Index),
    objects: &Objects,
    learned: &Desired,
    links: &Links,
    ids: &mut Ids,
) -> Desired {
    ids.reset();
    let (rib, bridges) = (learned.learned.clone(), learned.bridges.clone());
    let of = Desired { learned: rib, bridges, ..Desired::default() };
    let mut compiler = Compiler::new(index, ids, links, of);
    compiler.learned(&learned.learned, &learned.nexthops);
    compiler.bridges();
    compiler.objects(host, &objects.in_order_of(Kind::ALL), objects.routes());
    compiler.out.routes = compiler.out.routes.packed();
    compiler.finish()
}

/// Routes and rules that change, with what the removed ones refer to. One in both lists of its kind changes.
pub(crate) struct Changes<'a> {
    pub(crate) before: &'a Index,
    pub(crate) removed: Vec<Written<'a>>,
    pub(crate) added: Vec<Written<'a>>,
    /// Guests that change or go.
    pub(crate) changed_guests: Vec<&'a str>,
    pub(crate) removed_rules: Vec<&'a config::Rule>,
    pub(crate) added_rules: Vec<&'a config::Rule>,
}

/// Compiles changed routes and rules into the tables `of`. After [`sweep`] the result is that of [`compile`] for all
/// objects, but the cost depends only on their number. Until then no number that came free is given away, so several
/// such changes can be put in force at once.
pub(crate) fn recompile(of: Desired, index: &Index, changes: &Changes<'_>, ids: &mut Ids) -> Desired {
    let links = Links::default();
    let mut compiler = Compiler::new(changes.before, ids, &links, of);
    compiler.remove_routes(&changes.removed);
    changes.removed_rules.iter().for_each(|rule| compiler.remove_rule(rule));
    compiler.index = index;
    changes.added.iter().for_each(|route| compiler.written(*route));
    changes.added_rules.iter().for_each(|rule| compiler.rule(rule));
    compiler.out
}

/// Frees the numbers that nothing uses any more.
pub(crate) fn sweep(of: &mut Desired, ids: &mut Ids) {
    for id in ids.nexthops.sweep() {
        of.nexthops.remove(NexthopId(id));
    }
    ids.vifs.sweep();
    ids.rules.sweep();
    ids.meters.sweep();
}

/// Compiles objects anew, and changed routes, into the tables `of`. The other routes must depend on nothing that
/// changes; `is_kept` tells whether a network has such a route. With `rules_stay` this holds for rules as well. The
/// result is that of [`compile`] for all objects, but the cost does not depend on the number of routes, and of rules that
/// stay.
pub(crate) fn compile_beside_routes(
    of: &Desired,
    (host, index): (&config::Host, &Index),
    objects: &[&Owned],
    links: &Links,
    (changes, is_kept, rules_stay): (&Changes<'_>, config::HasRoute<'_>, bool),
    ids: &mut Ids,
) -> Desired {
    let mut compiler = Compiler::new(changes.before, ids, links, of.clone());
    compiler.remove_routes(&changes.removed);
    compiler.index = index;
    let Desired { nexthops, routes, implied, learned, bridges, rules, meters, vifs, .. } =
        std::mem::take(&mut compiler.out);
    (compiler.out.nexthops, compiler.out.learned, compiler.out.bridges) = (nexthops, learned, bridges);
    compiler.ids.reset_others();
    match rules_stay {
        true => compiler.keep_rules(rules, meters, &vifs, &changes.changed_guests),
        false => compiler.ids.reset_rules(),
    }
    compiler.objects(host, objects, &Routes::default());
    compiler.out.routes = routes;
    compiler.replace_implied(&implied, is_kept);
    changes.added.iter().for_each(|route| compiler.written(*route));
    compiler.finish()
}

struct Compiler<'a> {
    index: &'a Index,
    ids: &'a mut Ids,
    links: &'a Links,
    out: Desired,
    /// The party that uses numbered things, and whether it loses a use instead of gaining one.
    user: User,
    removing: bool,
}

impl<'a> Compiler<'a> {
    const fn new(index: &'a Index, ids: &'a mut Ids, links: &'a Links, out: Desired) -> Self {
        Self { index, ids, links, out, user: User::Other, removing: false }
    }

    /// Compiles objects, in their order, and routes that somebody wrote.
    fn objects(&mut self, host: &config::Host, objects: &[&Owned], routes: &Routes) {
        let router_id = host.bgp.as_ref().and_then(|bgp| router_id(bgp, self.index.tunnel_sources()));
        self.out.host = model::Host {
            name: host.name.as_str().into(),
            tunnel_source: self.index.tunnel_sources().to_vec(),
            tunnel_peers: host.tunnel_peers.clone(),
            router_mac: router_id.map(router_mac),
            tunnel_bfd: host.tunnel_bfd.is_some(),
            udp6_zero_checksum: host.udp6_zero_checksum,
            tunnel_fragments: !host.tunnel_df,
        };
        objects.iter().for_each(|owned| self.number_vif(&owned.object));
        // Among routes with the same prefix the last one counts. Guests on standby come last: while one is here, its
        // addresses lead to it, even if somebody wrote routes that lead elsewhere.
        let (standby, others): (Vec<&Owned>, Vec<&Owned>) =
            objects.iter().partition(|owned| is_on_standby(owned));
        let referred = others.partition_point(|owned| owned.object.kind() < Kind::Route);
        others[..referred].iter().for_each(|owned| self.object(&owned.object));
        self.all_written(routes);
        others[referred..].iter().chain(&standby).for_each(|owned| self.object(&owned.object));
        objects.iter().for_each(|owned| self.fill_network(&owned.object));
        self.extend_floods();
    }

    fn remove_routes(&mut self, routes: &[Written<'_>]) {
        self.removing = true;
        routes.iter().for_each(|route| self.remove_route(*route));
        self.removing = false;
    }

    /// Puts the implied routes in place of those of `before`, except where somebody wrote one.
    fn replace_implied(&mut self, before: &Prefixes<Vrf, NexthopId>, is_kept: config::HasRoute<'_>) {
        let names: HashMap<u16, &str> =
            self.index.networks().values().map(|network| (network.vrf, network.name.as_str())).collect();
        let is_free =
            |(vrf, prefix): &(Vrf, IpNet)| names.get(&vrf.0).is_none_or(|name| !is_kept(name, *prefix));
        for (place, _) in before.iter().filter(|(place, _)| is_free(place)) {
            self.out.routes.remove(&place);
        }
        for (place, nexthop) in self.out.implied.iter().filter(|(place, _)| is_free(place)) {
            self.out.routes.insert(place, *nexthop);
        }
    }

    /// Returns the tables.
    fn finish(mut self) -> Desired {
        sweep(&mut self.out, self.ids);
        self.out
    }

    fn vif_id(&mut self, name: &str) -> VifId {
        vif_id(number(&mut self.ids.vifs, name.to_owned(), (self.user, self.removing)))
    }

    fn vrf(&self, network: &str) -> Vrf {
        Vrf(self.index.networks().get(network).map_or(0, |network| network.vrf))
    }

    /// Takes the number of an object's interface before anything refers to it, so that interfaces are
    /// numbered in their own order.
    fn number_vif(&mut self, object: &Object) {
        let (mode, name) = match object {
            Object::Wire(wire) => (wire.mode, &wire.name),
            Object::Guest(guest) => (guest.mode, &guest.name),
            Object::Network(network) if network.leaves_by_host() => {
                self.vif_id(&way_out(&network.name));
                return;
            }
            _ => return,
        };
        self.vif_id(name);
        if let Some(side) = ovs_side(mode, name) {
            self.vif_id(&side);
        }
        if let Object::Guest(guest) = object {
            let vlans = guest.vlans.iter().map(|vlan| vlan_vif(guest, vlan));
            for name in verbs_vif(guest).into_iter().chain(vlans) {
                self.vif_id(&name);
            }
        }
    }

    fn object(&mut self, object: &Object) {
        if !is_away(object, &self.links.away) {
            let lease = match object {
                Object::Guest(guest) => self.index.lease(&guest.name),
                _ => None,
            };
            routes_of(object, lease).iter().for_each(|route| self.route(route));
        }
        match object {
            Object::Wire(wire) => self.wire(wire),
            Object::Network(network) => self.network(network),
            // With what it leased.
            Object::Guest(guest) => self.guest(self.index.guests().get(&guest.name).unwrap_or(guest)),
            // The routes that name it compile it.
            Object::Nexthop(nexthop) => drop(self.group(&nexthop.to)),
            Object::Mac(entry) => {
                let target = match &entry.to {
                    Target::Guest(name) => BridgeTarget::Vif(self.vif_id(name)),
                    other => BridgeTarget::Nexthop(self.target(other)),
                };
                self.out.macs.insert((self.vrf(&entry.network), entry.mac), target);
            }
            // The host that has the guest also has its floating addresses.
            Object::Nat(nat) if self.is_guest_away(nat) => {}
            Object::Nat(nat) => {
                let outside_vrf = self.vrf(&nat.outside_network);
                let inside_vrf = self.vrf(&nat.network);
                let floating =
                    FloatingAddress { inside_vrf, inside: nat.inside, outside_vrf, outside: nat.outside };
                self.out.floating.insert((outside_vrf, nat.outside), floating);
            }
            Object::Rule(rule) => self.rule(rule),
            Object::Mpls(mpls) => {
                let nexthop = self.target(&mpls.to);
                self.out.mpls.insert(mpls.label, nexthop);
            }
            Object::Vxlan(vxlan) => drop(self.out.vxlan.insert(vxlan.vni, self.vrf(&vxlan.network))),
            // The network has its forwarded ports, or the host forwards them itself.
            Object::Lease(_)
            | Object::Route(_)
            | Object::Flood(_)
            | Object::Default(_)
            | Object::Forward(_) => {}
        }
    }

    fn route(&mut self, route: &ObjectRoute<'_>) {
        let nexthop = match &route.to {
            To::Gateway => self.nexthop(Nexthop::Receive),
            To::Subnet => self.nexthop(Nexthop::Resolve { via: None }),
            To::Guest { vif, mac } => {
                let vif = self.vif_id(vif);
                self.nexthop(Nexthop::Encap { vif, mac: *mac })
            }
            To::WayOut => {
                let name = way_out(route.network);
                let (vif, mac) = (self.vif_id(&name), made_up_mac(&self.out.host.name, &name));
                self.nexthop(Nexthop::Encap { vif, mac })
            }
            To::Outside(addr) => match self.index.outside_of(*addr) {
                Ok(outside) => self.nexthop(Nexthop::VrfTranslate { vrf: Vrf(outside.vrf) }),
                Err(_) => self.nexthop(Nexthop::Discard),
            },
            To::Discard => self.nexthop(Nexthop::Discard),
        };
        let key = (self.vrf(route.network), route.prefix);
        let gives_way = |routes: &Prefixes<_, _>| route.gives_way() && routes.contains_key(&key);
        if !gives_way(&self.out.implied) {
            self.out.implied.insert(key, nexthop);
        }
        if !gives_way(&self.out.routes) {
            self.out.routes.insert(key, nexthop);
        }
    }

    /// Adds what other objects contribute to a network's entry.
    fn fill_network(&mut self, object: &Object) {
        match object {
            Object::Guest(guest) if self.links.away.contains(&guest.name) => {}
            Object::Guest(guest) if guest.mode == Mode::Ovs => {}
            Object::Guest(guest) => {
                self.member(&guest.name, &guest.network);
                for vlan in &guest.vlans {
                    self.member(&vlan_vif(guest, vlan), &vlan.network);
                }
            }
            Object::Flood(flood) => {
                let to = flood.to.iter().map(|target| self.target(target)).collect();
                let vrf = self.vrf(&flood.network);
                let tunnels = flood.to.iter().filter_map(Target::tunnel);
                self.out.floods.insert(vrf, tunnels.clone().map(encapsulation).collect());
                let mut vnis: Vec<_> = tunnels.map(|tunnel| (tunnel.remote, tunnel.id)).collect();
                vnis.sort_unstable();
                if let Some(network) = self.out.networks.get_mut(&vrf) {
                    network.flood = to;
                    network.overlay.vnis = vnis;
                }
            }
            Object::Default(default) => self.set_default(&default.network, default.action),
            Object::Network(network) => {
                network.default.iter().for_each(|default| self.set_default(&network.name, *default));
            }
            _ => {}
        }
    }

    fn member(&mut self, vif: &str, network: &str) {
        let vif = self.vif_id(vif);
        if let Some(network) = self.out.networks.get_mut(&self.vrf(network)) {
            network.members.push(vif);
            network.members.sort_unstable();
        }
    }

    fn wire(&mut self, wire: &Wire) {
        let mut networks: Vec<_> = self
            .index
            .networks()
            .values()
            .filter(|network| network.wire.as_ref() == Some(&wire.name))
            .map(|network| (network.vlan, Vrf(network.vrf)))
            .collect();
        networks.sort_unstable();
        let id = self.vif_id(&wire.name);
        let link = self.links.wires.get(&wire.name).copied().unwrap_or_default();
        let ovs = self.ovs_side(wire.mode, id, &wire.name, wire.mtu);
        if let Some(config::WireTunnel { kind, remote, vni }) = wire.tunnel() {
            let kind = VifKind::Tunnel(Tunnel { kind, remote, id: vni, mac: None });
            self.out.vifs.insert(id, Vif { ovs, mtu: wire.mtu, ..Vif::new(id, &wire.name, kind) });
            return;
        }
        let vif = Vif {
            ovs,
            mac: Some(link.mac.unwrap_or_else(|| made_up_mac(&self.out.host.name, &wire.name))),
            mtu: wire.mtu,
            wire: Some(WireAttributes {
                addresses: wire.addresses.clone(),
                gateways: wire.gateway.clone(),
                networks,
                is_down: link.is_down,
                shared: wire.shared,
            }),
            ..Vif::new(id, &wire.name, VifKind::Wire)
        };
        self.out.vifs.insert(id, vif);
    }

    /// Makes the OVS side of an interface, if it has one.
    fn ovs_side(&mut self, mode: Mode, of: VifId, name: &str, mtu: u16) -> Option<VifId> {
        let name = ovs_side(mode, name)?;
        let id = self.vif_id(&name);
        self.out.vifs.insert(id, Vif { ovs: Some(of), mtu, ..Vif::new(id, &name, VifKind::Ovs) });
        Some(id)
    }

    /// Returns the interface that gets copies: a guest's, or a tunnel, which is numbered like an interface.
    fn mirror(&mut self, name: &str) -> VifId {
        let Some(Ok(tunnel)) = config::Tunnel::of_mirror(name) else { return self.vif_id(name) };
        let name = tunnel_name(&tunnel);
        let id = self.vif_id(&name);
        self.out.vifs.insert(id, Vif::new(id, &name, VifKind::Mirror(encapsulation(&tunnel))));
        id
    }

    fn network(&mut self, network: &config::Network) {
        let vrf = Vrf(network.vrf);
        for vni in network.vni.into_iter().chain(network.l3vni) {
            self.out.vxlan.insert(vni, vrf);
        }
        let wire =
            network.wire.as_ref().map(|wire| WireAttachment { vif: self.vif_id(wire), vlan: network.vlan });
        let compiled = Network {
            vrf,
            name: network.name.as_str().into(),
            gateways: gateways(network),
            vni: network.vni,
            l3vni: network.l3vni,
            learning: network.learning,
            mtu: self.index.network_mtu(&network.name),
            default_action: Action::Allow,
            tcp: TcpPaths {
                midstream: match network.tcp_midstream {
                    config::Midstream::Never => Midstream::Never,
                    config::Midstream::Ruled => Midstream::Ruled,
                    config::Midstream::Reverse => Midstream::Reverse,
                },
                asymmetric: network.tcp_asymmetric,
                mss_clamp: network.mss_clamp,
            },
            members: Vec::new(),
            flood: Vec::new(),
            overlay: Overlay {
                l2_gateway: match network.l2_gateway.as_deref() {
                    None => L2Gateway::Unnamed,
                    Some(name) if *name == *self.out.host.name => L2Gateway::Here,
                    Some(_) => L2Gateway::Elsewhere,
                },
                ..Overlay::default()
            },
            wire,
            routed_outside: network.routed_outside,
            services: Services {
                dhcp: network.has_dhcp(),
                ra: network.ra,
                dns: network.dns,
                metadata: network.metadata,
            },
            sharing: Sharing::default(),
        };
        self.out.networks.insert(vrf, Network { sharing: self.sharing(network), ..compiled });
        if let Some(label) = self.index.network_label(network) {
            let nexthop = self.nexthop(Nexthop::VrfTranslate { vrf });
            self.out.mpls.insert(label, nexthop);
        }
        if network.leaves_by_host() {
            self.way_out(network);
        }
    }

    /// Is true if a floating address belongs to a guest on standby that is away.
    fn is_guest_away(&self, nat: &config::Nat) -> bool {
        let away = self.links.away.iter().filter_map(|name| self.index.guests().get(name));
        away.flat_map(places_of).any(|(network, addr)| network == nat.network && addr == nat.inside)
    }

    fn nexthop(&mut self, nexthop: Nexthop) -> NexthopId {
        let id = NexthopId(self.ids.nexthops.number(&nexthop, (self.user, self.removing)));
        if !self.removing && !self.out.nexthops.contains(id) {
            self.out.nexthops.insert(id, nexthop);
        }
        id
    }

    fn group(&mut self, targets: &[Target]) -> NexthopId {
        if let [Target::Nexthop(name)] = targets
            && let Some(named) = self.index.nexthops().get(name)
        {
            return self.group(&named.to);
        }
        match targets {
            [] => self.nexthop(Nexthop::Discard),
            [one, rest @ ..] if rest.iter().all(|other| other == one) => self.target(one),
            several => {
                let mut members: Vec<_> = several.iter().map(|target| self.target(target)).collect();
                members.sort_unstable();
                self.nexthop(Nexthop::Ecmp(members))
            }
        }
    }

    fn target(&mut self, target: &Target) -> NexthopId {
        let nexthop = match target {
            // A nexthop is always the only target, so `group` has resolved it.
            Target::Drop | Target::Nexthop(_) => Nexthop::Discard,
            Target::Guest(name) => Nexthop::Encap {
                vif: self.vif_id(name),
                mac: self.index.guests().get(name).and_then(|guest| guest.mac).unwrap_or_default(),
            },
            Target::Network(name) => Nexthop::VrfTranslate { vrf: self.vrf(name) },
            Target::Via(addr) => Nexthop::Resolve { via: Some(*addr) },
            Target::Tunnel(tunnel) => Nexthop::Tunnel(encapsulation(tunnel)),
        };
        self.nexthop(nexthop)
    }
}

/// Returns the name of the interface that is a tunnel to a mirror, which different spellings of the tunnel share.
fn tunnel_name(tunnel: &config::Tunnel) -> String {
    format!("vxlan:{}:{}", tunnel.remote, tunnel.id)
}

/// Counts one more use of a thing, or one less if `removing`, and returns its number.
fn number<K: Ord + Clone>(pool: &mut Pool<K>, key: K, (by, removing): (User, bool)) -> u32 {
    match removing.then(|| pool.put_back(&key)).flatten() {
        Some(id) => id,
        None => pool.take(key, by),
    }
}

fn action(action: DefaultAction) -> Action {
    match action {
        // The rest of it is a rule.
        DefaultAction::Allow | DefaultAction::DenyIn => Action::Allow,
        DefaultAction::Drop => Action::Drop,
        DefaultAction::Reject => Action::Reject,
    }
}

/// Returns a network's gateways, with the addresses where metadata is asked for.
fn gateways(network: &config::Network) -> Vec<IpNet> {
    network.gateways.iter().copied().chain(network.metadata_addresses().map(IpNet::from)).collect()
}

/// Makes a locally administered MAC for a wire whose device has none, or a way out. It is the same at every start
/// (FNV-1a of the names).
pub(crate) fn made_up_mac(host: &str, wire: &str) -> Mac {
    let hash = host
        .bytes()
        .chain([0])
        .chain(wire.bytes())
        .fold(0x811c_9dc5_u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    Mac([0x02, 0x56, a, b, c, d])
}

#[cfg(test)]
mod tests;
