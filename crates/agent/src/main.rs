//! The agent of sockets in a virtual machine. Programs with the library pass it their sockets, as they do to the daemon
//! in a container. It reads the sockets here, since no descriptor passes out of a machine, and tells the daemon by vsock.
//!
//! Owns: the proof that an offered connection is the program's, and of this machine's own network namespace; who may
//! have the window.
//!
//! Must not know: which connections match, and how programs use the memory.
//!
//! Each program has a thread of its own, which may wait for it.

mod carried;
mod program;
mod rights;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use sockets::Places;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uverbs::{Caller, Endpoint};

/// The path at which programs find the agent.
const SOCKET: &str = "/run/viaduct/sockets.sock";
/// The variable that names a window.
const WINDOW: &str = "VIADUCT_RDMA";
/// Programs at a time. One user may have half of what others leave.
const PROGRAMS: usize = 1000;
/// Programs that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The pause after the kernel has no descriptor or thread.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{}: {source}", path.display())]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("this kernel does not tell network namespaces apart (SO_NETNS_COOKIE, Linux 5.12)")]
    Namespace,
}

/// The users of programs that have a thread.
#[derive(Default)]
struct Users(Mutex<Vec<u32>>);

impl Users {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's place among all.
struct Present(Arc<Users>, u32);

impl Drop for Present {
    fn drop(&mut self) {
        let mut users = self.0.lock();
        if let Some(at) = users.iter().position(|user| *user == self.1) {
            users.swap_remove(at);
        }
    }
}

fn main() -> std::process::ExitCode {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| SOCKET.into());
    match open(Path::new(&path)).and_then(|socket| run(&socket)) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("viaduct-agent: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Listens at a path, for all users.
fn open(path: &Path) -> Result<OwnedFd, Error> {
    let make = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    make().map_err(|source| Error::Socket { path: path.into(), source })
}

fn run(listener: &OwnedFd) -> Result<std::convert::Infallible, Error> {
    let namespace = own_namespace().ok_or(Error::Namespace)?;
    let users: Arc<Users> = Arc::default();
    let mut places = Places::new(PROGRAMS, || ());
    loop {
        let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
        let Ok(socket) = accepted else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let Ok(peer) = uverbs::peer(&socket) else { continue };
        let caller = Caller { pid: peer.pid, uid: peer.uid };
        {
            let mut present = users.lock();
            if !places.may_come(present.len()) || places.of(caller.uid, present.iter().copied()).1 {
                continue;
            }
            present.push(caller.uid);
        }
        let present = Present(users.clone(), caller.uid);
        let serve = move || {
            if let Some(endpoint) = endpoint() {
                // The program learns of an error by the end of its connection, and stays with TCP.
                let _ = program::serve(&socket, caller, &endpoint, namespace);
            }
            drop(present);
        };
        // Without a thread, the program is disconnected.
        let _ = std::thread::Builder::new().stack_size(256 << 10).spawn(serve);
    }
}

/// Returns the way to the daemon: the first window of a device, unless one is named.
fn endpoint() -> Option<Endpoint> {
    match std::env::var_os(WINDOW) {
        Some(named) => Some(Endpoint::parse(&named)),
        None => Endpoint::windows().into_iter().next(),
    }
}

/// Returns the network namespace of this process, in which the guest's addresses are.
fn own_namespace() -> Option<u64> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    matchmaker::namespace(&socket.as_fd().try_clone_to_owned().ok()?)
}
