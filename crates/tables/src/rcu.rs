//! Read-copy-update with quiescent states: one current version of a value, read without locks and replaced as a whole.
//!
//! Each time a [`Reader`] pins, it announces the epoch of the version it pins, and thereby that it uses no older one.
//! A replaced version is freed by a writer, never by a reader, once every online reader has announced a later epoch. A
//! reader goes offline before it sleeps, so that it holds up nobody.
//!
//! The ordering argument, in one place:
//! A reader's announcement is a release store, and the writer reads it by an acquire load. So all reads of older
//!   versions happen before their memory is freed.
//! Between loading the current pointer and announcing its epoch, a reader still announces the same or an older
//!   version, so a writer frees neither.
//! Coming online is store, fence, load; replacing is store, fence, load, in the opposite roles (Dekker): either the
//!   writer sees the reader online and frees nothing, or the reader sees the new version.
use crate::sync::{Arc, AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError, fence, pause};
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Announced by a reader that reads nothing.
const OFFLINE: u64 = u64::MAX;
/// Announced by a reader that is about to pin for the first time: it may get any version.
const ANY: u64 = 0;

/// A version with its epoch; epochs count from 1 without gaps.
struct Version<T> {
    epoch: u64,
    value: T,
}

/// The epoch that a reader announces, on its own cache line.
#[repr(align(64))]
struct Slot {
    seen: AtomicU64,
}

/// A replaced version. Readers may still use it, so it is a raw pointer until it is dropped: a `Box` would claim
/// exclusive access.
struct Retired<T> {
    replaced_by: u64,
    version: *mut Version<T>,
}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw`. Since the version was replaced, only this struct owns it, and
        // only readers use it. It is dropped by `Writer::reclaim`, when those have announced a later version, or with
        // `Inner`, when there are no readers.
        drop(unsafe { Box::from_raw(self.version) });
    }
}

struct Inner<T> {
    current: AtomicPtr<Version<T>>,
    /// Replaced versions, oldest first. Also the writers' lock.
    retired: Mutex<VecDeque<Retired<T>>>,
    readers: Mutex<Vec<Arc<Slot>>>,
}

/// The writers' side of the value. Clones share the value.
pub struct Rcu<T>(Arc<Inner<T>>);

// SAFETY: `Inner` owns `T`s through raw pointers; moving it to another thread moves them.
unsafe impl<T: Send + Sync> Send for Inner<T> {}
// SAFETY: shared use hands out `&T` on many threads and drops `T`s on whichever thread writes.
unsafe impl<T: Send + Sync> Sync for Inner<T> {}

impl<T> Rcu<T> {
    /// Creates the first version, at epoch 1.
    pub fn new(value: T) -> Self {
        let first = Box::into_raw(Box::new(Version { epoch: 1, value }));
        Self(Arc::new(Inner {
            current: AtomicPtr::new(first),
            retired: Mutex::new(VecDeque::new()),
            readers: Mutex::new(Vec::new()),
        }))
    }

    /// Creates a reader, offline.
    pub fn reader(&self) -> Reader<T> {
        let slot = Arc::new(Slot { seen: AtomicU64::new(OFFLINE) });
        lock(&self.0.readers).push(Arc::clone(&slot));
        Reader { inner: Arc::clone(&self.0), slot, seen: OFFLINE, not_sync: PhantomData }
    }

    /// Takes the right to replace the value. Hold it only briefly.
    pub fn write(&self) -> Writer<'_, T> {
        Writer { inner: &self.0, retired: lock(&self.0.retired) }
    }

    /// Does the same, if nobody else has the right now.
    pub fn try_write(&self) -> Option<Writer<'_, T>> {
        let retired = match self.0.retired.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Writer { inner: &self.0, retired })
    }

    /// Returns whether no online reader uses a version older than `epoch` any more.
    pub fn settled(&self, epoch: u64) -> bool {
        self.0.oldest() >= epoch
    }

    /// Waits until [`Self::settled`], at most for `patience`: it spins first, since a burst takes microseconds, then
    /// sleeps in short naps. Returns whether it is settled. A thread that has a version pinned must not call this.
    pub fn wait(&self, epoch: u64, patience: Duration) -> bool {
        const SPINS: u32 = 256;
        const NAP: Duration = Duration::from_micros(50);
        for _ in 0..SPINS {
            if self.settled(epoch) {
                return true;
            }
            pause();
        }
        let deadline = Instant::now() + patience;
        while !self.settled(epoch) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(NAP);
        }
        true
    }
}

impl<T> Clone for Rcu<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Inner<T> {
    /// Returns the oldest epoch that an online reader may still use; [`OFFLINE`] if none is online.
    fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        lock(&self.readers).iter().map(|slot| slot.seen.load(Ordering::Acquire)).min().unwrap_or(OFFLINE)
    }
}

impl<T> Drop for Inner<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw`; readers and writers hold a reference to `Inner`, so none are
        // left.
        drop(unsafe { Box::from_raw(self.current.load(Ordering::Acquire)) });
    }
}

pub struct Writer<'a, T> {
    inner: &'a Inner<T>,
    retired: MutexGuard<'a, VecDeque<Retired<T>>>,
}

impl<T> Writer<'_, T> {
    /// Returns the current value. It stays current as long as this writer lives.
    pub fn current(&self) -> &T {
        &self.version().value
    }

    pub fn next_epoch(&self) -> u64 {
        self.version().epoch + 1
    }

    fn version(&self) -> &Version<T> {
        // SAFETY: only a writer replaces and frees versions, we hold the writers' lock for the lifetime of the
        // reference, and `publish` consumes `self`.
        unsafe { &*self.inner.current.load(Ordering::Acquire) }
    }

    /// Makes `value` the current version at once and returns its epoch. The replaced version waits for its grace
    /// period.
    pub fn publish(mut self, value: T) -> u64 {
        let epoch = self.next_epoch();
        let new = Box::into_raw(Box::new(Version { epoch, value }));
        let old = self.inner.current.swap(new, Ordering::AcqRel);
        self.retired.push_back(Retired { replaced_by: epoch, version: old });
        epoch
    }

    /// Frees the versions whose grace period is over, after releasing the lock. Returns how many still wait.
    pub fn reclaim(mut self) -> usize {
        let oldest = self.inner.oldest();
        let over = self.retired.iter().take_while(|old| old.replaced_by <= oldest).count();
        let freed: Vec<_> = self.retired.drain(..over).collect();
        let waiting = self.retired.len();
        drop(self);
        drop(freed);
        waiting
    }

    /// Returns the number of versions that wait for their grace period.
    pub fn waiting(&self) -> usize {
        self.retired.len()
    }
}

/// One thread's right to read. It starts offline.
pub struct Reader<T> {
    inner: Arc<Inner<T>>,
    slot: Arc<Slot>,
    /// The slot's content, known without reading the slot.
    seen: u64,
    /// Only one thread at a time may announce.
    not_sync: PhantomData<Cell<()>>,
}

impl<T> Reader<T> {
    /// Pins the current version and announces that no earlier one is used: a quiescent state. Costs one acquire load,
    /// and one store if the version changed since last time. Call it (or [`Self::offline`]) at least once per burst:
    /// writers wait for it.
    #[inline]
    pub fn pin(&mut self) -> Pinned<'_, T> {
        if self.seen == OFFLINE {
            self.online();
        }
        let current = self.inner.current.load(Ordering::Acquire);
        // SAFETY: our slot announces the epoch of this version or an older one (`ANY` is older than all) until the
        // store below, which announces exactly this one. While it does, no writer frees this version. The reference
        // borrows `self`, and every change of the slot needs `&mut self`.
        let version = unsafe { &*current };
        if version.epoch != self.seen {
            self.slot.seen.store(version.epoch, Ordering::Release);
            self.seen = version.epoch;
        }
        Pinned { version }
    }

    /// Announces that nothing is read until the next [`Self::pin`] or [`Self::online`]. Call it before sleeping.
    pub fn offline(&mut self) {
        self.slot.seen.store(OFFLINE, Ordering::Release);
        self.seen = OFFLINE;
    }

    /// Reverses [`Self::offline`]. [`Self::pin`] does it when necessary; an early call keeps the fence off
    /// the first burst.
    pub fn online(&mut self) {
        if self.seen == OFFLINE {
            self.slot.seen.store(ANY, Ordering::Relaxed);
            self.seen = ANY;
            fence(Ordering::SeqCst);
        }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.offline();
        lock(&self.inner.readers).retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

/// A version in use. Keep it for one burst, no longer.
pub struct Pinned<'a, T> {
    version: &'a Version<T>,
}

impl<'a, T> Pinned<'a, T> {
    pub fn epoch(&self) -> u64 {
        self.version.epoch
    }

    /// Returns the value, for as long as the pin's reader is not used again.
    pub fn get(&self) -> &'a T {
        &self.version.value
    }
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.version.value
    }
}

/// Locks a mutex. A panic leaves no state guarded here half-changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod interleavings;
#[cfg(all(test, not(loom)))]
mod tests;
