//! Services of a network: keys of `[[network]]`.

use super::Network;
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, describe};
use ipnet::IpNet;
use serde::Serialize;
use std::net::IpAddr;

/// Longest label of a name, and longest name (RFC 1035, 2.3.4).
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;
/// Longest boot file in a DHCP message (RFC 2131, 2), without the zero behind it.
const MAX_BOOT_FILE: usize = 127;
/// Most entries of a list: a DHCP message has room for few.
const MAX_ENTRIES: usize = 32;
/// Most DHCP servers outside: each gets each message.
const MAX_SERVERS: usize = 4;
/// Shortest lease, seconds.
const MIN_LEASE: u32 = 60;

/// DHCP's settings besides addresses and names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DhcpOptions {
    /// How long an address is leased, seconds.
    pub lease_time: u32,
    /// Domains in which guests look for names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Time servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ntp: Vec<IpAddr>,
    /// Routes besides the default one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<DhcpRoute>,
    /// The server of the boot file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_server: Option<IpAddr>,
    /// The boot file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_file: Option<String>,
}

impl Default for DhcpOptions {
    fn default() -> Self {
        let (search, ntp, routes, next_server, boot_file) = Default::default();
        Self { lease_time: 86_400, search, ntp, routes, next_server, boot_file }
    }
}

impl Value for DhcpOptions {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let options = Self {
            lease_time: r.get("lease_time").unwrap_or(Self::default().lease_time),
            search: r.list("search"),
            ntp: r.list("ntp"),
            routes: r.list("routes"),
            next_server: r.get("next_server"),
            boot_file: r.get("boot_file"),
        };
        if options.lease_time < MIN_LEASE {
            r.problem(Some("lease_time"), format!("`lease_time` is in seconds; use {MIN_LEASE} at least"));
        }
        for name in options.search.iter().filter(|name| !is_domain(name)) {
            r.problem(Some("search"), format!("\"{name}\" is not a domain, as in \"blue.internal\""));
        }
        for (key, len) in
            [("search", options.search.len()), ("ntp", options.ntp.len()), ("routes", options.routes.len())]
        {
            if len > MAX_ENTRIES {
                r.problem(Some(key), format!("{len} entries; use {MAX_ENTRIES} at most"));
            }
        }
        if options.next_server.is_some_and(|addr| addr.is_ipv6()) {
            r.problem(Some("next_server"), "`next_server` is an IPv4 address");
        }
        if options.boot_file.as_ref().is_some_and(|file| file.len() > MAX_BOOT_FILE || !file.is_ascii()) {
            r.problem(Some("boot_file"), format!("`boot_file` is ASCII, {MAX_BOOT_FILE} bytes at most"));
        }
        r.finish();
        Some(options)
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ lease_time = SECONDS, ... }}, found {}", describe(value)))
    }
}

/// A route that guests get by DHCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DhcpRoute {
    /// The destination.
    pub to: IpNet,
    /// The router.
    pub via: IpAddr,
}

impl Value for DhcpRoute {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let (to, via) = (r.require::<Prefix>("to").map(|to| to.0), r.require::<IpAddr>("via"));
        if to.is_some_and(|to| to.addr().is_ipv6()) || via.is_some_and(|via| via.is_ipv6()) {
            r.problem(None, "routes by DHCP are of IPv4; IPv6 routers announce themselves");
        }
        r.finish();
        Some(Self { to: to?, via: via? })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ to = \"PREFIX\", via = \"ADDRESS\" }}, found {}", describe(value)))
    }
}

impl Network {
    /// Returns whether guests' messages of DHCP are answered, or relayed.
    #[must_use]
    pub const fn has_dhcp(&self) -> bool {
        self.dhcp || !self.dhcp_relay.is_empty()
    }
}

/// Checks that messages of DHCP can be relayed.
fn check_relay(network: &Network, r: &Reader<'_>) {
    let servers = &network.dhcp_relay;
    if servers.is_empty() {
        return;
    }
    if network.dhcp {
        r.problem(
            Some("dhcp_relay"),
            "`dhcp_relay` and `dhcp = true` exclude each other: either the host answers, or a server outside",
        );
    }
    if servers.len() > MAX_SERVERS {
        r.problem(Some("dhcp_relay"), format!("use {MAX_SERVERS} servers at most"));
    }
    for server in servers {
        if matches!(server, IpAddr::V6(addr) if addr.is_unicast_link_local()) {
            let message = format!("{server} is on one link only; use another address of the server");
            r.problem(Some("dhcp_relay"), message);
        } else if network.gateways.iter().any(|gateway| gateway.addr() == *server) {
            let message = format!("{server} is the network's own gateway; name a server outside");
            r.problem(Some("dhcp_relay"), message);
        } else if !network.gateways.iter().any(|gateway| gateway.addr().is_ipv4() == server.is_ipv4()) {
            let family = if server.is_ipv4() { "IPv4" } else { "IPv6" };
            r.problem(
                Some("dhcp_relay"),
                format!("the server {server} needs an {family} address in `gateways`, whose subnet it is asked for"),
            );
        }
    }
}

/// Checks the keys of a network that belong to its services.
pub(super) fn check(network: &Network, r: &Reader<'_>) {
    if network.dhcp && network.gateways.is_empty() {
        r.problem(Some("dhcp"), "`dhcp` needs an address in `gateways`, which answers");
    }
    check_relay(network, r);
    let has_v6 = network.gateways.iter().any(|gateway| gateway.addr().is_ipv6());
    if network.ra && !has_v6 {
        r.problem(Some("ra"), "`ra` needs an IPv6 address in `gateways`, whose subnet is announced");
    }
    if network.domain.as_ref().is_some_and(|name| !is_domain(name)) {
        r.problem(Some("domain"), "`domain` is a domain, as in \"blue.internal\"");
    }
    if network.dns && network.gateways.is_empty() {
        r.problem(Some("dns"), "`dns` needs an address in `gateways`, which answers");
    }
    let told = [
        ("domain", network.domain.is_some()),
        ("resolvers", !network.resolvers.is_empty()),
        ("dhcp_options", network.dhcp_options.is_some()),
    ];
    let tells = network.dhcp || network.ra;
    for (key, _) in
        told.iter().filter(|(key, there)| *there && !tells && !(network.dns && *key != "dhcp_options"))
    {
        r.problem(
            Some(key),
            match network.dhcp_relay.is_empty() {
                true => format!(
                    "`{key}` is told by DHCP or router advertisements; add `dhcp = true` or `ra = true`"
                ),
                false => {
                    format!("`{key}` is told by the server in `dhcp_relay`, unless `ra = true`; leave it out")
                }
            },
        );
    }
    if network.resolvers.len() > MAX_ENTRIES {
        r.problem(Some("resolvers"), format!("use {MAX_ENTRIES} at most"));
    }
}

/// Returns the length of a network's router advertisement with all that it could tell, bytes.
pub(crate) fn told_by_router(network: &Network) -> usize {
    let v6 = |addr: &&IpAddr| addr.is_ipv6();
    let subnets = network.gateways.iter().filter(|gateway| gateway.addr().is_ipv6()).count();
    let resolvers = network.resolvers.iter().filter(v6).count();
    let search = network.dhcp_options.as_ref().map(|options| &options.search).filter(|all| !all.is_empty());
    let names: Vec<&String> =
        search.map_or_else(|| network.domain.iter().collect(), |all| all.iter().collect());
    // Each name is two bytes longer on the wire than in text (RFC 1035, 3.1).
    let names: usize = names.iter().map(|name| name.len() + 2).sum();
    // IPv6, ICMPv6, the options of the link-layer address and the MTU; then those of RFC 4861 and RFC 8106.
    40 + 16 + 16 + 32 * subnets + 8 + 16 * resolvers + 8 + names.next_multiple_of(8)
}

/// Returns whether a text is a label of a host's name (RFC 1123, 2.1).
#[must_use]
pub fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().last())
}

/// Returns whether a text is a domain's name.
fn is_domain(text: &str) -> bool {
    text.len() <= MAX_NAME && text.split('.').all(is_label)
}
