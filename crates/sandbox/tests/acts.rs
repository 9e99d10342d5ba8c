//! Acts that a process in the sandbox can no longer do. This same program, started anew, does each act: once
//! without the sandbox, where it works, and once in the sandbox, where it must not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nix::errno::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use sandbox::{Account, Calls, CapabilitySet, Keep, Report};
use std::fs::{File, Permissions};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// Environment variable with the name of the child's act.
const ACT: &str = "SANDBOX_TEST_ACT";
const ENTER: &str = "SANDBOX_TEST_ENTER";
/// Exit status of a child whose act worked. If the act failed, the status is its errno.
const WORKED: i32 = 200;
/// User and group in the sandbox.
const ACCOUNT: Account = Account { uid: 64_000, gid: 64_000 };

/// An act that a child tries.
type Act = fn() -> io::Result<()>;

/// The acts, by name.
const ACTS: &[(&str, Act)] = &[
    ("execute", || Command::new("/bin/true").status().map(drop)),
    ("trace", || match nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(i32::MAX)) {
        // The error that there is no such process shows that the call was permitted.
        Err(Errno::ESRCH) => Ok(()),
        other => Ok(other?),
    }),
    ("unshare", || Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES)?)),
    ("fork", || {
        // A process, not a thread: the call that posix_spawn makes, without the rest.
        Command::new("/does/not/exist").spawn().map(drop).or_else(|e| match e.raw_os_error() {
            Some(libc::ENOENT) => Ok(()),
            _ => Err(e),
        })
    }),
    ("thread", || std::thread::Builder::new().spawn(|| {})?.join().map_err(|_| io::Error::other("panic"))),
    ("read", || File::open("/etc/passwd").map(drop)),
    ("read-program", || File::open("/proc/self/exe").map(drop)),
    ("create", || File::create(std::env::temp_dir().join("sandbox-test")).map(drop)),
    ("null", || File::open("/dev/null").map(drop)),
    ("unix", || socket(AddressFamily::UNIX, SocketType::STREAM, None).map(drop).map_err(Into::into)),
    ("connect", || match std::os::unix::net::UnixStream::connect("/does/not/exist") {
        // The error that nobody listens shows that the call was permitted.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map(drop),
    }),
    ("fast-open", || {
        // Sockets of this kind ignore the flag.
        let (this, _other) = std::os::unix::net::UnixStream::pair()?;
        let flags = rustix::net::SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32);
        Ok(rustix::net::send(&this, b"x", flags).map(drop)?)
    }),
    ("udp", || UdpSocket::bind("127.0.0.1:0").map(drop)),
    ("tcp", || TcpListener::bind("127.0.0.1:0").map(drop)),
    ("packet", || socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop).map_err(Into::into)),
    ("executable", executable),
    ("become-root", || Ok(nix::unistd::setresuid(0.into(), 0.into(), 0.into())?)),
];

/// Maps executable memory.
fn executable() -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping that nobody uses.
    unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, access, MapFlags::PRIVATE)? };
    Ok(())
}

fn enter(calls: Calls) -> Report {
    let null = sandbox::readable(Path::new("/dev/null"));
    let keep = Keep { capabilities: CapabilitySet::empty(), calls, files: &[null], outside: false };
    sandbox::enter(ACCOUNT, &keep)
}

/// Ends the child at once. The standard library would first free the main thread's alternate signal stack.
/// But that thread may still be handling the signal by which glibc changes the user of all threads.
fn end(status: i32) -> ! {
    // SAFETY: it only ends the process; what has not been written yet may be lost.
    unsafe { libc::_exit(status) }
}

/// The child: does its act and ends.
#[test]
fn act() {
    let Ok(name) = std::env::var(ACT) else { return };
    match std::env::var(ENTER).as_deref() {
        Ok("daemon") => drop(enter(Calls::Daemon)),
        Ok("helper") => drop(enter(Calls::Helper)),
        _ => {}
    }
    let (_, act) = ACTS.iter().find(|(each, _)| *each == name).unwrap();
    let status = match act() {
        Ok(()) => WORKED,
        Err(e) => e.raw_os_error().unwrap_or(1),
    };
    end(status);
}

/// Runs a child with this act, and returns its exit status.
fn child(act: &str, enter: &str) -> ExitStatus {
    let dir = tempfile::tempdir().unwrap();
    // Anybody may write here, so that only the sandbox keeps the child from creating files.
    std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "act", "--quiet", "--nocapture"]).env(ACT, act).env(ENTER, enter);
    command.env("TMPDIR", dir.path()).status().unwrap()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[track_caller]
fn fails_with(act: &str, errno: Errno) {
    let with = |code: i32| ExitStatus::from_raw(code << 8);
    assert_eq!(child(act, ""), with(WORKED), "{act} works outside of the sandbox");
    assert_eq!(child(act, "daemon"), with(errno as i32), "{act} in the sandbox");
}

#[track_caller]
fn is_fatal(act: &str, enter: &str) {
    assert_eq!(child(act, "").code(), Some(WORKED), "{act} works outside of the sandbox");
    assert_eq!(child(act, enter).signal(), Some(libc::SIGSYS), "{act} in the sandbox");
}

#[test]
fn what_only_an_intruder_does_ends_the_process() {
    for enter in ["daemon", "helper"] {
        is_fatal("trace", enter);
        is_fatal("unshare", enter);
        if is_root() {
            is_fatal("become-root", enter);
        }
    }
}

#[test]
fn there_are_threads_but_no_processes() {
    fails_with("execute", Errno::EPERM);
    fails_with("fork", Errno::EPERM);
    assert_eq!(child("thread", "daemon").code(), Some(WORKED));
    assert_eq!(child("thread", "helper").code(), Some(WORKED));
}

#[test]
fn files_are_those_named() {
    fails_with("read", Errno::EACCES);
    fails_with("read-program", Errno::EACCES);
    fails_with("create", Errno::EACCES);
    assert_eq!(child("null", "daemon").code(), Some(WORKED));
}

#[test]
fn sockets_are_local() {
    assert_eq!(child("unix", "daemon").code(), Some(WORKED));
    fails_with("connect", Errno::EPERM);
    assert_eq!(child("connect", "helper").code(), Some(WORKED));
    fails_with("fast-open", Errno::EPERM);
    fails_with("udp", Errno::EPERM);
    fails_with("tcp", Errno::EPERM);
    if is_root() {
        fails_with("packet", Errno::EPERM);
    }
    assert_eq!(child("packet", "helper").code(), Some(libc::EPERM));
}

#[test]
fn memory_does_not_become_a_program() {
    fails_with("executable", Errno::EPERM);
    assert_eq!(child("executable", "helper").code(), Some(libc::EPERM));
}

/// The child that reports its state.
#[test]
fn report() {
    if std::env::var(ACT).as_deref() != Ok("report") {
        return;
    }
    let report = enter(Calls::Daemon);
    assert!(report.seccomp && report.no_new_privs, "{report:?}");
    assert_eq!(report.capabilities, [""; 0]);
    if is_root() || report.uid == ACCOUNT.uid {
        assert_eq!((report.bounding.len(), report.uid), (0, ACCOUNT.uid), "{report:?}");
        assert_eq!(report.missing, [""; 0]);
    }
    end(WORKED);
}

#[test]
fn the_report_tells_what_is_left() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "report", "--nocapture"]).env(ACT, "report");
    assert_eq!(command.status().unwrap().code(), Some(WORKED));
}
