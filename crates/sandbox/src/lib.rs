//! A process gives up its user, its capabilities, system calls and files before it looks at what others sent.
//!
//! Owns: the order in which a process gives these up, the lists of system calls, and the [`Report`] of what
//! is in force.
//!
//! Everything here concerns the calling thread and those it starts later: a process calls [`enter`] while it
//! has one thread. If the kernel lacks or refuses a part, that is no error: the [`Report`] says so, and the
//! process goes on with the rest.
//!
//! Must not know: what the process does.
#![deny(unsafe_code)]

mod calls;
mod capabilities;
mod files;
mod user;

pub use calls::Calls;
pub use capabilities::names;
pub use files::{Access, File};
pub use rustix::thread::CapabilitySet;
pub use user::{Account, USER, account, lookup};

use std::path::Path;

/// The privileges that a process keeps.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    pub capabilities: CapabilitySet,
    pub calls: Calls,
    /// Files that it may open, with the access to each.
    pub files: &'a [File<'a>],
    /// Whether it may bind and connect TCP sockets, and signal processes and connect abstract sockets outside its
    /// sandbox.
    pub outside: bool,
}

/// The state of a process after [`enter`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub uid: u32,
    /// The user's name, if it has one.
    pub user: String,
    /// Capabilities that it has or may have, with the names of capabilities(7).
    pub capabilities: Vec<String>,
    /// Capabilities that a program which it executes could gain.
    pub bounding: Vec<String>,
    /// Whether programs that it executes gain nothing (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privs: bool,
    /// Whether its system calls are filtered.
    pub seccomp: bool,
    /// Landlock's version in force; 0: none.
    pub landlock: u32,
    /// The parts of the sandbox that are missing, and the reasons.
    pub missing: Vec<String>,
}

/// Gives up everything except `keep`. A process of root becomes `account`; any other process keeps its user.
#[must_use]
pub fn enter(account: Account, keep: &Keep<'_>) -> Report {
    let mut missing = Vec::new();
    // The first reading finds out how to read a clock without a system call. After this function nobody can
    // find that out.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Looks names up now, because they are in files.
    let names = [account.uid, nix::unistd::geteuid().as_raw()].map(|uid| (uid, user::name(uid)));
    let mut note = |what: &str, done: std::io::Result<()>| {
        if let Err(error) = done {
            missing.push(format!("{what}: {error}"));
        }
    };
    note("an empty bounding set (CAP_SETPCAP)", capabilities::empty_bounding_set());
    note("a user of its own", user::become_account(account));
    note("a set of few capabilities", capabilities::keep(keep.capabilities));
    note("no_new_privs", rustix::thread::set_no_new_privs(true).map_err(Into::into));
    let landlock = files::restrict(keep.files, keep.outside).unwrap_or_else(|why| {
        missing.push(format!("Landlock: {why}"));
        0
    });
    // Queries the state before the filter, which forbids these calls.
    let mut now = gave_up();
    now.user = names.into_iter().find(|(uid, _)| *uid == now.uid).map_or(now.user, |(_, name)| name);
    let seccomp = calls::restrict(keep.calls).map_err(|why| missing.push(format!("seccomp: {why}"))).is_ok();
    Report { seccomp, landlock, missing, ..now }
}

/// Tries a daemon's sandbox on a thread, which then ends. Returns the parts that the kernel lacks or refuses,
/// and Landlock's version.
#[must_use]
pub fn offered() -> Report {
    let attempt = || {
        let mut report = Report::default();
        let mut note = |what: &str, why: String| report.missing.push(format!("{what}: {why}"));
        match rustix::thread::set_no_new_privs(true) {
            Ok(()) => report.no_new_privs = true,
            Err(e) => note("no_new_privs", e.to_string()),
        }
        match files::restrict(&[], false) {
            Ok(version) => report.landlock = version,
            Err(why) => note("Landlock", why),
        }
        match calls::restrict(Calls::Daemon) {
            Ok(()) => report.seccomp = true,
            Err(why) => note("seccomp", why),
        }
        report
    };
    std::thread::spawn(attempt).join().unwrap_or_default()
}

/// Returns the state of a process that gave up nothing.
#[must_use]
pub fn now() -> Report {
    let report = gave_up();
    Report { user: user::name(report.uid), ..report }
}

/// Returns the process's state, without the user's name.
fn gave_up() -> Report {
    Report {
        uid: nix::unistd::geteuid().as_raw(),
        capabilities: names(capabilities::present()),
        bounding: names(capabilities::bounding()),
        no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
        ..Report::default()
    }
}

#[must_use]
pub const fn readable(path: &Path) -> File<'_> {
    File { path, access: Access::Read }
}
