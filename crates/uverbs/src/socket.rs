//! Messages with descriptors over a socket that keeps their boundaries.

use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a message at most.
const LONGEST: usize = 64 << 10;
/// Descriptors of a message at most.
const DESCRIPTORS: usize = 12;
/// Bytes of control data in which requests come: they have one descriptor at most (the kernel finds room for two).
const ONE_DESCRIPTOR: usize = rustix::cmsg_space!(ScmRights(1));

/// Why a message did not come or go.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The other side is gone.
    #[error("the connection is closed")]
    Closed,
    /// What the kernel says.
    #[error("{0}")]
    Kernel(#[from] Errno),
    /// Not a message, or too long for one.
    #[error("not a message of this protocol: {0}")]
    Malformed(String),
}

/// A socket of type `SOCK_SEQPACKET`.
#[derive(Clone, Debug)]
pub struct Connection {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    /// It is the device's end.
    serves: bool,
}

impl Connection {
    /// The library's end.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket), buffer: Vec::new(), serves: false }
    }

    /// The device's end. It never waits for who does not read its answers, and takes no more descriptors than a request has.
    #[must_use]
    pub const fn serving(socket: Arc<OwnedFd>) -> Self {
        Self { socket, buffer: Vec::new(), serves: true }
    }

    /// Sends a message with descriptors. The device's end does not wait: who asks, and has no room for the answer, gets an error.
    ///
    /// # Errors
    /// Where it can't be sent.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let bytes = serde_json::to_vec(message).map_err(|e| SocketError::Malformed(e.to_string()))?;
        if bytes.len() > LONGEST || descriptors.len() > DESCRIPTORS {
            return Err(SocketError::Malformed("too long".into()));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(&bytes)];
        let waits = if self.serves { SendFlags::DONTWAIT } else { SendFlags::empty() };
        retry_on_intr(|| sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL | waits))?;
        Ok(())
    }

    /// Receives a message with its descriptors. Waits for it.
    ///
    /// # Errors
    /// Where none comes, or not one of this protocol.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), SocketError> {
        self.buffer.resize(LONGEST, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let room = if self.serves { ONE_DESCRIPTOR } else { space.len() };
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let (len, whole) = {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let got =
                retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
            (got.bytes, !got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC))
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if len == 0 {
            return Err(SocketError::Closed);
        }
        if !whole {
            return Err(SocketError::Malformed("too long".into()));
        }
        let message =
            serde_json::from_slice(&self.buffer[..len]).map_err(|e| SocketError::Malformed(e.to_string()))?;
        Ok((message, descriptors))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{Reply, Request};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Connection, Connection) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Connection::new(a), Connection::new(b))
    }

    #[test]
    fn messages_carry_descriptors() {
        let (mut a, mut b) = pair();
        let (_, file) = crate::Memory::create("test", 4096).unwrap();
        let asked =
            Request::RegMr { pd: 1, address: 2, length: 3, iova: u64::MAX, access: 5, pages: Some((4, 6)) };
        a.send(&asked, &[file.as_fd(), file.as_fd()]).unwrap();
        a.send(&Request::AllocPd, &[]).unwrap();
        let (message, descriptors) = b.receive::<Request>().unwrap();
        assert_eq!((message, descriptors.len()), (asked, 2));
        assert_eq!(rustix::fs::fstat(&descriptors[1]).unwrap().st_size, 4096);
        let (message, descriptors) = b.receive::<Request>().unwrap();
        assert_eq!((message, descriptors.len()), (Request::AllocPd, 0));
        drop(a);
        assert!(matches!(b.receive::<Request>(), Err(SocketError::Closed)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (a, mut b) = pair();
        for wrong in [&b"{"[..], b"\0", br#"{"reg_mr":{}}"#, &[b'"'; 70_000]] {
            rustix::net::send(&a, wrong, SendFlags::empty()).unwrap();
            assert!(matches!(b.receive::<Request>(), Err(SocketError::Malformed(_))));
        }
    }

    #[test]
    fn a_newer_device_may_say_more() {
        let reply: Reply = serde_json::from_str(r#"{"port":{"is_active":true,"colour":"red"}}"#).unwrap();
        assert!(matches!(reply, Reply::Port(port) if port.is_active));
    }
}
