//! Settings of services that are allowed, but do less than they seem to.

use crate::object::{is_label, told_by_router};
use crate::{Guest, Item, Network, Object, Problem};
use packet::PortBlock;
use std::collections::HashMap;
use std::net::IpAddr;

/// The longest advertisement that passes every link with IPv6, bytes (RFC 8200, 5).
const LONGEST: usize = 1280;

/// Returns warnings about the services of networks.
pub(super) fn warnings(objects: &[Item]) -> Vec<Problem> {
    let network = |item: &Item| match &item.object {
        Object::Network(network) => Some((network.name.clone(), (**network).clone())),
        _ => None,
    };
    let networks: HashMap<String, Network> = objects.iter().filter_map(network).collect();
    let shares = shared_blocks(objects);
    let of = |item: &Item| {
        let messages = match &item.object {
            Object::Network(network) => {
                let alike = shares.get(network.name.as_str()).map(|message| ("snat", message.clone()));
                of_network(network).into_iter().chain(alike).collect()
            }
            Object::Guest(guest) => {
                let asks = networks.get(&guest.network).is_some_and(|network| network.dhcp);
                let is_named = guest.hostname.is_some() || is_label(&guest.name);
                let unnamed = (asks && !is_named).then(|| ("name", UNNAMED.to_owned()));
                let has_metadata = networks
                    .get(&guest.network)
                    .is_some_and(|network| network.metadata && network.metadata_proxy.is_none());
                let untold = unread_metadata(guest).filter(|_| !has_metadata).map(|key| (key, untold(key)));
                unnamed.into_iter().chain(untold).collect()
            }
            _ => Vec::new(),
        };
        let problem = |(key, message): (&str, String)| item.problem(key, message);
        messages.into_iter().map(problem).collect::<Vec<_>>()
    };
    objects.iter().flat_map(of).collect()
}

/// Returns warnings about guests that have the same ports of outside addresses, by network.
fn shared_blocks(objects: &[Item]) -> HashMap<&str, String> {
    let mut owners = HashMap::<(&str, bool, PortBlock), (&str, IpAddr)>::new();
    let mut warnings = HashMap::new();
    let guests = objects.iter().filter_map(|item| match &item.object {
        Object::Guest(guest) => Some(guest),
        _ => None,
    });
    let networks = objects.iter().filter_map(|item| match &item.object {
        Object::Network(network) if network.shared_addresses().next().is_some() => {
            Some((&*network.name, &**network))
        }
        _ => None,
    });
    let networks: HashMap<&str, &Network> = networks.collect();
    for (guest, addr) in guests.flat_map(|guest| guest.addresses.iter().map(move |addr| (guest, *addr))) {
        let Some(network) = networks.get(&*guest.network) else { continue };
        let of_family = network.shared_addresses().filter(|shared| shared.is_ipv4() == addr.is_ipv4());
        let Some(block) = PortBlock::of(addr, of_family.count(), network.shared_ports()) else { continue };
        let key = (&*network.name, addr.is_ipv4(), block);
        if let Some((other, theirs)) = owners.insert(key, (&guest.name, addr)) {
            let message = format!(
                "guests \"{other}\" ({theirs}) and \"{}\" ({addr}) have the same ports of an outside address, so one can \
                 take them from the other; add addresses to `snat`, or lower `snat_ports`",
                guest.name
            );
            warnings.entry(&*network.name).or_insert(message);
        }
    }
    warnings
}

const UNNAMED: &str =
    "its name is no host's name (letters, digits and hyphens), so DHCP tells it none; give it a `hostname`";

/// Returns a key of a guest that only metadata tell, if it has one.
fn unread_metadata(guest: &Guest) -> Option<&'static str> {
    guest.user_data.as_ref().map(|_| "user_data").or((!guest.ssh_keys.is_empty()).then_some("ssh_keys"))
}

fn untold(key: &str) -> String {
    format!(
        "nobody tells the guest its `{key}`: its network gives no metadata; add `metadata = true` to the network"
    )
}

fn of_network(network: &Network) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let has = |v4: bool| network.gateways.iter().any(|gateway| gateway.addr().is_ipv4() == v4);
    if network.dhcp && has(false) && !has(true) && !network.ra {
        all.push((
            "dhcp",
            "clients ask DHCPv6 only if a router advertisement tells them to; add `ra = true`".to_owned(),
        ));
    }
    let routes = network.dhcp_options.iter().flat_map(|options| &options.routes);
    for via in routes.map(|route| route.via).filter(|via| !is_inside(network, *via)) {
        let message = format!(
            "{via}, by which a route leads, is in none of the subnets of `gateways`, so that guests can't reach it"
        );
        all.push(("dhcp_options", message));
    }
    let len = told_by_router(network);
    if network.ra && len > LONGEST {
        let message = format!(
            "an advertisement of all `resolvers` and search domains would have {len} bytes; domains beyond {LONGEST} are left out"
        );
        all.push(("ra", message));
    }
    all
}

fn is_inside(network: &Network, addr: IpAddr) -> bool {
    network.gateways.iter().any(|gateway| gateway.contains(&addr))
}

#[cfg(test)]
mod tests {
    #[test]
    fn metadata_that_nobody_tells_are_named() {
        let warned = |network: &str, guest: &str| {
            let file = format!(
                "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\ngateways = [\"10.1.1.254/24\"]\n{network}\n[[guest]]\n\
                 name = \"vm1\"\nnetwork = \"blue\"\nkind = \"vhost\"\nmac = \"02:00:00:00:00:01\"\n\
                 addresses = [\"10.1.1.1\"]\n{guest}\n"
            );
            let document = crate::parse(&file).unwrap_or_else(|e| panic!("{e}"));
            let problems = super::warnings(&document.objects);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        for (key, value) in [("user_data", "\"#cloud-config\""), ("ssh_keys", "[\"ssh-ed25519 AAAA\"]")] {
            let told = warned("", &format!("{key} = {value}"));
            assert!(told.contains(&format!("nobody tells the guest its `{key}`")), "{told}");
            assert_eq!(warned("metadata = true", &format!("{key} = {value}")), "");
        }
        assert_eq!(warned("", ""), "");
    }
}
