//! Telling systemd that the daemon is ready (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends READY=1 to the socket that systemd named, if it did.
pub fn ready() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let addr = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = addr.and_then(|addr| UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &addr));
    if let Err(e) = sent {
        tracing::warn!("systemd can't be told that the daemon is ready: {e}");
    }
}
