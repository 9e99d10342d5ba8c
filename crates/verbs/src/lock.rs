//! Locks: for queues, which the C interface keeps locked between calls, and for what programs wait for.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The state of a lock that is held, and for which a thread sleeps.
const AWAITED: u32 = 2;

/// Attempts before a thread sleeps: a lock is held for less time than sleeping and waking take.
const SPINS: u32 = 100;

/// A lock that one call may leave locked, and a later call unlocks.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock uses the value, one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.try_acquire().then(|| Guard(self))
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Locks until [`Self::release`].
    #[inline]
    pub fn acquire(&self) {
        if !self.try_acquire() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE && self.try_acquire() {
                return;
            }
            std::hint::spin_loop();
        }
        // A thread that gets here can't know whether others sleep too.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, AWAITED);
        }
    }

    fn futex(&self, operation: c_int, value: u32) {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: a word that exists while `self` is borrowed.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                &raw const self.state,
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                none,
            )
        };
    }

    /// Unlocks.
    ///
    /// # Safety
    /// The caller must have locked with [`Self::acquire`], and no longer use anything from [`Self::held`].
    #[inline]
    pub unsafe fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == AWAITED {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }

    /// Returns the value that the lock guards.
    ///
    /// # Safety
    /// The caller must have locked with [`Self::acquire`], and have no other reference to the value.
    #[allow(clippy::mut_from_ref)] // the lock is held
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }
}

pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it was acquired when the guard was made, and the guard is being dropped.
        unsafe { self.0.release() };
    }
}

/// Counts acknowledged events in an object of the C interface.
///
/// # Safety
/// The three pointers must belong to an object that is alive.
pub unsafe fn acknowledge(
    mutex: *mut libc::pthread_mutex_t,
    condition: *mut libc::pthread_cond_t,
    completed: *mut u32,
    events: u32,
) {
    // SAFETY: the caller's promise; the counter is used under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *completed = (*completed).wrapping_add(events);
        libc::pthread_cond_broadcast(condition);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Waits until all delivered events are acknowledged.
///
/// # Safety
/// The same as for [`acknowledge`].
pub unsafe fn wait_for_acknowledgements(
    mutex: *mut libc::pthread_mutex_t,
    condition: *mut libc::pthread_cond_t,
    completed: *const u32,
    delivered: u32,
) {
    // SAFETY: the caller's promise; the counter is used under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while completed.read_volatile() != delivered {
            libc::pthread_cond_wait(condition, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        let lock = Lock::new(0);
        lock.acquire();
        // A thread that does not get the lock leaves it to the holder.
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        // SAFETY: acquired above, released here.
        unsafe {
            *lock.held() = 1;
            lock.release();
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4001);
    }
}
