//! NET_SET_MTU, the one message we take that crate `vhost` has no handler for. It is recognised before that
//! crate reads it.

use crate::backend::Backend;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use tracing::warn;
use vhost::vhost_user::message::FrontendReq;

const HEADER_LEN: usize = 12;
const FLAG_VERSION: u32 = 1;
const FLAG_REPLY: u32 = 4;
const FLAG_NEED_REPLY: u32 = 8;

/// Handles the next message of `stream` if it is NET_SET_MTU; whether it was.
pub(crate) fn handle(stream: &mut UnixStream, backend: &mut Backend) -> io::Result<bool> {
    let mut header = [0; HEADER_LEN];
    // A peek without room for descriptors leaves those of other messages where they are.
    let (peeked, _) = recv(&*stream, &mut header[..], RecvFlags::PEEK)?;
    let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    if peeked < HEADER_LEN || word(0) != FrontendReq::NET_SET_MTU as u32 {
        return Ok(false);
    }
    let (flags, size) = (word(4), word(8));
    if size != 8 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "NET_SET_MTU without a 64-bit value"));
    }
    let mut message = [0; HEADER_LEN + 8];
    stream.read_exact(&mut message)?;
    let mut mtu = [0; 8];
    mtu.copy_from_slice(&message[HEADER_LEN..]);
    let done = backend.set_mtu(u64::from_le_bytes(mtu));
    if let Err(e) = &done {
        warn!("{e}");
    }
    if flags & FLAG_NEED_REPLY != 0 && backend.acknowledges() {
        let mut reply = message;
        reply[4..8].copy_from_slice(&(FLAG_VERSION | FLAG_REPLY).to_le_bytes());
        reply[HEADER_LEN..].copy_from_slice(&u64::from(done.is_err()).to_le_bytes());
        stream.write_all(&reply)?;
    }
    Ok(true)
}
