//! Locks: of queues, which the C interface keeps locked from one call to another, and of what programs wait for.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A lock that may be left locked by one call and unlocked by the next.
pub struct Lock<T> {
    raw: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by who holds the lock, one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above; nobody holds a lock that is moved.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self { raw: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: it was initialised, and stays where it is while `self` is borrowed.
        (unsafe { libc::pthread_mutex_trylock(self.raw.get()) } == 0).then_some(Guard(self))
    }

    /// Locks until [`Self::release`].
    pub fn acquire(&self) {
        // SAFETY: as in `try_lock`.
        unsafe { libc::pthread_mutex_lock(self.raw.get()) };
    }

    /// Unlocks.
    ///
    /// # Safety
    /// The caller must hold the lock by [`Self::acquire`], and use nothing of [`Self::held`] any more.
    pub unsafe fn release(&self) {
        // SAFETY: as in `try_lock`.
        unsafe { libc::pthread_mutex_unlock(self.raw.get()) };
    }

    /// What it guards.
    ///
    /// # Safety
    /// The caller must hold the lock by [`Self::acquire`], and have no other reference to the value.
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
        // SAFETY: it was acquired when the guard was made, and the guard is going.
        unsafe { self.0.release() };
    }
}

/// Counts events that were acknowledged, in an object of the C interface.
///
/// # Safety
/// The three must be those of an object that is alive.
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

/// Waits until as many events were acknowledged as were delivered.
///
/// # Safety
/// As of [`acknowledge`].
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
    fn one_at_a_time() {
        let lock = Lock::new(0);
        lock.acquire();
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
