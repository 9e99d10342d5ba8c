//! The source of the device's events, for which programs sleep.
//!
//! Programs poll a descriptor that is readable if there is an event for them, or the device is gone. The socket alone
//! would show neither: it carries events of destroyed objects, and peers that share memory also have the device's end
//! of it, and keep that when the device dies.

use crate::errno::Outcome;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SocketType, recv};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A source of events of `N` bytes each.
#[derive(Debug)]
pub struct Feed<const N: usize> {
    socket: OwnedFd,
    /// Whether the socket is a stream, which has no boundaries between events.
    is_stream: bool,
    waiting: Mutex<Waiting<N>>,
    /// Readable while events wait.
    any: OwnedFd,
    /// The descriptor that programs poll.
    all: OwnedFd,
}

/// Events that were taken from the socket.
#[derive(Debug)]
struct Waiting<const N: usize> {
    /// Events that [`Feed::forget`] examined and kept.
    events: VecDeque<[u8; N]>,
    /// The event that is arriving, and the number of its bytes that have come.
    next: ([u8; N], usize),
}

impl<const N: usize> Feed<N> {
    /// Creates a source of the events that come from a socket, until the socket or `life` ends.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(socket: OwnedFd, life: Option<BorrowedFd<'_>>) -> Outcome<Self> {
        Self::make(socket, life).map_err(Errno::raw_os_error)
    }

    fn make(socket: OwnedFd, life: Option<BorrowedFd<'_>>) -> rustix::io::Result<Self> {
        let any = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, wanted| epoll::add(&all, fd, epoll::EventData::new_u64(0), wanted);
        add(socket.as_fd(), epoll::EventFlags::IN)?;
        add(any.as_fd(), epoll::EventFlags::IN)?;
        // Only its end matters here.
        life.map_or(Ok(()), |life| add(life, epoll::EventFlags::RDHUP))?;
        let is_stream = socket_type(&socket)? == SocketType::STREAM;
        let waiting = Mutex::new(Waiting { events: VecDeque::new(), next: ([0; N], 0) });
        Ok(Self { socket, is_stream, waiting, any, all })
    }

    /// Returns the number of the descriptor that programs poll, and may make non-blocking.
    pub fn number(&self) -> c_int {
        self.all.as_raw_fd()
    }

    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<N>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next event; returns `None` if the device is gone.
    ///
    /// # Errors
    /// `EAGAIN` if there is none, and the program does not want to wait; `EINTR`.
    pub fn next(&self, life: BorrowedFd<'_>) -> Outcome<Option<[u8; N]>> {
        self.wait(life).map_err(Errno::raw_os_error)
    }

    fn wait(&self, life: BorrowedFd<'_>) -> rustix::io::Result<Option<[u8; N]>> {
        loop {
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            match self.receive(&mut self.waiting()) {
                Err(Errno::AGAIN) => {}
                // The streams of a virtual machine that has moved to another host end with these errors.
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Ok(None),
                other => return other,
            }
            let mut wanted = [
                PollFd::from_borrowed_fd(life, PollFlags::RDHUP),
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&self.any, PollFlags::IN),
            ];
            let waits = !fcntl_getfl(&self.all)?.contains(OFlags::NONBLOCK);
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut wanted, (!waits).then_some(&now))? == 0 {
                return Err(Errno::AGAIN);
            }
            let [life, others @ ..] = &wanted;
            // Events from before the end come first.
            if !life.revents().is_empty() && others.iter().all(|other| other.revents().is_empty()) {
                return Ok(None);
            }
        }
    }

    fn take(&self) -> Option<[u8; N]> {
        let mut waiting = self.waiting();
        let taken = waiting.events.pop_front()?;
        if waiting.events.is_empty() {
            let _ = rustix::io::read(&self.any, &mut [0; 8]);
        }
        Some(taken)
    }

    /// Receives the next event from the socket; returns `None` if the socket ended.
    fn receive(&self, waiting: &mut Waiting<N>) -> rustix::io::Result<Option<[u8; N]>> {
        let (event, has) = &mut waiting.next;
        loop {
            match recv(&self.socket, &mut event[*has..], RecvFlags::DONTWAIT)?.0 {
                0 => return Ok(None),
                len if *has + len == N => {
                    *has = 0;
                    return Ok(Some(*event));
                }
                // Others than the device may write to a socket with boundaries, so a message may have any length.
                len if self.is_stream => *has += len,
                _ => {}
            }
        }
    }

    /// Drops the events of a destroyed object; the device sends no more of them.
    pub fn forget(&self, is_its: impl Fn([u8; N]) -> bool) {
        let mut waiting = self.waiting();
        while let Ok(Some(event)) = self.receive(&mut waiting) {
            waiting.events.push_back(event);
        }
        waiting.events.retain(|event| !is_its(*event));
        if waiting.events.is_empty() {
            let _ = rustix::io::read(&self.any, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.any, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, send, socketpair};

    fn feed(kind: SocketType) -> (Feed<8>, OwnedFd, OwnedFd, OwnedFd) {
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let ((ours, theirs), (life, end)) = (pair(kind), pair(SocketType::STREAM));
        let feed = Feed::new(ours, Some(life.as_fd())).unwrap();
        rustix::io::ioctl_fionbio(&feed.all, true).unwrap();
        (feed, theirs, life, end)
    }

    #[test]
    fn events_come_whole_over_a_stream() {
        let (feed, device, life, end) = feed(SocketType::STREAM);
        let next = || feed.next(life.as_fd());
        let bytes: Vec<u8> = (0..24).collect();
        for (at, part) in [(0, 3), (3, 4), (7, 1), (8, 11), (19, 5)] {
            send(&device, &bytes[at..at + part], SendFlags::empty()).unwrap();
            if at + part == 24 {
                // The second one was dropped, although only a part of it had come.
                feed.forget(|event| event[0] == 8);
                assert_eq!(next(), Ok(Some([16, 17, 18, 19, 20, 21, 22, 23])));
            } else if at + part == 8 {
                assert_eq!(next(), Ok(Some([0, 1, 2, 3, 4, 5, 6, 7])));
            } else if at < 8 {
                assert_eq!(next(), Err(libc::EAGAIN));
            }
        }
        send(&device, &bytes[..8], SendFlags::empty()).unwrap();
        drop(end);
        assert_eq!((next(), next()), (Ok(Some([0, 1, 2, 3, 4, 5, 6, 7])), Ok(None)));
    }

    /// The streams of a virtual machine end with an error when it has moved to another host.
    #[test]
    fn a_stream_that_ends_by_an_error_has_ended() {
        let (feed, device, life, _end) = feed(SocketType::STREAM);
        send(&feed.socket, &[1], SendFlags::empty()).unwrap();
        drop(device);
        assert_eq!(feed.next(life.as_fd()), Ok(None));
    }

    #[test]
    fn nonsense_of_others_does_not_shift_events_with_boundaries() {
        let (feed, device, life, _end) = feed(SocketType::SEQPACKET);
        send(&device, &[1, 2, 3], SendFlags::empty()).unwrap();
        send(&device, &[7; 8], SendFlags::empty()).unwrap();
        assert_eq!(feed.next(life.as_fd()), Ok(Some([7; 8])));
        drop(device);
        assert_eq!(feed.next(life.as_fd()), Ok(None));
    }
}
