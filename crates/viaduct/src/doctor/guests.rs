//! Devices that guests need.

use super::{Finding, Machine, Subject};
use config::GuestKind;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Checks KVM and taps. vhost-user needs no kernel module.
pub fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let has_vms = subject.guests(GuestKind::Vhost).next().is_some();
    vec![kvm(subject.machine, has_vms), tun(subject.machine, subject.has_taps())]
}

fn open(machine: &Machine, path: &str) -> std::io::Result<File> {
    File::options().read(true).write(true).open(machine.path(path))
}

/// Creates a virtual machine, without memory and processors, and drops it.
///
/// # Errors
/// KVM does not work here, as in many machines that are virtual themselves; or `device` is something else.
#[allow(unsafe_code, reason = "the only system call of this program that no crate wraps")]
fn create_vm(device: &File) -> std::io::Result<()> {
    nix::ioctl_write_int_bad!(kvm_create_vm, nix::request_code_none!(0xae, 0x01));
    // SAFETY: the call takes a number and touches no memory of ours; other devices refuse its code.
    let vm = unsafe { kvm_create_vm(device.as_raw_fd(), 0) }?;
    // SAFETY: the descriptor is new, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(vm) });
    Ok(())
}

fn kvm(machine: &Machine, has_vms: bool) -> Finding {
    const CHECK: &str = "kvm";
    match open(machine, "/dev/kvm").map(|device| create_vm(&device)) {
        Ok(Ok(())) => Finding::good(CHECK, "/dev/kvm makes virtual machines"),
        Ok(Err(error)) | Err(error) if !has_vms => {
            Finding::good(CHECK, format!("/dev/kvm: {error}; the file has no VMs"))
        }
        Ok(Err(error)) => Finding::warning(
            CHECK,
            format!(
                "/dev/kvm makes no virtual machine: {error}: VMs run by QEMU's translator, many times slower"
            ),
            "see the kernel's log about kvm; on a virtual machine, have its host allow nested virtualization",
        ),
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
        Ok(_) => Finding::good(CHECK, "/dev/net/tun can be opened"),
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
