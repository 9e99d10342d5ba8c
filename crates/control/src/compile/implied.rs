//! Entries that follow from keys of a network: the way out through the host, and the action for traffic that no rule
//! matches.

use super::ids::User;
use super::routes::places_of;
use super::{Compiler, action, made_up_mac};
use config::{DefaultAction, SnatMapping};
use ipnet::IpNet;
use model::snat::{ForwardedPort, Mapping, SharedAddress};
use model::{Action, Rule, RuleId, Sharing, Vif, VifKind, Vrf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the name of the interface by which packets of a network leave through the host. No object can have this
/// name.
pub(crate) fn way_out(network: &str) -> String {
    format!("{network}{WAY_OUT}")
}

/// The text of the rule that `deny-in` stands for. No object can have it.
const DENY_IN: &str = "default deny-in";

/// Broadcast and groups.
const GROUPS: [(IpAddr, u8); 3] = [
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// The end of the name of such an interface.
pub(crate) const WAY_OUT: &str = ":out";

impl Compiler<'_> {
    /// Adds the interface by which packets of a network leave through the host. It is no member of the network: floods
    /// do not leave.
    pub(super) fn way_out(&mut self, network: &config::Network) {
        let name = way_out(&network.name);
        let id = self.vif_id(&name);
        let vif = Vif {
            vrf: Some(Vrf(network.vrf)),
            mac: Some(made_up_mac(&self.out.host.name, &name)),
            mtu: self.index.network_mtu(&network.name),
            policy: true,
            ..Vif::new(id, &name, VifKind::Tap)
        };
        self.out.vifs.insert(id, vif);
    }

    /// Returns how guests of a network share addresses.
    pub(super) fn sharing(&self, network: &config::Network) -> Sharing {
        let outside = |outside| {
            let vrf = self.index.outside_of(outside).ok()?.vrf;
            Some(SharedAddress { outside_vrf: Vrf(vrf), outside })
        };
        let mut addresses: Vec<_> = network.shared_addresses().filter_map(outside).collect();
        addresses.sort_unstable();
        let of = self.index.forwards(&network.name).filter(|_| !addresses.is_empty());
        let forward = |forward: &config::Forward| {
            Some(ForwardedPort {
                outside: forward.outside,
                protocol: forward.protocol.0,
                port: forward.port,
                inside: self.index.forwarded_to(forward)?,
                inside_port: forward.to.port,
            })
        };
        let mut forwards: Vec<_> = of.filter_map(forward).collect();
        forwards.sort_unstable();
        let mapping = match network.snat_mapping.unwrap_or_default() {
            SnatMapping::AddressAndPortDependent => Mapping::AddressAndPortDependent,
            SnatMapping::EndpointIndependent => Mapping::EndpointIndependent,
        };
        Sharing { addresses, ports: network.shared_ports(), forwards, mapping }
    }

    /// Sets what happens to traffic that no rule of a network matches.
    pub(super) fn set_default(&mut self, network: &str, default: DefaultAction) {
        let vrf = self.vrf(network);
        if let Some(network) = self.out.networks.get_mut(&vrf) {
            network.default_action = action(default);
        }
        if default == DefaultAction::DenyIn {
            self.deny_in(network, vrf);
        }
    }

    /// Adds the last rule of a network, which refuses connections to its guests: to its subnets, to its guests' other
    /// addresses, and to groups. In a network without either, it refuses all.
    fn deny_in(&mut self, network: &str, vrf: Vrf) {
        let id = RuleId(self.ids.rules.take((network.to_owned(), DENY_IN.to_owned()), User::Other));
        let mut to: Vec<_> =
            self.out.networks.get(&vrf).iter().flat_map(|n| n.gateways.iter().map(IpNet::trunc)).collect();
        let places = self.index.guests().values().flat_map(places_of);
        to.extend(places.filter(|(of, _)| *of == network).map(|(_, addr)| IpNet::from(addr)));
        if !to.is_empty() {
            to.extend(GROUPS.iter().filter_map(|(addr, len)| IpNet::new(*addr, *len).ok()));
        }
        to.sort_unstable();
        to.dedup();
        let action = model::RuleAction::End(Action::Drop);
        let (from, protocol, ports, priority) = (Vec::new(), None, None, u32::MAX);
        self.out.rules.insert(id, Rule { id, vrf, priority, from, to, protocol, ports, action });
    }
}
