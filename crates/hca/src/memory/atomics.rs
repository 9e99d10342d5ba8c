//! Makes atomic operations of a device atomic with respect to each other (`IBV_ATOMIC_HCA`), whichever thread executes
//! them: several contexts, of one or several programs, may share memory.
//!
//! Operations that need system calls take turns. A thread may stop in its turn at a page that does not arrive; then
//! the others wait for a moment. After that, operations on the same address space stay unanswered, as if they
//! themselves waited for that page; all others continue. So a program delays only itself.

use crate::memory::address_space::Identity;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time for which a thread may keep its turn, and for which others wait for it.
const PATIENCE: Duration = Duration::from_millis(20);

/// An atomic operation in progress.
#[derive(Debug)]
struct Operation {
    of: Identity,
    since: Instant,
}

/// The turns of atomic operations. One thread has the turn at a time, besides those that are stopped; there is at most
/// one for each address space.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    operations: Mutex<Vec<Operation>>,
    free: Condvar,
}

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct TurnGuard<'a> {
    turn: &'a Turns,
    of: Identity,
}

impl Turns {
    fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn for memory of this address space. `None` if another operation on the same one holds it for too
    /// long, or too many threads want it.
    pub fn take(&self, of: Identity) -> Option<TurnGuard<'_>> {
        let start = Instant::now();
        let mut operations = self.operations();
        loop {
            let now = Instant::now();
            let is_late = |since: Instant| now.duration_since(since) >= PATIENCE;
            let Some(first) = operations.iter().find(|it| it.of == of || !is_late(it.since)) else { break };
            let since = start.min(first.since);
            if is_late(since) {
                return None;
            }
            let left = PATIENCE - now.duration_since(since);
            operations = self.free.wait_timeout(operations, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        operations.push(Operation { of, since: Instant::now() });
        Some(TurnGuard { turn: self, of })
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut operations = self.turn.operations();
        operations.retain(|it| it.of != self.of);
        // While others are stopped, some of the waiting threads may not take the turn yet, so all are woken.
        if operations.is_empty() { self.turn.free.notify_one() } else { self.turn.free.notify_all() }
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
        let (turn, inside, done) = (Turns::default(), AtomicU32::new(0), AtomicU32::new(0));
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
        let turn = Turns::default();
        let held = turn.take(ONE).unwrap();
        assert!(turn.take(ONE).is_none());
        for _ in 0..2 {
            drop(turn.take(OTHER).unwrap());
            assert!(turn.take(ONE).is_none());
        }
        drop(held);
        assert!(turn.take(ONE).is_some());
    }
}
