//! The settings by which guests are answered, as the control plane gives them.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use packet::Mac;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
    /// The guest's name on the host.
    pub guest: String,
    /// The guest's MAC; `None`: any.
    pub mac: Option<Mac>,
    /// Whether the first MAC from which the guest is answered becomes its own.
    pub learns: bool,
    /// The guest's addresses.
    pub addresses: Vec<IpAddr>,
    /// The guest's own name, if it is one that a host can have.
    pub hostname: Option<String>,
    /// The guest's user data, for programs as cloud-init.
    pub user_data: Option<Arc<str>>,
    /// The public keys by which users may log in.
    pub ssh_keys: Vec<String>,
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
    /// A service outside that has the metadata.
    pub metadata_proxy: Option<MetadataProxy>,
    /// The domain of the guests' names.
    pub domain: Option<String>,
    /// Whether guests get their addresses by DHCP.
    pub dhcp: bool,
    /// Whether the gateway announces itself to guests as a router.
    pub ra: bool,
    /// Whether the gateway resolves names.
    pub dns: bool,
    /// DHCP servers outside, to which the gateway relays; none with `dhcp`.
    pub dhcp_relay: Vec<IpAddr>,
    /// If true, guests get their metadata by HTTP.
    pub metadata: bool,
    /// Servers that resolve names: guests ask them, or with `dns` the gateway does.
    pub resolvers: Vec<IpAddr>,
    /// DHCP's further settings.
    pub options: DhcpOptions,
}

/// A service outside that has guests' metadata.
#[derive(Clone, PartialEq, Eq)]
pub struct MetadataProxy {
    /// The service.
    pub server: SocketAddr,
    /// The secret that it shares with the host.
    pub secret: Option<Arc<str>>,
    /// The tenant that it is told.
    pub tenant: String,
}

impl fmt::Debug for MetadataProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetadataProxy {{ {}, {} }}", self.server, self.tenant)
    }
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

impl Network {
    /// Returns the gateways that are in IPv4 subnets.
    pub(crate) fn gateways4(&self) -> impl Iterator<Item = Ipv4Net> {
        let v4 = |net: &IpNet| if let IpNet::V4(net) = net { Some(*net) } else { None };
        self.gateways.iter().filter_map(v4)
    }

    /// Returns the DHCP servers outside of a family.
    pub(crate) fn relays(&self, is_v4: bool) -> impl Iterator<Item = IpAddr> {
        self.dhcp_relay.iter().copied().filter(move |server| server.is_ipv4() == is_v4)
    }
}

impl Binding {
    /// Returns the guest's IPv4 address that is in one of the network's subnets, with the gateway there.
    pub(crate) fn v4(&self) -> Option<(Ipv4Addr, Ipv4Net)> {
        self.addresses.iter().find_map(|addr| match addr {
            IpAddr::V4(addr) => {
                Some((*addr, self.network.gateways4().find(|gateway| gateway.contains(addr))?))
            }
            IpAddr::V6(_) => None,
        })
    }

    /// Returns the gateways that are in IPv6 subnets.
    pub(crate) fn gateways6(&self) -> impl Iterator<Item = Ipv6Net> {
        let v6 = |net: &IpNet| if let IpNet::V6(net) = net { Some(*net) } else { None };
        self.network.gateways.iter().filter_map(v6).filter(|net| !net.addr().is_unicast_link_local())
    }

    /// Returns the guest's addresses in these subnets.
    pub(crate) fn v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        let is_in = |addr: &Ipv6Addr| self.gateways6().any(|net| net.contains(addr));
        v6_of(&self.addresses).into_iter().filter(is_in)
    }

    /// Returns the router's link-local address: a gateway's, or the one made of the gateways' MAC.
    pub(crate) fn router(&self, plan: &Plan) -> Ipv6Addr {
        let v6 = |net: &IpNet| if let IpAddr::V6(addr) = net.addr() { Some(addr) } else { None };
        let mut link_local =
            self.network.gateways.iter().filter_map(v6).filter(Ipv6Addr::is_unicast_link_local);
        link_local.next().unwrap_or_else(|| plan.gateway_mac.link_local())
    }

    /// Returns the servers that resolve names, as guests are told.
    pub(crate) fn resolvers(&self) -> Vec<IpAddr> {
        if !self.network.dns {
            return self.network.resolvers.clone();
        }
        // The gateways of the guest's subnets.
        let v4 = self.v4().map(|(_, gateway)| gateway.addr().into());
        v4.into_iter().chain(self.gateways6().map(|gateway| gateway.addr().into())).collect()
    }

    /// Returns the domains in which the guest looks for names.
    pub(crate) fn search(&self) -> Vec<String> {
        let network = &self.network;
        if network.options.search.is_empty() {
            network.domain.iter().cloned().collect()
        } else {
            network.options.search.clone()
        }
    }
}

/// Returns the IPv6 addresses among these.
pub(crate) fn v6_of(all: &[IpAddr]) -> Vec<Ipv6Addr> {
    let v6 = |addr: &IpAddr| if let IpAddr::V6(addr) = addr { Some(*addr) } else { None };
    all.iter().filter_map(v6).collect()
}

/// Returns the IPv4 addresses among these.
pub(crate) fn v4_of(all: &[IpAddr]) -> Vec<Ipv4Addr> {
    let v4 = |addr: &IpAddr| if let IpAddr::V4(addr) = addr { Some(*addr) } else { None };
    all.iter().filter_map(v4).collect()
}
