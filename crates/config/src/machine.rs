//! Requirements of a file on the machine that runs it.

use crate::{Document, Network, Object, Problem};
use std::collections::BTreeMap;

/// The kernel's list of CPUs that run.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Reads a list of CPUs as the kernel writes it, for example `0-3,7`. Returns `None` if the text is no such
/// list.
#[must_use]
pub fn cpus(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// Returns the problems that a host with this file has on this machine: workers on CPUs that do not run.
#[must_use]
pub fn check_machine(document: &Document) -> Vec<Problem> {
    let online = std::fs::read_to_string(ONLINE);
    online.map(|online| check_workers(document, online.trim())).unwrap_or_default()
}

fn check_workers(document: &Document, online: &str) -> Vec<Problem> {
    let Some(present) = cpus(online) else { return Vec::new() };
    let absent = document.host.workers.iter().filter(|cpu| !present.contains(cpu));
    let line = document.host_place.line("workers");
    absent
        .map(|cpu| {
            let message = format!("worker on CPU {cpu}, but this machine has CPUs {online}");
            Problem::new(line, "[host]: workers", message)
        })
        .collect()
}

/// Returns warnings about users and groups of guests that this machine lacks. Each is named once, at the
/// first guest that needs it. `lookup` finds `user` or `user:group`.
#[must_use]
pub fn check_owners<T>(document: &Document, lookup: impl Fn(&str) -> Result<T, String>) -> Vec<Problem> {
    // For each name: the first guest with it, and the number of guests with it.
    let mut named = BTreeMap::new();
    for item in &document.objects {
        let Object::Guest(guest) = &item.object else { continue };
        let of_port = guest.vhost().and_then(|vhost| vhost.owner.as_ref());
        let of_verbs = guest.verbs.as_ref().and_then(|verbs| verbs.owner.as_ref());
        for (key, opens, owner) in [("owner", "port", of_port), ("rdma_owner", "verbs device", of_verbs)] {
            let Some(owner) = owner else { continue };
            named.entry((key, opens, owner)).or_insert((item, 0)).1 += 1;
        }
    }
    let mut problems = Vec::new();
    for ((key, opens, owner), (item, count)) in named {
        let Err(why) = lookup(owner) else { continue };
        let more = match count {
            1 => String::new(),
            2 => " (1 more guest names it)".to_owned(),
            _ => format!(" ({} more guests name it)", count - 1),
        };
        let message = format!("{key}: {why} on this machine, and the {opens} opens only once there is{more}");
        problems.push(item.problem(key, message));
    }
    problems.sort_by_key(|problem| (problem.file.clone(), problem.line));
    problems
}

/// Returns warnings about wires whose device takes less than the wire's `mtu`. `mtu_of` finds the MTU of a device.
#[must_use]
pub fn check_wires(document: &Document, mtu_of: impl Fn(&str) -> Option<u16>) -> Vec<Problem> {
    let problem = |item: &crate::Item| {
        let Object::Wire(wire) = &item.object else { return None };
        let message = wire.device_too_small(mtu_of(wire.device()?)?)?;
        Some(item.problem("mtu", message))
    };
    document.objects.iter().filter_map(problem).collect()
}

/// Returns the MTU of a network device of this machine, or rather of this process's network namespace.
#[must_use]
pub fn device_mtu(device: &str) -> Option<u16> {
    std::fs::read_to_string(format!("/sys/class/net/{device}/mtu")).ok()?.trim().parse().ok()
}

/// The kernel's switches for packets that it forwards, with their families.
const FORWARDING: [(bool, &str); 2] =
    [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")];

/// Returns what the kernel is set to that keeps a network's packets from leaving by the host, and what to do.
/// `read` reads a file.
#[must_use]
pub fn forwarding_problem(
    network: &Network,
    read: impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    let has = |v4: bool| network.gateways.iter().any(|gateway| gateway.addr().is_ipv4() == v4);
    let is_off = |key: &str| read(&format!("/proc/sys/{key}")).is_some_and(|value| value.trim() == "0");
    let off = FORWARDING.iter().filter(|(v4, key)| network.leaves_by_host() && has(*v4) && is_off(key));
    let keys: Vec<_> = off.map(|(_, key)| key.replace('/', ".")).collect();
    let set: Vec<_> = keys.iter().map(|key| format!("{key}=1")).collect();
    let notes = if keys.iter().any(|key| key.contains("ipv6")) {
        "; where the host has its own address by router advertisements, set accept_ra of that NIC to 2 before"
    } else {
        ""
    };
    (!keys.is_empty()).then(|| {
        (
            format!(
                "the kernel forwards nothing ({} is 0), so packets do not leave by the host",
                keys.join(", ")
            ),
            format!("sysctl -w {}{notes}", set.join(" ")),
        )
    })
}

/// Returns warnings about networks whose packets can't leave by the host. `read` reads a file.
#[must_use]
pub fn check_ways_out(document: &Document, read: impl Fn(&str) -> Option<String>) -> Vec<Problem> {
    let problem = |item: &crate::Item| {
        let Object::Network(network) = &item.object else { return None };
        let (what, advice) = forwarding_problem(network, &read)?;
        let message = format!("{what}: {advice}");
        Some(item.problem("snat", message))
    };
    document.objects.iter().filter_map(problem).collect()
}

/// Returns a warning about `readers` if this machine has no such group. `lookup` finds `user:group`.
#[must_use]
pub fn check_readers<T>(document: &Document, lookup: impl Fn(&str) -> Result<T, String>) -> Option<Problem> {
    let group = document.host.readers.as_deref()?;
    let why = lookup(&format!("0:{group}")).err()?;
    let message = format!("readers: {why} on this machine: nobody is served at the socket for readers");
    Some(Problem::new(document.host_place.line("readers"), "[host]", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-2,7\n").as_deref(), Some(&[0, 1, 2, 7][..]));
        assert_eq!(cpus("\n").as_deref(), Some(&[][..]));
        assert_eq!(cpus("all"), None);
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn a_worker_needs_a_cpu() {
        let document = crate::parse("[host]\nname = \"a\"\nworkers = [1, 99]\n").unwrap();
        let problems = check_workers(&document, "0-1");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].line, Some(3));
        assert!(
            problems[0].message.contains("CPU 99") && problems[0].message.contains("0-1"),
            "{problems:?}"
        );
        assert!(check_workers(&document, "0-127").is_empty());
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn a_wires_device_takes_what_the_wire_does() {
        let wire = "[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"e1\"\nmtu = 9000\n";
        let document = crate::parse(&format!("[host]\nname = \"a\"\n{wire}")).unwrap();
        let told = |mtu| check_wires(&document, |device| (device == "e1").then_some(mtu));
        assert_eq!(told(9000), []);
        let [short] = &told(1500)[..] else { panic!("one wire") };
        assert_eq!(short.line, Some(7));
        assert!(
            short.message.contains("1500 bytes") && short.message.contains("ip link set e1 mtu 9000"),
            "{short:?}"
        );
        assert_eq!(check_wires(&document, |_| None), [], "the device is not here");
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn who_is_named_and_not_there_is_told_once() {
        let mut text =
            "[host]\nname = \"a\"\nreaders = \"ops\"\n[[network]]\nname = \"n\"\nvrf = 1\n".to_owned();
        for (name, owner) in
            [("v0", "here"), ("v1", "gone"), ("v2", "gone"), ("v3", "gone"), ("v4", "here:gone")]
        {
            let keys = format!("name = \"{name}\"\nnetwork = \"n\"\nkind = \"vhost\"\nowner = \"{owner}\"\n");
            text += &format!("[[guest]]\n{keys}");
        }
        text += "[[guest]]\nname = \"r\"\nnetwork = \"n\"\nkind = \"rdma\"\nmac = \"02:00:00:00:00:01\"\n\
                 addresses = [\"10.1.1.1\"]\nrdma_owner = \"gone\"\n";
        let document = crate::parse(&text).unwrap();
        let lookup = |names: &str| {
            if names.contains("gone") { Err(format!("there is no {names}")) } else { Ok(()) }
        };
        let problems = check_owners(&document, lookup);
        let lines: Vec<_> = problems.iter().map(|problem| problem.line.unwrap()).collect();
        assert_eq!(lines, [16, 31, 38]);
        let said: Vec<_> =
            problems.iter().map(|problem| format!("{}: {}", problem.at, problem.message)).collect();
        let tail = "and the port opens only once there is";
        assert_eq!(
            said,
            [
                format!(
                    "guest \"v1\": owner: there is no gone on this machine, {tail} (2 more guests name it)"
                ),
                format!("guest \"v4\": owner: there is no here:gone on this machine, {tail}"),
                "guest \"r\": rdma_owner: there is no gone on this machine, and the verbs device opens only once \
                 there is"
                    .to_owned(),
            ]
        );
        assert!(check_readers(&document, lookup).is_none());
        let readers = check_readers(&document, |_| Err::<(), _>("there is no ops".to_owned())).unwrap();
        assert_eq!((readers.line, readers.at.as_str()), (Some(3), "[host]"));
    }
}
