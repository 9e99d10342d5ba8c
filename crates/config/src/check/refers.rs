//! Checks references between objects: the target must exist and fit.

use super::{HasRoute, Index, problem};
use crate::object::MIN_IPV6_MTU;
use crate::{
    Endpoint, Forward, Guest, GuestKind, Item, Key, Kind, MacEntry, Mode, Nat, Network, Object, Problem,
    Route, Rule, RuleAction, Target, Tunnel, Wire,
};
use ipnet::IpNet;
use packet::Mac;
use std::net::IpAddr;

/// The MAC of all gateways.
const GATEWAY_MAC: Mac = Mac([0x00, 0x00, 0x5e, 0x00, 0x01, 0x00]);

/// Checks the references of `items`, beside other routes. `unread` are the names of other objects that could not be
/// read.
pub(super) fn check(
    index: &Index,
    unread: &[String],
    (items, has_route): (&[Item], HasRoute<'_>),
    problems: &mut Vec<Problem>,
) {
    for item in items {
        let mut checker = Checker { index, unread, items, has_route, item, problems };
        match &item.object {
            Object::Wire(wire) => checker.wire_object(wire),
            Object::Network(network) => checker.network_object(network),
            Object::Guest(guest) => checker.guest_object(guest),
            Object::Lease(lease) => {
                checker.network("network", &lease.network);
                checker.guest("guest", &lease.guest);
            }
            Object::Nexthop(nexthop) => nexthop.to.iter().for_each(|to| checker.target(None, to)),
            Object::Route(route) => checker.route(route),
            Object::Mac(entry) => checker.mac(entry),
            Object::Flood(flood) => {
                checker.network("network", &flood.network);
                checker.bridged_tunnels(&flood.network, &flood.to);
                flood.to.iter().for_each(|to| checker.target(Some(&flood.network), to));
            }
            Object::Nat(nat) => checker.nat(nat),
            Object::Forward(forward) => checker.forward(forward),
            Object::Rule(rule) => checker.rule(rule),
            Object::Default(default) => drop(checker.network("network", &default.network)),
            Object::Mpls(mpls) => {
                checker.label(mpls.label);
                checker.target(None, &mpls.to);
            }
            Object::Vxlan(vxlan) => drop(checker.network("network", &vxlan.network)),
        }
    }
}

struct Checker<'a, 'b> {
    index: &'a Index,
    unread: &'a [String],
    items: &'a [Item],
    has_route: HasRoute<'a>,
    item: &'a Item,
    problems: &'b mut Vec<Problem>,
}

impl<'a> Checker<'a, '_> {
    fn problem(&mut self, key: &str, message: String) {
        problem(self.problems, self.item, key, message);
    }

    /// Records that an object does not exist, unless it exists but could not be read.
    fn missing(&mut self, key: &str, kind: &str, name: &str, hint: String) {
        if !self.unread.iter().any(|unread| unread == name) {
            self.problem(key, format!("there is no {kind} \"{name}\"{hint}"));
        }
    }

    /// Returns the network `name`, or records a problem.
    fn network(&mut self, key: &str, name: &str) -> Option<&'a Network> {
        let found = self.index.networks().get(name);
        if found.is_none() {
            self.missing(key, "network", name, did_you_mean(name, self.index.networks().keys()));
        }
        found
    }

    /// Returns the guest `name`, or records a problem.
    fn guest(&mut self, key: &str, name: &str) -> Option<&'a Guest> {
        let found = self.index.guests().get(name);
        if found.is_none() {
            self.missing(key, "guest", name, did_you_mean(name, self.index.guests().keys()));
        }
        found
    }

    /// Records a problem if an Open vSwitch programs a guest, so that the guest is in no network. Returns
    /// whether it does.
    fn is_of_ovs(&mut self, key: &str, guest: Option<&Guest>) -> bool {
        let ovs = guest.filter(|guest| guest.mode == Mode::Ovs);
        if let Some(Guest { name, .. }) = ovs {
            let message = format!(
                "an Open vSwitch decides about guest \"{name}\" (mode = \"ovs\"), which is in no network; name another"
            );
            self.problem(key, message);
        }
        ovs.is_some()
    }

    /// Returns the wire `name`, or records a problem.
    fn wire(&mut self, key: &str, name: &str) -> Option<&'a Wire> {
        let found = self.index.wire(name);
        if found.is_none() {
            let hint = did_you_mean(name, self.index.wires().iter().map(|wire| &wire.name));
            self.missing(key, "wire", name, hint);
        }
        found
    }

    /// Checks that a network with VXLAN tunnels and a wire is bridged between them by one host alone.
    fn bridged_tunnels(&mut self, network: &str, to: &[Target]) {
        let Some(network) = self.index.networks().get(network) else { return };
        if network.wire.is_some()
            && network.l2_gateway.is_none()
            && to.iter().any(|target| target.tunnel().is_some())
        {
            let message = format!(
                "network \"{}\" has a wire and VXLAN tunnels, between which broadcasts would loop; name the host that bridges between them (`l2_gateway`)",
                network.name
            );
            self.problem("to", message);
        }
    }

    fn wire_object(&mut self, wire: &Wire) {
        if wire.shared && self.index.tunnel_sources().iter().all(|source| self.is_of_wire(*source)) {
            let message = "a `shared` wire needs `tunnel_source` in [host]: an address of the kernel, from which tunnel \
                           packets leave";
            self.problem("shared", message.to_owned());
        }
        let Some(tunnel) = wire.tunnel() else { return };
        self.tunnel("remote", tunnel.remote);
        let Some(most) = self.index.underlay().map(|wire| wire.mtu).max() else { return };
        let overhead = tunnel.overhead();
        if usize::from(wire.mtu) + overhead > most.into() {
            let message = format!(
                "packets of {} bytes with {overhead} bytes of tunnel headers fit no other wire; use mtu = {}",
                wire.mtu,
                usize::from(most).saturating_sub(overhead)
            );
            self.problem("mtu", message);
        }
    }

    fn network_object(&mut self, network: &Network) {
        let mtu = self.index.network_mtu(&network.name);
        if mtu < MIN_IPV6_MTU
            && let Some(gateway) = ipv6_gateway(network)
        {
            let message =
                format!("mtu {mtu} is below {MIN_IPV6_MTU}, which IPv6 needs; gateway {gateway} is IPv6");
            self.problem("mtu", message);
        }
        if self.index.lacks_l3_targets(network) {
            let message =
                "AS and `l3vni` do not fit into one route target; write `l3_import` and `l3_export`";
            self.problem("l3vni", message.to_owned());
        }
        if let Some(labels) = self.index.labels().filter(|_| network.bgp)
            && self.index.network_label(network).is_none()
        {
            let vrf = network.vrf;
            let message =
                format!("its label would be {} + {vrf}, beyond `labels` of [bgp], {labels}", labels.first);
            self.problem("vrf", message);
        }
        network.shared_addresses().for_each(|addr| self.shared_address(network, addr));
        let Some(name) = &network.wire else { return };
        let wire = self.wire("wire", name);
        if wire.is_some_and(|wire| wire.mode == Mode::Ovs) {
            let message =
                format!("an Open vSwitch decides about wire \"{name}\" (mode = \"ovs\"); name another");
            self.problem("wire", message);
        }
        if wire.is_some_and(|wire| wire.shared) {
            let message = format!(
                "the kernel keeps wire \"{name}\" (shared = true), which takes tunnel packets alone; name another, or \
                 reach other hosts by tunnels"
            );
            self.problem("wire", message);
        }
        if let Some(wire) = wire
            && let Some(mtu) = network.mtu.filter(|mtu| *mtu > wire.mtu)
        {
            let message = format!("mtu {mtu} is above that of wire \"{name}\", {}", wire.mtu);
            self.problem("mtu", message);
        }
    }

    fn label(&mut self, label: u32) {
        if let Some(labels) = self.index.labels().filter(|labels| labels.contains(label)) {
            self.problem(
                "label",
                format!("label {label} is one of networks (`labels` of [bgp], {labels}); take another"),
            );
        }
    }

    fn guest_object(&mut self, guest: &Guest) {
        if guest.mode == Mode::Vrouter || !guest.network.is_empty() {
            self.network("network", &guest.network);
        }
        for (key, used) in
            [("mac", guest.mac == Some(GATEWAY_MAC)), ("macs", guest.macs.contains(&GATEWAY_MAC))]
        {
            if used {
                self.problem(key, format!("{GATEWAY_MAC} is the gateways' MAC; give the guest another"));
            }
        }
        guest.label.iter().for_each(|label| self.label(*label));
        self.guest_mtu(guest);
        if let Some(wire) = &guest.link_follows {
            self.wire("link_follows", wire);
        }
        for vlan in &guest.vlans {
            self.network("vlans", &vlan.network);
            let small = guest.mtu.unwrap_or_else(|| self.index.network_mtu(&vlan.network)) < MIN_IPV6_MTU;
            if let Some(v6) = vlan.addresses.iter().find(|addr| addr.is_ipv6() && small) {
                let message = format!(
                    "VLAN {}: its mtu is below {MIN_IPV6_MTU}, which IPv6 needs; {v6} is IPv6",
                    vlan.tag
                );
                self.problem("vlans", message);
            }
        }
        if let Some(mirror) = &guest.mirror {
            if *mirror == guest.name {
                self.problem("mirror", "a guest can't mirror itself; name another guest".to_owned());
            } else {
                self.mirror("mirror", mirror);
            }
        }
    }

    /// Checks that a guest's MTU is large enough for IPv6, if the guest uses IPv6. If the MTU is the
    /// network's and the network has an IPv6 gateway, the problem is the network's.
    fn guest_mtu(&mut self, guest: &Guest) {
        let network = self.index.networks().get(&guest.network);
        let gateway = network.and_then(ipv6_gateway);
        let mtu = self.index.guest_mtu(guest);
        if mtu >= MIN_IPV6_MTU || guest.mtu.is_none() && gateway.is_some() {
            return;
        }
        let own = guest.addresses.iter().find(|addr| addr.is_ipv6()).map(ToString::to_string);
        let allowed = || guest.allowed.iter().find(|net| net.addr().is_ipv6()).map(ToString::to_string);
        let any = || gateway.filter(|_| guest.addresses.is_empty()).map(ToString::to_string);
        if let Some(v6) = own.or_else(allowed).or_else(any) {
            let message = format!("mtu {mtu} is below {MIN_IPV6_MTU}, which IPv6 needs; {v6} is IPv6");
            self.problem("mtu", message);
        }
    }

    /// Checks the guest, or the tunnel, that gets copies.
    fn mirror(&mut self, key: &str, name: &str) {
        match Tunnel::of_mirror(name) {
            Some(Ok(tunnel)) => return self.tunnel(key, tunnel.remote),
            Some(Err(message)) => return self.problem(key, message),
            None => {}
        }
        if self.guest(key, name).is_some_and(|guest| guest.kind() == GuestKind::Rdma) {
            let message =
                format!("guest \"{name}\" has only a verbs device, which takes no copies; name another");
            self.problem(key, message);
        }
    }

    fn target(&mut self, network: Option<&str>, target: &Target) {
        match target {
            Target::Drop => {}
            Target::Guest(name) => {
                let guest = self.guest("to", name);
                if self.is_of_ovs("to", guest) {
                    return;
                }
                if let (Some(guest), Some(network)) =
                    (guest, network.filter(|n| guest.is_some_and(|g| g.network != *n)))
                {
                    let message = format!(
                        "guest \"{name}\" is of network \"{}\", not of \"{network}\"; to cross networks use {{ network = \"{}\" }}",
                        guest.network, guest.network
                    );
                    self.problem("to", message);
                }
                if guest.is_some_and(|guest| guest.mac.is_none()) {
                    self.problem("to", format!("guest \"{name}\" needs a `mac` for that"));
                }
            }
            Target::Network(name) => {
                if self.network("to", name).is_some() && network == Some(name.as_str()) {
                    self.problem("to", "a route can't lead to its own network".to_owned());
                }
            }
            Target::Nexthop(name) => {
                if !self.index.nexthops().contains_key(name) {
                    let hint = did_you_mean(name, self.index.nexthops().keys());
                    self.missing("to", "nexthop", name, hint);
                }
            }
            Target::Via(addr) => self.via(network, *addr),
            Target::Tunnel(tunnel) => self.tunnel("to", tunnel.remote),
        }
    }

    fn via(&mut self, network: Option<&str>, addr: std::net::IpAddr) {
        let Some(network) = network else {
            self.problem("to", "{ via = ... } belongs to one network; use it in a route".to_owned());
            return;
        };
        let Some(network) = self.index.networks().get(network) else { return };
        if network.wire.is_none() {
            let message = format!(
                "{{ via = ... }} needs network \"{}\" attached to a wire (`wire`); a guest that routes is {{ guest = ... }}",
                network.name
            );
            self.problem("to", message);
        }
        if !network.gateways.iter().any(|net| net.contains(&addr)) {
            let message = format!(
                "router {addr} is in none of the subnets of network \"{}\" (`gateways`)",
                network.name
            );
            self.problem("to", message);
        }
    }

    fn tunnel(&mut self, key: &str, remote: IpAddr) {
        let family = if remote.is_ipv4() { "IPv4" } else { "IPv6" };
        let Some(source) = self.index.tunnel_sources().iter().find(|a| a.is_ipv4() == remote.is_ipv4())
        else {
            let message = format!(
                "a tunnel to {remote} needs an {family} `tunnel_source` in [host]: an address of a wire, or of the kernel \
                 if it keeps a wire (shared = true)"
            );
            self.problem(key, message);
            return;
        };
        // The kernel has the addresses of a shared wire.
        if !self.is_of_wire(*source) && !self.index.wires().iter().any(|wire| wire.shared) {
            let message = format!(
                "`tunnel_source` {source} is no wire's address; add it to `addresses` of a [[wire]], or leave the NIC that \
                 has it to the kernel (shared = true)"
            );
            self.problem(key, message);
        }
        if self.is_of_wire(remote) || *source == remote {
            self.problem(key, format!("{remote} is this host; a tunnel leads to another"));
        }
    }

    /// Returns whether a wire has an address.
    fn is_of_wire(&self, addr: IpAddr) -> bool {
        self.index.wires().iter().any(|wire| wire.addresses.iter().any(|net| net.addr() == addr))
    }

    /// Checks that an address that guests share is of one network of a wire, and not the host's own.
    fn shared_address(&mut self, network: &Network, addr: IpAddr) {
        let mut of_family = network.shared_addresses().filter(|other| other.is_ipv4() == addr.is_ipv4());
        let first = of_family.next().and_then(|first| self.index.outside_of(first).ok());
        let message = match self.index.outside_of(addr) {
            _ if self.is_of_wire(addr) => {
                format!("{addr} is this host's own, on a wire; take one that nobody has")
            }
            Ok(outside) => match first.filter(|first| first.name != outside.name) {
                Some(first) => format!(
                    "{addr} is of network \"{}\", and others of its family are of network \"{}\"; take those of one",
                    outside.name, first.name
                ),
                None if is_no_hosts(addr, outside) => {
                    format!(
                        "{addr} is the first or the last of its subnet, which no host can have; take another"
                    )
                }
                None => return,
            },
            Err(found) if found.is_empty() => format!(
                "{addr} is in no network outside; attach a network to a `wire`, with a gateway in the address's subnet"
            ),
            Err(found) => format!(
                "{addr} is in the subnets of networks \"{}\", which are all attached to wires; leave it to one of them",
                found.join("\" and \"")
            ),
        };
        self.problem("snat", message);
    }

    fn route(&mut self, route: &Route) {
        self.network("network", &route.network);
        for to in &route.to {
            self.target(Some(&route.network), to);
            if let Target::Via(addr) = to
                && addr.is_ipv4() != route.prefix.addr().is_ipv4()
            {
                self.problem("to", format!("{} and router {addr} are of different families", route.prefix));
            }
        }
        if route.prefix.prefix_len() < route.prefix.max_prefix_len() {
            return;
        }
        // While a guest on standby is elsewhere, such a route leads to its host.
        let standby = |owner: &Key| {
            owner.kind == Kind::Guest && self.index.guests().get(&owner.name).is_some_and(|g| g.is_standby())
        };
        if let Some(owner) =
            self.index.owner(&route.network, route.prefix.addr()).filter(|owner| !standby(owner))
        {
            let message = format!(
                "{} is an address of {owner}, whose route exists already; remove this one",
                route.prefix
            );
            self.problem("prefix", message);
        }
    }

    fn mac(&mut self, entry: &MacEntry) {
        self.network("network", &entry.network);
        if entry.mac == GATEWAY_MAC {
            self.problem("mac", format!("{GATEWAY_MAC} is the gateways' MAC"));
        }
        self.bridged_tunnels(&entry.network, std::slice::from_ref(&entry.to));
        match &entry.to {
            Target::Guest(name) => {
                let guest = self.guest("to", name);
                if !self.is_of_ovs("to", guest) && guest.is_some_and(|guest| guest.network != entry.network) {
                    self.problem("to", format!("guest \"{name}\" is not of network \"{}\"", entry.network));
                }
            }
            other => self.target(Some(&entry.network), other),
        }
    }

    fn nat(&mut self, nat: &Nat) {
        let inside = self.network("network", &nat.network);
        if inside.is_some_and(|network| network.gateways.iter().any(|g| g.addr() == nat.inside)) {
            self.problem("inside", format!("{} is a gateway; floating addresses are for guests", nat.inside));
        }
        let Some(outside) = self.network("outside_network", &nat.outside_network) else { return };
        let routed = self.items.iter().any(|item| match &item.object {
            Object::Route(route) => {
                route.network == nat.outside_network
                    && route.prefix.prefix_len() > 0
                    && route.prefix.contains(&nat.outside)
            }
            _ => false,
        });
        let max = if nat.outside.is_ipv4() { 32 } else { 128 };
        let mut prefixes = (1..=max).filter_map(|len| IpNet::new(nat.outside, len).ok());
        let routed = routed || prefixes.any(|prefix| (self.has_route)(&nat.outside_network, prefix.trunc()));
        if !routed && !outside.gateways.iter().any(|net| net.contains(&nat.outside)) {
            let message = format!(
                "{} is in no prefix of network \"{}\"; give that network a gateway in its subnet, or a [[route]] that covers it (to = \"drop\" will do)",
                nat.outside, nat.outside_network
            );
            self.problem("outside", message);
        }
    }

    fn forward(&mut self, forward: &Forward) {
        let leads_by = |network: &Network| {
            network.leaves_by_host() || network.shared_addresses().any(|addr| addr == forward.outside)
        };
        if let Some(network) = self.network("network", &forward.network).filter(|network| !leads_by(network))
        {
            let message = if network.snat.is_empty() {
                format!(
                    "network \"{}\" has no outside address whose ports lead to it; add snat = \"host\" or addresses to it",
                    network.name
                )
            } else {
                format!("{} is not in `snat` of network \"{}\"; add it there", forward.outside, network.name)
            };
            self.problem("network", message);
        }
        let name = &forward.to.guest;
        let Some(guest) = self.guest("to", name) else { return };
        if guest.network != forward.network {
            self.problem("to", format!("guest \"{name}\" is not of network \"{}\"", forward.network));
        } else if !guest.addresses.iter().any(|addr| addr.is_ipv4() == forward.outside.is_ipv4()) {
            self.problem(
                "to",
                format!("guest \"{name}\" has no address of the family of {}", forward.outside),
            );
        }
    }

    fn rule(&mut self, rule: &Rule) {
        self.network("network", &rule.network);
        self.endpoint(rule, "from", &rule.from);
        self.endpoint(rule, "to", &rule.to);
        if let RuleAction::Mirror(name) = &rule.action {
            self.mirror("action", name);
        }
    }

    fn endpoint(&mut self, rule: &Rule, key: &str, endpoint: &Endpoint) {
        let Some(name) = &endpoint.guest else { return };
        let Some(guest) = self.guest(key, name) else { return };
        if self.is_of_ovs(key, Some(guest)) {
            return;
        }
        let addresses: Vec<_> = guest.all_addresses().collect();
        let network = self.index.networks().get(&guest.network);
        if addresses.is_empty() && !network.is_some_and(|network| network.leases_to(guest)) {
            let message =
                format!("guest \"{name}\" has no addresses to match; give it some, or use {{ cidr = ... }}");
            self.problem(key, message);
        }
        // A guest of a different network is allowed: the rules of both networks see traffic between them.
        let wrong = |v4: bool| {
            rule.protocol.is_some_and(|p| p.0 == if v4 { packet::proto::ICMPV6 } else { packet::proto::ICMP })
        };
        if !addresses.is_empty() && addresses.iter().all(|a| wrong(a.is_ipv4())) {
            self.problem("protocol", format!("guest \"{name}\" has no address of that protocol's family"));
        }
    }
}

fn ipv6_gateway(network: &Network) -> Option<&IpNet> {
    network.gateways.iter().find(|net| net.addr().is_ipv6())
}

/// Returns a suggestion, if a known name is similar.
fn did_you_mean<'n>(name: &str, known: impl Iterator<Item = &'n String>) -> String {
    crate::did_you_mean(name, known.map(String::as_str))
}

/// Returns whether an address is that of a subnet of the network, or its broadcast address.
fn is_no_hosts(addr: IpAddr, network: &Network) -> bool {
    let is_end = |subnet: &&IpNet| addr == subnet.network() || addr.is_ipv4() && addr == subnet.broadcast();
    network
        .gateways
        .iter()
        .filter(|subnet| subnet.max_prefix_len() - subnet.prefix_len() > 1)
        .any(|s| is_end(&s))
}
