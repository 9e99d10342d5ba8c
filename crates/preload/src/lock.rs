//! Locks of a connection's directions, in memory that a program shares with its forks. They are held to copy, never to
//! sleep for the peer.

use crate::sys;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number of this thread.
fn own_number() -> u32 {
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(sys::thread_number());
        }
        number.get()
    })
}

/// Forgets the number of the thread, which is another one in a fork.
pub fn forget_number() {
    THREAD.with(|number| number.set(0));
}

#[derive(Default)]
pub struct Lock<T> {
    owner: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by who holds the lock.
unsafe impl<T: Send> Sync for Lock<T> {}

pub struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// Takes the lock. `None`: the thread has it already, because it is in the handler of a signal that interrupted it
    /// there.
    pub fn take(&self) -> Option<Held<'_, T>> {
        let own = own_number();
        let mut turn = 0_u32;
        loop {
            let Err(owner) = self.owner.compare_exchange_weak(0, own, Ordering::SeqCst, Ordering::Relaxed)
            else {
                return Some(Held(self));
            };
            if owner == own {
                return None;
            }
            turn += 1;
            if turn < 200 {
                std::hint::spin_loop();
                continue;
            }
            sys::nap(20);
            // Who was killed while he held it has published nothing of what he did.
            if turn.is_multiple_of(1000) && owner != 0 && !sys::is_alive(owner) {
                _ = self.owner.compare_exchange(owner, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// Frees the lock in a fork, whose only thread does not have it.
    pub fn free(&self) {
        self.owner.store(0, Ordering::SeqCst);
    }

    /// Makes the lock new, with a value.
    ///
    /// # Safety
    /// Nobody else has the lock or takes it.
    pub unsafe fn renew(&self, value: T) {
        // SAFETY: the caller promises that nobody reaches it.
        unsafe { *self.value.get() = value };
        self.owner.store(0, Ordering::SeqCst);
    }
}

impl<T> std::ops::Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> std::ops::DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Release);
    }
}
