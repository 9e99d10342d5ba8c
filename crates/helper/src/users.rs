//! Users and groups by name.

use nix::unistd::{Group, User};

/// Makes the C library load its modules for look-ups (nsswitch.conf(5)) while the process may still load code.
pub(crate) fn prepare() {
    // Asks every module for a name that nobody has.
    let _ = User::from_name("-");
    let _ = Group::from_name("-");
}
