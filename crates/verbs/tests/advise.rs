//! On-demand paging: the device reports it, such regions can be created, and pages can be prefetched.

use crate::program::two::*;
use crate::program::*;
use std::ptr::null_mut;
use verbs::abi::*;
use verbs::{advise, memory, query};

const PAGE: usize = 4096;
const ON_DEMAND: i32 = 1 << 6;
const PREFETCH: u32 = IBV_ADVISE_MR_ADVICE_PREFETCH;
const WRITE: u32 = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
const NO_FAULT: u32 = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
const FLUSH: u32 = IBV_ADVISE_MR_FLAG_FLUSH;

fn map(pages: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let start = unsafe { libc::mmap(null_mut(), pages * PAGE, 3, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

fn register(pd: *mut ibv_pd, start: *mut u8, len: usize, access: i32) -> *mut ibv_mr {
    // SAFETY: the domain is the test's; memory is there as long as it is used.
    let mr = unsafe { memory::ibv_reg_mr(pd, start.cast(), len, access) };
    assert!(!mr.is_null());
    mr
}

/// Returns 1 for each page that is present, and 0 for others.
fn present(start: *mut u8, pages: usize) -> Vec<u8> {
    let mut there = vec![0_u8; pages];
    // SAFETY: the pages are mapped, and there is room for a byte of each.
    assert_eq!(unsafe { libc::mincore(start.cast(), pages * PAGE, there.as_mut_ptr()) }, 0);
    there
}

#[test]
fn it_is_announced() {
    let two = Two::on(Way::Copied);
    // SAFETY: numbers, which may all be zero.
    let mut attr: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: the context is the test's, and there is as much room as is said.
    let failed = unsafe {
        query::query_device_ex(two.a.context, std::ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>())
    };
    assert_eq!(failed, 0);
    assert_eq!((attr.odp_caps.general_caps, attr.odp_caps.per_transport_caps), (3, [0x3f, 0x27, 0x23]));
    two.close();
}

#[test]
fn pages_are_fetched_and_nothing_else() {
    let two = Two::on(Way::Copied);
    let (pages, pd) = (map(8), two.a.pd);
    let [all, read_only, plain] = [1 | ON_DEMAND, ON_DEMAND, 1].map(|it| register(pd, pages, 6 * PAGE, it));
    let advised = |mr: *mut ibv_mr, advice, flags, from: usize, length: usize| {
        // SAFETY: the region is registered, the list is whole.
        unsafe {
            let addr = pages.add(from) as u64;
            let mut list = [ibv_sge { addr, length: length as u32, lkey: (*mr).lkey }];
            advise::advise_mr(pd, advice, flags, list.as_mut_ptr(), 1)
        }
    };
    assert_eq!((advised(all, NO_FAULT, FLUSH, 0, PAGE), advised(all, PREFETCH, 0, 0, PAGE)), (0, 0));
    // Registration touches the first and the last one.
    assert_eq!(present(pages, 6)[1..5], [0; 4]);
    assert_eq!(advised(all, WRITE, FLUSH, 2 * PAGE + 1, PAGE), 0);
    // An old kernel fetches nothing.
    assert!([[0, 1, 1, 0], [0; 4]].contains(&present(pages, 6)[1..5].try_into().unwrap()));
    for (mr, advice, flags, from, len, errno) in [
        (all, 3, 0, 0, 1, libc::ENOTSUP),
        (all, PREFETCH, 2, 0, 1, libc::EINVAL),
        (all, PREFETCH, 0, 0, 6 * PAGE + 1, libc::EFAULT),
        (plain, PREFETCH, 0, 0, 1, libc::EINVAL),
        (read_only, WRITE, 0, 0, 1, libc::EPERM),
    ] {
        assert_eq!(advised(mr, advice, flags, from, len), errno);
    }
    // SAFETY: the domain is the test's; no list, or one with a key that is none.
    unsafe {
        assert_eq!(advise::advise_mr(pd, PREFETCH, 0, null_mut(), 0), libc::EINVAL);
        let mut wrong = ibv_sge { addr: pages as u64, length: 1, lkey: 7 };
        assert_eq!(advise::advise_mr(pd, PREFETCH, 0, &mut wrong, 1), libc::EFAULT);
        let other = memory::ibv_alloc_pd(two.a.context);
        let mut foreign = ibv_sge { lkey: (*all).lkey, ..wrong };
        assert_eq!(advise::advise_mr(other, PREFETCH, 0, &mut foreign, 1), libc::EPERM);
        assert_eq!(memory::ibv_dealloc_pd(other), 0);
        // The memory is not used any more, but stays mapped: otherwise another thread's memory could come there.
        assert_eq!(libc::mprotect(pages.cast(), PAGE, libc::PROT_NONE), 0);
    }
    assert_eq!(advised(all, PREFETCH, 0, 0, 1), libc::EFAULT);
    for mr in [all, read_only, plain] {
        // SAFETY: it is registered, and its key used no more.
        assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
    }
    two.close();
}

/// This includes memory that is mapped after its registration.
#[test]
fn a_region_may_be_all_there_is() {
    for way in [Way::Copied, Way::Shared] {
        let two = Two::on(way);
        let mr = register(two.b.pd, null_mut(), usize::MAX, 15 | ON_DEMAND);
        let mut from = Buffer::new(two.a.pd, &[7; 8]);
        let to = map(1);
        for _ in 0..3 {
            let mut list = [from.sge()];
            let mut wr = send(1, &mut list);
            // SAFETY: the region is registered.
            let rkey = unsafe { (*mr).rkey };
            (wr.opcode, wr.wr.rdma) = (IBV_WR_RDMA_WRITE, Rdma { remote_addr: to as u64 + 9, rkey });
            assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
            assert_eq!(two.a.sent().status, 0);
        }
        // SAFETY: it is mapped.
        assert_eq!(unsafe { to.add(9).cast::<[u8; 8]>().read() }, [7; 8]);
        assert_eq!(described(two.b.index).iter().map(|client| client.registered).max(), Some(0));
        from.forget();
        // SAFETY: it is registered, and its key used no more.
        assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
        two.close();
    }
}
