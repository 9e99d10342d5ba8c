//! Work requests, as they lie in a slot of a work queue.

use std::mem::offset_of;

/// What is asked for (`ibv_wr_opcode`).
pub mod opcode {
    #![allow(missing_docs)] // the standard's names
    pub const RDMA_WRITE: u8 = 0;
    pub const RDMA_WRITE_WITH_IMM: u8 = 1;
    pub const SEND: u8 = 2;
    pub const SEND_WITH_IMM: u8 = 3;
    pub const RDMA_READ: u8 = 4;
    pub const ATOMIC_CMP_AND_SWP: u8 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u8 = 6;
    pub const LOCAL_INV: u8 = 7;
    pub const BIND_MW: u8 = 8;
    pub const SEND_WITH_INV: u8 = 9;
}

/// How (`ibv_send_flags`).
pub mod send_flags {
    #![allow(missing_docs)] // the standard's names
    pub const FENCE: u8 = 1 << 0;
    pub const SIGNALED: u8 = 1 << 1;
    pub const SOLICITED: u8 = 1 << 2;
}

/// What is asked for. Meaning and numbers of `opcode` are `ibv_wr_opcode`'s, those of `flags` are `ibv_send_flags`'.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkRequest {
    /// What the application calls it.
    pub id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u8,
    /// `ibv_send_flags`.
    pub flags: u8,
    /// Segments in the list. Not of inline messages.
    pub segments: u16,
    /// Bytes of an inline message.
    pub inline_len: u32,
    /// Address at the peer; of a window, where it begins.
    pub address: u64,
    /// What is compared with, or added; bytes of a window.
    pub compare_add: u64,
    /// What is put there; `ibv_access_flags` of a window.
    pub swap: u64,
    /// Key at the peer; the one that a window is to have.
    pub rkey: u32,
    /// Immediate data in the order of the wire; the key to be made invalid; that of the region that a window is bound
    /// to.
    pub immediate: u32,
    /// Address handle of a datagram.
    pub ah: u32,
    /// Queue pair that a datagram goes to.
    pub remote_qpn: u32,
    /// Its queue key.
    pub remote_qkey: u32,
    /// Which of the queue pair's sends it is: its completion says so.
    pub number: u32,
}

/// Bytes of it that a receive needs.
pub(crate) const RECEIVE: usize = offset_of!(WorkRequest, address);

const _: () =
    assert!(size_of::<WorkRequest>() == 64 && offset_of!(WorkRequest, number) == 60 && RECEIVE == 16);

/// A part of the application's memory (`ibv_sge`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Key of its memory region.
    pub lkey: u32,
}
