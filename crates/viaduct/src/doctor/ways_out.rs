//! Checks that the kernel takes packets of networks that leave by the host.

use super::{Finding, Subject};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, netlink};

const CHECK: &str = "way out";

pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let networks = || subject.networks().filter(|network| network.leaves_by_host());
    let closed = networks().filter_map(|network| {
        let (what, advice) = config::forwarding_problem(network, |path| subject.machine.text(path))?;
        Some(Finding::broken(CHECK, format!("{}: {what}", network.name), advice))
    });
    let mut found: Vec<_> = closed.collect();
    if networks().next().is_none() {
        return found;
    }
    found.extend(tables());
    if found.is_empty() {
        found.push(Finding::good(CHECK, "the kernel forwards packets, and takes rules for them"));
    }
    found
}

/// Returns what is wrong with the kernel's rules for packets.
fn tables() -> Option<Finding> {
    match rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::NETFILTER)) {
        Ok(_) | Err(Errno::PERM) => None,
        Err(error) => Some(Finding::broken(
            CHECK,
            format!("the kernel takes no rules for packets: {error}"),
            "load the modules nf_tables and nft_masq, or use a kernel that has them",
        )),
    }
}
