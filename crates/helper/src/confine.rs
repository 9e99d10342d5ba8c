//! What the helper itself keeps.

use sandbox::{Access, Calls, CapabilitySet, File, Keep, Report};
use std::path::Path;

/// Capabilities that requests need: taps and programs; packet and AF_XDP sockets; programs; frames of AF_XDP; owners,
/// and modes of files that are not ours any more; directories that are closed to others.
pub(crate) const CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives up the rest. The helper is not root any more: peers of its connections see that, and it does not own root's
/// files.
pub(crate) fn confine() -> Report {
    let file = |path: &'static str, access| File { path: Path::new(path), access };
    // Sockets may be anywhere; users' names are looked up in files and by services.
    let files = [
        file("/", Access::Sockets),
        file("/dev/net/tun", Access::Write),
        file("/sys/devices", Access::Write),
    ];
    let keep = Keep { capabilities: CAPABILITIES, calls: Calls::Helper, files: &files, outside: true };
    sandbox::enter(sandbox::account(), &keep)
}
