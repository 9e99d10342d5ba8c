//! Completion queues, their channels, and completions.

use super::ibv_context;
use std::ffi::{c_int, c_void};

#[repr(C)]
#[derive(Debug)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}

/// Starts with an [`ibv_cq`], so a pointer to one is a pointer to the other.
#[repr(C)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut super::ibv_pd,
}

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1 << 0;
/// Flags for byte length, immediate, QP numbers, LIDs and service level.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;

/// A completion. `imm_data` is also `invalidated_rkey`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

pub const IBV_WC_SUCCESS: u32 = 0;
pub const IBV_WC_WR_FLUSH_ERR: u32 = 5;
pub const IBV_WC_GRH: u32 = 1 << 0;
pub const IBV_WC_RECV: u32 = 1 << 7;

impl From<uverbs::Completion> for ibv_wc {
    fn from(of: uverbs::Completion) -> Self {
        Self {
            wr_id: of.id,
            status: of.status.into(),
            opcode: of.opcode.into(),
            byte_len: of.byte_len,
            imm_data: of.immediate,
            qp_num: of.qpn,
            src_qp: of.source_qpn,
            wc_flags: wc_flags(of.flags),
            sl: packet_type(of.flags),
            ..Self::default()
        }
    }
}

/// Returns the flags of a completion as programs see them.
pub fn wc_flags(flags: u16) -> u32 {
    (flags & !uverbs::completion::flags::BY_IPV4).into()
}

/// Returns the packet type of a datagram (IBTA, annex A17.4.5.1), 0 for RC and UC. Completions report it in the field of
/// the service level: `ibv_wc` has no field for it, and there is no service level. The numbers are those of Mellanox
/// adapters, as UCX expects.
pub fn packet_type(flags: u16) -> u8 {
    const UDP: u8 = 8;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match flags & (uverbs::completion::flags::GRH | uverbs::completion::flags::BY_IPV4) {
        uverbs::completion::flags::GRH => UDP | IPV6,
        0 => 0,
        _ => UDP | IPV4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs::completion::flags::{BY_IPV4, GRH, WITH_IMM};

    #[test]
    fn a_datagram_says_what_packet_it_was() {
        let told = |flags| {
            let wc = ibv_wc::from(uverbs::Completion { flags, ..Default::default() });
            (wc.wc_flags, wc.sl)
        };
        assert_eq!(told(WITH_IMM), (2, 0));
        assert_eq!(told(GRH | WITH_IMM), (3, 9));
        assert_eq!(told(GRH | BY_IPV4), (1, 10));
    }
}
