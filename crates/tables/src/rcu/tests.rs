//! Replacement between threads; miri runs these too.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

/// Two halves that always agree, and a count of the instances alive.
struct Halves(u64, Box<u64>, Arc<AtomicUsize>);

impl Halves {
    fn new(value: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(value, Box::new(value), Arc::clone(alive))
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        *self.1 = u64::MAX;
        self.2.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn readers_see_whole_versions_in_order_and_all_are_freed() {
    let alive = Arc::default();
    let rcu = Rcu::new(Halves::new(0, &alive));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for nap_every in [1, 7, u64::MAX] {
            let (mut reader, done) = (rcu.reader(), &done);
            scope.spawn(move || {
                let (mut last, mut bursts) = (0, 0);
                while !done.load(Ordering::Relaxed) || last != ROUNDS {
                    let pinned = reader.pin();
                    assert_eq!(pinned.0, *pinned.1);
                    assert!(pinned.0 >= last);
                    last = pinned.0;
                    bursts += 1;
                    if bursts % nap_every == 0 {
                        reader.offline();
                        thread::yield_now();
                    }
                }
            });
        }
        for value in 1..=ROUNDS {
            let epoch = rcu.write().publish(Halves::new(value, &alive));
            if value % 16 == 0 {
                assert!(rcu.wait(epoch, Duration::from_secs(600)));
            }
            rcu.write().reclaim();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(rcu.write().reclaim(), 0);
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    drop(rcu);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn a_pinned_version_is_kept_and_waited_for() {
    let alive = Arc::default();
    let rcu = Rcu::new(Halves::new(0, &alive));
    let mut reader = rcu.reader();
    let pinned = reader.pin();
    let epoch = rcu.write().publish(Halves::new(1, &alive));
    assert!(!rcu.settled(epoch) && !rcu.wait(epoch, Duration::ZERO));
    assert_eq!(rcu.write().reclaim(), 1);
    assert_eq!(pinned.0, 0);
    let again = reader.pin();
    assert_eq!((again.0, again.epoch()), (1, epoch));
    assert!(rcu.wait(epoch, Duration::ZERO));
    assert_eq!(rcu.write().reclaim(), 0);
}

#[test]
fn sleepers_hold_nobody_up() {
    let rcu = Rcu::new(0);
    let (mut asleep, _never_online) = (rcu.reader(), rcu.reader());
    assert_eq!(*asleep.pin(), 0);
    asleep.offline();
    let epoch = rcu.write().publish(1);
    assert!(rcu.settled(epoch));
    assert_eq!(rcu.write().reclaim(), 0);
    asleep.online();
    assert!(!rcu.settled(epoch), "it may pin any version from now on");
    assert_eq!(*asleep.pin(), 1);
    assert!(rcu.settled(epoch));
}

#[test]
fn a_reader_outlives_its_writers() {
    let rcu = Rcu::new(String::from("still here"));
    let mut reader = rcu.reader();
    drop(rcu);
    assert_eq!(*reader.pin(), "still here");
}
