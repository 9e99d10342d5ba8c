//! Checks the kernel features that wires need.

use super::{Finding, Subject};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

/// Features of newer kernels: version, feature, and whether only AF_XDP needs it.
const FEATURES: &[((u32, u32), &str, bool)] = &[
    ((5, 9), "AF_XDP as the daemon uses it", true),
    ((6, 2), "UDP segmentation on wires: several tunnel packets in one frame", false),
    ((6, 6), "AF_XDP with packets above 3818 bytes", true),
];

/// Clocks that are read without a system call.
const QUICK_CLOCKS: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// Checks the kernel's version, AF_XDP and the clock.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let release = subject.machine.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let clock = subject.machine.text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    vec![version(&release, subject.has_xdp()), xdp(subject.has_xdp()), clock_source(clock.as_deref())]
}

fn version(release: &str, has_xdp: bool) -> Finding {
    const CHECK: &str = "kernel";
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        let advice = "mount /proc to let doctor see what the kernel has";
        return Finding::warning(CHECK, "its version is not known", advice);
    };
    let lacks =
        FEATURES.iter().filter(|(since, _, for_xdp)| (major, minor) < *since && (has_xdp || !for_xdp));
    let lacks: Vec<_> =
        lacks.map(|((major, minor), what, _)| format!("{what} (since {major}.{minor})")).collect();
    if lacks.is_empty() {
        return Finding::good(CHECK, format!("{release} has all that wires use"));
    }
    Finding::warning(
        CHECK,
        format!("{release} lacks {}", lacks.join(", ")),
        "use a newer kernel for more speed",
    )
}

fn xdp(is_needed: bool) -> Finding {
    const CHECK: &str = "af-xdp";
    match rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => Finding::good(CHECK, "the kernel has AF_XDP sockets"),
        Err(Errno::PERM) => Finding::good(CHECK, "not tried: AF_XDP sockets take CAP_NET_RAW"),
        Err(error) => Finding::broken(
            CHECK,
            format!("no AF_XDP socket: {error}"),
            "use driver \"af-packet\", or a kernel with CONFIG_XDP_SOCKETS",
        )
        .unless(is_needed),
    }
}

fn clock_source(clock: Option<&str>) -> Finding {
    const CHECK: &str = "clock";
    match clock {
        Some(clock) if QUICK_CLOCKS.contains(&clock) => {
            Finding::good(CHECK, format!("{clock}: quick to read"))
        }
        Some(clock) => Finding::warning(
            CHECK,
            format!(
                "{clock}: each look at the clock is a system call, and workers look at it for each burst"
            ),
            "see the kernel's log why tsc is not used; start the kernel with tsc=reliable if it is reliable",
        ),
        None => Finding::good(CHECK, "not known: the kernel does not say which it uses"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::{clock_source, version};

    #[test]
    fn old_kernels_lack_something() {
        assert_eq!(version("6.6.1-amd64", true).level, Level::Good);
        assert_eq!(version("6.2.0", false).level, Level::Good);
        let old = version("5.4.0-150-generic", true);
        assert!(old.level == Level::Warning && old.message.contains("since 5.9"), "{old:?}");
        assert_eq!(version("", true).level, Level::Warning);
    }

    #[test]
    fn slow_clocks_are_named() {
        assert_eq!(clock_source(Some("tsc")).level, Level::Good);
        assert_eq!(clock_source(Some("acpi_pm")).level, Level::Warning);
    }
}
