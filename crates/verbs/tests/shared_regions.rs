//! Regions whose pages are moved into files, as `VIADUCT_RDMA_SHARE=1` asks for: the results are the same as without,
//! and the device and peers that share memory map the files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod program;

use hca::GrantedMemory;
use program::pages::*;
use program::two::*;
use program::*;
use std::ptr::null_mut;
use std::sync::Once;
use verbs::abi::*;
use verbs::memory;

const READ: u32 = IBV_WR_RDMA_READ;
const WRITE: u32 = IBV_WR_RDMA_WRITE;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

/// Connects two applications that move their regions into files.
fn two(shares: bool, first: usize) -> Two {
    static SET: Once = Once::new();
    // SAFETY: nobody reads it yet: whoever opens a device here comes by first.
    SET.call_once(|| unsafe { std::env::set_var("VIADUCT_RDMA_SHARE", "1") });
    Two::of(shares, first)
}

fn atomic(two: &Two, opcode: u32, part: ibv_sge, (address, rkey): (u64, u32), operands: (u64, u64)) -> u32 {
    let mut list = [part];
    let mut wr = send(1, &mut list);
    wr.opcode = opcode;
    wr.wr.atomic = Atomic { remote_addr: address, compare_add: operands.0, swap: operands.1, rkey };
    assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
    two.a.sent().status
}

/// Connects both queue pairs again after an error.
fn connect_again(two: &Two) {
    assert_eq!([&two.a, &two.b].map(|end| modify_to(end.qp, IBV_QPS_RESET)), [0, 0]);
    two.b.connect(&two.a);
    two.a.connect(&two.b);
}

/// Writes, reads and sends messages of all lengths, in the moved pages, across their ends and beside them.
fn messages(shares: bool, first: usize) {
    let two = two(shares, first);
    let (mut from, mut to) = (Pages::new(6), Pages::new(6));
    // The parts of the first and the last page outside the region stay in place.
    let (offset, len) = (100, 5 * PAGE);
    let (ours, theirs) = (from.register(two.a.pd, 0, 6 * PAGE), to.register(two.b.pd, offset, len));
    let permissions = |pages: &Pages| pages.maps().into_iter().map(|(it, _)| it).collect::<Vec<_>>();
    assert_eq!(
        (permissions(&from), permissions(&to)),
        (vec!["rw-s".into()], ["rw-p", "rw-s", "rw-p"].map(String::from).to_vec())
    );
    // SAFETY: the region is registered.
    let rkey = unsafe { (*theirs).rkey };
    for round in 0..2 {
        for (seed, (at, len)) in [
            (100, 8),
            (PAGE, 8),
            (PAGE - 4, 8),
            (PAGE, 5000),
            (101, 4 * PAGE),
            (4 * PAGE + 3, PAGE),
            (PAGE, 2 * PAGE),
            (5 * PAGE + 1, 77),
        ]
        .into_iter()
        .enumerate()
        {
            let message = pattern(len, seed + round);
            let there = (to.start as u64 + at as u64, rkey);
            from.bytes()[7..7 + len].copy_from_slice(&message);
            let mut before = to.bytes().to_vec();
            assert_eq!(perform(&two, WRITE, from.sge(ours, 7, len), there), 0);
            before[at..at + len].copy_from_slice(&message);
            assert!(to.bytes() == before, "{at} {len}");
            assert_eq!(perform(&two, READ, from.sge(ours, 1, len), there), 0);
            assert_eq!(from.bytes()[1..1 + len], message);
            to.bytes().fill(0);
            let mut room = [to.sge(theirs, at, len)];
            assert_eq!(post_receive(two.b.qp, &mut receive(2, &mut room)).0, 0);
            assert_eq!(post_send(two.a.qp, &mut send(3, &mut [from.sge(ours, 1, len)])).0, 0);
            assert_eq!((two.a.sent().status, two.b.received().byte_len), (0, len as u32));
            assert_eq!(to.bytes()[at..at + len], message);
        }
    }
    // Memory outside the region is not accessible, moved or not.
    for at in [0, 99, offset + len] {
        assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 1), (to.start as u64 + at as u64, rkey)), 10);
        connect_again(&two);
    }
    deregister(ours);
    deregister(theirs);
    two.close();
    assert!(from.maps().iter().chain(&to.maps()).all(|(permissions, _)| permissions == "rw-p"));
    from.unmap();
    to.unmap();
}

#[test]
fn messages_between_those_who_share() {
    messages(true, TRUSTING);
}

#[test]
fn who_has_windows_is_not_given_everything() {
    const DEVICE: usize = TRUSTING + 4;
    let two = two(true, DEVICE);
    let (mut from, to) = (Pages::new(3), Pages::new(3));
    let (ours, theirs) = (from.register(two.a.pd, 0, 3 * PAGE), to.register(two.b.pd, 0, 3 * PAGE));
    from.bytes().fill(7);
    // SAFETY: the region is registered.
    let there = (to.start as u64, unsafe { (*theirs).rkey });
    for len in [8, 100, PAGE, 3 * PAGE] {
        assert_eq!(perform(&two, WRITE, from.sge(ours, 0, len), there), 0);
        assert_eq!(perform(&two, READ, from.sge(ours, 0, len), there), 0);
    }
    assert_eq!(given(DEVICE + 1), [GrantedMemory::Regions]);
    // A peer gets access to memory in no file only together with all other memory of the process.
    let mut stack = [0_u8; 5000];
    // SAFETY: it is there, and outlives its region.
    let mr = unsafe { memory::ibv_reg_mr(two.b.pd, stack.as_mut_ptr().cast(), stack.len(), 15) };
    // SAFETY: the region is registered.
    let there = (stack.as_ptr() as u64, unsafe { (*mr).rkey });
    assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 5000), there), 0);
    assert_eq!((given(DEVICE + 1), stack), (vec![GrantedMemory::Everything], [7; 5000]));
    [ours, theirs, mr].into_iter().for_each(deregister);
    two.close();
    [from, to].iter().for_each(Pages::unmap);
}

#[test]
fn messages_that_the_device_copies() {
    messages(false, 0);
}

/// Lets each connection add 1 to a word this many times, all at once.
fn add_from_each(connections: [&Two; 2], regions: [*mut ibv_mr; 2], address: u64, times: u64) {
    std::thread::scope(|scope| {
        for (two, region) in connections.into_iter().zip(regions) {
            // SAFETY: the region is registered.
            let (two, there) = (Shared(two), (address, unsafe { (*region).rkey }));
            scope.spawn(move || {
                let (two, result) = (two.get(), Pages::new(1));
                let own = result.register(two.a.pd, 0, PAGE);
                for _ in 0..times {
                    let part = result.sge(own, 8, 8);
                    assert_eq!(atomic(two, IBV_WR_ATOMIC_FETCH_AND_ADD, part, there, (1, 0)), 0);
                }
                deregister(own);
                result.unmap();
            });
        }
    });
}

#[test]
fn atomic_operations_of_peers_and_of_the_device_are_one_after_the_other() {
    const TIMES: u64 = 3000;
    let direct = two(true, TRUSTING + 2);
    // One application with peers on two devices would need two regions: the second on the other device, over the same
    // memory.
    let copied = two(false, 2);
    let counter = Pages::new(1);
    let regions = [&direct, &copied].map(|two| counter.register(two.b.pd, 0, PAGE));
    assert_eq!(mapped(counter.file().unwrap()), 3);
    add_from_each([&direct, &copied], regions, counter.start as u64 + 64, TIMES);
    // SAFETY: it is mapped, and aligned; others write whole words.
    let sum = || unsafe { counter.start.add(64).cast::<u64>().read_volatile() };
    assert_eq!(sum(), 2 * TIMES);
    assert!(direct.a.direct() >= TIMES - 2, "{}", direct.a.direct());
    let mut result = Pages::new(1);
    let own = result.register(direct.a.pd, 0, PAGE);
    // SAFETY: the region is registered.
    let there = (counter.start as u64 + 64, unsafe { (*regions[0]).rkey });
    for (compare, swap, after) in [(5, 6, 2 * TIMES), (2 * TIMES, 7, 7), (7, u64::MAX, u64::MAX)] {
        let before = sum();
        let part = result.sge(own, 16, 8);
        assert_eq!(atomic(&direct, IBV_WR_ATOMIC_CMP_AND_SWP, part, there, (compare, swap)), 0);
        assert_eq!((result.bytes()[16..24].to_vec(), sum()), (before.to_ne_bytes().to_vec(), after));
    }
    // The peer does not do it itself if the word is not aligned, or it has no right.
    assert_eq!(
        atomic(&direct, IBV_WR_ATOMIC_FETCH_AND_ADD, result.sge(own, 16, 8), (there.0 + 4, there.1), (1, 0)),
        9
    );
    regions.into_iter().for_each(deregister);
    deregister(own);
    direct.close();
    copied.close();
    assert_eq!((sum(), counter.maps()[0].0.as_str()), (u64::MAX, "rw-p"));
}

/// Two applications with several threads, each of which uses its own objects.
struct Shared<'a>(&'a Two);

// SAFETY: objects of the library may be used by any thread, and here each has its own.
unsafe impl Send for Shared<'_> {}

impl<'a> Shared<'a> {
    const fn get(self) -> &'a Two {
        self.0
    }
}

#[test]
fn what_is_registered_no_more_is_the_programs_alone() {
    let two = two(true, TRUSTING);
    let (from, mut to) = (Pages::new(2), Pages::new(2));
    to.bytes()[..4].copy_from_slice(b"once");
    let ours = from.register(two.a.pd, 0, 2 * PAGE);
    let regions = [(); 2].map(|()| to.register(two.b.pd, 0, 2 * PAGE));
    let file = to.file().unwrap();
    // SAFETY: the region is registered.
    let there = |region: *mut ibv_mr| (to.start as u64 + 8, unsafe { (*region).rkey });
    // These are the program's mapping, and the device's for each region; the peer's follows when it uses one of them.
    assert_eq!(mapped(file), 3);
    for region in regions {
        assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 8), there(region)), 0);
    }
    assert_eq!(mapped(file), 4);
    deregister(regions[0]);
    assert_eq!((to.file(), mapped(file)), (Some(file), 3));
    deregister(regions[1]);
    assert_eq!((to.maps().len(), to.maps()[0].0.as_str(), mapped(file)), (1, "rw-p", 1));
    assert_eq!(&to.bytes()[..4], b"once");
    to.bytes()[..4].copy_from_slice(b"more");
    assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 8), there_of(&to, 1)), 10);
    connect_again(&two);
    // Registered again, they move again with their current contents; the peer unmaps files that no region uses.
    let region = to.register(two.b.pd, PAGE, PAGE);
    for _ in 0..2 {
        // SAFETY: the region is registered.
        let there = (to.start as u64 + PAGE as u64, unsafe { (*region).rkey });
        assert_eq!(perform(&two, WRITE, from.sge(ours, 0, 8), there), 0);
    }
    assert_eq!((mapped(file), &to.bytes()[..4]), (0, &b"more"[..]));
    deregister(region);
    deregister(ours);
    two.close();
}

/// Returns an address and a key that no region has.
fn there_of(pages: &Pages, rkey: u32) -> (u64, u32) {
    (pages.start as u64, rkey)
}

#[test]
fn only_private_memory_is_moved() {
    let two = two(true, TRUSTING);
    let pages = Pages::new(4);
    // Parts of other regions, and memory that is already moved.
    let first = pages.register(two.b.pd, 0, 2 * PAGE);
    let over = pages.register(two.b.pd, PAGE, 2 * PAGE);
    let within = pages.register(two.b.pd, PAGE, PAGE);
    let small = pages.register(two.b.pd, 3 * PAGE + 8, 100);
    let permissions: Vec<_> = pages.maps().into_iter().map(|(permissions, _)| permissions).collect();
    assert_eq!(permissions, ["rw-s", "rw-p"]);
    let shared = |mr: *mut ibv_mr| {
        let clients = described(TRUSTING + 1);
        let mut mrs = clients.iter().flat_map(|client| &client.mrs);
        // SAFETY: the region is registered.
        mrs.find(|it| it.key == unsafe { (*mr).rkey }).unwrap().is_shared
    };
    assert_eq!([first, over, within, small].map(shared), [true, false, true, false]);
    [first, over, within, small].into_iter().for_each(deregister);
    // A file's memory, and read-only memory.
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE as u64).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let place = pages.start.cast();
    // SAFETY: it takes the place of a page of the test's, which nobody has a reference to.
    let mapped = unsafe {
        libc::mmap(
            place,
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED,
            fd,
            0,
        )
    };
    assert_eq!(mapped, place);
    // SAFETY: the page is the test's, and nobody writes there any more.
    assert_eq!(unsafe { libc::mprotect(place.add(PAGE), PAGE, libc::PROT_READ) }, 0);
    for from in [0, PAGE] {
        // SAFETY: the domain is the test's, and the pages are there until they are deregistered.
        let mr = unsafe { memory::ibv_reg_mr(two.b.pd, place.add(from), PAGE, 0) };
        assert!(!mr.is_null() && !shared(mr));
        deregister(mr);
    }
    two.close();
    pages.unmap();
}

#[test]
fn what_is_mapped_there_meanwhile_stays() {
    let two = two(true, TRUSTING);
    let pages = Pages::new(3);
    let mr = pages.register(two.b.pd, 0, 3 * PAGE);
    // SAFETY: there are three pages.
    let middle = Pages { start: unsafe { pages.start.add(PAGE) }, len: PAGE };
    // One call does it: other threads map memory, too, and might take the place.
    let mut other = Pages::at(middle.start, 1, libc::MAP_FIXED);
    other.bytes().fill(3);
    deregister(mr);
    assert!(other.bytes().iter().all(|byte| *byte == 3));
    assert!(pages.maps().iter().all(|(permissions, _)| permissions == "rw-p"));
    two.close();
    pages.unmap();
}

/// Peers of two contexts add: all pages of one's region are in a file, and none of the other's larger region.
#[test]
fn contexts_of_a_program_agree_on_words_in_files() {
    const TIMES: u64 = 3000;
    let ends = [(); 2].map(|()| two(true, TRUSTING + 2));
    let counter = Pages::new(3);
    let regions = [counter.register(ends[0].b.pd, PAGE, PAGE), counter.register(ends[1].b.pd, 0, 3 * PAGE)];
    assert_eq!(counter.maps().len(), 3, "{:?}", counter.maps());
    add_from_each(ends.each_ref(), regions, counter.start as u64 + PAGE as u64, TIMES);
    assert!(ends[0].a.direct() >= TIMES - 2 && ends[1].a.direct() < 2);
    // SAFETY: it is mapped, and aligned; nobody writes to it any more.
    assert_eq!(unsafe { counter.start.add(PAGE).cast::<u64>().read_volatile() }, 2 * TIMES);
    regions.into_iter().for_each(deregister);
    ends.into_iter().for_each(Two::close);
    counter.unmap();
}

/// After its deregistration, memory is as if it had not been registered.
#[test]
fn memory_is_plain_again_after_deregistration() {
    let two = two(true, 0);
    let mut pages = Pages::new(4);
    pages.bytes().fill(7);
    let mr = pages.register(two.a.pd, PAGE, 2 * PAGE);
    assert_eq!(pages.maps().len(), 3);
    pages.bytes()[PAGE] = 8;
    deregister(mr);
    assert!(pages.maps().iter().all(|(permissions, inode)| permissions == "rw-p" && *inode == 0));
    let mut expected = vec![7; 4 * PAGE];
    expected[PAGE] = 8;
    assert!(pages.bytes() == expected);
    // A child has its own copy.
    // SAFETY: the child writes to its memory, and ends; the parent waits for it.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            pages.start.add(PAGE).write_volatile(9);
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, null_mut(), 0), child);
    }
    assert_eq!(pages.bytes()[PAGE], 8);
    // The memory grows, and the part that is not needed any more is zeros afterwards.
    // SAFETY: the two pages are the test's, and where they are then is new.
    unsafe {
        let moved = libc::mremap(pages.start.add(PAGE).cast(), 2 * PAGE, 8 * PAGE, libc::MREMAP_MAYMOVE);
        assert_ne!(moved, libc::MAP_FAILED);
        let bytes = std::slice::from_raw_parts_mut(moved.cast::<u8>(), 8 * PAGE);
        assert_eq!((bytes[0], bytes[PAGE], bytes[7 * PAGE]), (8, 7, 0));
        bytes[7 * PAGE] = 1;
        assert_eq!(libc::madvise(moved, 8 * PAGE, libc::MADV_DONTNEED), 0);
        assert!(bytes.iter().all(|byte| *byte == 0));
        libc::munmap(moved, 8 * PAGE);
    }
    pages.unmap();
    two.close();
}

/// Memory that would lose a property by moving is registered, and stays in place.
#[test]
fn memory_with_a_meaning_stays() {
    type Mark = fn(*mut libc::c_void) -> bool;
    // SAFETY: of all: a page of the test's, of which nothing is lost.
    let marks: [(&str, Mark); 7] = [
        ("plain", |_| true),
        ("locked", |page| unsafe { libc::mlock(page, PAGE) == 0 }),
        ("not for children", |page| unsafe { libc::madvise(page, PAGE, libc::MADV_DONTFORK) == 0 }),
        ("empty for children", |page| unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) == 0 }),
        ("executable", |page| unsafe { libc::mprotect(page, PAGE, 7) == 0 }),
        ("on a node", |page| unsafe {
            let nodes = 1_u64;
            // MPOL_PREFERRED.
            libc::syscall(libc::SYS_mbind, page, PAGE, 1, &raw const nodes, 64, 0) == 0
        }),
        ("with a key", |page| unsafe {
            let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
            key > 0 && libc::syscall(libc::SYS_pkey_mprotect, page, PAGE, 3, key) == 0
        }),
    ];
    let two = two(true, 0);
    for (name, mark) in marks {
        let pages = Pages::new(3);
        // SAFETY: within the memory.
        if !mark(unsafe { pages.start.add(PAGE) }.cast()) {
            eprintln!("not possible here: {name}");
            continue;
        }
        let before = pages.maps();
        let mr = pages.register(two.a.pd, 0, 3 * PAGE);
        assert_eq!(pages.file().is_some(), name == "plain", "{name}");
        assert_eq!(pages.maps() == before, name != "plain", "{name}");
        deregister(mr);
        pages.unmap();
    }
    two.close();
}
