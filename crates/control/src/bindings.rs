//! The plan by which the services of networks answer guests.

use crate::compile::vlan_vif;
use config::{Connection, Guest, Index, Mode};
use ipnet::IpNet;
use model::{GATEWAY_MAC, VifId};
use services::{Binding, MetadataProxy, Network, Plan, Route};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Returns the plan of the services. `vif` knows the numbers of interfaces.
pub(crate) fn plan(index: &Index, vif: impl Fn(&str) -> Option<VifId>) -> Plan {
    let served = index.networks().values().filter(|network| is_served(network));
    let networks: HashMap<&str, Arc<Network>> =
        served.map(|network| (network.name.as_str(), Arc::new(described(network)))).collect();
    let mut plan = Plan { gateway_mac: GATEWAY_MAC, ..Plan::default() };
    if networks.is_empty() {
        return plan;
    }
    let guests = index.guests().values();
    let is_served = |guest: &&Guest| {
        guest.mode == Mode::Vrouter && !matches!(guest.connection, Connection::Rdma | Connection::Host(_))
    };
    for guest in guests.filter(is_served) {
        for (name, network, addresses) in places(guest) {
            if let (Some(vif), Some(network)) = (vif(&name), networks.get(network)) {
                plan.bindings.insert(vif.0, binding(index, guest, network, addresses));
            }
        }
    }
    plan
}

fn is_served(network: &config::Network) -> bool {
    network.has_dhcp() || network.ra || network.dns || network.metadata
}

/// Returns the guest's interfaces, each with its network and addresses.
fn places(guest: &Guest) -> impl Iterator<Item = (String, &str, &[IpAddr])> {
    let own = (guest.name.clone(), guest.network.as_str(), &guest.addresses[..]);
    let vlans = guest.vlans.iter();
    let vlans = vlans.map(|vlan| (vlan_vif(guest, vlan), vlan.network.as_str(), &vlan.addresses[..]));
    std::iter::once(own).chain(vlans)
}

fn binding(index: &Index, guest: &Guest, network: &Arc<Network>, addresses: &[IpAddr]) -> Binding {
    Binding {
        guest: guest.name.clone(),
        mac: guest.mac,
        learns: guest.mac.is_none() && index.lease(&guest.name).is_some(),
        addresses: addresses.to_vec(),
        hostname: guest
            .hostname
            .clone()
            .or_else(|| config::is_label(&guest.name).then(|| guest.name.clone())),
        user_data: guest.user_data.as_ref().map(|data| data.0.clone()),
        ssh_keys: guest.ssh_keys.clone(),
        mtu: guest.mtu.unwrap_or_else(|| index.network_mtu(&network.name)),
        network: network.clone(),
    }
}

fn described(network: &config::Network) -> Network {
    let config::DhcpOptions { lease_time, search, ntp, routes, next_server, boot_file } =
        network.dhcp_options.clone().unwrap_or_default();
    let route = |route: &config::DhcpRoute| match (route.to, route.via) {
        (IpNet::V4(to), IpAddr::V4(via)) => Some(Route { to, via }),
        _ => None,
    };
    let v4 = |addr| if let IpAddr::V4(addr) = addr { Some(addr) } else { None };
    let options = services::DhcpOptions {
        lease_time,
        search,
        ntp,
        routes: routes.iter().filter_map(route).collect(),
        next_server: next_server.and_then(v4),
        boot_file,
    };
    Network {
        name: network.name.clone(),
        gateways: network.gateways.clone(),
        domain: network.domain.clone(),
        dhcp: network.dhcp,
        dhcp_relay: network.dhcp_relay.clone(),
        ra: network.ra,
        dns: network.dns,
        metadata: network.metadata,
        metadata_proxy: network.metadata_proxy.map(|server| MetadataProxy {
            server,
            secret: network.metadata_secret.as_ref().map(|secret| secret.0.clone()),
            tenant: network.metadata_tenant.clone().unwrap_or_else(|| network.name.clone()),
        }),
        resolvers: network.resolvers.clone(),
        options,
    }
}
