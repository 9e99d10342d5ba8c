//! Messages that the crate `vhost` does not handle as we need; they are recognised before that crate reads them.
//!
//! It does not know NET_SET_MTU, SEND_RARP, SET_STATUS and GET_STATUS. It refuses SET_VRING_ENABLE before SET_FEATURES,
//! but VMMs that reconnect (QEMU, DPDK) enable rings first.

use crate::backend::Backend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE};

const HEADER_LEN: usize = 12;
const FLAG_VERSION: u32 = 1;
const FLAG_REPLY: u32 = 4;
const FLAG_NEED_REPLY: u32 = 8;
const OURS: [FrontendReq; 5] = [
    FrontendReq::NET_SET_MTU,
    FrontendReq::SEND_RARP,
    FrontendReq::SET_VRING_ENABLE,
    FrontendReq::SET_STATUS,
    FrontendReq::GET_STATUS,
];

/// Returns whether the next message of `stream` can be handled without waiting for the VMM: all of it is
/// there, and there is room for its answer. Also true if the VMM is gone. Takes nothing from the socket, so
/// that a different process may go on with it.
///
/// # Errors
/// If the socket fails, or the header comes in parts with descriptors, so that its length can't be seen.
pub(crate) fn is_due(stream: &UnixStream) -> io::Result<bool> {
    let mut now = [PollFd::new(stream, PollFlags::RDHUP | PollFlags::OUT)];
    let _ = poll(&mut now, Some(&Timespec::default()));
    let is = |flags| now[0].revents().intersects(flags);
    if is(PollFlags::HUP | PollFlags::ERR) {
        return Ok(true);
    }
    if !is(PollFlags::OUT) {
        return Ok(false);
    }
    // A VMM that sends no more may still leave answers unread.
    if is(PollFlags::RDHUP) {
        return Ok(true);
    }
    // In this order: bytes that arrive in between are peeked at, but not counted. So a short peek with many bytes there
    // means descriptors.
    let there = ioctl_fionread(stream)?;
    let (header, peeked) = peek(stream)?;
    if peeked < HEADER_LEN {
        // A part with descriptors hides what follows it.
        return if there < HEADER_LEN as u64 { Ok(false) } else { Err(malformed("a header in parts")) };
    }
    let size = header[2] as usize;
    // A longer message is refused by its header.
    Ok(size > MAX_MSG_SIZE || there >= (HEADER_LEN + size) as u64)
}

/// Reads the header of the next message (request, flags and size) without taking it. Also returns how much of
/// it is there.
fn peek(stream: &UnixStream) -> io::Result<([u32; 3], usize)> {
    let mut header = [0; HEADER_LEN];
    // A peek without room for descriptors leaves those of other messages in place.
    let (peeked, _) = recv(stream, &mut header[..], RecvFlags::PEEK)?;
    let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    Ok(([word(0), word(4), word(8)], peeked))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Handles the next message of `stream` if it is one that this module knows. Returns whether it was.
pub(crate) fn handle(stream: &mut UnixStream, backend: &mut Backend) -> io::Result<bool> {
    let ([request, flags, size], peeked) = peek(stream)?;
    let Some(ours) = OURS.into_iter().find(|one| peeked == HEADER_LEN && *one as u32 == request) else {
        return Ok(false);
    };
    let asks = ours == FrontendReq::GET_STATUS;
    let body = if asks { 0 } else { 8 };
    if size != body {
        return Err(malformed("a message of another length than its request has"));
    }
    let mut message = [0; HEADER_LEN + 8];
    stream.read_exact(&mut message[..HEADER_LEN + body as usize])?;
    let mut value = [0; 8];
    value.copy_from_slice(&message[HEADER_LEN..]);
    let value = u64::from_le_bytes(value);
    let done = match ours {
        FrontendReq::GET_STATUS => {
            answer(stream, request, backend.status().into())?;
            return Ok(true);
        }
        FrontendReq::SET_STATUS => {
            // One byte (VIRTIO 1.2, 2.1).
            backend.set_status(value as u8);
            Ok(())
        }
        FrontendReq::NET_SET_MTU => backend.set_mtu(value).map_err(|e| e.to_string()),
        FrontendReq::SEND_RARP => {
            backend.announce(value);
            Ok(())
        }
        // Ring index and whether it is enabled, 32 bits each.
        _ => backend.set_vring_enable(value as u32, value >> 32 == 1).map_err(|e| e.to_string()),
    };
    if let Err(e) = &done {
        backend.log().warn(format_args!("{e}"));
    }
    if flags & FLAG_NEED_REPLY != 0 && backend.acknowledges() {
        answer(stream, request, done.is_err().into())?;
    }
    Ok(true)
}

fn answer(stream: &mut UnixStream, request: u32, value: u64) -> io::Result<()> {
    let mut reply = [0; HEADER_LEN + 8];
    reply[..HEADER_LEN]
        .copy_from_slice([request, FLAG_VERSION | FLAG_REPLY, 8].map(u32::to_le_bytes).as_flattened());
    reply[HEADER_LEN..].copy_from_slice(&value.to_le_bytes());
    stream.write_all(&reply)
}
