//! `[bgp]`: the host's BGP speaker and its peers.

use crate::object::{Network, TunnelKind};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, describe, display, names, text};
use packet::Mac;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The port of BGP (RFC 4271, 8.2.1).
pub const BGP_PORT: u16 = 179;
/// Most addresses to listen at.
pub const MOST_LISTEN: usize = 4;
/// Most peers.
const MOST_PEERS: usize = 64;

/// `[bgp]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bgp {
    /// The host's autonomous system.
    #[serde(rename = "as")]
    pub asn: u32,
    /// The BGP identifier; `None`: the IPv4 source address of tunnels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_id: Option<Ipv4Addr>,
    /// Addresses at which peers may connect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<IpAddr>,
    /// The labels of networks: a network has the first one plus its `vrf`.
    #[serde(serialize_with = "display")]
    pub labels: Labels,
    /// The peers.
    #[serde(rename = "peer")]
    pub peers: Vec<BgpPeer>,
}

/// `[[bgp.peer]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BgpPeer {
    /// The peer's address.
    pub address: IpAddr,
    /// The peer's autonomous system.
    #[serde(rename = "as")]
    pub asn: u32,
    /// The families of routes that are exchanged.
    pub families: Vec<BgpFamily>,
    /// The encapsulation of routes with an MPLS label.
    pub encapsulation: TunnelKind,
    /// The port to which the host connects.
    pub port: u16,
    /// Whether only the peer opens the connection.
    pub passive: bool,
    /// Seconds for which both keep routes when the session ends; 0: not at all.
    pub graceful_restart: u16,
    /// Most routes that it may send.
    pub max_prefixes: u32,
    /// BFD watches the path to it, or not.
    #[serde(skip_serializing_if = "Bfd::is_off")]
    pub bfd: Bfd,
    /// The password that segments of both are signed with (RFC 2385).
    #[serde(skip)]
    pub password: Option<Password>,
}

/// How BFD watches the path to a peer (RFC 5880).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bfd {
    /// `false`: it is not.
    #[default]
    Off,
    /// `true`: the peer is on a link of the host (RFC 5881).
    Link,
    /// `"multihop"`: it is behind routers (RFC 5883).
    Multihop,
}

impl Bfd {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    const fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}

impl Value for Bfd {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Boolean(false) => Ok(Self::Off),
            Node::Boolean(true) => Ok(Self::Link),
            Node::String(name) if name == "multihop" => Ok(Self::Multihop),
            other => Err(format!("expected true, false or \"multihop\", found {}", describe(other))),
        }
    }
}

impl Serialize for Bfd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::Link => serializer.serialize_bool(true),
            Self::Multihop => serializer.serialize_str("multihop"),
        }
    }
}

/// A password, which is shown to nobody: 1 to 80 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    const MOST: usize = 80;

    /// Returns its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Value for Password {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        // Messages don't show it, whatever it is.
        let Node::String(text) = value else { return Err("a password is a string in quotes".to_owned()) };
        match text.len() {
            1..=Self::MOST => Ok(Self(text.to_string())),
            length => Err(format!("a password has 1 to {} bytes, this one {length}", Self::MOST)),
        }
    }
}

/// Families of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BgpFamily {
    /// VPN-IPv4 (RFC 4364).
    Vpnv4,
    /// VPN-IPv6 (RFC 4659).
    Vpnv6,
    /// Ethernet VPN (RFC 7432).
    Evpn,
    /// Route target constraint (RFC 4684).
    Rtc,
    /// IPv4 (RFC 4271).
    Ipv4Unicast,
    /// IPv6 (RFC 2545).
    Ipv6Unicast,
}

names!(BgpFamily {
    Vpnv4 = "vpnv4",
    Vpnv6 = "vpnv6",
    Evpn = "evpn",
    Rtc = "rtc",
    Ipv4Unicast = "ipv4-unicast",
    Ipv6Unicast = "ipv6-unicast",
});

/// A range of MPLS labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels {
    /// The first one.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

impl Labels {
    const DEFAULT: Self = Self { first: 100_000, last: 199_999 };

    /// Returns the label of the network with this `vrf`, if the range is long enough.
    #[must_use]
    pub fn of(self, vrf: u16) -> Option<u32> {
        let label = self.first + u32::from(vrf);
        self.contains(label).then_some(label)
    }

    pub(crate) fn contains(self, label: u32) -> bool {
        (self.first..=self.last).contains(&label)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Value for Labels {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let text = text(value)?;
        let ends =
            text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        // The first 16 are reserved (RFC 7274).
        let is_label = |label: u32| (16..1 << 20).contains(&label);
        match ends {
            Some((first, last)) if is_label(first) && is_label(last) && first < last => {
                Ok(Self { first, last })
            }
            _ => {
                Err(format!("\"{text}\" is no range of labels (16 to 1048575), as in \"{}\"", Self::DEFAULT))
            }
        }
    }
}

/// A route target, or a route distinguisher (RFC 4364, 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteName {
    /// An autonomous system and a number. If the system has more than 16 bits, the number has 16.
    As(u32, u32),
    /// An address and a number.
    Address(Ipv4Addr, u16),
}

impl RouteName {
    /// Returns the name of an autonomous system and a number, if they fit.
    fn of_as(asn: u32, number: u32) -> Option<Self> {
        let fits = asn <= u32::from(u16::MAX) || number <= u32::from(u16::MAX);
        fits.then_some(Self::As(asn, number))
    }
}

impl FromStr for RouteName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (before, number) = text.split_once(':')?;
            match before.parse() {
                Ok(address) => Some(Self::Address(address, number.parse().ok()?)),
                Err(_) => Self::of_as(before.parse().ok()?, number.parse().ok()?),
            }
        };
        parse().ok_or_else(|| {
            format!(
                "\"{text}\" has not the form AS:NUMBER or IPV4:NUMBER, as in \"64512:100\" (the number after an AS \
                 above 65535, or an address, is at most 65535)"
            )
        })
    }
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::As(asn, number) => write!(f, "{asn}:{number}"),
            Self::Address(address, number) => write!(f, "{address}:{number}"),
        }
    }
}

impl Value for RouteName {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value)?.parse()
    }
}

type AsNumber = Within<1, { u32::MAX - 1 }>;

impl Bgp {
    /// Returns where a connection to a peer goes, and from which address it comes, unless the kernel chooses that.
    #[must_use]
    pub fn way_to(&self, peer: &BgpPeer) -> (SocketAddr, Option<IpAddr>) {
        let source = self.listen.iter().find(|address| address.is_ipv4() == peer.address.is_ipv4());
        (SocketAddr::new(peer.address, peer.port), source.copied())
    }

    /// Returns the route targets under which a network's routes are announced.
    #[must_use]
    pub fn export(&self, network: &Network) -> Vec<RouteName> {
        self.targets(network, &network.export)
    }

    /// Returns the route targets of the routes that a network takes.
    #[must_use]
    pub fn import(&self, network: &Network) -> Vec<RouteName> {
        self.targets(network, &network.import)
    }

    /// Returns the route targets under which the routes of a network are announced, but not its MAC addresses and floods.
    #[must_use]
    pub fn l3_export(&self, network: &Network) -> Vec<RouteName> {
        self.l3_targets(network, &network.l3_export)
    }

    /// Returns the route targets of the routes that a network takes, but whose MAC addresses it does not.
    #[must_use]
    pub fn l3_import(&self, network: &Network) -> Vec<RouteName> {
        self.l3_targets(network, &network.l3_import)
    }

    fn l3_targets(&self, network: &Network, configured: &[RouteName]) -> Vec<RouteName> {
        if configured.is_empty() {
            self.default_l3_target(network).into_iter().collect()
        } else {
            configured.to_vec()
        }
    }

    /// Returns the target that follows from AS and `l3vni`, if they fit into one.
    pub(crate) fn default_l3_target(&self, network: &Network) -> Option<RouteName> {
        network.l3vni.and_then(|vni| RouteName::of_as(self.asn, vni))
    }

    /// Returns the configured targets, or the one that follows from AS and network.
    fn targets(&self, network: &Network, configured: &[RouteName]) -> Vec<RouteName> {
        if !configured.is_empty() {
            return configured.to_vec();
        }
        vec![self.default_target(network)]
    }

    /// Returns the target that follows from AS and network.
    pub(crate) fn default_target(&self, network: &Network) -> RouteName {
        let of_vni = network.vni.and_then(|vni| RouteName::of_as(self.asn, vni));
        of_vni.unwrap_or(RouteName::As(self.asn, network.vrf.into()))
    }

    /// Returns `[bgp]` in TOML for people.
    pub(crate) fn to_toml(&self) -> String {
        #[derive(Serialize)]
        struct File<'a> {
            bgp: &'a Bgp,
        }
        toml::to_string(&File { bgp: self }).unwrap_or_default()
    }

    pub(crate) fn read(mut r: Reader<'_>) -> Option<Self> {
        let asn = r.require("as").map(AsNumber::wide);
        let router_id: Option<IpAddr> = r.get("router_id");
        let router_id = match router_id {
            Some(IpAddr::V4(address)) => Some(address),
            Some(IpAddr::V6(_)) => {
                r.problem(Some("router_id"), "a router id has the form of an IPv4 address");
                None
            }
            None => None,
        };
        let listen = r.list("listen");
        if listen.len() > MOST_LISTEN {
            r.problem(Some("listen"), format!("`listen` takes {MOST_LISTEN} addresses"));
        }
        let labels = r.get("labels").unwrap_or(Labels::DEFAULT);
        let templates = templates(&mut r);
        let tables = r.tables("peer");
        if tables.is_empty() {
            r.problem(None, "without a [[bgp.peer]] there is nobody to speak to");
        }
        if tables.len() > MOST_PEERS {
            r.problem(
                Some("peer"),
                format!("there may be {MOST_PEERS} peers; let them speak to a route reflector"),
            );
        }
        let mut peers: Vec<BgpPeer> = Vec::new();
        for table in tables {
            let Some(peer) = BgpPeer::read(table, asn, &templates) else { continue };
            if peers.iter().any(|other| other.address == peer.address) {
                r.problem(Some("peer"), format!("the peer {} is there twice", peer.address));
            }
            if peer.passive && listen.is_empty() {
                let message =
                    format!("the peer {} is `passive`, so `listen` must say where it connects", peer.address);
                r.problem(Some("peer"), message);
            }
            peers.push(peer);
        }
        r.finish();
        Some(Self { asn: asn?, router_id, listen, labels, peers })
    }
}

/// Returns the BGP identifier: the configured one, or else the IPv4 source address of tunnels.
#[must_use]
pub fn router_id(bgp: &Bgp, tunnel_sources: &[IpAddr]) -> Option<Ipv4Addr> {
    let v4 = |address: &IpAddr| if let IpAddr::V4(address) = address { Some(*address) } else { None };
    bgp.router_id.or_else(|| tunnel_sources.iter().find_map(v4))
}

/// Returns the MAC by which other hosts route packets to this one through VXLAN (RFC 9135, 8.1): locally administered,
/// and as unique as the BGP identifier in it.
#[must_use]
pub fn router_mac(router_id: Ipv4Addr) -> Mac {
    let [a, b, c, d] = router_id.octets();
    Mac([0x06, 0x5e, a, b, c, d])
}

/// The keys that a peer and a template have in common, as far as they are written.
#[derive(Clone, Default)]
struct Keys {
    asn: Option<u32>,
    families: Option<Vec<BgpFamily>>,
    encapsulation: Option<TunnelKind>,
    port: Option<u16>,
    passive: Option<bool>,
    graceful_restart: Option<u16>,
    max_prefixes: Option<u32>,
    bfd: Option<Bfd>,
    password: Option<Password>,
}

impl Keys {
    fn read(r: &mut Reader<'_>) -> Self {
        Self {
            asn: r.get("as").map(AsNumber::wide),
            families: r.given("families"),
            encapsulation: r.get("encapsulation"),
            port: r.get("port").map(Within::<1, 0xffff>::short),
            passive: r.get("passive"),
            graceful_restart: r.get("graceful_restart").map(Within::<0, 4095>::short),
            max_prefixes: r.get("max_prefixes").map(Within::<1, 10_000_000>::wide),
            bfd: r.get("bfd"),
            password: r.get("password"),
        }
    }

    /// Takes what is not written from a template.
    fn or(self, template: Self) -> Self {
        Self {
            asn: self.asn.or(template.asn),
            families: self.families.or(template.families),
            encapsulation: self.encapsulation.or(template.encapsulation),
            port: self.port.or(template.port),
            passive: self.passive.or(template.passive),
            graceful_restart: self.graceful_restart.or(template.graceful_restart),
            max_prefixes: self.max_prefixes.or(template.max_prefixes),
            bfd: self.bfd.or(template.bfd),
            password: self.password.or(template.password),
        }
    }
}

/// Reads the templates, by name.
fn templates(r: &mut Reader<'_>) -> BTreeMap<String, Keys> {
    let mut all = BTreeMap::new();
    for mut table in r.tables("template") {
        table.call("[[bgp.template]]".to_owned());
        let (name, keys) = (table.require::<String>("name"), Keys::read(&mut table));
        table.finish();
        let Some(name) = name else { continue };
        if all.contains_key(&name) {
            r.problem(Some("template"), format!("the template \"{name}\" is there twice"));
        }
        all.insert(name, keys);
    }
    all
}

impl BgpPeer {
    fn read(mut r: Reader<'_>, own: Option<u32>, templates: &BTreeMap<String, Keys>) -> Option<Self> {
        r.call("[[bgp.peer]]".to_owned());
        let (address, template) = (r.require("address"), r.get::<String>("template"));
        let keys = Keys::read(&mut r);
        let keys = match template.as_ref().map(|name| (name, templates.get(name))) {
            None => keys,
            Some((_, Some(template))) => keys.or(template.clone()),
            Some((name, None)) => {
                let hint = crate::did_you_mean(name, templates.keys().map(String::as_str));
                r.problem(Some("template"), format!("there is no [[bgp.template]] \"{name}\"{hint}"));
                keys
            }
        };
        let families = keys
            .families
            .unwrap_or_else(|| vec![BgpFamily::Vpnv4, BgpFamily::Vpnv6, BgpFamily::Evpn, BgpFamily::Rtc]);
        if families.iter().all(|family| *family == BgpFamily::Rtc) {
            r.problem(Some("families"), "`families` needs one besides \"rtc\", which has no routes");
        }
        let encapsulation = keys.encapsulation.unwrap_or(TunnelKind::MplsOverUdp);
        if encapsulation == TunnelKind::Vxlan && !families.contains(&BgpFamily::Evpn) {
            r.problem(Some("encapsulation"), "only EVPN routes go by VXLAN, and `families` lacks \"evpn\"");
        }
        r.finish();
        Some(Self {
            address: address?,
            asn: keys.asn.or(own)?,
            families,
            encapsulation,
            port: keys.port.unwrap_or(BGP_PORT),
            passive: keys.passive.unwrap_or(false),
            graceful_restart: keys.graceful_restart.unwrap_or(120),
            max_prefixes: keys.max_prefixes.unwrap_or(1_000_000),
            bfd: keys.bfd.unwrap_or_default(),
            password: keys.password,
        })
    }
}
