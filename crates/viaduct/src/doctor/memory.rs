//! Checks memory of guests and of AF_XDP.

use super::{Finding, Machine, Subject};
use config::GuestKind;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

/// Memory that a queue of an AF_XDP wire locks, bytes.
const XDP_QUEUE: u64 = 12 << 20;

/// Checks huge pages and the limit of locked memory.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let has_vms = subject.guests(GuestKind::Vhost).next().is_some();
    let mut found = vec![huge_pages(subject.machine, has_vms)];
    found.extend(subject.has_xdp().then(locked));
    found
}

fn huge_pages(machine: &Machine, has_vms: bool) -> Finding {
    const CHECK: &str = "hugepages";
    let sizes = std::fs::read_dir(machine.path("/sys/kernel/mm/hugepages"));
    let sizes = sizes.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut pools = Vec::new();
    for size in sizes {
        let size = size.to_string_lossy().into_owned();
        let count = |what| machine.number(&format!("/sys/kernel/mm/hugepages/{size}/{what}")).unwrap_or(0);
        let (all, free) = (count("nr_hugepages"), count("free_hugepages"));
        if all > 0 {
            pools.push((size.trim_start_matches("hugepages-").to_owned(), all, free));
        }
    }
    let said: Vec<_> =
        pools.iter().map(|(size, all, free)| format!("{free} of {all} pages of {size} free")).collect();
    if pools.iter().any(|(_, _, free)| *free > 0) {
        return Finding::good(CHECK, said.join(", "));
    }
    if !pools.is_empty() {
        let advice = "that is right if all VMs run; else reserve more: sysctl vm.nr_hugepages=N";
        return Finding::warning(CHECK, format!("all taken: {}", said.join(", ")), advice);
    }
    if !has_vms {
        return Finding::good(CHECK, "none reserved; without VMs none are needed");
    }
    Finding::warning(
        CHECK,
        "none reserved: memory of VMs has small pages, which costs speed",
        "sysctl vm.nr_hugepages=N (pages of 2 MB), then <memoryBacking><hugepages/> or memory-backend-file in \
         /dev/hugepages; VMs with memfd work without",
    )
}

fn locked() -> Finding {
    const CHECK: &str = "memlock";
    let limit = getrlimit(Resource::Memlock).current;
    let may_lock =
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match limit {
        _ if may_lock => Finding::good(CHECK, "CAP_IPC_LOCK: no limit"),
        None => Finding::good(CHECK, "no limit"),
        Some(limit) if limit >= XDP_QUEUE => {
            Finding::good(CHECK, format!("{} MiB: {} queues of AF_XDP", limit >> 20, limit / XDP_QUEUE))
        }
        Some(limit) => Finding::broken(
            CHECK,
            format!("{} KiB may be locked from here; each queue of AF_XDP locks 12 MiB", limit >> 10),
            "start the daemon by its systemd unit, or with ulimit -l unlimited",
        ),
    }
}
