//! Checks whether the daemon has the privileges that it needs, and can give up the rest.

use super::{Finding, Subject};
use rustix::thread::CapabilitySet;

/// The capabilities that the helper needs, each with its use.
const NEEDED: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::NET_ADMIN, "taps and AF_XDP"),
    (CapabilitySet::NET_RAW, "wires"),
    (CapabilitySet::BPF, "AF_XDP"),
    (CapabilitySet::CHOWN, "sockets with an owner"),
    (CapabilitySet::FOWNER, "sockets with a mode"),
    (CapabilitySet::DAC_OVERRIDE, "sockets in directories of others"),
    (CapabilitySet::SETPCAP, "giving up all capabilities for good"),
];

/// The first number past those of users.
const ALL_USERS: u64 = 1 << 32;

/// Checks capabilities, the daemon's user, the sandbox, and the users and groups of sockets.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let readers = config::check_readers(subject.document, sandbox::lookup).map(|problem| {
        let advice = "groupadd --system GROUP, or name another in [host] readers";
        Finding::warning("readers", problem.message, advice)
    });
    let owners = config::check_owners(subject.document, sandbox::lookup).into_iter().map(|problem| {
        let advice = "useradd --system USER, groupadd --system GROUP, or name another in the file";
        Finding::broken("owner", format!("{}: {}", problem.at, problem.message), advice)
    });
    [capabilities(), user(subject), sandbox()].into_iter().chain(readers).chain(owners).collect()
}

fn capabilities() -> Finding {
    const CHECK: &str = "capabilities";
    let have = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let missing: Vec<_> = NEEDED.iter().filter(|(capability, _)| !have.contains(*capability)).collect();
    if missing.is_empty() {
        let who =
            if rustix::process::geteuid().is_root() { "root" } else { "not root, but has capabilities" };
        return Finding::good(CHECK, format!("{who}: a daemon started from here has all that it needs"));
    }
    let names = |(capability, what): &&(CapabilitySet, &str)| {
        format!("{} ({what})", sandbox::names(*capability).join(" "))
    };
    let names: Vec<_> = missing.iter().map(names).collect();
    Finding::warning(
        CHECK,
        format!("a daemon started from here lacks {}", names.join(", ")),
        "run doctor and daemon as root (sudo), or start the daemon by its systemd unit, which has them",
    )
}

fn user(subject: &Subject<'_>) -> Finding {
    const CHECK: &str = "user";
    let name = sandbox::USER;
    let users = subject.machine.text("/etc/passwd").unwrap_or_default();
    let known = users.lines().any(|line| line.split(':').next() == Some(name));
    let uid = u64::from(sandbox::account().uid);
    if !maps(&subject.machine.text("/proc/self/uid_map").unwrap_or_default(), uid) {
        return Finding::warning(
            CHECK,
            format!(
                "this user namespace does not map user {uid}: a daemon started here by root stays root in it"
            ),
            "start the daemon outside of the user namespace, or map more users into it",
        );
    }
    if known {
        return Finding::good(CHECK, format!("the daemon becomes user \"{name}\""));
    }
    Finding::warning(
        CHECK,
        format!(
            "there is no user \"{name}\": a daemon of root becomes number {uid}; the systemd unit does not start"
        ),
        format!("systemd-sysusers, or: useradd --system --user-group --shell /usr/sbin/nologin {name}"),
    )
}

/// Is true if a map of users (user_namespaces(7)) includes this one. A kernel without maps has all users.
fn maps(map: &str, uid: u64) -> bool {
    let ranges = map.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (words.next()?.ok()?, words.next()?, words.next()?.ok()?);
        Some(first..first.saturating_add(count).min(ALL_USERS))
    });
    map.is_empty() || ranges.into_iter().any(|range| range.contains(&uid))
}

fn sandbox() -> Finding {
    const CHECK: &str = "sandbox";
    let offered = sandbox::offered();
    if offered.missing.is_empty() {
        return Finding::good(
            CHECK,
            format!("system calls filtered, files by Landlock {}", offered.landlock),
        );
    }
    Finding::warning(
        CHECK,
        format!("the daemon will run without {}", offered.missing.join("; ")),
        "use a kernel with CONFIG_SECCOMP_FILTER and CONFIG_SECURITY_LANDLOCK, started with landlock in lsm=; in a \
         container, allow the landlock and seccomp system calls",
    )
}

#[cfg(test)]
mod tests {
    use super::maps;

    #[test]
    fn maps_of_users() {
        assert!(maps("         0          0 4294967295", 64_917));
        assert!(!maps("         0       1000          1", 64_917));
        assert!(maps("0 1000 1\n1 100000 65536", 64_917));
        assert!(maps("", 64_917));
    }
}
