//! Limits of the process that the daemon raises while it may (setrlimit(2)).

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Nice value 0 in the units of `RLIMIT_NICE`, 20 minus the nice value.
const NICE_0: u64 = 20;

/// Raises the limit of open files to the hard limit, because a guest takes a dozen descriptors or more. Also
/// allows the daemon to give threads of verbs programs back their nice value 0, after it had lowered their
/// weight because they were many. The daemon works without either: hosts with few guests need few files, and
/// threads keep the lower weight.
pub fn raise() {
    let files = getrlimit(Resource::RLIMIT_NOFILE);
    if let Err(error) = files.and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard)) {
        tracing::warn!(%error, "no more files can be opened than usual");
    }
    if getrlimit(Resource::RLIMIT_NICE).is_ok_and(|(soft, _)| soft < NICE_0) {
        // Only a privileged process may do this.
        let _ = setrlimit(Resource::RLIMIT_NICE, NICE_0, NICE_0);
    }
}
