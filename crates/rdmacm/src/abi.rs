//! Structures of `<rdma/rdma_cma.h>` with the same names, which tests compare with the header; and those of
//! `libibverbs` that it uses.

use libc::{c_char, c_int, c_void, sockaddr, sockaddr_storage, socklen_t};

pub use verbs_abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQT_BASIC, VIADUCT, ibv_ah_attr as AhAttr, ibv_comp_channel as CompChannel, ibv_context as Context,
    ibv_cq as Cq, ibv_device as Device, ibv_device_attr as DeviceAttr, ibv_ece as Ece, ibv_gid as Gid,
    ibv_global_route as GlobalRoute, ibv_mr as Mr, ibv_pd as Pd, ibv_qp as Qp, ibv_qp_attr as QpAttr,
    ibv_qp_cap as QpCap, ibv_qp_init_attr as QpInitAttr, ibv_qp_init_attr_ex as QpInitAttrEx,
    ibv_recv_wr as RecvWr, ibv_sa_path_rec as PathRecord, ibv_send_wr as SendWr, ibv_sge as Sge,
    ibv_srq as Srq, ibv_srq_init_attr as SrqInitAttr, ibv_srq_init_attr_ex as SrqInitAttrEx, ibv_wc as Wc,
    viaduct_device as ViaductDevice,
};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Addr {
    pub src_addr: sockaddr_storage,
    pub dst_addr: sockaddr_storage,
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRecord,
    pub num_paths: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `rdma_cm_id`.
#[repr(C)]
#[derive(Debug)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

impl std::fmt::Debug for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Param")
    }
}

/// `rdma_cm_event`.
#[repr(C)]
#[derive(Debug)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: u32,
    pub status: c_int,
    pub param: Param,
}

/// `rdma_addrinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut AddrInfo,
}

/// `rdma_cm_join_mc_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct JoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}

pub const RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1;
pub const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 2;
pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: u32 = 0;
pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u32 = 1;

/// `rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
}

pub const RDMA_PS_IPOIB: u32 = 0x0002;
pub const RDMA_PS_TCP: u32 = 0x0106;
pub const RDMA_PS_UDP: u32 = 0x0111;
pub const RDMA_PS_IB: u32 = 0x013f;

pub const RAI_PASSIVE: c_int = 1;
pub const RAI_NUMERICHOST: c_int = 2;

/// Accepts as many of the peer's READs and atomics as it offers.
pub const RDMA_MAX_RESP_RES: u8 = 0xff;
/// Uses as many READs and atomics at a time as the peer offers.
pub const RDMA_MAX_INIT_DEPTH: u8 = 0xff;
