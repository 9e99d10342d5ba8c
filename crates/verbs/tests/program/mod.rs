//! What a program does with the library, shortened: two queue pairs on one device that talk to each other.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "of tests: they use the C interface as its man pages say"
)]

use crate::fake::Fake;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::OnceLock;
use verbs::abi::*;
use verbs::{address, completion, context, device, memory, modify, post, queue_pair};

/// Devices by number; the variable that says where they are is set before anybody asks.
pub fn fake(index: usize) -> &'static Fake {
    static FAKES: OnceLock<(Vec<Fake>, tempfile::TempDir)> = OnceLock::new();
    let (fakes, _) = FAKES.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..4).map(|index| directory.path().join(format!("{index}.sock"))).collect();
        let joined = std::env::join_paths(&paths).unwrap();
        unsafe { std::env::set_var("VIADUCT_RDMA", joined) };
        (paths.iter().map(|path| Fake::start(path)).collect(), directory)
    });
    &fakes[index]
}

pub fn errno() -> c_int {
    unsafe { *libc::__errno_location() }
}

pub fn open(index: usize) -> *mut ibv_context {
    fake(index);
    unsafe {
        let mut count = 0;
        let list = device::ibv_get_device_list(&mut count);
        assert_eq!(count, 4);
        let chosen = list.add(index).read();
        device::ibv_free_device_list(list);
        let name = CStr::from_ptr(device::ibv_get_device_name(chosen)).to_str().unwrap();
        assert_eq!(name, format!("viaduct{index}"));
        let context = context::ibv_open_device(chosen);
        assert!(!context.is_null());
        context
    }
}

/// Memory of a program, registered.
pub struct Buffer {
    pub bytes: Box<[u8]>,
    pub mr: *mut ibv_mr,
}

impl Buffer {
    pub fn new(pd: *mut ibv_pd, bytes: &[u8]) -> Self {
        let mut bytes: Box<[u8]> = bytes.into();
        let mr = unsafe { memory::ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), bytes.len(), 7) };
        assert!(!mr.is_null());
        Self { bytes, mr }
    }

    pub fn sge(&mut self) -> ibv_sge {
        let (addr, length) = (self.bytes.as_mut_ptr() as u64, self.bytes.len() as u32);
        ibv_sge { addr, length, lkey: unsafe { (*self.mr).lkey } }
    }
}

/// Two queue pairs with one completion queue.
pub struct Pair {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub qps: [*mut ibv_qp; 2],
}

pub const DEPTH: u32 = 4;

impl Pair {
    pub fn new(index: usize, qp_type: u32) -> Self {
        let context = open(index);
        let cq = unsafe { completion::ibv_create_cq(context, 16, null_mut(), null_mut(), 0) };
        Self::with(context, cq, null_mut(), qp_type)
    }

    pub fn with(context: *mut ibv_context, cq: *mut ibv_cq, srq: *mut ibv_srq, qp_type: u32) -> Self {
        assert!(!cq.is_null());
        let pd = unsafe { memory::ibv_alloc_pd(context) };
        let qps = [(); 2].map(|()| create(context, pd, cq, srq, qp_type));
        let pair = Self { context, pd, cq, qps };
        for (at, qp) in qps.into_iter().enumerate() {
            assert_eq!(pair.connect(qp, qps[1 - at]), 0);
        }
        pair
    }

    fn connect(&self, qp: *mut ibv_qp, to: *mut ibv_qp) -> c_int {
        let dest_qp_num = unsafe { (*to).qp_num };
        let states = [1, 2, 3];
        states.into_iter().map(|qp_state| modify_to(qp, qp_state, dest_qp_num)).sum()
    }

    /// Waits for completions.
    pub fn completions(&self, count: usize) -> Vec<ibv_wc> {
        let mut found = Vec::new();
        let started = std::time::Instant::now();
        while found.len() < count {
            assert!(started.elapsed().as_secs() < 20, "{} of {count} completions came", found.len());
            found.extend(self.poll());
        }
        found
    }

    pub fn poll(&self) -> Vec<ibv_wc> {
        let mut room = [ibv_wc::default(); 8];
        let taken = unsafe { completion::poll_cq(self.cq, 8, room.as_mut_ptr()) };
        room[..usize::try_from(taken).unwrap()].to_vec()
    }

    pub fn destroy(self) {
        unsafe {
            for qp in self.qps {
                assert_eq!(queue_pair::ibv_destroy_qp(qp), 0);
            }
            assert_eq!(completion::ibv_destroy_cq(self.cq), 0);
            assert_eq!(memory::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(context::ibv_close_device(self.context), 0);
        }
    }
}

fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qp_type: u32,
) -> *mut ibv_qp {
    let cap = ibv_qp_cap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type, attr.pd) = (cq, cq, srq, cap, qp_type, pd);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = 1 << IBV_WR_SEND;
    let qp = unsafe { queue_pair::create_qp_ex(context, &mut attr) };
    assert!(!qp.is_null());
    qp
}

/// State and destination.
pub fn modify_to(qp: *mut ibv_qp, qp_state: u32, dest_qp_num: u32) -> c_int {
    let mut attr = ibv_qp_attr { qp_state, dest_qp_num, ..ibv_qp_attr::default() };
    unsafe { modify::ibv_modify_qp(qp, &mut attr, 1 | 1 << 20) }
}

/// A signaled SEND.
pub fn send(id: u64, list: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (id, IBV_WR_SEND, 2);
    (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
    wr
}

/// Posts, and returns what it returns and the identifier of the request that was refused.
pub fn post_send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, Option<u64>) {
    let mut bad = null_mut();
    unsafe { (post::post_send(qp, wr, &mut bad), bad.as_ref().map(|bad| bad.wr_id)) }
}

pub fn receive(id: u64, list: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: list.len() as c_int }
}

pub fn post_receive(qp: *mut ibv_qp, wr: &mut ibv_recv_wr) -> (c_int, Option<u64>) {
    let mut bad = null_mut();
    unsafe { (post::post_recv(qp, wr, &mut bad), bad.as_ref().map(|bad| bad.wr_id)) }
}

pub fn handle(pd: *mut ibv_pd, gid: [u8; 16]) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    attr.grh.dgid = ibv_gid { raw: gid };
    unsafe { address::ibv_create_ah(pd, &mut attr) }
}
