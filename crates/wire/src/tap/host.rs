//! Taps that are interfaces of the host itself: their addresses and routes, and the way out through the host's own
//! stack.

use super::attach;
use crate::device::Device;
use crate::netlink::{Message, Subnet, alias_of, change};
use crate::nft;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The host's side of a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSide {
    /// Addresses of the device, with the lengths of their subnets' prefixes.
    pub addresses: Vec<Subnet>,
    /// Routes by the device.
    pub routes: Vec<HostRoute>,
    /// Link-layer address of the routers, which need be in no subnet of the device then.
    pub router: Option<[u8; 6]>,
    /// Whether packets that come from the tap leave the host behind the host's address (masquerade). Then nobody
    /// opens connections to the host, or through it to the tap.
    pub masquerade: bool,
    /// Ports of the host that lead to addresses behind the device. Only with `masquerade`.
    pub forwards: Vec<HostForward>,
}

/// A port of the host that leads elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostForward {
    /// IP protocol.
    pub protocol: u8,
    /// Address and port of the host.
    pub outside: SocketAddr,
    /// Destination to which they lead.
    pub to: SocketAddr,
}

/// A route of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoute {
    /// Destination.
    pub to: Subnet,
    /// Router.
    pub via: IpAddr,
}

impl HostSide {
    /// Returns the text by which a device that has all this is recognised.
    fn alias(&self) -> io::Result<String> {
        let text = serde_json::to_vec(self)?;
        // FNV-1a.
        let hash = text
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        Ok(format!("Viaduct, interface of the host, {hash:016x}"))
    }
}

/// Returns whether a tap has exactly this host's side already, so that [`set_up`] has little to do.
#[must_use]
pub fn is_set_up(tap: BorrowedFd<'_>, host: &HostSide) -> bool {
    let is_same = || -> io::Result<bool> {
        let is_here = attach::is_here(&attach::namespace(tap)?)?;
        Ok(is_here
            && alias_of(index_of(tap)?)?.is_some_and(|alias| host.alias().is_ok_and(|own| own == alias)))
    };
    is_same().unwrap_or(false)
}

/// Gives a tap its host's side. Returns a descriptor that holds the rules of what may pass through the host by it: they
/// are there until all its copies are closed.
///
/// # Errors
/// If the host has such an address or route already, its kernel lacks nf_tables, or permission is missing
/// (CAP_NET_ADMIN).
pub fn set_up(tap: BorrowedFd<'_>, host: &HostSide) -> io::Result<Option<OwnedFd>> {
    let name = attach::name(tap)?;
    if !is_set_up(tap, host) {
        add(&name, index_of(tap)?, host)?;
    }
    nft::protect(&name, host).map(Some)
}

fn index_of(tap: BorrowedFd<'_>) -> io::Result<i32> {
    Ok(Device::new(&attach::name(tap)?)?.link()?.index)
}

fn add(name: &str, index: i32, host: &HostSide) -> io::Result<()> {
    let has_v6 = set("ipv6", name, "accept_ra", false)?;
    if host.masquerade {
        set("ipv4", name, "forwarding", true)?;
    }
    let is_possible = |addr: IpAddr| addr.is_ipv4() || has_v6;
    for subnet in host.addresses.iter().filter(|subnet| is_possible(subnet.addr)) {
        let done = change(&Message::new(libc::RTM_NEWADDR).create().address(index, *subnet));
        done.map_err(|e| told(&e, &format!("the address {subnet}")))?;
    }
    let routes = || host.routes.iter().filter(|route| is_possible(route.to.addr));
    if let Some(mac) = host.router {
        for HostRoute { via, .. } in routes() {
            let replace = Message::new(libc::RTM_NEWNEIGH).replace();
            change(&replace.neighbour(index, *via, mac))
                .map_err(|e| told(&e, &format!("the router {via}")))?;
        }
    }
    for HostRoute { to, via } in routes() {
        if has_route(*to, name)? {
            return Err(told(&Errno::EXIST.into(), &format!("a route to {to}")));
        }
        let route = Message::new(libc::RTM_NEWROUTE).create();
        let done = change(&route.route(index, *to, *via, host.router.is_some()));
        done.map_err(|e| told(&e, &format!("a route to {to}")))?;
    }
    change(&Message::new(libc::RTM_SETLINK).link(index).alias(&host.alias()?).group(nft::GROUP))
}

/// Returns whether the host has a route to a prefix by another device. The kernel refuses only routes of the same metric,
/// and ours would win over that of a network manager.
fn has_route(to: Subnet, device: &str) -> io::Result<bool> {
    let (file, place) = match to.addr {
        IpAddr::V4(addr) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(to.len)).unwrap_or(0).to_be();
            let addr = u32::from(addr).to_be() & mask;
            ("route", [(1, format!("{addr:08X}")), (7, format!("{mask:08X}"))])
        }
        IpAddr::V6(addr) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(to.len)).unwrap_or(0);
            let addr = u128::from(addr) & mask;
            ("ipv6_route", [(0, format!("{addr:032x}")), (1, format!("{:02x}", to.len))])
        }
    };
    let known = match std::fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        known => known?,
    };
    Ok(known.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = if to.addr.is_ipv4() { words.first() } else { words.last() };
        name.is_some_and(|name| *name != device)
            && place.iter().all(|(column, wanted)| words.get(*column).is_some_and(|word| word == wanted))
    }))
}

fn told(error: &io::Error, what: &str) -> io::Error {
    if error.raw_os_error() == Some(libc::EEXIST) {
        return io::Error::other(format!(
            "the host has {what} already (`ip route`, `ip address`): use other addresses in the network"
        ));
    }
    io::Error::other(format!("{what} for the host: {error}"))
}

/// Sets a switch of a device in this thread's network namespace. Returns whether there is such a switch and the
/// family is not disabled.
fn set(family: &str, name: &str, key: &str, on: bool) -> io::Result<bool> {
    let path = |key: &str| format!("/proc/sys/net/{family}/conf/{name}/{key}");
    let is_disabled = std::fs::read(path("disable_ipv6")).is_ok_and(|value| value.starts_with(b"1"));
    let value: &[u8] = if on { b"1" } else { b"0" };
    match std::fs::read(path(key)) {
        Ok(now) if now.starts_with(value) => Ok(!is_disabled),
        Ok(_) => {
            let done = std::fs::OpenOptions::new().write(true).open(path(key));
            let done = done.and_then(|mut file| io::Write::write_all(&mut file, value));
            done.map_err(|e| io::Error::other(format!("{} can't be set: {e}", path(key))))?;
            Ok(!is_disabled)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
