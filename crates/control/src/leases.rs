//! Leases: each guest without addresses, of a network with a pool, has one, from the change that brings the guest to
//! the one that removes it. So nothing that guests send can use up a pool.

use crate::error::Error;
use crate::owner::{Objects, Owned, Owner};
use config::{AddressRange, Guest, Key, Kind, Lease, Network, Object};
use ipnet::IpNet;
use packet::Mac;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Returns what an object, if it is a guest, leased.
pub(crate) fn of<'a>(objects: &'a Objects, object: &Object) -> Option<&'a Lease> {
    match object {
        Object::Guest(guest) => {
            get(objects, &guest.name).and_then(lease).filter(|lease| lease.network == guest.network)
        }
        _ => None,
    }
}

/// Returns the objects with this MAC in the lease of a guest that has none; `None` if nothing is to change.
pub(crate) fn with_mac(objects: &Objects, guest: &str, mac: Mac) -> Option<Objects> {
    let owned = get(objects, guest)?;
    let lease = lease(owned).filter(|lease| lease.mac.is_none())?;
    let mut next = objects.clone();
    next.restore(owned.seq, owned.owner.clone(), Lease { mac: Some(mac), ..lease.clone() }.into());
    Some(next)
}

/// Addresses that a guest leased on another host, at most one of each family, and the MAC by which it asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Brought {
    /// The network of the addresses.
    pub(crate) network: String,
    pub(crate) mac: Option<Mac>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The reason why a guest can't keep leased addresses on this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("the guest leases none here: it has `addresses`, or its network no `pool`")]
    NoPool,
    #[error("it is of network \"{0}\", and the guest is in another one here")]
    OtherNetwork(String),
    #[error("the guest's lease is fixed by the file here")]
    Fixed,
    #[error("{0} is no host's address in the subnets of the network's `gateways` here")]
    OffLink(IpAddr),
    #[error("{0} belongs to {1} here")]
    Taken(IpAddr, Key),
}

/// Returns the objects with the addresses that a guest brings from another host, in place of those that it leased here.
///
/// # Errors
/// The guest can't have them here.
pub(crate) fn brought(objects: &Objects, guest: &Guest, brought: Brought) -> Result<Objects, NotTaken> {
    let network = pools(objects).remove(&guest.network).filter(|network| network.leases_to(guest));
    let network = network.ok_or(NotTaken::NoPool)?;
    if network.name != brought.network {
        return Err(NotTaken::OtherNetwork(brought.network));
    }
    let own = get(objects, &guest.name);
    if own.is_some_and(|owned| owned.owner != Owner::Api) {
        return Err(NotTaken::Fixed);
    }
    let mut claims = claims(objects, &network);
    let others = objects.of_kind(Kind::Lease).filter_map(lease).filter(|lease| lease.network == network.name);
    for other in others.filter(|lease| lease.guest != guest.name) {
        claims.extend(other.addresses.iter().map(|addr| (*addr, Object::from(other.clone()).key())));
    }
    let mut addresses = brought.addresses;
    for addr in &addresses {
        if !is_on_link(&network, *addr) {
            return Err(NotTaken::OffLink(*addr));
        }
        if let Some(who) = claims.remove(addr) {
            return Err(NotTaken::Taken(*addr, who));
        }
    }
    // It keeps the address that it leased here, of a family of which it brings none.
    let own = own.and_then(lease).filter(|lease| lease.network == network.name);
    let lacks = |addr: &IpAddr| addresses.iter().all(|have| have.is_ipv4() != addr.is_ipv4());
    let kept: Vec<IpAddr> = own.iter().flat_map(|lease| &lease.addresses).copied().filter(lacks).collect();
    addresses.extend(kept);
    let mac = brought.mac.filter(|_| guest.mac.is_none());
    let mut next = objects.clone();
    let (guest, network) = (guest.name.clone(), network.name);
    next.put(Owner::Api, Lease { guest, network, mac, addresses, foreign: true }.into());
    Ok(next)
}

/// Returns who has which address in a network by configuration.
fn claims(objects: &Objects, network: &Network) -> HashMap<IpAddr, Key> {
    let own = network.gateways.iter().map(IpNet::addr).chain(network.metadata_addresses());
    let key = Object::from(network.clone()).key();
    let mut all: HashMap<IpAddr, Key> = own.map(|addr| (addr, key.clone())).collect();
    for owned in objects.of_kind(Kind::Guest) {
        if let Object::Guest(guest) = &owned.object {
            let places = crate::compile::places_of(guest).filter(|(of, _)| *of == network.name);
            all.extend(places.map(|(_, addr)| (addr, owned.object.key())));
        }
    }
    for owned in objects.of_kind(Kind::Nat) {
        if let Object::Nat(nat) = &owned.object
            && nat.outside_network == network.name
        {
            all.insert(nat.outside, owned.object.key());
        }
    }
    all
}

/// Returns whether an address can be a guest's: it is in a subnet of the network's gateways, and is neither the
/// subnet's own address nor its broadcast address.
fn is_on_link(network: &Network, addr: IpAddr) -> bool {
    let is_of_host = |net: &IpNet| match net {
        IpNet::V4(v4) if v4.prefix_len() < 31 => {
            ![v4.network(), v4.broadcast()].map(IpAddr::from).contains(&addr)
        }
        _ => true,
    };
    network.gateways.iter().any(|net| net.contains(&addr) && is_of_host(net))
}

/// Gives leases to the guests that lack one, and ends those of guests that need none any more.
///
/// # Errors
/// A pool is used up.
pub(crate) fn settle(objects: &mut Objects) -> Result<(), Error> {
    let pools = pools(objects);
    let present: Vec<(Key, Lease)> = objects
        .of_kind(Kind::Lease)
        .filter(|owned| owned.owner == Owner::Api)
        .filter_map(|owned| Some((owned.object.key(), lease(owned)?.clone())))
        .collect();
    if pools.is_empty() && present.is_empty() {
        return Ok(());
    }
    let clients: HashMap<String, Guest> =
        objects.of_kind(Kind::Guest).filter_map(|owned| client(owned, &pools)).collect();
    for (key, _) in present.iter().filter(|(key, _)| !clients.contains_key(&key.name)) {
        objects.remove(key);
    }
    for network in pools.values() {
        let mut own: Vec<&Guest> = clients.values().filter(|guest| guest.network == network.name).collect();
        own.sort_by(|a, b| a.name.cmp(&b.name));
        lease_to(objects, network, &own)?;
    }
    Ok(())
}

fn get<'a>(objects: &'a Objects, guest: &str) -> Option<&'a Owned> {
    objects.other(&Key { kind: Kind::Lease, network: None, name: guest.to_owned() })
}

fn lease(owned: &Owned) -> Option<&Lease> {
    match &owned.object {
        Object::Lease(lease) => Some(lease),
        _ => None,
    }
}

/// Returns the networks with pools.
fn pools(objects: &Objects) -> HashMap<String, Network> {
    let network = |owned: &Owned| match &owned.object {
        Object::Network(network) if !network.pool.is_empty() => {
            Some((network.name.clone(), (**network).clone()))
        }
        _ => None,
    };
    objects.of_kind(Kind::Network).filter_map(network).collect()
}

/// Returns a guest that needs a lease, with its name.
fn client(owned: &Owned, pools: &HashMap<String, Network>) -> Option<(String, Guest)> {
    let Object::Guest(guest) = &owned.object else { return None };
    let network = pools.get(&guest.network)?;
    network.leases_to(guest).then(|| (guest.name.clone(), Guest::clone(guest)))
}

/// Makes the leases of a network's guests what they are to be: what a guest has stays, if it is still of the pool.
fn lease_to(objects: &mut Objects, network: &Network, guests: &[&Guest]) -> Result<(), Error> {
    let of_pool = |addr: &IpAddr| network.pool.iter().any(|range| range.contains(*addr));
    let others = objects.of_kind(Kind::Lease).filter_map(lease).filter(|lease| lease.network == network.name);
    let mut taken: HashSet<IpAddr> = others.flat_map(|lease| lease.addresses.iter().copied()).collect();
    let has_foreign =
        guests.iter().filter_map(|guest| lease(get(objects, &guest.name)?)).any(|lease| lease.foreign);
    // An address that the configuration gave to somebody since is not the guest's any more.
    let claims = if has_foreign { claims(objects, network) } else { HashMap::new() };
    for guest in guests {
        let before = get(objects, &guest.name);
        if before.is_some_and(|owned| owned.owner != Owner::Api) {
            continue;
        }
        let before = before.and_then(lease).filter(|lease| lease.network == network.name).cloned();
        let kept = before.as_ref().map(|lease| &lease.addresses[..]).unwrap_or_default();
        let is_foreign = before.as_ref().is_some_and(|lease| lease.foreign);
        let stays = |addr: &&IpAddr| {
            of_pool(addr) || is_foreign && is_on_link(network, **addr) && !claims.contains_key(*addr)
        };
        let mut addresses: Vec<IpAddr> = kept.iter().filter(stays).copied().collect();
        for v4 in [true, false] {
            let ranges: Vec<_> = network.pool.iter().filter(|range| range.is_ipv4() == v4).copied().collect();
            if ranges.is_empty() || addresses.iter().any(|addr| addr.is_ipv4() == v4) {
                continue;
            }
            let is_free = |addr: &IpAddr| !taken.contains(addr) && !has_route(objects, &network.name, *addr);
            let found = free(&ranges, &guest.name, is_free);
            addresses.push(found.ok_or_else(|| {
                Error::Conflict(format!(
                    "the pool of network \"{}\" has no address left for guest \"{}\"; enlarge `pool`, or give the guest \
                     `addresses`",
                    network.name, guest.name
                ))
            })?);
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        taken.extend(addresses.iter().copied());
        let mac = before.as_ref().and_then(|lease| lease.mac).filter(|_| guest.mac.is_none());
        let foreign = !addresses.iter().all(of_pool);
        let (guest, network) = (guest.name.clone(), network.name.clone());
        let lease = Lease { guest, network, mac, addresses, foreign };
        if before.as_ref() != Some(&lease) {
            objects.put(Owner::Api, lease.into());
        }
    }
    Ok(())
}

/// Returns whether somebody wrote a route to this address alone.
fn has_route(objects: &Objects, network: &str, addr: IpAddr) -> bool {
    objects.routes().get(network, addr.into()).is_some()
}

/// Returns a free address of ranges. The search begins at a place that depends on the guest's name, so that a guest that
/// comes back gets what it had, if it is still free.
fn free(ranges: &[AddressRange], guest: &str, is_free: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
    let size = ranges.iter().fold(0_u128, |sum, range| sum.saturating_add(range.size()));
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let first = u128::from(guest.bytes().fold(0xcbf2_9ce4_8422_2325, hash)) % size;
    let mut numbers = (first..size).chain(0..first);
    numbers.find_map(|number| nth(ranges, number).filter(|addr| is_free(addr)))
}

/// Returns the address with this number, over all ranges.
fn nth(ranges: &[AddressRange], mut number: u128) -> Option<IpAddr> {
    for range in ranges {
        if number < range.size() {
            return range.get(number);
        }
        number -= range.size();
    }
    None
}
