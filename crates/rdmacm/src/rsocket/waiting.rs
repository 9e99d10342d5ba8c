//! Threads that sleep until something has happened to a socket. A thread registers first, then checks once more, and
//! then sleeps; whoever changes a socket wakes the registered threads.

use crate::device::lock;
use crate::error::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for which a thread checks again and again before it sleeps.
pub const SPIN: Duration = Duration::from_micros(10);

/// An event descriptor that wakes a thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Returns this thread's waker.
    pub fn of_thread() -> Result<Arc<Self>, Errno> {
        thread_local!(static OWN: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) });
        let own = OWN.try_with(|own| match &mut *own.borrow_mut() {
            Some(own) => Ok(own.clone()),
            none => Ok(none.insert(Self::new()?).clone()),
        });
        // The thread-local waker is already gone in a thread that ends the program.
        own.unwrap_or_else(|_| Self::new())
    }

    fn new() -> Result<Arc<Self>, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears the waker, after the thread has slept.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Returns the descriptor, which is readable once the thread was woken.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug, Default)]
pub struct Watchers {
    list: Mutex<Vec<Arc<Waker>>>,
    is_closed: AtomicBool,
}

impl Watchers {
    /// Registers a thread that is about to sleep.
    pub fn add(&self, waker: &Arc<Waker>) {
        lock(&self.list).push(waker.clone());
    }

    /// Removes a thread that no longer sleeps.
    pub fn remove(&self, waker: &Arc<Waker>) {
        let mut list = lock(&self.list);
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, waker)) {
            list.swap_remove(at);
        }
    }

    /// Wakes all registered threads, because the socket has changed.
    pub fn wake(&self) {
        lock(&self.list).iter().for_each(|waker| waker.wake());
    }

    /// Notes that the socket is closed, and wakes all threads: nobody may sleep for it any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// Sleeps until one of the descriptors is readable, or until the deadline: then `EAGAIN`.
pub fn sleep(fds: &[BorrowedFd<'_>], waker: &Waker, deadline: Option<Instant>) -> Result<(), Errno> {
    let all = fds.iter().copied().chain([waker.fd()]);
    let mut wanted: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let slept = rustix::event::poll(&mut wanted, left(deadline).as_ref());
    waker.clear();
    if slept? == 0 { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
}

pub fn left(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now());
    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
}
