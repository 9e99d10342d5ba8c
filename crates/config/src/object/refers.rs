//! The references of objects.

use super::{Endpoint, Key, Kind, Object, RuleAction, Target, Tunnel};
use std::net::IpAddr;

impl Object {
    /// Returns the objects that this one refers to by name. The list may hold an object twice.
    #[must_use]
    pub fn refers_to(&self) -> Vec<Key> {
        let named = |kind: Kind, name: &str| Key { kind, network: None, name: name.to_owned() };
        let network = |name: &str| named(Kind::Network, name);
        let mirror = |name: &str| Tunnel::of_mirror(name).is_none().then(|| named(Kind::Guest, name));
        let mut keys: Vec<Key> = self.targets().iter().filter_map(Target::key).collect();
        keys.extend(self.key().network.as_deref().map(network));
        match self {
            Self::Network(of) => keys.extend(of.wire.as_deref().map(|wire| named(Kind::Wire, wire))),
            Self::Guest(guest) => {
                keys.extend((!guest.network.is_empty()).then(|| network(&guest.network)));
                keys.extend(guest.vlans.iter().map(|vlan| network(&vlan.network)));
                keys.extend(guest.mirror.as_deref().and_then(mirror));
                keys.extend(guest.link_follows.as_deref().map(|wire| named(Kind::Wire, wire)));
            }
            Self::Lease(lease) => {
                keys.extend([network(&lease.network), named(Kind::Guest, &lease.guest)]);
            }
            Self::Nat(nat) => keys.push(network(&nat.outside_network)),
            Self::Forward(forward) => keys.push(named(Kind::Guest, &forward.to.guest)),
            Self::Rule(rule) => {
                let ends = [&rule.from, &rule.to].into_iter();
                keys.extend(
                    ends.filter_map(|Endpoint { guest, .. }| Some(named(Kind::Guest, guest.as_deref()?))),
                );
                if let RuleAction::Mirror(name) = &rule.action {
                    keys.extend(mirror(name));
                }
            }
            Self::Vxlan(vxlan) => keys.push(network(&vxlan.network)),
            _ => {}
        }
        keys
    }

    /// Returns the hosts and routers that the object names as remotes of tunnels or as next hops.
    pub fn next_hops(&self) -> impl Iterator<Item = IpAddr> {
        self.targets().iter().filter_map(|target| match target {
            Target::Via(addr) => Some(*addr),
            Target::Tunnel(tunnel) => Some(tunnel.remote),
            _ => None,
        })
    }

    /// Returns the targets to which the object sends packets.
    fn targets(&self) -> &[Target] {
        match self {
            Self::Nexthop(nexthop) => &nexthop.to,
            Self::Route(route) => &route.to,
            Self::Mac(mac) => std::slice::from_ref(&mac.to),
            Self::Flood(flood) => &flood.to,
            Self::Mpls(mpls) => std::slice::from_ref(&mpls.to),
            _ => &[],
        }
    }
}
