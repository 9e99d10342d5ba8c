//! Every interleaving of a replacement that the memory model allows: `RUSTFLAGS="--cfg loom" cargo test -p tables
//! --lib --release rcu`.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;

/// A value that detects a drop during a read: loom reports accesses that nothing orders.
struct Tracked(UnsafeCell<u64>);

const DEAD: u64 = u64::MAX;

impl Tracked {
    fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that no write is concurrent.
        let value = self.0.with(|p| unsafe { *p });
        assert_ne!(value, DEAD, "freed while in use");
        value
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // SAFETY: loom checks that no other access is concurrent.
        self.0.with_mut(|p| unsafe { *p = DEAD });
    }
}

// SAFETY: this is what loom checks.
unsafe impl Sync for Tracked {}

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

#[test]
fn versions_outlive_their_readers() {
    explore(|| {
        let rcu = Rcu::new(Tracked::new(1));
        let mut reader = rcu.reader();
        let thread = thread::spawn(move || {
            let first = reader.pin().read();
            let second = reader.pin().read();
            assert!(first <= second, "versions only advance");
            reader.offline();
            assert!(reader.pin().read() >= second);
        });
        for value in 2..4 {
            rcu.write().publish(Tracked::new(value));
            rcu.write().reclaim();
        }
        thread.join().unwrap();
        assert_eq!(rcu.write().reclaim(), 0, "without readers all is freed");
    });
}

#[test]
fn settled_means_that_nobody_uses_what_was_before() {
    explore(|| {
        let rcu = Rcu::new(Tracked::new(1));
        let settled = Arc::new(AtomicBool::new(false));
        let mut reader = rcu.reader();
        let thread = {
            let settled = Arc::clone(&settled);
            thread::spawn(move || {
                for _ in 0..2 {
                    let pinned = reader.pin();
                    if pinned.read() == 1 {
                        assert!(!settled.load(Ordering::Acquire), "the old version is in use");
                    }
                }
            })
        };
        let epoch = rcu.write().publish(Tracked::new(2));
        while !rcu.settled(epoch) {
            thread::yield_now();
        }
        settled.store(true, Ordering::Release);
        thread.join().unwrap();
    });
}

#[test]
fn two_writers_and_a_reader() {
    explore(|| {
        let rcu = Rcu::new(Tracked::new(1));
        let mut reader = rcu.reader();
        let other = rcu.clone();
        let thread = thread::spawn(move || {
            let value = other.write().next_epoch();
            other.write().publish(Tracked::new(value));
            other.write().reclaim();
        });
        rcu.write().publish(Tracked::new(7));
        rcu.write().reclaim();
        reader.pin().read();
        drop(reader);
        thread.join().unwrap();
    });
}
