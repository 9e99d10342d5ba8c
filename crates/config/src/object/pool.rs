//! Addresses that a network gives to guests without.

use super::{Guest, GuestKind, Kind, Mode, Network, Place, check_mac};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, display_some, host_address, text};
use ipnet::IpNet;
use packet::Mac;
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Most ranges of a network.
const MAX_RANGES: usize = 16;
/// Most addresses of a lease: one of each family.
const MAX_ADDRESSES: usize = 2;

/// A range of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Returns whether an address is in the range.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        addr.is_ipv4() == self.is_ipv4() && (self.first..=self.last).contains(&addr)
    }

    /// Returns whether the range is of IPv4.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Returns the number of addresses; `u128::MAX` stands for more.
    #[must_use]
    pub fn size(&self) -> u128 {
        (bits(self.last) - bits(self.first)).saturating_add(1)
    }

    /// Returns the address with this number, counted from the first.
    #[must_use]
    pub fn get(&self, number: u128) -> Option<IpAddr> {
        let addr = bits(self.first).checked_add(number).filter(|addr| *addr <= bits(self.last))?;
        Some(match self.first {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(addr).ok()?).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(addr).into(),
        })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.first <= other.last && other.first <= self.last
    }
}

/// Returns an address as a number.
fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => addr.to_bits().into(),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || {
            format!("\"{s}\" is no range of addresses; use \"10.1.1.100-10.1.1.199\" or \"fd00:1::1000/116\"")
        };
        let addr = |s: &str| s.trim().parse::<IpAddr>().map_err(|_| wrong());
        let (first, last) = match s.split_once('-') {
            Some((first, last)) => (addr(first)?, addr(last)?),
            None => {
                let net: IpNet = s.parse().map_err(|_| wrong())?;
                if net != net.trunc() {
                    return Err(format!(
                        "{net} has bits set past its prefix; did you mean \"{}\"?",
                        net.trunc()
                    ));
                }
                (net.network(), net.broadcast())
            }
        };
        if first.is_ipv4() != last.is_ipv4() {
            return Err(format!("{first} and {last} are of different families"));
        }
        if first > last {
            return Err(format!("{first}-{last}: the first is the greater"));
        }
        Ok(Self { first: host_address(first)?, last: host_address(last)? })
    }
}

impl Value for AddressRange {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value)?.parse()
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Network {
    /// Returns whether the network gives a guest addresses of its pool: the guest has none of its own.
    #[must_use]
    pub fn leases_to(&self, guest: &Guest) -> bool {
        let asks = guest.mode == Mode::Vrouter && guest.kind() != GuestKind::Rdma;
        self.dhcp && !self.pool.is_empty() && guest.network == self.name && asks && guest.addresses.is_empty()
    }
}

/// Checks the pool of a network.
pub(super) fn check(network: &Network, r: &Reader<'_>) {
    let pool = &network.pool;
    let problem = |message: String| r.problem(Some("pool"), message);
    if !pool.is_empty() && !network.dhcp {
        problem(match network.dhcp_relay.is_empty() {
            true => "`pool` is leased by DHCP; add `dhcp = true`".to_owned(),
            false => "`pool` is of the server in `dhcp_relay`; leave it out here".to_owned(),
        });
    }
    if pool.len() > MAX_RANGES {
        problem(format!("{} ranges; use {MAX_RANGES} at most", pool.len()));
    }
    for (at, range) in pool.iter().enumerate() {
        let AddressRange { first, last } = *range;
        let subnet = network.gateways.iter().find(|net| net.contains(&first) && net.contains(&last));
        match subnet {
            None => problem(format!("{range} is not within the subnet of one of the `gateways`")),
            Some(IpNet::V4(net)) if net.prefix_len() < 31 => {
                for reserved in [net.network(), net.broadcast()].map(IpAddr::from) {
                    if range.contains(reserved) {
                        problem(format!(
                            "{reserved}, in {range}, is the network or broadcast address of its subnet"
                        ));
                    }
                }
            }
            Some(_) => {}
        }
        if let Some(gateway) = network.gateways.iter().map(IpNet::addr).find(|addr| range.contains(*addr)) {
            problem(format!("{gateway}, in {range}, is a gateway; leave it out of the range"));
        }
        if let Some(other) = pool[..at].iter().find(|other| other.overlaps(range)) {
            problem(format!("{range} overlaps {other}"));
        }
    }
}

/// Addresses of a network's pool that belong to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The guest.
    pub guest: String,
    /// The guest's network.
    pub network: String,
    /// The guest's MAC, if its own entry has none: that of its first question.
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The guest's addresses: at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// If true, the addresses came with the guest from another host, and stay although they are not of the pool.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
}

impl Lease {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.guest.clone())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let guest: Option<String> = r.require("guest");
        let network = r.require("network");
        guest.iter().for_each(|guest| r.call(|| format!("{} \"{guest}\"", Kind::Lease)));
        let (mac, addresses): (Option<Mac>, Vec<IpAddr>) = (r.get("mac"), r.list("addresses"));
        if let Some(mac) = mac {
            check_mac(&r, "mac", mac);
        }
        let twice = |v4: bool| addresses.iter().filter(|addr| addr.is_ipv4() == v4).count() > 1;
        if addresses.len() > MAX_ADDRESSES || twice(true) || twice(false) {
            r.problem(Some("addresses"), "a lease has at most one address of each family");
        }
        let foreign = r.get("foreign").unwrap_or_default();
        let read = || Some(Self { guest: guest?, network: network?, mac, addresses, foreign });
        (read(), r.finish())
    }
}
