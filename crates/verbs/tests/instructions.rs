//! Counts the instructions that a message takes in the library. Programs with memory in a common window may need up to
//! a tenth more than programs that share regions in files.
//!
//! `cargo test --release -p verbs --test instructions -- --nocapture` prints them.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(unused_macros, reason = "one test compares two ways")]
#[macro_use]
mod program;

use program::pages::*;
use program::two::*;
use program::*;
use std::arch::asm;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::abi::*;
use verbs::{completion, post};

/// Number of operations of each kind before one that is counted.
const UNCOUNTED: u64 = 3;
const BYTES: usize = 8;
/// Attempts: a timer's signal in between, or a queue that was full, may make one message longer.
const ATTEMPTS: usize = 3;

static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn step(_: c_int) {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the instructions of this thread in user mode: the processor's trap flag makes each of them a signal.
fn instructions<T>(of: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.load(Ordering::Relaxed);
    // SAFETY: the trap flag changes nothing but that signals come, which have a handler.
    unsafe { asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq") };
    let result = of();
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and dword ptr [rsp], 0xfffffeff", "popfq") };
    (STEPS.load(Ordering::Relaxed) - before, result)
}

fn perform(end: &End, wr: &mut ibv_send_wr) -> ibv_wc {
    let (mut bad, mut done) = (null_mut(), ibv_wc::default());
    // SAFETY: queues and request are the test's, and there is room for one completion.
    unsafe {
        assert_eq!(post::post_send(end.qp, wr, &mut bad), 0);
        while completion::poll_cq(end.cqs[0], 1, &mut done) == 0 {}
    }
    done
}

/// Counts the instructions of a send with its receive, of a write and of a read.
fn counts(way: Way) -> [u64; 3] {
    let two = Two::on(way);
    let (from, to) = (Pages::new(1), Pages::new(1));
    let (ours, theirs) = (from.register(two.a.pd, 0, PAGE), to.register(two.b.pd, 0, PAGE));
    let once = |opcode| {
        let (mut list, mut room) = ([from.sge(ours, 0, BYTES)], [to.sge(theirs, 0, BYTES)]);
        let (mut wr, mut wanted) = (send(1, &mut list), receive(2, &mut room));
        wr.opcode = opcode;
        if opcode == IBV_WR_SEND {
            let (mut bad, mut got) = (null_mut(), ibv_wc::default());
            // SAFETY: queues and request are the test's, and there is room for one completion.
            unsafe { assert_eq!(post::post_recv(two.b.qp, &mut wanted, &mut bad), 0) };
            let done = perform(&two.a, &mut wr);
            // SAFETY: as above.
            while unsafe { completion::poll_cq(two.b.cqs[1], 1, &mut got) } == 0 {}
            return done;
        }
        // SAFETY: the region is registered.
        wr.wr.rdma = Rdma { remote_addr: to.start as u64, rkey: unsafe { (*theirs).rkey } };
        perform(&two.a, &mut wr)
    };
    let counted = [IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ].map(|opcode| {
        (0..UNCOUNTED).for_each(|_| assert_eq!(once(opcode).status, 0));
        let (count, done) = instructions(|| once(opcode));
        assert_eq!(done.status, 0);
        count
    });
    two.was_direct(3 * (UNCOUNTED + 1));
    deregister(ours);
    deregister(theirs);
    two.close();
    counted
}

#[test]
fn a_window_takes_no_more_than_shared_regions() {
    // SAFETY: nobody reads it yet: whoever opens a device comes by here first; and the handler only counts.
    unsafe {
        std::env::set_var("VIADUCT_RDMA_SHARE", "1");
        libc::signal(libc::SIGTRAP, step as *const () as usize);
    }
    let within = || {
        let [shared, window] = [Way::Shared, Way::CommonWindow].map(counts);
        println!(
            "send, write, read of {BYTES} bytes: shared regions {shared:?}, window in common {window:?}"
        );
        shared.into_iter().zip(window).all(|(shared, window)| shared > 0 && window * 10 <= shared * 11)
    };
    assert!((0..ATTEMPTS).any(|_| within()), "more than a tenth more, see above");
}
