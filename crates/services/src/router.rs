//! Router advertisements (RFC 4861): the way out, the subnets, the MTU, and who resolves names (RFC 8106).

use crate::frame::{ALL_NODES, icmpv6};
use crate::{Binding, Plan, Refused};
use ipnet::Ipv6Net;
use packet::{Mac, proto};
use std::net::Ipv6Addr;

/// Seconds between advertisements that nobody asked for.
pub(crate) const PERIOD: u64 = 200;
/// Seconds for which hosts believe an advertisement: nine times as long (RFC 4861, 6.2.1: three times the longest
/// period at least).
const LIFETIME: u16 = 1800;
/// Hops that hosts give their packets.
const HOPS: u8 = 64;
/// Longest message, bytes: the least MTU of links with IPv6 (RFC 8200, 5) without the IPv6 header.
const LONGEST: usize = 1280 - proto::IPV6_LEN;
/// Flags: addresses come by DHCPv6, other settings come by DHCPv6.
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// Flags of a prefix: it is on link, hosts may make addresses of it.
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

/// Returns the advertisement to a guest. The guest makes addresses of the prefixes only if its addresses are not
/// checked: others it could not use.
pub(crate) fn advertisement(
    plan: &Plan,
    guest: &Binding,
    to: Option<(Mac, Ipv6Addr)>,
) -> Result<Vec<u8>, Refused> {
    let network = &guest.network;
    let is_free = guest.addresses.is_empty();
    let prefixes: Vec<Ipv6Net> = guest.gateways6().collect();
    if prefixes.is_empty() || !network.ra {
        return Err(Refused::NoAddress);
    }
    let is_relayed = network.relays(false).next().is_some();
    let by_dhcp = network.dhcp && !is_free || is_relayed;
    let other = if network.dhcp { OTHER } else { 0 };
    let flags = if by_dhcp { MANAGED | OTHER } else { other };
    let mut body = vec![proto::ND_ROUTER_ADVERTISEMENT, 0, 0, 0, HOPS, flags];
    body.extend(LIFETIME.to_be_bytes());
    // The times of neighbour discovery are the hosts' own choice.
    body.extend([0; 8]);
    body.extend([1, 1]);
    body.extend(plan.gateway_mac.0);
    body.extend([5, 1, 0, 0]);
    body.extend(u32::from(guest.mtu).to_be_bytes());
    for prefix in prefixes {
        let may_choose = is_free && !is_relayed && prefix.prefix_len() == 64;
        body.extend([3, 4, prefix.prefix_len(), ON_LINK | if may_choose { AUTONOMOUS } else { 0 }]);
        body.extend(u32::from(LIFETIME).to_be_bytes().repeat(2));
        body.extend([0; 4]);
        body.extend(prefix.network().octets());
    }
    let mut resolvers = crate::plan::v6_of(&guest.resolvers());
    resolvers.truncate(LONGEST.saturating_sub(body.len() + 8) / 16);
    if !resolvers.is_empty() {
        body.extend([25, (1 + 2 * resolvers.len()) as u8, 0, 0]);
        body.extend(u32::from(LIFETIME).to_be_bytes());
        resolvers.iter().for_each(|addr| body.extend(addr.octets()));
    }
    let mut names: Vec<u8> = Vec::new();
    for name in guest.search() {
        let before = names.len();
        wire(&name, &mut names);
        // The option's length, and what all links with IPv6 carry, bound it.
        if body.len() + 8 + names.len().next_multiple_of(8) > LONGEST {
            names.truncate(before);
            break;
        }
    }
    if !names.is_empty() {
        names.resize(names.len().next_multiple_of(8), 0);
        body.extend([31, (1 + names.len() / 8) as u8, 0, 0]);
        body.extend(u32::from(LIFETIME).to_be_bytes());
        body.extend(names);
    }
    icmpv6(plan, guest, to.unwrap_or(ALL_NODES), &mut body)
}

/// Appends a domain's name in the form of DNS (RFC 1035, 3.1).
pub(crate) fn wire(name: &str, out: &mut Vec<u8>) {
    for label in name.split('.').filter(|label| !label.is_empty() && label.len() < 64) {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
}
