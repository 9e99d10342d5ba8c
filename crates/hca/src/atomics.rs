//! Atomic operations of a device are atomic towards each other (`IBV_ATOMIC_HCA`), whoever's thread does them: contexts of
//! one program, or programs, may have the same memory.
//!
//! What is done by system calls is done by one at a time. Who does it may stand still at a page that does not come: others
//! wait for a moment, and then leave the request without an answer, as they would if it were their own page.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one may take, and how long one waits for others, before it is given up.
const PATIENCE: Duration = Duration::from_millis(20);

/// The turn, which one has at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Since when somebody has it.
    taken: Mutex<Option<Instant>>,
    free: Condvar,
}

/// The turn is given back with it.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Turn {
    fn taken(&self) -> MutexGuard<'_, Option<Instant>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it; `None` where one has it for too long, or too many want it.
    pub fn take(&self) -> Option<Taken<'_>> {
        let now = Instant::now();
        let mut taken = self.taken();
        while let Some(since) = *taken {
            let left = PATIENCE.checked_sub(now.min(since).elapsed()).filter(|left| !left.is_zero())?;
            taken = self.free.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = Some(Instant::now());
        Some(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken() = None;
        self.0.free.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_has_it_at_a_time() {
        let (turn, inside, done) = (Turn::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let Some(_taken) = turn.take() else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(done.into_inner() > 0);
    }

    #[test]
    fn who_keeps_it_stops_nobody() {
        let turn = Turn::default();
        let kept = turn.take().unwrap();
        assert!(turn.take().is_none() && turn.take().is_none());
        drop(kept);
        assert!(turn.take().is_some());
    }
}
