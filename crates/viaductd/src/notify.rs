//! Notifies systemd that the daemon is ready (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket that systemd named, if it did.
pub struct Notifier(Option<UnixDatagram>);

/// Connects to systemd. Later it works without access to the socket's path.
pub fn connect() -> Notifier {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Notifier(None) };
    let addr = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let connected = addr.and_then(|addr| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&addr)?;
        Ok(socket)
    });
    Notifier(connected.inspect_err(cannot).ok())
}

impl Notifier {
    pub fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Tells systemd that the service's main process is now `pid` (`MAINPID=`).
    pub fn main_pid(&self, pid: i32) {
        self.send(&format!("MAINPID={pid}\n"));
    }

    fn send(&self, text: &str) {
        if let Some(Err(e)) = self.0.as_ref().map(|socket| socket.send(text.as_bytes())) {
            cannot(&e);
        }
    }
}

fn cannot(e: &std::io::Error) {
    tracing::warn!("systemd can't be told of the daemon: {e}");
}
