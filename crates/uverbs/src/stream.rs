//! Messages over a stream between a program in a virtual machine and its host, where only bytes pass.
//!
//! A message is its length, four bytes with the lowest first, and JSON: an object with the message (`body`) and its
//! items (`along`).

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use seqpacket::{LONGEST, SocketError};
use sockets::Untrusted;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes before a message.
const HEAD: usize = 4;

/// A stream. Both ends use this type.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// Another stream of the peer, with which this one ends.
    life: Option<OwnedFd>,
    /// The bytes of the arriving message that have come, with its head.
    incoming: Vec<u8>,
    /// Bytes for which the other side had no room.
    unsent: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    /// This end sends requests.
    Asks(OwnedFd),
    /// This end answers, and never waits for a peer that does not read.
    Serves(Arc<Untrusted>),
}

impl Socket {
    fn receive(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Self::Asks(socket) => recv(socket, buffer, RecvFlags::DONTWAIT).map(|(_, len)| len),
            Self::Serves(socket) => socket.receive(buffer),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Asks(socket) => socket.as_fd(),
            Self::Serves(socket) => socket.as_fd(),
        }
    }
}

impl Stream {
    /// Returns the requester's end.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self::with(Socket::Asks(socket))
    }

    /// Returns the responder's end. It keeps an answer for which the requester has no room; meanwhile
    /// ([`Self::has_unsent`]) it receives no more requests, so there is never more than one answer.
    #[must_use]
    pub const fn serving(socket: Arc<Untrusted>) -> Self {
        Self::with(Socket::Serves(socket))
    }

    const fn with(socket: Socket) -> Self {
        Self { socket, life: None, incoming: Vec::new(), unsent: Vec::new() }
    }

    const fn serves(&self) -> bool {
        matches!(self.socket, Socket::Serves(_))
    }

    /// Has the stream end together with another one of the same peer. What carries streams out of a virtual machine may
    /// lose the end of one (vhost-device-vsock, if the peer dies with a message that it has not read).
    pub fn end_with(&mut self, life: OwnedFd) {
        self.life = Some(life);
    }

    /// Returns the requester's socket. Only whole messages were read from it.
    #[must_use]
    pub fn into_socket(self) -> Option<OwnedFd> {
        match self.socket {
            Socket::Asks(socket) => Some(socket),
            Socket::Serves(_) => None,
        }
    }

    /// Is true if the stream must be flushed once the socket is writable.
    #[must_use]
    pub const fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the message can't be sent; for a responder, also if an earlier answer is not sent yet.
    pub fn send(&mut self, message: &[u8]) -> Result<(), SocketError> {
        let len = u32::try_from(message.len()).ok().filter(|len| *len as usize <= LONGEST);
        let len = len.ok_or_else(|| SocketError::Malformed("too long".into()))?;
        if self.has_unsent() && !self.flush()? {
            return Err(Errno::NOBUFS.into());
        }
        self.unsent.extend_from_slice(&len.to_le_bytes());
        self.unsent.extend_from_slice(message);
        while !self.flush()? && !self.serves() {
            self.wait(PollFlags::OUT)?;
        }
        Ok(())
    }

    /// Sends unsent bytes, as far as there is room. Returns whether all of them are sent.
    ///
    /// # Errors
    /// If they can't be sent.
    pub fn flush(&mut self) -> Result<bool, SocketError> {
        let mut sent = 0;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let result = loop {
            if sent == self.unsent.len() {
                break Ok(true);
            }
            match retry_on_intr(|| send(&self.socket, &self.unsent[sent..], flags)) {
                Ok(0) => break Err(SocketError::Closed),
                Ok(more) => sent += more,
                Err(Errno::AGAIN) => break Ok(false),
                Err(errno) => break Err(errno.into()),
            }
        };
        self.unsent.drain(..sent);
        result
    }

    /// Returns the next message, if all of it has come. Never waits, and reads nothing of the message after it, so that
    /// the socket stays readable while there is another.
    ///
    /// # Errors
    /// If none comes any more, or it is too long.
    pub fn receive_now(&mut self) -> Result<Option<Vec<u8>>, SocketError> {
        if self.serves() && self.has_unsent() && !self.flush()? {
            return Ok(None);
        }
        loop {
            let has = self.incoming.len();
            let end = match self.incoming.first_chunk::<HEAD>() {
                None => HEAD,
                Some(head) => HEAD + u32::from_le_bytes(*head) as usize,
            };
            if end > HEAD + LONGEST {
                return Err(SocketError::Malformed("too long".into()));
            }
            if has >= HEAD && has == end {
                let mut message = std::mem::take(&mut self.incoming);
                message.drain(..HEAD);
                return Ok(Some(message));
            }
            self.incoming.resize(end, 0);
            let got = retry_on_intr(|| self.socket.receive(&mut self.incoming[has..]));
            self.incoming.truncate(has + got.unwrap_or_default());
            match got {
                Ok(0) => return Err(SocketError::Closed),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The same as for [`Self::receive_now`].
    pub fn receive(&mut self) -> Result<Vec<u8>, SocketError> {
        loop {
            if let Some(message) = self.receive_now()? {
                return Ok(message);
            }
            self.wait(if self.has_unsent() { PollFlags::OUT } else { PollFlags::IN })?;
        }
    }

    fn wait(&self, wanted: PollFlags) -> Result<(), SocketError> {
        let own = PollFd::new(&self.socket, wanted);
        let Some(life) = &self.life else {
            retry_on_intr(|| poll(&mut [own.clone()], None))?;
            return Ok(());
        };
        let mut wanted = [own, PollFd::new(life, PollFlags::RDHUP)];
        retry_on_intr(|| poll(&mut wanted, None))?;
        // The bytes that came before the end are still taken.
        if wanted[0].revents().is_empty() { Err(SocketError::Closed) } else { Ok(()) }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Stream, Stream) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        (Stream::new(a), Stream::serving(Arc::new(Untrusted::new(b, &Arc::default()).unwrap())))
    }

    #[test]
    fn messages_come_whole_however_they_travel() {
        let (a, mut b) = pair();
        let mut bytes = Vec::new();
        for message in [&b"first"[..], b"", b"third"] {
            bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
            bytes.extend_from_slice(message);
        }
        let mut got = Vec::new();
        for byte in bytes {
            rustix::net::send(&a, &[byte], SendFlags::empty()).unwrap();
            got.extend(b.receive_now().unwrap());
        }
        assert_eq!(got, [&b"first"[..], b"", b"third"]);
        drop(a);
        assert!(matches!(b.receive_now(), Err(SocketError::Closed)));
    }

    #[test]
    fn one_message_is_taken_at_a_time() {
        let (mut a, mut b) = pair();
        a.send(b"one").unwrap();
        a.send(b"two").unwrap();
        assert_eq!(b.receive_now().unwrap().unwrap(), b"one");
        let mut wanted = [PollFd::new(&b, PollFlags::IN)];
        poll(&mut wanted, None).unwrap();
        assert_eq!(b.receive().unwrap(), b"two");
        assert_eq!(b.receive_now().unwrap(), None);
        // The end comes in the middle of a message.
        rustix::net::send(&a, &[9, 0, 0, 0, 1], SendFlags::empty()).unwrap();
        assert_eq!(b.receive_now().unwrap(), None);
        drop(a);
        assert!(matches!(b.receive(), Err(SocketError::Closed)));
    }

    #[test]
    fn a_stream_ends_with_another() {
        let (mut a, mut b) = pair();
        let (life, end) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        a.end_with(life);
        b.send(b"last").unwrap();
        drop(end);
        assert_eq!(a.receive().unwrap(), b"last");
        assert!(matches!(a.receive(), Err(SocketError::Closed)));
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let (mut a, mut b) = pair();
        let longest = vec![7; LONGEST];
        std::thread::scope(|scope| {
            scope.spawn(|| a.send(&longest).unwrap());
            assert_eq!(b.receive().unwrap(), longest);
        });
        assert!(matches!(a.send(&vec![7; LONGEST + 1]), Err(SocketError::Malformed(_))));
        for len in [LONGEST as u32 + 1, u32::MAX] {
            let (a, mut b) = pair();
            rustix::net::send(&a, &len.to_le_bytes(), SendFlags::empty()).unwrap();
            assert!(matches!(b.receive_now(), Err(SocketError::Malformed(_))));
        }
    }

    #[test]
    fn nobody_waits_for_a_peer_that_never_reads() {
        let (mut a, mut b) = pair();
        let answer = vec![1; 40_000];
        let mut sent = 0;
        while !b.has_unsent() {
            b.send(&answer).unwrap();
            sent += 1;
        }
        let refused = b.send(&answer);
        assert!(matches!(refused, Err(SocketError::Kernel(Errno::NOBUFS))), "{refused:?}");
        assert!(b.unsent.len() <= answer.len() + HEAD);
        // The responder takes no requests meanwhile.
        a.send(b"more").unwrap();
        assert_eq!(b.receive_now().unwrap(), None);
        for _ in 0..sent {
            let _ = b.flush().unwrap();
            assert_eq!(a.receive().unwrap(), answer);
        }
        assert_eq!(b.receive_now().unwrap().unwrap(), b"more");
    }
}
