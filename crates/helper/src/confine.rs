//! The privileges that the helper itself keeps.

use sandbox::{Access, Calls, CapabilitySet, File, Keep, Report};
use std::path::Path;

/// Capabilities that requests need, in this order: for taps and programs; for packet and AF_XDP sockets; for the ports
/// of DHCP servers; for programs; for frames of AF_XDP; for owners and for modes of files that no longer belong to us; for
/// directories that are closed to others.
pub(crate) const CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives up all other privileges. The helper is then no longer root: peers of its connections see that, and
/// it does not own root's files. `windows` is the directory above the windows' directory, which may be a file
/// system of its own.
pub(crate) fn confine(windows: &Path) -> Report {
    let file = |path, access| File { path, access };
    // Sockets may be anywhere; user names are looked up in files and by services.
    let files = [
        file(Path::new("/"), Access::Sockets),
        file(windows, Access::Files),
        file(Path::new("/dev/net/tun"), Access::Write),
        file(Path::new("/sys/devices"), Access::Write),
        // Switches of interfaces of the host.
        file(Path::new("/proc/sys/net/ipv4/conf"), Access::Write),
        file(Path::new("/proc/sys/net/ipv6/conf"), Access::Write),
    ];
    let keep = Keep { capabilities: CAPABILITIES, calls: Calls::Helper, files: &files, outside: true };
    sandbox::enter(sandbox::account(), &keep)
}
