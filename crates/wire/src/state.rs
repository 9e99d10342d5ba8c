//! The state that the queues of a port share: whether it is up, its losses, and the current socket.

use arrayvec::ArrayVec;
use mem::{NoRoom, Refusal};
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, PoisonError};

const ETHERNET: usize = 14;

/// Bytes of a VLAN tag, by which a frame may be longer than the MTU allows.
pub(crate) const TAG: usize = 4;

/// Returns why the kernel refused a frame: it does not fit, the device is gone or down, or there is no room.
pub(crate) fn why(error: &io::Error) -> NoRoom {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE | libc::EINVAL) => NoRoom::TooLong,
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADFD | libc::EIO) => NoRoom::Down,
        _ => NoRoom::Full,
    }
}

/// Whether a port is up, its MTU if that matters, and its counters.
#[derive(Debug, Default)]
pub(crate) struct State {
    up: AtomicBool,
    mtu: AtomicU32,
    pub malformed: Counter,
    pub lost: Counter,
    pub refused: Counter,
}

impl State {
    pub(crate) fn up(&self) -> bool {
        self.up.load(Relaxed)
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Relaxed);
    }

    /// Returns the length of the longest untagged frame, in bytes.
    pub(crate) fn longest(&self) -> usize {
        ETHERNET + self.mtu.load(Relaxed) as usize
    }

    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Relaxed);
    }
}

/// Counts rare events.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Frames of a burst that the kernel refused.
#[derive(Debug, Default)]
pub(crate) struct Refusals(ArrayVec<Refusal, 16>);

impl Refusals {
    /// Adds frames that follow those added before. If there is no place left, they share a place, and the reason, with
    /// those before.
    pub(crate) fn add(&mut self, refusal: Refusal) {
        let is_full = self.0.is_full();
        match self.0.last_mut() {
            Some(last) if is_full || last.why == refusal.why && last.frames.end == refusal.frames.start => {
                last.frames.end += refusal.frames.len();
                last.bytes += refusal.bytes;
            }
            _ => self.0.push(refusal),
        }
    }

    /// Passes all to `each`, and forgets them.
    pub(crate) fn take(&mut self, each: &mut dyn FnMut(Refusal)) {
        self.0.drain(..).for_each(each);
    }
}

/// A value that a queue works with. It is replaced when the device comes back.
#[derive(Debug)]
pub(crate) struct Current<T> {
    generation: AtomicU32,
    value: Mutex<T>,
}

impl<T: Clone> Current<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { generation: AtomicU32::new(0), value: Mutex::new(value) }
    }

    pub(crate) fn replace(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
        self.generation.fetch_add(1, Release);
    }

    pub(crate) fn get(&self) -> T {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A queue's own copy of a [`Current`]. Reading it takes no lock while nothing changes.
#[derive(Debug)]
pub(crate) struct Follower<T> {
    seen: u32,
    pub value: T,
}

impl<T: Clone> Follower<T> {
    pub(crate) fn new(current: &Current<T>) -> Self {
        Self { seen: current.generation.load(Acquire), value: current.get() }
    }

    /// Takes over the new value if it was replaced.
    pub(crate) fn follow(&mut self, current: &Current<T>) {
        let generation = current.generation.load(Acquire);
        if generation != self.seen {
            self.seen = generation;
            self.value = current.get();
        }
    }
}

/// Passes one value to a queue, which checks for it without a lock while there is none.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    full: AtomicBool,
    value: Mutex<Option<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { full: AtomicBool::new(false), value: Mutex::new(None) }
    }
}

impl<T> Mailbox<T> {
    /// Puts a value in. It replaces a value that was not taken yet.
    pub(crate) fn put(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.full.store(true, Release);
    }

    pub(crate) fn take(&self) -> Option<T> {
        if !self.full.load(Relaxed) || !self.full.swap(false, Acquire) {
            return None;
        }
        self.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_the_latest() {
        let current = Current::new(1);
        let mut follower = Follower::new(&current);
        current.replace(2);
        current.replace(3);
        assert_eq!(follower.value, 1);
        follower.follow(&current);
        assert_eq!((follower.value, current.get()), (3, 3));
    }

    #[test]
    fn a_mailbox_gives_the_latest_once() {
        let mailbox = Mailbox::default();
        assert_eq!(mailbox.take(), None);
        mailbox.put(1);
        mailbox.put(2);
        assert_eq!((mailbox.take(), mailbox.take()), (Some(2), None));
    }
}
