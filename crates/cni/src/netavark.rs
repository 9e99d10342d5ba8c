//! The plug-in protocol of netavark since version 1.6: a command and the namespace's path as arguments, JSON
//! on standard input and output (plugin-API.md of netavark). Netavark allocates the addresses.

use crate::attachment::Attachment;
use crate::attend::{attach, check_free, detach, template};
use crate::daemon::Daemon;
use crate::error::{Context, Error};
use crate::interface::{Interface, Route};
use crate::netns::Netns;
use crate::records::{DATA_DIR, Records};
use api::v1;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const API_VERSION: &str = "1.0.0";
/// Longest input, bytes.
const MAX_INPUT: u64 = 4 << 20;
/// Keys of `--opt`.
const OPTIONS: [&str; 5] = ["data_dir", "guest", "mtu", "network", "run_dir"];

/// A container and its place in one network.
#[derive(Deserialize)]
struct Request {
    container_id: String,
    network: Network,
    network_options: NetworkOptions,
    port_mappings: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Network {
    name: String,
    #[serde(default)]
    internal: bool,
    subnets: Option<Vec<Subnet>>,
    routes: Option<Vec<StaticRoute>>,
    options: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Subnet {
    subnet: IpNet,
    gateway: Option<IpAddr>,
}

#[derive(Deserialize)]
struct StaticRoute {
    destination: IpNet,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
}

#[derive(Deserialize)]
struct NetworkOptions {
    interface_name: String,
    static_ips: Option<Vec<IpAddr>>,
    static_mac: Option<String>,
}

/// Carries out the command in the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = crate::arguments().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (output, status) = match run(&words) {
        Ok(output) => (output, ExitCode::SUCCESS),
        Err(e) => (Some(json!({ "error": e.to_string() })), ExitCode::FAILURE),
    };
    // If nobody reads the output, its reader has ended.
    let _ = output.map(|output| writeln!(std::io::stdout(), "{output}"));
    status
}

fn run(words: &[&str]) -> Result<Option<Value>, Error> {
    match words {
        [] | ["info"] => {
            Ok(Some(json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": API_VERSION })))
        }
        ["create"] => create(&input()?).map(Some),
        ["setup", netns] => setup(netns, &request(&input()?)?).map(Some),
        ["teardown", _] => teardown(&request(&input()?)?).map(|()| None),
        _ => Err(Error::Config("usage: info, create, setup NETNS or teardown NETNS".to_owned())),
    }
}

fn input() -> Result<Vec<u8>, Error> {
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_end(&mut input);
    read.context(|| "reading the input".to_owned())?;
    Ok(input)
}

fn request(input: &[u8]) -> Result<Request, Error> {
    serde_json::from_slice(input).map_err(|e| Error::Decode("the input", e))
}

/// Checks a new network, and completes it.
fn create(input: &[u8]) -> Result<Value, Error> {
    let mut text: Value = serde_json::from_slice(input).map_err(|e| Error::Decode("the network", e))?;
    let network: Network = serde_json::from_slice(input).map_err(|e| Error::Decode("the network", e))?;
    let settings = Settings::of(&network)?;
    let subnets = network.subnets.as_deref().unwrap_or_default();
    if subnets.is_empty() {
        return Err(Error::Config(
            "give it a --subnet, and a --gateway that the Viaduct network has".to_owned(),
        ));
    }
    let name = &settings.guest.network;
    let there = Daemon::connect(&settings.run_dir)?.network(name)?.ok_or_else(|| {
        Error::Config(format!(
            "viaductd has no network \"{name}\"; add it first (viaduct network add {name} ...), or use --opt network="
        ))
    })?;
    subnets.iter().try_for_each(|subnet| check_subnet(&subnet.subnet, name, &there.gateways))?;
    text["ipv6_enabled"] = subnets.iter().any(|subnet| subnet.subnet.addr().is_ipv6()).into();
    // Netavark's DNS server would have to be in the Viaduct network.
    text["dns_enabled"] = false.into();
    text["ipam_options"]["driver"] = "host-local".into();
    Ok(text)
}

/// Checks that a subnet lies in one of the network's, which are those of its gateways. A network without gateways of
/// this IP version may have any: its router is somewhere else.
fn check_subnet(subnet: &IpNet, name: &str, gateways: &[String]) -> Result<(), Error> {
    let is_v4 = subnet.addr().is_ipv4();
    let there: Vec<IpNet> = gateways.iter().filter_map(|net| net.parse().ok()).collect();
    let mut there = there.into_iter().filter(|net| net.addr().is_ipv4() == is_v4).peekable();
    if there.peek().is_none() || there.clone().any(|net| net.contains(subnet)) {
        return Ok(());
    }
    let there: Vec<String> = there.map(|net| net.trunc().to_string()).collect();
    Err(Error::Config(format!(
        "--subnet {subnet} is not in viaductd's network \"{name}\", which has {}: nobody would answer there",
        there.join(" and ")
    )))
}

fn setup(netns: &str, request: &Request) -> Result<Value, Error> {
    let settings = Settings::of(&request.network)?;
    let it = settings.attachment(request)?;
    if request.port_mappings.as_ref().is_some_and(|mappings| !mappings.is_empty()) {
        return Err(Error::Config(
            "ports can't be published: the container's address is reachable itself, from where routes lead to it"
                .to_owned(),
        ));
    }
    let addresses = addresses(request)?;
    let netns = Netns::open(Path::new(netns))?;
    check_free(&settings.records, &it, &netns, &it.ifname)?;
    let interface = Interface {
        name: it.ifname.clone(),
        addresses: addresses.iter().map(|(net, _)| *net).collect(),
        routes: routes(&request.network, &addresses),
    };
    let mut daemon = Daemon::connect(&settings.run_dir)?;
    // An interrupted call may have left the guest; so may a container from before the host's last start.
    daemon.remove(&it.guest())?;
    settings.records.begin(&it)?;
    let mut guest = settings.guest.clone();
    guest.mac = request.network_options.static_mac.clone().filter(|mac| !mac.is_empty());
    match attach(&mut daemon, &settings.records, &it, &netns, guest, interface) {
        Ok(link) => {
            let subnets = addresses.iter().map(|(net, gateway)| json!({ "ipnet": net, "gateway": gateway }));
            let subnets: Vec<Value> = subnets.collect();
            Ok(json!({ "interfaces": { it.ifname: { "mac_address": link.mac, "subnets": subnets } } }))
        }
        Err(e) => Err(e.and(settings.clear(&it))),
    }
}

fn teardown(request: &Request) -> Result<(), Error> {
    let settings = Settings::of(&request.network)?;
    settings.clear(&settings.attachment(request)?)
}

/// Returns whether a request can be used up to the point where the daemon is needed.
#[cfg(test)]
pub(crate) fn is_whole(input: &[u8]) -> bool {
    let Ok(request) = request(input) else { return false };
    let addresses = addresses(&request);
    let settings = Settings::of(&request.network).and_then(|settings| settings.attachment(&request));
    settings.is_ok() && addresses.is_ok_and(|addresses| !routes(&request.network, &addresses).is_empty())
}

/// Returns the container's addresses, with the gateways of their subnets.
fn addresses(request: &Request) -> Result<Vec<(IpNet, Option<IpAddr>)>, Error> {
    let subnets = request.network.subnets.as_deref().unwrap_or_default();
    let of = |address: &IpAddr| {
        let subnet = subnets.iter().find(|subnet| subnet.subnet.contains(address));
        let net =
            subnet.and_then(|subnet| Some((IpNet::new(*address, subnet.subnet.prefix_len()).ok()?, subnet)));
        net.map(|(net, subnet)| (net, subnet.gateway.filter(|_| !request.network.internal)))
            .ok_or_else(|| Error::Config(format!("address {address} is in no subnet of the network")))
    };
    request.network_options.static_ips.as_deref().unwrap_or_default().iter().map(of).collect()
}

/// Returns the network's routes, and default routes by its gateways.
fn routes(network: &Network, addresses: &[(IpNet, Option<IpAddr>)]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for gateway in addresses.iter().filter_map(|(_, gateway)| *gateway) {
        let dst = if gateway.is_ipv4() { Ipv4Net::default().into() } else { Ipv6Net::default().into() };
        // Several subnets of a family share one default route.
        if !routes.iter().any(|other| other.dst == dst) {
            routes.push(Route { dst, gw: Some(gateway), ..Route::default() });
        }
    }
    routes.extend(network.routes.iter().flatten().map(|route| Route {
        dst: route.destination,
        gw: route.gateway,
        priority: route.metric,
        ..Route::default()
    }));
    routes
}

/// The options of a network.
struct Settings {
    guest: v1::Guest,
    run_dir: PathBuf,
    records: Records,
}

impl Settings {
    fn of(network: &Network) -> Result<Self, Error> {
        let none = BTreeMap::new();
        let options = network.options.as_ref().unwrap_or(&none);
        if let Some(key) = options.keys().find(|key| !OPTIONS.contains(&key.as_str())) {
            return Err(Error::Config(format!("there is no option \"{key}\"; use {}", OPTIONS.join(", "))));
        }
        let mtu = options.get("mtu").map(|mtu| mtu.parse().map_err(|_| format!("mtu: {mtu:?} is no number")));
        let mtu = mtu.transpose().map_err(Error::Config)?;
        let guest = options.get("guest").map(|text| serde_json::from_str(text));
        let guest: Map<String, Value> =
            guest.transpose().map_err(|e| Error::Decode("option guest", e))?.unwrap_or_default();
        let directory = |key: &str, default: &str| match options.get(key).map(PathBuf::from) {
            Some(path) if !path.is_absolute() => {
                Err(Error::Config(format!("{key}: it must be an absolute path")))
            }
            path => Ok(path.unwrap_or_else(|| default.into())),
        };
        Ok(Self {
            guest: template(options.get("network").unwrap_or(&network.name), mtu, &guest)?,
            run_dir: directory("run_dir", api::RUN_DIR)?,
            records: Records::new(directory("data_dir", DATA_DIR)?),
        })
    }

    fn attachment(&self, request: &Request) -> Result<Attachment, Error> {
        Attachment::new(&request.network.name, &request.container_id, &request.network_options.interface_name)
    }

    /// Removes everything that belongs to an attachment.
    fn clear(&self, it: &Attachment) -> Result<(), Error> {
        detach(&self.run_dir, &self.records, it)?;
        self.records.remove(it)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_lies_in_the_network() {
        let check = |subnet: &str, gateways: &[&str]| {
            let gateways: Vec<String> = gateways.iter().map(|net| (*net).to_owned()).collect();
            check_subnet(&subnet.parse().unwrap(), "blue", &gateways).map_err(|e| e.to_string())
        };
        let there = ["10.1.1.254/24", "fd00:1::ffff/64"];
        for good in ["10.1.1.0/24", "10.1.1.128/25", "fd00:1::/64"] {
            assert_eq!(check(good, &there), Ok(()), "{good}");
        }
        assert_eq!(check("10.9.9.0/24", &there[1..]), Ok(()), "a router of its own");
        for bad in ["10.9.9.0/24", "10.1.0.0/16", "fd00:2::/64"] {
            let said = check(bad, &there).unwrap_err();
            assert!(said.contains(bad) && said.contains("network \"blue\", which has "), "{said}");
        }
        assert!(check("10.9.9.0/24", &there).unwrap_err().contains("10.1.1.0/24"));
    }
}
