//! The source of the device's events, for which programs sleep.
//!
//! Programs poll a descriptor that is readable if there is an event for them, or the device is gone. The socket alone
//! would show neither: it carries events of destroyed objects, and peers that share memory also have the device's end
//! of it, and keep that when the device dies.

use crate::errno::Outcome;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events of `N` bytes each.
#[derive(Debug)]
pub struct Feed<const N: usize> {
    socket: OwnedFd,
    /// Events that were taken from the socket because they had to be examined.
    waiting: Mutex<VecDeque<[u8; N]>>,
    /// Readable while there are some.
    any: OwnedFd,
    /// What programs poll.
    all: OwnedFd,
}

impl<const N: usize> Feed<N> {
    /// Events from a socket, until it or `life` ends.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(socket: OwnedFd, life: Option<BorrowedFd<'_>>) -> Outcome<Self> {
        Self::make(socket, life).map_err(Errno::raw_os_error)
    }

    fn make(socket: OwnedFd, life: Option<BorrowedFd<'_>>) -> rustix::io::Result<Self> {
        let any = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, wanted| epoll::add(&all, fd, epoll::EventData::new_u64(0), wanted);
        add(socket.as_fd(), epoll::EventFlags::IN)?;
        add(any.as_fd(), epoll::EventFlags::IN)?;
        // Its end is reported without being requested; nothing else from it matters here.
        life.map_or(Ok(()), |life| add(life, epoll::EventFlags::empty()))?;
        Ok(Self { socket, waiting: Mutex::default(), any, all })
    }

    /// Number of the descriptor that programs poll, and may make non-blocking.
    pub fn number(&self) -> c_int {
        self.all.as_raw_fd()
    }

    /// The socket.
    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<[u8; N]>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next event; `None` if the device is gone.
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
            match self.receive() {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
            let mut wanted = [
                PollFd::from_borrowed_fd(life, PollFlags::empty()),
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

    /// Takes a waiting event.
    fn take(&self) -> Option<[u8; N]> {
        let mut waiting = self.waiting();
        let taken = waiting.pop_front()?;
        if waiting.is_empty() {
            let _ = rustix::io::read(&self.any, &mut [0; 8]);
        }
        Some(taken)
    }

    /// The next event from the socket; `None` if that ended.
    fn receive(&self) -> rustix::io::Result<Option<[u8; N]>> {
        let mut event = [0; N];
        loop {
            match recv(&self.socket, &mut event, RecvFlags::DONTWAIT)?.0 {
                0 => return Ok(None),
                len if len == N => return Ok(Some(event)),
                _ => {}
            }
        }
    }

    /// Drops events of a destroyed object; the device sends no more of them.
    pub fn forget(&self, is_its: impl Fn([u8; N]) -> bool) {
        let mut waiting = self.waiting();
        while let Ok(Some(event)) = self.receive() {
            waiting.push_back(event);
        }
        waiting.retain(|event| !is_its(*event));
        if waiting.is_empty() {
            let _ = rustix::io::read(&self.any, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&self.any, &1_u64.to_ne_bytes());
        }
    }
}
