//! Regions in a virtual machine: all of their pages move to a window, and to the program nothing changes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod program;

use program::pages::*;
use program::two::*;
use program::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use verbs::abi::*;
use verbs::{context, memory, query};

const WRITE: u32 = IBV_WR_RDMA_WRITE;
const READ: u32 = IBV_WR_RDMA_READ;

/// Tells for each page how it is mapped: `s` if it is shared with the device, `p` if it is the program's alone.
fn pages(of: &Pages) -> String {
    let at = |page| Pages { start: of.start.wrapping_add(page * PAGE), len: PAGE };
    (0..of.len / PAGE).map(|page| at(page).maps()[0].0.chars().last().unwrap()).collect()
}

fn key(mr: *mut ibv_mr) -> u32 {
    // SAFETY: it is registered.
    unsafe { (*mr).rkey }
}

fn refused(pd: *mut ibv_pd, start: *mut u8, len: usize, access: i32) -> i32 {
    // SAFETY: the domain is the test's; memory that is registered is given back.
    unsafe {
        let mr = memory::ibv_reg_mr(pd, start.cast(), len, access);
        if mr.is_null() {
            return errno();
        }
        deregister(mr);
        0
    }
}

/// Sends a message to this place of b's memory, and reads it back.
fn exchange(
    two: &Two,
    from: &mut Pages,
    ours: *mut ibv_mr,
    to: &mut Pages,
    mr: *mut ibv_mr,
    at: usize,
    len: usize,
) {
    let message: Vec<u8> = (0..len).map(|byte| (byte * 7 + at + 1) as u8).collect();
    from.bytes()[..len].copy_from_slice(&message);
    let mut expected = to.bytes().to_vec();
    expected[at..at + len].copy_from_slice(&message);
    let there = (to.start as u64 + at as u64, key(mr));
    assert_eq!(perform(two, WRITE, from.sge(ours, 0, len), there), 0);
    assert!(to.bytes() == expected, "{at} {len}");
    from.bytes()[..len].fill(0);
    assert_eq!(perform(two, READ, from.sge(ours, 0, len), there), 0);
    assert_eq!(from.bytes()[..len], message);
}

/// Tests regions that share pages, lie in each other, or overlap.
fn neighbours(way: Way) {
    let two = Two::on(way);
    let (mut from, mut to) = (Pages::new(6), Pages::new(6));
    to.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    let before = to.bytes().to_vec();
    let ours = from.register(two.a.pd, 0, 6 * PAGE);
    // The first region is in the middle of a page; the second begins behind it; the third overlaps the second.
    let one = to.register(two.b.pd, 100, 50);
    assert_eq!((pages(&to), to.bytes() == before), ("sppppp".into(), true));
    let next = to.register(two.b.pd, 150, 2 * PAGE);
    let over = to.register(two.b.pd, PAGE, 4 * PAGE + 9);
    assert_eq!((pages(&to), to.bytes() == before), ("ssssss".into(), true));
    for (mr, at, len) in
        [(one, 100, 50), (next, 150, 2 * PAGE), (over, PAGE, 4 * PAGE + 9), (next, PAGE - 1, 2)]
    {
        exchange(&two, &mut from, ours, &mut to, mr, at, len);
    }
    let before = to.bytes().to_vec();
    // A region ends at its last byte, even within a page.
    assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 1), (to.start as u64 + 150, key(one))), 10);
    for end in [&two.a, &two.b] {
        assert_eq!(modify_to(end.qp, IBV_QPS_RESET), 0);
    }
    two.b.connect(&two.a);
    two.a.connect(&two.b);
    // Pages that another region needs stay moved; pages with other data stay anyway.
    deregister(next);
    assert_eq!((pages(&to), to.bytes() == before), ("ssssss".into(), true));
    exchange(&two, &mut from, ours, &mut to, one, 120, 30);
    exchange(&two, &mut from, ours, &mut to, over, 2 * PAGE - 5, PAGE);
    let before = to.bytes().to_vec();
    deregister(over);
    assert_eq!((pages(&to), to.bytes() == before), ("spspps".into(), true));
    deregister(one);
    let again = to.register(two.b.pd, 7, 3);
    exchange(&two, &mut from, ours, &mut to, again, 7, 3);
    let before = to.bytes().to_vec();
    deregister(again);
    deregister(ours);
    two.close();
    assert_eq!((pages(&from), pages(&to), to.bytes() == before), ("pppppp".into(), "pppppp".into(), true));
    from.unmap();
    to.unmap();
}

/// Tests memory that the program replaces by new memory while it is registered.
fn remapped(way: Way) {
    let two = Two::on(way);
    let (mut from, to) = (Pages::new(3), Pages::new(3));
    let ours = from.register(two.a.pd, 0, 3 * PAGE);
    let old = to.register(two.b.pd, 10, 3 * PAGE - 20);
    let middle = Pages { start: to.start.wrapping_add(PAGE), len: PAGE };
    // One call does it: other threads map memory, too, and might take the place.
    let mut other = Pages::at(middle.start, 1, libc::MAP_FIXED);
    other.bytes().fill(3);
    let mut all = Pages { start: to.start, len: to.len };
    let new = to.register(two.b.pd, 0, 3 * PAGE);
    exchange(&two, &mut from, ours, &mut all, new, PAGE - 50, PAGE + 100);
    // The key of the old region still leads to the old memory.
    from.bytes()[..8].fill(9);
    let there = (middle.start as u64 + 8, key(old));
    let before = all.bytes().to_vec();
    assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 8), there), 0);
    assert!(all.bytes() == before);
    [old, new, ours].into_iter().for_each(deregister);
    assert!(all.bytes() == before);
    two.close();
    assert_eq!(pages(&all), "ppp");
    all.unmap();
    from.unmap();
}

/// Tests that other threads may write beside the regions while memory is registered and deregistered.
fn written_meanwhile(way: Way) {
    let two = Two::on(way);
    let memory = Pages::new(4);
    // SAFETY: it is mapped until the end; words are used as atomics only.
    let words = unsafe { std::slice::from_raw_parts(memory.start.cast::<AtomicU64>(), 4 * PAGE / 8) };
    let is_over = AtomicBool::new(false);
    let is_lossless = || {
        // SAFETY: it makes a descriptor, which is closed.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1);
            libc::close(fd as i32) == 0
        }
    };
    let counts = std::thread::scope(|scope| {
        let threads = [0, 4 * PAGE / 8 - 1].map(|at| {
            let (words, is_over) = (&words[at], &is_over);
            scope.spawn(move || {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    words.fetch_add(1, Ordering::Relaxed);
                    count += 1;
                }
                count
            })
        });
        for round in 0..300 {
            let mr = memory.register(two.a.pd, 8 + round % 7, 4 * PAGE - 16 - round);
            deregister(mr);
        }
        is_over.store(true, Ordering::Relaxed);
        threads.map(|thread| thread.join().unwrap())
    });
    if is_lossless() {
        assert_eq!([0, 4 * PAGE / 8 - 1].map(|at| words[at].load(Ordering::Relaxed)), counts);
    }
    two.close();
    memory.unmap();
}

/// Forks a child, which finds its own copy of this memory, and writes there.
fn fork(to: &mut Pages) {
    to.bytes().fill(5);
    // SAFETY: the child writes to its memory, and ends; the parent waits for it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_same = to.bytes().iter().all(|byte| *byte == 5) && pages(to) == "ppp";
        to.bytes().fill(6);
        // SAFETY: it ends the child.
        unsafe { libc::_exit(if is_same { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: there is a place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(to.bytes().iter().all(|byte| *byte == 5));
    assert_eq!(pages(to), "sss");
}

/// Tests that a child has its own copy, and that its writes there do not disturb its parent.
fn forked(way: Way) {
    let two = Two::on(way);
    let (mut from, mut to) = (Pages::new(3), Pages::new(3));
    let (ours, mr) = (from.register(two.a.pd, 0, 3 * PAGE), to.register(two.b.pd, 100, 2 * PAGE));
    fork(&mut to);
    exchange(&two, &mut from, ours, &mut to, mr, 100, 2 * PAGE);
    deregister(mr);
    deregister(ours);
    two.close();
    from.unmap();
    to.unmap();
}

/// Tests devices that are opened twice, with regions of both contexts in one page. The regions and the contexts begin
/// and end in any order.
fn opened_twice(way: Way) {
    let (one, other) = (Two::on(way), Two::on(way));
    let (mut from, mut to) = (Pages::new(3), Pages::new(3));
    // The second page has the end of one region, and the beginning of the other.
    let ours = [&one, &other].map(|two| from.register(two.a.pd, 0, PAGE + 50));
    let part = |two: &Two, to: &Pages, at| to.register(two.b.pd, at, PAGE);
    let (mut first, mut second) = (part(&one, &to, 100), part(&other, &to, PAGE + 200));
    for round in 0..4 {
        exchange(&one, &mut from, ours[0], &mut to, first, 100, PAGE);
        exchange(&other, &mut from, ours[1], &mut to, second, PAGE + 200, PAGE);
        assert_eq!(pages(&to), "sss");
        match round {
            // One context moved the pages, and the other one uses them alone.
            0 => {
                deregister(first);
                first = part(&one, &to, 100);
            }
            1 => {
                deregister(second);
                second = part(&other, &to, PAGE + 200);
            }
            _ => fork(&mut to),
        }
    }
    // A third one ends with its region.
    let third = open(way.first() + 1);
    // SAFETY: the context was just opened, and is used no more.
    unsafe {
        to.register(memory::ibv_alloc_pd(third), 50, 2 * PAGE);
        assert_eq!(context::ibv_close_device(third), 0);
    }
    // The first one, which moved the page, ends with its region, too.
    let before = to.bytes().to_vec();
    deregister(first);
    deregister(ours[0]);
    one.close();
    assert_eq!((pages(&to), to.bytes() == before), ("sss".into(), true));
    exchange(&other, &mut from, ours[1], &mut to, second, PAGE + 200, PAGE);
    let all = to.register(other.b.pd, 0, 3 * PAGE);
    exchange(&other, &mut from, ours[1], &mut to, all, 5, PAGE);
    let before = to.bytes().to_vec();
    [second, all, ours[1]].into_iter().for_each(deregister);
    other.close();
    assert_eq!((pages(&from), pages(&to), to.bytes() == before), ("ppp".into(), "ppp".into(), true));
    from.unmap();
    to.unmap();
}

/// Tests that an edge page whose registration failed later goes back when its connection ends.
fn failed(way: Way) {
    let end = End::new(way.first() + 2);
    let mut large = Pages::new((200 << 20) / PAGE);
    large.bytes()[150] = 7;
    assert_eq!(refused(end.pd, large.start.wrapping_add(100), large.len - 200, 1), libc::ENOMEM);
    end.close();
    assert_eq!((large.maps()[0].0.as_str(), large.bytes()[150]), ("rw-p", 7));
    large.unmap();
}

/// Tests that a page goes back if its last user ended before another one.
fn outlived(way: Way) {
    let (one, other) = (Two::on(way), Two::on(way));
    let mut to = Pages::new(1);
    to.bytes().fill(9);
    let first = to.register(one.b.pd, 100, 50);
    let second = to.register(other.b.pd, 200, 50);
    deregister(second);
    other.close();
    deregister(first);
    one.close();
    assert_eq!((pages(&to), to.bytes().iter().all(|byte| *byte == 9)), ("p".into(), true));
    to.unmap();
}

/// Static variables in pages of their own. Without an initial value they are memory like any other; with one they are
/// mapped from the program's file.
#[repr(align(4096))]
struct Static([AtomicU8; 4096]);
static ZEROS: Static = Static([const { AtomicU8::new(0) }; 4096]);
static ONES: Static = Static([const { AtomicU8::new(1) }; 4096]);

/// Calls `test` with memory of each kind that can't move.
fn immovable(mut test: impl FnMut(&str, &mut Pages)) {
    test("with an initial value", &mut Pages { start: ONES.0[0].as_ptr(), len: PAGE });
    let mut on_stack = [7_u8; 3 * PAGE];
    test("on the stack", &mut Pages { start: on_stack.as_mut_ptr(), len: on_stack.len() });
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 * PAGE as u64).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    for (name, flags) in [("of a file", libc::MAP_SHARED), ("of a file, private", libc::MAP_PRIVATE)] {
        // SAFETY: new memory, which is unmapped below.
        let mapped = unsafe { libc::mmap(null_mut(), 3 * PAGE, access, flags, fd, 0) };
        let mut mapped = Pages { start: mapped.cast(), len: 3 * PAGE };
        test(name, &mut mapped);
        mapped.unmap();
    }
    let mut locked = Pages::new(3);
    // SAFETY: a page of the test's.
    if unsafe { libc::mlock(locked.start.add(PAGE).cast(), PAGE) } == 0 {
        test("locked", &mut locked);
    }
    locked.unmap();
}

/// Tests that messages come from and to memory that can't move, as with any other, and that it stays where it is.
fn stood_in(way: Way) {
    immovable(|name, there| {
        println!("{name}");
        let before: Vec<_> = there.maps();
        let two = Two::on(way);
        let (mut moves, len) = (Pages::new(3), there.len - 200);
        let (ours, mr) = (moves.register(two.a.pd, 0, 3 * PAGE), there.register(two.b.pd, 100, len));
        // To it and from it, by the peer; what the program itself writes, the peer reads.
        exchange(&two, &mut moves, ours, there, mr, 100, len);
        there.bytes()[200..2000].fill(5);
        let place = (there.start as u64 + 200, key(mr));
        assert_eq!(perform(&two, READ, moves.sge(ours, 0, 1800), place), 0);
        assert!(moves.bytes()[..1800].iter().all(|byte| *byte == 5));
        atomics(&two, &mut moves, ours, there, mr);
        // By receives, short ones and long ones.
        for len in [8, 1000, len] {
            moves.bytes()[..len].fill(len as u8 ^ 1);
            there.bytes().fill(0);
            pass(&two, moves.sge(ours, 0, len), there.sge(mr, 100, len));
            let (message, around) = there.bytes()[100..].split_at(len);
            assert!(
                message.iter().all(|byte| *byte == len as u8 ^ 1) && around.iter().all(|byte| *byte == 0)
            );
        }
        deregister(mr);
        // From it, by messages, and by a READ into it.
        let (mr, room) = (there.register(two.a.pd, 100, len), moves.register(two.b.pd, 0, 3 * PAGE));
        exchange(
            &two,
            &mut Pages { start: there.start.wrapping_add(100), len },
            mr,
            &mut moves,
            room,
            5,
            len,
        );
        for byte in 1..4 {
            there.bytes().fill(byte);
            pass(&two, there.sge(mr, 100, len), moves.sge(room, 0, len));
            assert!(moves.bytes()[..len].iter().all(|it| *it == byte));
        }
        for mr in [mr, room, ours] {
            deregister(mr);
        }
        assert_eq!(there.maps(), before);
        two.close();
        moves.unmap();
    });
}

/// Sends a message from a to b.
fn pass(two: &Two, from: ibv_sge, to: ibv_sge) {
    assert_eq!(post_receive(two.b.qp, &mut receive(2, &mut [to])).0, 0);
    assert_eq!(post_send(two.a.qp, &mut send(1, &mut [from])).0, 0);
    assert_eq!((two.a.sent().status, two.b.received().status), (0, 0));
}

/// Executes atomic operations on a word of b's memory.
fn atomics(two: &Two, from: &mut Pages, ours: *mut ibv_mr, to: &mut Pages, mr: *mut ibv_mr) {
    let word = (to.start as usize + 200).next_multiple_of(8) - to.start as usize;
    to.bytes()[word..word + 8].copy_from_slice(&40_u64.to_ne_bytes());
    for (opcode, compare_add, swap, before, after) in [
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, 40_u64, 42_u64),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7, 42, 7),
        (IBV_WR_ATOMIC_CMP_AND_SWP, 42, 9, 7, 7),
    ] {
        let mut list = [from.sge(ours, 8, 8)];
        let mut wr = send(1, &mut list);
        let remote_addr = to.start as u64 + word as u64;
        (wr.opcode, wr.wr.atomic) = (opcode, Atomic { remote_addr, compare_add, swap, rkey: key(mr) });
        assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
        assert_eq!(two.a.sent().status, 0);
        assert_eq!(from.bytes()[8..16], before.to_ne_bytes());
        assert_eq!(to.bytes()[word..word + 8], after.to_ne_bytes());
    }
}

/// Tests what is registered in a window, and what is refused; memory stays as it is.
fn refusals(way: Way) {
    let end = End::new(way.first());
    assert_eq!(refused(end.pd, ZEROS.0[9].as_ptr(), 100, 1), 0);
    immovable(|name, there| assert_eq!(refused(end.pd, there.start, there.len, 1), 0, "{name}"));
    let mut locked = Pages::new(3);
    locked.bytes().fill(1);
    const ON_DEMAND: i32 = 1 << 6;
    assert_eq!(refused(end.pd, locked.start, PAGE, ON_DEMAND), libc::EOPNOTSUPP);
    assert_eq!(refused(end.pd, null_mut(), usize::MAX, ON_DEMAND), libc::EOPNOTSUPP);
    assert_eq!(refused(end.pd, null_mut(), PAGE, 1), libc::EFAULT);
    assert_eq!((refused(end.pd, locked.start, 0, 1), pages(&locked)), (0, "ppp".into()));
    // SAFETY: numbers, which may all be zero; the context is the test's.
    let capabilities = unsafe {
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        let size = size_of_val(&attr);
        assert_eq!(query::query_device_ex(end.context, std::ptr::null(), &mut attr, size), 0);
        attr.odp_caps.general_caps
    };
    assert_eq!(capabilities, 0);
    // A page can be in one window only; others stand for it in the other.
    let other = End::new(Way::OwnWindows.first() + 1);
    let mr = locked.register(end.pd, 0, 10);
    assert_eq!(refused(other.pd, locked.start.wrapping_add(20), 10, 1), 0);
    deregister(mr);
    end.close();
    assert_eq!(refused(other.pd, locked.start.wrapping_add(20), 10, 1), 0);
    other.close();
    locked.unmap();
}

/// Tests that a registration that does not fit into the window is refused, and memory stays as it is.
fn full(way: Way) {
    let end = End::new(way.first() + 2);
    let mut large = Pages::new((200 << 20) / PAGE);
    large.bytes()[12345] = 7;
    assert_eq!(refused(end.pd, large.start, large.len, 1), libc::ENOMEM);
    assert_eq!((large.maps()[0].0.as_str(), large.bytes()[12345]), ("rw-p", 7));
    assert_eq!(refused(end.pd, large.start, 1 << 20, 1), 0);
    end.close();
    large.unmap();
}

/// Tests that a region can be changed to other memory.
fn moved_elsewhere(way: Way) {
    let two = Two::on(way);
    let (mut from, mut to, mut other) = (Pages::new(2), Pages::new(2), Pages::new(2));
    let large = Pages::new((200 << 20) / PAGE);
    let ours = from.register(two.a.pd, 0, 2 * PAGE);
    let mr = to.register(two.b.pd, 0, 2 * PAGE);
    exchange(&two, &mut from, ours, &mut to, mr, 1, PAGE);
    // SAFETY: the region is the test's, and so is the memory.
    let done = unsafe { memory::ibv_rereg_mr(mr, 1, null_mut(), other.start.add(5).cast(), PAGE, 0) };
    assert_eq!((done, pages(&to), pages(&other)), (0, "pp".into(), "ss".into()));
    exchange(&two, &mut from, ours, &mut other, mr, 5, PAGE);
    // A region that can't be changed stays.
    // SAFETY: as above, but for memory that is too much for the window.
    let done = unsafe { memory::ibv_rereg_mr(mr, 1, null_mut(), large.start.cast(), large.len, 0) };
    assert_eq!((done, errno()), (IBV_REREG_MR_ERR_CMD, libc::ENOMEM));
    exchange(&two, &mut from, ours, &mut other, mr, 5, PAGE);
    deregister(mr);
    deregister(ours);
    two.close();
    [from, to, other, large].iter().for_each(Pages::unmap);
}

/// Tests that memory is the program's again when the device goes, with the messages that came there.
fn gone(way: Way) {
    let two = Two::of(way.shares(), way.first() + 2);
    let (mut from, mut to) = (Pages::new(3), Pages::new(3));
    let (ours, mr) = (from.register(two.a.pd, 0, 3 * PAGE), to.register(two.b.pd, 100, 2 * PAGE));
    exchange(&two, &mut from, ours, &mut to, mr, 100, 2 * PAGE);
    let before = to.bytes().to_vec();
    end(two.b.index);
    until(|| {
        // Every few thousand polls, the library checks whether the device is gone.
        (0..5000).for_each(|_| drop(poll(two.b.cqs[0])));
        pages(&to) == "ppp"
    });
    assert!(to.bytes() == before);
    assert_eq!(pages(&from), "sss");
    // SAFETY: the domain is the test's, and the memory is there.
    assert!(unsafe { memory::ibv_reg_mr(two.b.pd, to.start.cast(), PAGE, 1) }.is_null());
    deregister(mr);
    deregister(ours);
    two.close();
    from.unmap();
    to.unmap();
}

macro_rules! in_windows {
    ($($name:ident)*) => {
        mod own {
            $(#[test] fn $name() { super::$name(super::Way::OwnWindows); })*
        }
        mod common {
            $(#[test] fn $name() { super::$name(super::Way::CommonWindow); })*
        }
    };
}

in_windows! { neighbours remapped written_meanwhile forked opened_twice stood_in refusals moved_elsewhere }

#[test]
fn outlived_in_own_windows() {
    outlived(Way::OwnWindows);
}

/// The test runs in a process of its own, because connections of other tests count as the same program's.
#[test]
fn outlived_in_a_common_window() {
    alone("outlived_alone");
}

#[test]
#[ignore = "another test runs it"]
fn outlived_alone() {
    outlived(Way::CommonWindow);
}

#[test]
fn failed_in_own_windows() {
    failed(Way::OwnWindows);
}

#[test]
fn failed_in_a_common_window() {
    failed(Way::CommonWindow);
}

#[test]
fn what_does_not_fit_is_refused() {
    full(Way::OwnWindows);
    full(Way::CommonWindow);
    gone(Way::OwnWindows);
    gone(Way::CommonWindow);
}

/// Runs a test in a process of its own. Returns the process's output.
fn alone(test: &str) -> String {
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "--nocapture", "--include-ignored", test];
    let output = std::process::Command::new(this).args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// Standard error says once that a window is full.
#[test]
fn refusals_say_what_to_do() {
    let full = alone("what_does_not_fit_is_refused");
    assert_eq!(full.matches("bytes left (`window_mb`)").count(), 1, "{full}");
}
