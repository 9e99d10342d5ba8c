//! The settings by which guests are answered, as the control plane gives them.

use ipnet::{IpNet, Ipv4Net};
use packet::Mac;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The settings of all guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The MAC of the gateways, from which answers come.
    pub gateway_mac: Mac,
    /// The guests of networks with services, by the numbers of their interfaces.
    pub bindings: BTreeMap<u16, Binding>,
}

/// The settings of one guest in one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The guest's MAC; `None`: any.
    pub mac: Option<Mac>,
    /// The guest's addresses.
    pub addresses: Vec<IpAddr>,
    /// The guest's own name.
    pub hostname: String,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// The network.
    pub network: Arc<Network>,
}

/// The settings that all guests of a network share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// The gateways with their subnets.
    pub gateways: Vec<IpNet>,
    /// The domain of the guests' names.
    pub domain: Option<String>,
    /// Servers that resolve names.
    pub resolvers: Vec<IpAddr>,
    /// DHCP's further settings.
    pub options: DhcpOptions,
}

/// DHCP's settings besides addresses and names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpOptions {
    /// How long an address is leased, seconds.
    pub lease_time: u32,
    /// Domains in which clients look for names.
    pub search: Vec<String>,
    /// Time servers.
    pub ntp: Vec<IpAddr>,
    /// Routes besides the default one.
    pub routes: Vec<Route>,
    /// The server of the boot file.
    pub next_server: Option<Ipv4Addr>,
    /// The boot file.
    pub boot_file: Option<String>,
}

/// A route of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub to: Ipv4Net,
    /// The router.
    pub via: Ipv4Addr,
}

impl Binding {
    /// Returns the guest's IPv4 address that is in one of the network's subnets, with the gateway there.
    pub(crate) fn v4(&self) -> Option<(Ipv4Addr, Ipv4Net)> {
        let v4 = |net: &IpNet| if let IpNet::V4(net) = net { Some(*net) } else { None };
        let gateways = || self.network.gateways.iter().filter_map(v4);
        self.addresses.iter().find_map(|addr| match addr {
            IpAddr::V4(addr) => Some((*addr, gateways().find(|gateway| gateway.contains(addr))?)),
            IpAddr::V6(_) => None,
        })
    }
}

/// Returns the IPv4 addresses among these.
pub(crate) fn v4_of(all: &[IpAddr]) -> Vec<Ipv4Addr> {
    let v4 = |addr: &IpAddr| if let IpAddr::V4(addr) = addr { Some(*addr) } else { None };
    all.iter().filter_map(v4).collect()
}
