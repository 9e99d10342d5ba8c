//! The channel allocates nothing for requests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hbm::{Channel, Controller, Timing};

struct Counting;

thread_local! {
    /// Allocations of this thread only: the test runner's threads allocate, too.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn requests_allocate_nothing() {
    let mut channel = Channel::new(Timing::hbm2(), Controller::default());
    channel.poke(0, &[1; 32]); // the page that the writes below go to
    let before = ALLOCATIONS.get();
    let (mut reads, mut writes) = (0, 0);
    for clock in 0..20_000u64 {
        if channel.can_read() {
            channel.read(clock as u8, clock * 7919 % (1 << 22) * 64, 2).unwrap();
            reads += 1;
        }
        if channel.can_write() {
            channel.write(clock as u8, clock % 64 * 64, &[[clock as u8; 32]; 2]).unwrap();
            writes += 1;
        }
        // Now and then no response is accepted for long enough that all queues fill.
        if clock % 2048 > 512 {
            channel.accept_r();
            channel.accept_b();
        }
        channel.tick();
    }
    assert!(reads > 1000 && writes > 1000, "{reads} reads, {writes} writes");
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
