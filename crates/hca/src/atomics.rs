//! Atomic operations of a device are atomic towards each other (`IBV_ATOMIC_HCA`), whoever's thread does them:
//! contexts of one program, or programs, may have the same memory.
//!
//! What is done by system calls is done by one at a time. Who does it may stand still at a page that does not come:
//! others wait for a moment. Those of the same address space then leave the request without an answer, as they would
//! if it were their own page; all others go on. So a program holds up itself alone.

use crate::address_space::Identity;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one may take, and how long one waits for others.
const PATIENCE: Duration = Duration::from_millis(20);

/// Who does an atomic operation.
#[derive(Debug)]
struct Holder {
    of: Identity,
    since: Instant,
}

/// The turn, which one has at a time, but for those that stand still: of each address space one at most.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    holders: Mutex<Vec<Holder>>,
    free: Condvar,
}

/// The turn is given back with it.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    turn: &'a Turn,
    of: Identity,
}

impl Turn {
    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it for memory of this address space; `None` where another of the same has it for too long, or too many
    /// want it.
    pub fn take(&self, of: Identity) -> Option<Taken<'_>> {
        let start = Instant::now();
        let mut holders = self.holders();
        loop {
            let now = Instant::now();
            let is_late = |since: Instant| now.duration_since(since) >= PATIENCE;
            let Some(first) = holders.iter().find(|it| it.of == of || !is_late(it.since)) else { break };
            let since = start.min(first.since);
            if is_late(since) {
                return None;
            }
            let left = PATIENCE - now.duration_since(since);
            holders = self.free.wait_timeout(holders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        holders.push(Holder { of, since: Instant::now() });
        Some(Taken { turn: self, of })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut holders = self.turn.holders();
        holders.retain(|it| it.of != self.of);
        // Who waits may not be one that may have it, where others have it too.
        if holders.is_empty() { self.turn.free.notify_one() } else { self.turn.free.notify_all() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const ONE: Identity = (1, 1);
    const OTHER: Identity = (1, 2);

    #[test]
    fn one_has_it_at_a_time() {
        let (turn, inside, done) = (Turn::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let Some(_taken) = turn.take(ONE) else { continue };
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
    fn who_keeps_it_stops_its_own_address_space_alone() {
        let turn = Turn::default();
        let kept = turn.take(ONE).unwrap();
        assert!(turn.take(ONE).is_none());
        for _ in 0..2 {
            drop(turn.take(OTHER).unwrap());
            assert!(turn.take(ONE).is_none());
        }
        drop(kept);
        assert!(turn.take(ONE).is_some());
    }
}
