//! Messages with descriptors over a socket that keeps their boundaries (`SOCK_SEQPACKET`, unix(7)).
//!
//! Owns: how a message is sent and received whole, with its descriptors, and the bounds of both.
//!
//! Must not know: what the messages say.
#![deny(unsafe_code)]

use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use sockets::Untrusted;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most bytes in a message.
pub const LONGEST: usize = 64 << 10;
/// Most descriptors in a message, unless set otherwise.
const DESCRIPTORS: usize = 12;
/// Most descriptors that the kernel accepts in one message (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;
/// Bytes of control data for requests, which have at most one descriptor (the kernel has room for two in that space).
const ONE_DESCRIPTOR: usize = rustix::cmsg_space!(ScmRights(1));

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("the connection is closed")]
    Closed,
    #[error("{0}")]
    Kernel(#[from] Errno),
    /// The bytes are no message, or too long for one.
    #[error("not a message of this protocol: {0}")]
    Malformed(String),
}

/// A socket of type `SOCK_SEQPACKET`.
#[derive(Clone, Debug)]
pub struct Connection {
    socket: Socket,
    buffer: Vec<u8>,
    /// Room for the descriptors of an incoming message.
    space: Vec<MaybeUninit<u8>>,
    most: usize,
}

#[derive(Clone, Debug)]
enum Socket {
    /// This end asks.
    Asks(Arc<OwnedFd>),
    /// This end answers.
    Serves(Arc<Untrusted>),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Asks(socket) => socket.as_fd(),
            Self::Serves(socket) => socket.as_fd(),
        }
    }
}

impl Connection {
    /// Returns the requester's end.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self::carrying(socket, DESCRIPTORS)
    }

    /// Returns the requester's end, for messages of up to `most` descriptors, at most [`MOST_DESCRIPTORS`].
    #[must_use]
    pub fn carrying(socket: OwnedFd, most: usize) -> Self {
        let most = most.min(MOST_DESCRIPTORS);
        let space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(most))];
        Self { socket: Socket::Asks(Arc::new(socket)), buffer: Vec::new(), space, most }
    }

    /// Returns the responder's end. It never waits for a peer that does not read its answers, and accepts no
    /// more descriptors than a request has.
    #[must_use]
    pub fn serving(socket: Arc<Untrusted>) -> Self {
        let space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        Self { socket: Socket::Serves(socket), buffer: Vec::new(), space, most: DESCRIPTORS }
    }

    const fn serves(&self) -> bool {
        matches!(self.socket, Socket::Serves(_))
    }

    /// Sends a message with descriptors. A responder does not wait: if the requester has no room for the answer,
    /// sending fails.
    ///
    /// # Errors
    /// If it can't be sent.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let bytes = serde_json::to_vec(message).map_err(|e| SocketError::Malformed(e.to_string()))?;
        self.send_bytes(&bytes, descriptors)
    }

    /// Sends a message of bytes.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_bytes(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        if bytes.len() > LONGEST || descriptors.len() > self.most {
            return Err(SocketError::Malformed("too long".into()));
        }
        let waits = if self.serves() { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let mut ancillary = SendAncillaryBuffer::new(&mut self.space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(bytes)];
        retry_on_intr(|| sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL | waits))?;
        Ok(())
    }

    /// Waits for a message with its descriptors, and returns it.
    ///
    /// # Errors
    /// If none comes, or it is not of this protocol.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), SocketError> {
        let (bytes, descriptors) = self.receive_bytes(true)?;
        let message = serde_json::from_slice(bytes).map_err(|e| SocketError::Malformed(e.to_string()))?;
        Ok((message, descriptors))
    }

    /// Receives a message as bytes. Without `waits`, fails with the kernel's `EAGAIN` if there is none.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_bytes(&mut self, waits: bool) -> Result<(&[u8], Vec<OwnedFd>), SocketError> {
        self.buffer.resize(LONGEST, 0);
        let room = if self.serves() { ONE_DESCRIPTOR } else { self.space.len() };
        let mut ancillary = RecvAncillaryBuffer::new(&mut self.space[..room]);
        let flags = RecvFlags::CMSG_CLOEXEC | if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let (len, whole) = {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let got = retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut ancillary, flags))?;
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
        Ok((&self.buffer[..len], descriptors))
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
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::collections::BTreeMap;
    use std::io::Write as _;

    type Message = BTreeMap<String, u64>;

    fn pair(most: usize) -> (Connection, Connection) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Connection::carrying(a, most), Connection::carrying(b, most))
    }

    #[test]
    fn messages_carry_descriptors() {
        for most in [12, MOST_DESCRIPTORS] {
            let (mut a, mut b) = pair(most);
            let (reader, mut writer) = std::io::pipe().unwrap();
            let asked = Message::from([("length".into(), u64::MAX)]);
            a.send(&asked, &vec![reader.as_fd(); most]).unwrap();
            a.send(&Message::new(), &[]).unwrap();
            assert!(matches!(
                a.send(&asked, &vec![reader.as_fd(); most + 1]),
                Err(SocketError::Malformed(_))
            ));
            let (message, descriptors) = b.receive::<Message>().unwrap();
            assert_eq!((message, descriptors.len()), (asked, most));
            writer.write_all(b"x").unwrap();
            assert_eq!(rustix::io::read(&descriptors[most - 1], &mut [0; 2]).unwrap(), 1);
            let (message, descriptors) = b.receive::<Message>().unwrap();
            assert_eq!((message, descriptors.len()), (Message::new(), 0));
            drop(a);
            assert!(matches!(b.receive::<Message>(), Err(SocketError::Closed)));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (a, mut b) = pair(12);
        for wrong in [&b"{"[..], b"\0", br#"{"length":{}}"#, &[b'"'; 70_000]] {
            rustix::net::send(&a, wrong, SendFlags::empty()).unwrap();
            assert!(matches!(b.receive::<Message>(), Err(SocketError::Malformed(_))));
        }
    }

    #[test]
    fn more_descriptors_than_fit_are_refused() {
        let (mut a, mut b) = pair(12);
        a.most = 20;
        a.space.resize(rustix::cmsg_space!(ScmRights(20)), MaybeUninit::uninit());
        let (reader, _writer) = std::io::pipe().unwrap();
        a.send(&Message::new(), &[reader.as_fd(); 20]).unwrap();
        assert!(matches!(b.receive::<Message>(), Err(SocketError::Malformed(_))));
    }
}
