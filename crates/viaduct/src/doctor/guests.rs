//! Devices that guests need.

use super::{Finding, Machine, Subject};
use config::GuestKind;

/// Checks KVM and taps. vhost-user needs no kernel module.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let has_vms = subject.guests(GuestKind::Vhost).next().is_some();
    vec![kvm(subject.machine, has_vms), tun(subject.machine, subject.has_taps())]
}

fn open(machine: &Machine, path: &str) -> std::io::Result<()> {
    std::fs::File::options().read(true).write(true).open(machine.path(path)).map(drop)
}

fn kvm(machine: &Machine, has_vms: bool) -> Finding {
    const CHECK: &str = "kvm";
    match open(machine, "/dev/kvm") {
        Ok(()) => Finding::good(CHECK, "/dev/kvm can be opened"),
        Err(error) if !has_vms => Finding::good(CHECK, format!("/dev/kvm: {error}; the file has no VMs")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Finding::warning(
            CHECK,
            format!("/dev/kvm: {error}: VMs of this user run by QEMU's translator, many times slower"),
            "add the user of VMs to the group kvm",
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("/dev/kvm: {error}: VMs run by QEMU's translator, many times slower"),
            "switch virtualization on in the firmware, then: modprobe kvm_intel (or kvm_amd)",
        ),
    }
}

fn tun(machine: &Machine, has_taps: bool) -> Finding {
    const CHECK: &str = "tun";
    match open(machine, "/dev/net/tun") {
        Ok(()) => Finding::good(CHECK, "/dev/net/tun can be opened"),
        Err(error) if !has_taps => {
            Finding::good(CHECK, format!("/dev/net/tun: {error}; the file has no taps"))
        }
        Err(error) => Finding::broken(
            CHECK,
            format!("/dev/net/tun: {error}: no tap can be created"),
            "modprobe tun; in a container, give it the device /dev/net/tun",
        ),
    }
}
