//! `[bgp]`: the host's BGP speaker and its peers.

mod peer;

pub use peer::{Bfd, BgpPeer, BgpRange, Password};

use crate::object::Network;
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, display, names, text};
use packet::Mac;
use peer::Templates;
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The port of BGP (RFC 4271, 8.2.1).
pub const BGP_PORT: u16 = 179;
/// Most addresses to listen at.
pub const MOST_LISTEN: usize = 4;
/// Most peers.
const MOST_PEERS: usize = 64;
/// Most ranges of peers.
const MOST_RANGES: usize = 16;

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
    #[serde(rename = "peer", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<BgpPeer>,
    /// Ranges of addresses from which other peers may call.
    #[serde(rename = "range", skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<BgpRange>,
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

    /// Returns the peer with an address: the configured one, or one of the longest range that has it.
    #[must_use]
    pub fn peer_at(&self, address: IpAddr) -> Option<&BgpPeer> {
        let ranges = || {
            let ranges = self.ranges.iter().filter(|range| range.prefix.contains(&address));
            ranges.max_by_key(|range| range.prefix.prefix_len()).map(|range| &range.peer)
        };
        self.peers.iter().find(|peer| peer.address == address).or_else(ranges)
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
        let templates = peer::templates(&mut r);
        let peers = read_peers(&mut r, asn, &templates);
        let ranges = read_ranges(&mut r, asn, &templates);
        if !r.has("peer") && !r.has("range") {
            r.problem(None, "without a [[bgp.peer]] or [[bgp.range]] there is nobody to speak to");
        }
        let waiting = peers.iter().filter(|peer| peer.passive).map(|peer| {
            format!("the peer {} is `passive`, so `listen` must say where it connects", peer.address)
        });
        let called = ranges.iter().map(|range| {
            format!("peers of {} call this host, so `listen` must say where they connect", range.prefix)
        });
        for message in waiting.chain(called).filter(|_| listen.is_empty()) {
            r.problem(Some("listen"), message);
        }
        check_passwords(&r, &peers, &ranges);
        r.finish();
        Some(Self { asn: asn?, router_id, listen, labels, peers, ranges })
    }
}

fn read_peers(r: &mut Reader<'_>, own: Option<u32>, templates: &Templates) -> Vec<BgpPeer> {
    let tables = r.tables("peer");
    if tables.len() > MOST_PEERS {
        r.problem(
            Some("peer"),
            format!("there may be {MOST_PEERS} peers; let them speak to a route reflector"),
        );
    }
    let mut peers: Vec<BgpPeer> = Vec::new();
    for peer in tables.into_iter().filter_map(|table| BgpPeer::read(table, own, templates)) {
        if peers.iter().any(|other| other.address == peer.address) {
            r.problem(Some("peer"), format!("the peer {} is there twice", peer.address));
        }
        peers.push(peer);
    }
    peers
}

fn read_ranges(r: &mut Reader<'_>, own: Option<u32>, templates: &Templates) -> Vec<BgpRange> {
    let tables = r.tables("range");
    if tables.len() > MOST_RANGES {
        r.problem(Some("range"), format!("there may be {MOST_RANGES} ranges"));
    }
    let mut ranges: Vec<BgpRange> = Vec::new();
    for range in tables.into_iter().filter_map(|table| BgpRange::read(table, own, templates)) {
        if ranges.iter().any(|other| other.prefix == range.prefix) {
            r.problem(Some("range"), format!("the range {} is there twice", range.prefix));
        }
        ranges.push(range);
    }
    ranges
}

/// Complains of peers without a password in a range that has one: the kernel would ask them for that.
fn check_passwords(r: &Reader<'_>, peers: &[BgpPeer], ranges: &[BgpRange]) {
    let peers =
        peers.iter().map(|peer| ("peer", format!("the peer {}", peer.address), peer, peer.address.into()));
    let inner = ranges
        .iter()
        .map(|range| ("range", format!("the range {}", range.prefix), &range.peer, range.prefix));
    for (key, name, peer, prefix) in peers.chain(inner) {
        let asks = |range: &&BgpRange| range.peer.password.is_some() && range.prefix.contains(&prefix);
        if let Some(range) = ranges.iter().find(asks).filter(|_| peer.password.is_none()) {
            let wide = range.prefix;
            let message =
                format!("{name} needs a `password` of its own: without one, that of the range {wide} counts");
            r.problem(Some(key), message);
        }
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
