//! Workers and the CPUs that they are pinned to.

use super::{Finding, Subject};

const CHECK: &str = "workers";
const CPUS: &str = "/sys/devices/system/cpu";

/// Checks that each worker has a CPU, and has it alone.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let machine = subject.machine;
    let workers = &subject.document.host.workers;
    let (online, isolated) =
        (machine.cpus(&format!("{CPUS}/online")), machine.cpus(&format!("{CPUS}/isolated")));
    if workers.is_empty() {
        let message = "one worker, not pinned to a CPU";
        return vec![if isolated.is_empty() {
            Finding::good(CHECK, message)
        } else {
            let advice = format!("use them: workers = {isolated:?} in [host]");
            Finding::warning(
                CHECK,
                format!("{message}, though CPUs {} are isolated", list(&isolated)),
                advice,
            )
        }];
    }
    let mut found = Vec::new();
    let absent = those(workers, |cpu| !online.contains(cpu));
    if !absent.is_empty() && !online.is_empty() {
        found.push(Finding::broken(
            CHECK,
            format!("CPUs {} do not run here: their workers are not pinned", list(&absent)),
            format!(
                "choose from {} for `workers` in [host], and replace or restart the daemon",
                list(&online)
            ),
        ));
    }
    let shared = those(workers, |cpu| online.contains(cpu) && !isolated.contains(cpu));
    if !shared.is_empty() {
        found.push(Finding::warning(
            CHECK,
            format!("other processes may run on the workers' CPUs {}, which costs latency", list(&shared)),
            format!("start the kernel with isolcpus={} if latency matters", list(&shared)),
        ));
    }
    let siblings = |cpu: u16| machine.cpus(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
    let paired =
        those(workers, |cpu| siblings(*cpu).iter().any(|other| other != cpu && workers.contains(other)));
    if !paired.is_empty() {
        found.push(Finding::warning(
            CHECK,
            format!(
                "CPUs {} are threads of the same cores: their workers slow each other down",
                list(&paired)
            ),
            "give each worker a core: see `lscpu --extended`",
        ));
    }
    if those(&online, |cpu| !workers.contains(cpu)).is_empty() && !online.is_empty() {
        found.push(Finding::warning(
            CHECK,
            "every CPU has a worker: guests and the control plane share CPUs with them",
            "leave at least one CPU to others",
        ));
    }
    if found.is_empty() {
        found.push(Finding::good(CHECK, format!("on isolated CPUs {}", list(workers))));
    }
    found
}

fn those(cpus: &[u16], which: impl Fn(&u16) -> bool) -> Vec<u16> {
    cpus.iter().copied().filter(which).collect()
}

fn list(cpus: &[u16]) -> String {
    cpus.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}
