//! A value that one thread at a time may take, without sleeping.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How often a thread checks a lease that a different thread holds before it gives up. Waiting longer than a
/// burst of system calls takes would only burn cycles that packets need.
const SPINS: u32 = 4096;

/// A value that a thread leases with one compare-and-swap and a bounded spin.
pub struct Lease<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `held` admits one thread at a time to the value, so the value need only be Send.
unsafe impl<T: Send> Sync for Lease<T> {}

/// Ends the lease, even if the holder panics.
struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<T> std::fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("held", &self.held).finish_non_exhaustive()
    }
}

impl<T> Lease<T> {
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `f` on the value; `None` if a different thread held it for too long.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut spins = 0;
        while self.held.load(Relaxed)
            || self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_err()
        {
            spins += 1;
            if spins > SPINS {
                return None;
            }
            spin_loop();
        }
        let _held = Held(&self.held);
        // SAFETY: the exchange above gave this thread the value until `_held` is dropped.
        Some(f(unsafe { &mut *self.value.get() }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time_has_the_lease() {
        let rounds = if cfg!(miri) { 100 } else { 10_000 };
        let lease = Arc::new(Lease::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lease = lease.clone();
                std::thread::spawn(move || (0..rounds).filter(|_| lease.with(|n| *n += 1).is_some()).count())
            })
            .collect();
        let taken: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(lease.with(|n| *n), Some(taken as u64));
    }

    #[test]
    fn refused_while_held_and_free_after_a_panic() {
        let lease = Lease::new(());
        assert_eq!(lease.with(|()| lease.with(|()| ())), Some(None));
        assert!(format!("{lease:?}").contains("held: false"));
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lease.with(|()| panic!("on purpose"))));
        assert!(panicked.is_err());
        assert_eq!(lease.with(|()| ()), Some(()));
    }
}
