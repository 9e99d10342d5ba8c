//! After `ibv_dereg_mr` no message is copied to the memory, no matter which thread polls meanwhile.

use crate::program::two::*;
use crate::program::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use verbs::abi::*;

/// Fills the memory after its deregistration.
const CANARY: u8 = 0xa5;

/// A value that both threads share.
struct Both<T>(T);
// SAFETY: objects of the library may be used from any thread.
unsafe impl<T> Sync for Both<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Both<T> {}

/// Receives an empty message and one of 8 bytes; both completions stay in the completion queue.
fn two_messages(two: &Two, to: &mut Buffer) {
    assert_eq!(post_receive(two.b.qp, &mut receive(1, &mut [])).0, 0);
    assert_eq!(post_receive(two.b.qp, &mut receive(2, &mut [to.sge()])).0, 0);
    let mut from = Buffer::new(two.a.pd, &[7; 8]);
    assert_eq!(post_send(two.a.qp, &mut send(1, &mut [])).0, 0);
    assert_eq!(post_send(two.a.qp, &mut send(2, &mut [from.sge()])).0, 0);
    assert!(take(two.a.cqs[0], 2).iter().all(|wc| wc.status == 0));
    from.forget();
    two.was_direct(2);
}

/// Polls completions one by one, and runs `within` after the first one.
fn iterate(cq: *mut ibv_cq, within: impl FnOnce()) -> Vec<(u64, u32)> {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: a queue of the library's, whose functions are called in the order that they ask for.
    unsafe {
        let ops = cq.read();
        until(|| ops.start_poll.unwrap()(cq, &mut ibv_poll_cq_attr::default()) == 0);
        let mut seen = vec![((*cq).wr_id, (*cq).status)];
        within();
        while ops.next_poll.unwrap()(cq) == 0 {
            seen.push(((*cq).wr_id, (*cq).status));
        }
        ops.end_poll.unwrap()(cq);
        seen
    }
}

#[test]
fn in_the_middle_of_ones_own_iteration() {
    let two = Two::on(Way::Shared);
    let mut to = Buffer::new(two.b.pd, &[0; 8]);
    two_messages(&two, &mut to);
    let seen = iterate(two.b.cqs[1], || {
        to.forget();
        assert_eq!(*to.bytes, [7; 8]);
        to.bytes.fill(CANARY);
    });
    assert_eq!((seen, &*to.bytes), (vec![(1, 0), (2, 0)], &[CANARY; 8][..]));
    two.close();
}

#[test]
fn in_the_middle_of_another_threads_iteration() {
    let two = Two::on(Way::Shared);
    let mut to = Buffer::new(two.b.pd, &[0; 8]);
    two_messages(&two, &mut to);
    let shared = Both(&mut to);
    let seen = iterate(two.b.cqs[1], || {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let shared = shared;
                shared.0.forget();
                shared.0.bytes.fill(CANARY);
            });
        });
    });
    assert_eq!((seen, &*to.bytes), (vec![(1, 0), (2, 0)], &[CANARY; 8][..]));
    two.close();
}

/// Binds this thread, and the threads that it starts, to one CPU.
fn share_a_cpu() {
    // SAFETY: a set is a number of bits, which may all be zero.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
    }
}

#[test]
fn while_another_thread_polls() {
    let two = Two::on(Way::Shared);
    share_a_cpu();
    let (ends, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let cq = Both(two.b.cqs[1]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cq = &cq;
            while !ends.load(Ordering::Relaxed) {
                received.fetch_add(poll(cq.0).len() as u64, Ordering::Release);
            }
        });
        let mut from = Buffer::new(two.a.pd, &[7; 300]);
        for round in 1..=100 {
            let mut to = Buffer::new(two.b.pd, &[0; 300]);
            assert_eq!(post_receive(two.b.qp, &mut receive(round, &mut [to.sge()])).0, 0);
            assert_eq!(post_send(two.a.qp, &mut send(round, &mut [from.sge()])).0, 0);
            to.forget();
            to.bytes.fill(CANARY);
            assert_eq!(two.a.sent().status, 0);
            until(|| received.load(Ordering::Acquire) == round);
            assert_eq!(*to.bytes, [CANARY; 300], "message {round}");
        }
        from.forget();
        ends.store(true, Ordering::Relaxed);
    });
    two.close();
}
