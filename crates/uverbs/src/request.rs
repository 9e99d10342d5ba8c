//! Work requests.

/// The operation (`ibv_wr_opcode`).
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

/// Flags (`ibv_send_flags`).
pub mod send_flags {
    #![allow(missing_docs)] // the standard's names
    pub const FENCE: u8 = 1 << 0;
    pub const SIGNALED: u8 = 1 << 1;
    pub const SOLICITED: u8 = 1 << 2;
}

/// A work request. `opcode` and `flags` have the meaning and the numbers of `ibv_wr_opcode` and `ibv_send_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkRequest {
    /// The application's identifier of the request.
    pub id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u8,
    /// `ibv_send_flags`.
    pub flags: u8,
    /// Number of segments in the list; unused for inline messages.
    pub segments: u16,
    /// Bytes of an inline message.
    pub inline_len: u32,
    /// Address at the peer; for a window, its start.
    pub address: u64,
    /// The value to compare with, or to add; for a window, its length in bytes.
    pub compare_add: u64,
    /// The value to store; for a window, its `ibv_access_flags`.
    pub swap: u64,
    /// Key at the peer; for a window, its new key.
    pub rkey: u32,
    /// Immediate data in wire order; the key to invalidate; or the key of the region to which a window is bound.
    pub immediate: u32,
    /// Address handle of a datagram, which has neither address nor key at the peer.
    pub ah: u32,
    /// Destination queue pair of a datagram.
    pub remote_qpn: u32,
    /// Queue key of the destination.
    pub remote_qkey: u32,
    /// The request's number among the queue pair's sends, which the completion repeats.
    pub number: u32,
}

/// A part of the application's memory (`ibv_sge`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the memory region.
    pub lkey: u32,
}
