//! Messages within a host make the device allocate nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{SIGNALED, gid, next, segment, two, vector};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use uverbs::{QpType, Request, WorkRequest};

const SEND: u8 = 2;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
fn messages_are_copied_without_allocating() {
    for (kind, len) in [(QpType::Rc, 100_000), (QpType::Uc, 10), (QpType::Ud, 1000)] {
        let mut t = two(kind);
        let ah = t.a.handle(&Request::CreateAh { pd: t.a.pd, vector: vector(gid(2)) });
        let remote = WorkRequest { ah, remote_qpn: t.qb.qpn, remote_qkey: 0x1234, ..WorkRequest::default() };
        let send = WorkRequest { opcode: SEND, flags: SIGNALED, ..remote };
        let mut exchange = |count: usize| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..count {
                t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
                t.a.post_send(&mut t.qa, send, &[segment(&t.ma[..len], t.ka)]);
                assert_eq!((next(&mut t.ca).status, next(&mut t.cb).status), (0, 0));
                t.qb.receives.as_mut().unwrap().give_back();
            }
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        // Slots allocate their own room the first time.
        exchange(200);
        let allocations = exchange(400);
        assert!(allocations < 40, "{allocations} for 400 messages, {kind:?}");
    }
}
