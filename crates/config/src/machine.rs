//! What a file asks of the machine that it is for.

use crate::{Document, Problem};

/// The kernel's list of CPUs that run.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Reads a list of CPUs as the kernel writes it, for example `0-3,7`. `None`: it is no such list.
#[must_use]
pub fn cpus(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// Problems that a host with this file has on this machine: workers on CPUs that do not run.
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
}
