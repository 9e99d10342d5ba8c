//! The descriptor on which a worker sleeps. It stays when the socket behind it is replaced.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Polls readable whenever the watched descriptor does.
pub(crate) struct Events {
    epoll: OwnedFd,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches `fd`, until it is closed or [`Events::forget`].
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)?)
    }

    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
