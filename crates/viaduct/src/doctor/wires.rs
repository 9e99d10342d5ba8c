//! Checks network devices of wires, and the chain of MTUs from device to guest.

use super::{Finding, Machine, Subject, others};
use config::{Object, Target, Way, Wire};
use ipnet::IpNet;
use std::net::IpAddr;

/// Offloads that help a wire: the name in `ethtool -k`, and what costs CPU time without it.
const OFFLOADS: &[(&str, &str)] = &[
    ("tx-checksumming", "Viaduct computes checksums"),
    ("scatter-gather", "the kernel copies each packet"),
    ("tcp-segmentation-offload", "Viaduct cuts large TCP sends"),
    ("generic-receive-offload", "the kernel delivers packets one at a time"),
];

pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let workers = subject.document.host.workers.len().max(1);
    let mut found: Vec<_> = subject.nics().flat_map(|nic| wire_findings(subject, nic, workers)).collect();
    found.extend(mtu_chain(subject));
    found
}

fn wire_findings(subject: &Subject<'_>, (wire, device): (&Wire, &str), workers: usize) -> Vec<Finding> {
    const CHECK: &str = "wire";
    let (machine, name) = (subject.machine, &wire.name);
    let sys = format!("/sys/class/net/{device}");
    if !machine.path(&sys).exists() {
        let advice = "see `ip -br link` for the names of devices";
        return vec![Finding::broken(CHECK, format!("{name}: there is no device \"{device}\" here"), advice)];
    }
    let mut found = Vec::new();
    let up = machine
        .text(&format!("{sys}/flags"))
        .and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
    const IFF_UP: u32 = 1;
    if up.is_some_and(|flags| flags & IFF_UP == 0) {
        found.push(Finding::broken(
            CHECK,
            format!("{name}: {device} is down"),
            format!("ip link set {device} up"),
        ));
    } else if machine.text(&format!("{sys}/carrier")).as_deref() == Some("0") {
        found.push(Finding::broken(
            CHECK,
            format!("{name}: {device} has no carrier"),
            "look at cable and switch",
        ));
    }
    match machine.number(&format!("{sys}/mtu")) {
        Some(mtu) if mtu < u64::from(wire.mtu) => found.push(Finding::broken(
            CHECK,
            format!("{name}: {device} takes packets of {mtu} bytes, the file says mtu = {}", wire.mtu),
            format!("ip link set {device} mtu {}, or mtu = {mtu} in the file", wire.mtu),
        )),
        _ => {}
    }
    found.extend(twice(wire, device));
    found.extend(others::check(subject, (wire, device)));
    found.extend(queues(machine, wire, workers));
    found.extend(offloads(wire));
    if found.is_empty() {
        found.push(Finding::good(CHECK, format!("{name}: {device} is up and fits")));
    }
    found
}

/// Finds an address that both the kernel and Viaduct have: both would answer for it.
fn twice(wire: &Wire, device: &str) -> Option<Finding> {
    let own = nix::ifaddrs::getifaddrs().ok()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|addr| IpAddr::from(addr.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|addr| IpAddr::from(addr.ip())))
    });
    let own: Vec<IpAddr> = own.collect();
    let twice: Vec<&IpNet> = wire.addresses.iter().filter(|net| own.contains(&net.addr())).collect();
    let first = twice.first()?;
    Some(Finding::broken(
        "wire",
        format!("{}: the kernel has the address {} as well, so both answer for it", wire.name, first.addr()),
        format!("ip addr del {first} dev {device}"),
    ))
}

fn queues(machine: &Machine, wire: &Wire, workers: usize) -> Option<Finding> {
    // Packet sockets spread packets over workers by themselves.
    let Way::AfXdp(device) = &wire.way else { return None };
    let entries = std::fs::read_dir(machine.path(&format!("/sys/class/net/{device}/queues"))).ok()?;
    let receive =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
    (receive < workers).then(|| {
        let name = &wire.name;
        Finding::warning(
            "wire",
            format!("{name}: {device} has {receive} receive queues for {workers} workers: some get none"),
            format!("ethtool -L {device} combined {workers}, if the NIC has so many"),
        )
    })
}

fn offloads(wire: &Wire) -> Option<Finding> {
    // AF_XDP works below the offloads.
    let Way::AfPacket(device) = &wire.way else { return None };
    let name = &wire.name;
    let Ok(done) = std::process::Command::new("ethtool").args(["-k", device]).output() else {
        let message = format!("{name}: the offloads of {device} are not known: there is no ethtool");
        return Some(Finding::warning("wire", message, "install ethtool"));
    };
    let off = lacking(&String::from_utf8_lossy(&done.stdout));
    (!off.is_empty()).then(|| {
        let keys: Vec<_> = off.iter().map(|(key, _)| format!("{key} on")).collect();
        let names: Vec<_> = off.iter().map(|(key, _)| *key).collect();
        let costs: Vec<_> = off.iter().map(|(_, cost)| *cost).collect();
        Finding::warning(
            "wire",
            format!(
                "{name}: {device} has {} off, which costs CPU time: {}",
                names.join(", "),
                costs.join(", ")
            ),
            format!("ethtool -K {device} {}", keys.join(" ")),
        )
    })
}

/// Returns the offloads of [`OFFLOADS`] that are off and can be switched on, from the output of `ethtool -k`.
fn lacking(told: &str) -> Vec<(&'static str, &'static str)> {
    let is_off = |key: &str| {
        told.lines()
            .filter_map(|line| line.trim().split_once(": "))
            .any(|(name, value)| name == key && value == "off")
    };
    OFFLOADS.iter().copied().filter(|(key, _)| is_off(key)).collect()
}

/// Finds networks whose packets do not fit their tunnels, and guests whose packets do not fit their network.
fn mtu_chain(subject: &Subject<'_>) -> Vec<Finding> {
    const CHECK: &str = "mtu";
    let index = subject.index();
    let least = subject.wires().filter(|wire| wire.tunnel().is_none()).min_by_key(|wire| wire.mtu);
    let mut found = Vec::new();
    for network in subject.networks() {
        let mtu = index.network_mtu(&network.name);
        let overhead = overhead_of(subject, &network.name);
        if let (Some(wire), true) = (least, overhead > 0)
            && u32::from(mtu) + overhead > u32::from(wire.mtu)
        {
            let room = u32::from(wire.mtu).saturating_sub(overhead);
            found.push(Finding::warning(
                CHECK,
                format!(
                    "network {}: packets of {mtu} bytes and {overhead} of tunnel headers are more than wire {} \
                     takes, {}: large ones are refused with \"too big\"",
                    network.name, wire.name, wire.mtu
                ),
                format!("mtu = {room} for the network, or mtu = {} for wire and device", u32::from(mtu) + overhead),
            ));
        }
    }
    for guest in index.guests().values() {
        let (own, network) = (index.guest_mtu(guest), index.network_mtu(&guest.network));
        if own > network {
            found.push(Finding::warning(
                CHECK,
                format!(
                    "guest {}: mtu {own} is above that of network {}, {network}",
                    guest.name, guest.network
                ),
                format!("mtu = {network} for the guest"),
            ));
        }
    }
    found.sort_by(|a, b| a.message.cmp(&b.message));
    if found.is_empty() {
        found.push(Finding::good(CHECK, "packets of guests fit the tunnels and wires of their networks"));
    }
    found
}

/// Returns the length in bytes of the longest headers that tunnels of the network put before a packet; 0
/// without tunnels.
fn overhead_of(subject: &Subject<'_>, network: &str) -> u32 {
    let targets = subject.document.objects.iter().flat_map(|item| match &item.object {
        Object::Route(route) if route.network == network => &route.to[..],
        Object::Flood(flood) if flood.network == network => &flood.to[..],
        Object::Mac(entry) if entry.network == network => std::slice::from_ref(&entry.to),
        _ => &[],
    });
    targets.filter_map(Target::tunnel).map(|tunnel| tunnel.overhead() as u32).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::lacking;

    #[test]
    fn offloads_that_can_be_switched_on() {
        let told = "Features for eth1:\nrx-checksumming: on\ntx-checksumming: off\nscatter-gather: off [fixed]\n\
            tcp-segmentation-offload: on\n\ttx-tcp-segmentation: on\n";
        assert_eq!(lacking(told).iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["tx-checksumming"]);
    }
}
