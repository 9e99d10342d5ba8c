//! How routing chooses: what takes precedence over routes, and the member of an ECMP group.

use crate::underlay::{underlay, underlay_path};
use crate::{Lookup, Network, Nexthop, NexthopId, Vrf};
use arrayvec::ArrayVec;
use std::borrow::Cow;
use std::net::IpAddr;

/// Most levels of nested groups that are followed.
const MAX_DEPTH: usize = 4;

/// The kind of a destination address in a network, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A gateway address of the network, or a router anycast address.
    Gateway,
    /// A floating address. It belongs to this inside address in that network.
    Floating(Vrf, IpAddr),
    /// An address that the guests of that network share.
    Shared(Vrf),
    /// Any other address: the routes decide.
    Routed,
}

impl Destination {
    /// Returns the kind of an address.
    pub fn of<T: Lookup>(tables: &T, network: &Network, addr: IpAddr) -> Self {
        if network.is_gateway(addr) {
            return Self::Gateway;
        }
        if let Some((vrf, inside)) = tables.inside_of(network.vrf, addr) {
            return Self::Floating(vrf, inside);
        }
        match tables.shared_by(network.vrf, addr) {
            Some(vrf) => Self::Shared(vrf),
            None if is_router_anycast(tables, network, addr) => Self::Gateway,
            None => Self::Routed,
        }
    }
}

/// Returns whether an address is the router anycast address of a subnet, and no guest is configured with it, here or
/// by a route of its own.
pub(crate) fn is_router_anycast<T: Lookup>(tables: &T, network: &Network, addr: IpAddr) -> bool {
    const HOST: u8 = 128;
    let is_host = || tables.route(network.vrf, addr).is_some_and(|route| route.prefix_len == HOST);
    network.is_router_anycast(addr)
        && tables.guest_by_address(network.vrf, addr).is_none()
        && tables.inside_of(network.vrf, addr).is_none()
        && tables.shared_by(network.vrf, addr).is_none()
        && !is_host()
}

/// Returns the nexthop with this id, or the member of its group that a flow with this entropy hash uses.
/// `None` if the nexthop does not exist, or if groups are nested too deep.
///
/// Rendezvous hashing: the place with the highest [`Nexthop::score`] wins for its member. So a flow moves only if its
/// place goes or a new one wins it, and every host with the same members and weights makes the same choice. Tunnels
/// behind a wire without a link, whose remote is down, whose next hop does not answer ARP or ND, or to which the kernel
/// has no route, win only among themselves.
pub fn ecmp_member<T: Lookup>(
    tables: &T,
    id: NexthopId,
    entropy: u32,
) -> Option<(NexthopId, Cow<'_, Nexthop>)> {
    let mut id = id;
    for _ in 0..MAX_DEPTH {
        let nexthop = tables.nexthop(id)?;
        let Nexthop::Ecmp(members) = &*nexthop else { return Some((id, nexthop)) };
        id = best_live(tables, members, entropy)?;
    }
    None
}

/// Returns the member with the highest score among those that are live, or among all if none is. Looks whether a member
/// is live only if it would win, so that a decision depends on few members' states.
fn best_live<T: Lookup>(tables: &T, members: &[NexthopId], entropy: u32) -> Option<NexthopId> {
    let rank = |(at, id): (usize, &NexthopId)| {
        let member = tables.nexthop(*id)?;
        let place = members[..at].iter().filter(|before| *before == id).count() as u8;
        Some(((member.score(place, entropy), member.fingerprint(), at), *id, member))
    };
    let ranked = || members.iter().enumerate().filter_map(rank);
    let (mut place, best, mut next) = ranked().max_by_key(|(place, ..)| *place)?;
    let mut id = best;
    // A member that is dead is so in all of its places.
    let mut dead = ArrayVec::<NexthopId, 64>::new();
    while !is_live(tables, &next) {
        let _ = dead.try_push(id);
        let others = ranked().filter(|(other, its, _)| *other < place && !dead.contains(its));
        let Some(second) = others.max_by_key(|(place, ..)| *place) else { return Some(best) };
        (place, id, next) = second;
    }
    Some(id)
}

/// Returns false for a tunnel behind a wire without a link, whose remote is down, whose next hop on the wire does not
/// answer, or to which the kernel has no route; true for all other nexthops.
fn is_live<T: Lookup>(tables: &T, nexthop: &Nexthop) -> bool {
    let is_shared = || underlay(tables).any(|(_, wire)| wire.shared);
    let all_work =
        || underlay(tables).all(|(_, wire)| !wire.is_down && !wire.shared) && !tables.any_is_silent();
    match nexthop {
        Nexthop::Tunnel(tunnel) if tables.is_down(tunnel.remote) => false,
        Nexthop::Tunnel(tunnel) if !all_work() => match underlay_path(tables, tunnel.remote, 0) {
            Some(path) => path.is_live(tables),
            // The kernel has no route, whereas wires of ours always lead to the same places.
            None => !is_shared(),
        },
        _ => true,
    }
}
