//! The host's side of a tap that is an interface of the host itself: addresses and routes.

use config::{Guest, Index, Network};
use ipnet::IpNet;
use model::GATEWAY_MAC;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The host's side of a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSide {
    /// Addresses of the device, with their subnets.
    pub addresses: Vec<IpNet>,
    /// Prefixes that lie behind the device, each with its router.
    pub routes: Vec<(IpNet, IpAddr)>,
    /// Link-layer address of the routers, which are in no subnet of the device then.
    pub router: Option<Mac>,
    /// Whether packets leave the host by it, behind the host's own address.
    pub masquerade: bool,
    /// Ports of the host that lead to guests behind the device.
    pub forwards: Vec<HostForward>,
}

/// A port of the host that leads to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostForward {
    /// Number of TCP or UDP.
    pub protocol: u8,
    /// Address and port of the host.
    pub outside: SocketAddr,
    /// Address and port of the guest.
    pub to: SocketAddr,
}

impl HostSide {
    /// Returns the host's side of a guest that is the host itself. The network's subnets are on link where it has an
    /// address in them, and otherwise behind a gateway that is on link.
    pub(crate) fn of_guest(guest: &Guest, network: &Network) -> Self {
        let subnet = |addr: &IpAddr| network.gateways.iter().find(|gateway| gateway.contains(addr));
        let address = |addr: &IpAddr| {
            let len = subnet(addr).map(IpNet::prefix_len);
            len.and_then(|len| IpNet::new(*addr, len).ok()).unwrap_or_else(|| IpNet::from(*addr))
        };
        let routers: Vec<_> = guest.addresses.iter().filter_map(subnet).map(IpNet::addr).collect();
        let is_on_link = |gateway: &IpNet| guest.addresses.iter().any(|addr| gateway.contains(addr));
        let behind = network.gateways.iter().filter(|gateway| !is_on_link(gateway)).filter_map(|gateway| {
            let via = routers.iter().find(|router| router.is_ipv4() == gateway.addr().is_ipv4())?;
            Some((gateway.trunc(), *via))
        });
        Self {
            addresses: guest.addresses.iter().map(address).collect(),
            routes: behind.collect(),
            ..Self::default()
        }
    }
}

/// The router by which the host reaches the guests: no host's address, but each device may have such a router.
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// The gateways' link-local address, made of their MAC (RFC 4291, appendix A).
const ROUTER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0x200, 0x5eff, 0xfe00, 0x100));

impl HostSide {
    /// Returns the host's side of the tap by which a network leaves through the host. The host has no address there: it
    /// reaches the guests by the network's gateways.
    pub(crate) fn way_out(network: &Network, index: &Index) -> Self {
        let is_link_local = |net: &IpNet| match net.addr() {
            IpAddr::V4(addr) => addr.is_link_local(),
            IpAddr::V6(addr) => addr.is_unicast_link_local(),
        };
        let subnets = network.gateways.iter().filter(|gateway| !is_link_local(gateway)).map(IpNet::trunc);
        let mut routes: Vec<_> =
            subnets.map(|net| (net, if net.addr().is_ipv4() { ROUTER } else { ROUTER6 })).collect();
        routes.sort_unstable();
        routes.dedup();
        let forwards = index.forwards(&network.name).filter_map(|forward| {
            Some(HostForward {
                protocol: forward.protocol.0,
                outside: SocketAddr::new(forward.outside, forward.port),
                to: SocketAddr::new(index.forwarded_to(forward)?, forward.to.port),
            })
        });
        let forwards = forwards.collect();
        Self { routes, router: Some(GATEWAY_MAC), masquerade: true, forwards, ..Self::default() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn subnets_are_on_link_or_behind_a_gateway() {
        let text = "[host]\nname = \"a\"\n[[network]]\nname = \"n\"\nvrf = 1\n\
            gateways = [\"10.1.1.254/24\", \"10.2.0.1/16\", \"fd00:1::ffff/64\"]\n\
            [[guest]]\nname = \"h\"\nnetwork = \"n\"\nkind = \"host\"\ndevice = \"vd0\"\nmac = \"02:00:00:00:00:05\"\n\
            addresses = [\"10.1.1.5\", \"192.0.2.9\"]\n";
        let document = config::parse(text).unwrap();
        let objects = || document.objects.iter().map(|item| &item.object);
        let index = config::Index::new(&document.host, objects());
        let side = HostSide::of_guest(&index.guests()["h"], &index.networks()["n"]);
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        assert_eq!(side.addresses, nets(&["10.1.1.5/24", "192.0.2.9/32"]));
        assert_eq!(side.routes, [("10.2.0.0/16".parse().unwrap(), "10.1.1.254".parse().unwrap())]);
    }
}
