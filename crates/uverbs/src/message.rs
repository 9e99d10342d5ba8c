//! Control messages: what the library asks for on a guest's socket, and what the device answers.
//!
//! A message is JSON in one datagram, descriptors go with it. Each request has one reply, in their order. An addition
//! that older libraries can do without keeps the version.

use crate::cm::{CmReply, CmRequest};
use crate::qp::{QpAttributes, QpType};
use crate::work::Shape;
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// Bytes that an application is known by.
pub const TOKEN: usize = 16;

/// Version of the protocol.
pub const VERSION: u32 = 7;

/// What the library asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // fields have the names of the verbs' parameters
pub enum Request {
    /// The first: with a descriptor of the application's own `/proc/self/mem`, open for reading and writing. Answered
    /// by [`Reply::Device`] with three descriptors: doorbells (shared memory), an event descriptor that wakes the
    /// device, and the socket on which asynchronous events come. That is one of `SOCK_SEQPACKET`: its end says that the
    /// device is gone.
    ///
    /// `token`: where the application has [`TOKEN`] bytes that nobody else has, for peers that share memory to know it
    /// by.
    Hello {
        version: u32,
        #[serde(default)]
        token: u64,
    },
    /// Answered by [`Reply::Port`].
    QueryPort,
    /// Answered by [`Reply::Handle`].
    AllocPd,
    DeallocPd {
        pd: u32,
    },
    /// Answered by [`Reply::Mr`]. `pages`: address and bytes of pages of it that are mapped from a file, all of that,
    /// whose descriptor comes with this: a memfd sealed against shrinking. Who may use the region may map it.
    RegMr {
        pd: u32,
        address: u64,
        length: u64,
        iova: u64,
        access: u32,
        pages: Option<(u64, u64)>,
    },
    /// What is `None` stays; a region that lies elsewhere then has no pages that others may map. Answered by
    /// [`Reply::Mr`].
    ReregMr {
        mr: u32,
        pd: Option<u32>,
        range: Option<(u64, u64)>,
        access: Option<u32>,
    },
    DeregMr {
        mr: u32,
    },
    /// A memory window of type 1 or 2 (`ibv_mw_type`), which is bound to no region yet. Answered by [`Reply::Mw`].
    AllocMw {
        pd: u32,
        mw_type: u32,
    },
    DeallocMw {
        mw: u32,
    },
    /// Answered by [`Reply::Handle`] with one descriptor: the socket, of `SOCK_SEQPACKET`, on which the handles of
    /// completion queues come, four bytes each in the machine's order.
    CreateChannel,
    DestroyChannel {
        channel: u32,
    },
    /// Answered by [`Reply::Cq`] with its memory.
    CreateCq {
        entries: u32,
        channel: Option<u32>,
    },
    /// Answered by [`Reply::Cq`] with its new memory.
    ResizeCq {
        cq: u32,
        entries: u32,
    },
    /// Tells the channel of a completion queue, which is not armed any more.
    TellChannel {
        cq: u32,
    },
    /// Tells the channel of what the queue pair's peer receives: a message was brought there, and the channel had no
    /// room to say so.
    TellPeer {
        qpn: u32,
    },
    DestroyCq {
        cq: u32,
    },
    /// Answered by [`Reply::Srq`] with its memory.
    CreateSrq {
        pd: u32,
        max_wr: u32,
        max_sge: u32,
    },
    /// Answered by [`Reply::Srq`] with its new memory, to which the receives that wait are moved: nobody posts
    /// meanwhile. `limit`: as [`Self::ArmSrq`] has it; `None`: it stays.
    ResizeSrq {
        srq: u32,
        max_wr: u32,
        limit: Option<u32>,
    },
    /// Asks for an event once fewer than `limit` receives are left. Answered by [`Reply::Done`].
    ArmSrq {
        srq: u32,
        limit: u32,
    },
    /// Says that few receives are left in the shared queue of a peer that memory is shared with. Answered by
    /// [`Reply::Done`].
    PeerIsLow {
        qpn: u32,
    },
    /// Answered by [`Reply::SrqLimit`].
    QuerySrq {
        srq: u32,
    },
    DestroySrq {
        srq: u32,
    },
    /// Answered by [`Reply::Qp`] with its memory.
    CreateQp(CreateQp),
    ModifyQp {
        qpn: u32,
        mask: u32,
        attributes: QpAttributes,
    },
    /// Answered by [`Reply::QpInfo`].
    QueryQp {
        qpn: u32,
    },
    DestroyQp {
        qpn: u32,
    },
    /// `ibv_attach_mcast` of a queue pair of datagrams: what comes to the group is received by it, too. Refused with
    /// `ENOMEM` where as many are attached as may be.
    AttachMcast {
        qpn: u32,
        gid: Ipv6Addr,
    },
    /// `ibv_detach_mcast`.
    DetachMcast {
        qpn: u32,
        gid: Ipv6Addr,
    },
    /// Asks to share memory with the peer of a reliable connection. Answered by [`Reply::Direct`]; refused with
    /// `EAGAIN` where the peer is not ready yet, with `EPERM` where it never is.
    Direct {
        qpn: u32,
    },
    /// Asks for the file of a region of that peer's, once memory is shared with it. Answered by [`Reply::Pages`] with
    /// its descriptor; refused as [`Self::Direct`] is.
    Pages {
        qpn: u32,
        rkey: u32,
    },
    /// Asks for all memory of that peer's process, for what it has in no file. Answered by [`Reply::Memory`] with a
    /// descriptor of its `/proc/self/mem`; refused as [`Self::Direct`] is.
    Memory {
        qpn: u32,
    },
    /// Answered by [`Reply::Handle`].
    CreateAh {
        pd: u32,
        vector: AddressVector,
    },
    DestroyAh {
        ah: u32,
    },
    /// Of the connection manager, on a connection of its own.
    Cm(CmRequest),
}

/// A queue pair to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names of `ibv_qp_init_attr`
pub struct CreateQp {
    pub pd: u32,
    pub qp_type: QpType,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub capacity: Capacity,
    pub sq_sig_all: bool,
}

/// Sizes of a queue pair (`ibv_qp_cap`): what is asked for, or what there is, which may be more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // `ibv_qp_cap`'s names
pub struct Capacity {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Where packets go (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_ah_attr`'s names
pub struct AddressVector {
    pub dgid: Ipv6Addr,
    pub sgid_index: u32,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port_num: u8,
    /// Without one there is no address over Ethernet: such are refused.
    pub is_global: bool,
}

impl Default for AddressVector {
    fn default() -> Self {
        Self {
            dgid: Ipv6Addr::UNSPECIFIED,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
            sl: 0,
            port_num: 0,
            is_global: false,
        }
    }
}

/// What the device answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // fields have the names of the verbs' parameters
pub enum Reply {
    Done,
    Handle(u32),
    Device(DeviceInfo),
    Port(PortInfo),
    Mr {
        mr: u32,
        lkey: u32,
        rkey: u32,
    },
    /// Binding it changes the lowest byte of `rkey`.
    Mw {
        mw: u32,
        rkey: u32,
    },
    Cq {
        cq: u32,
        entries: u32,
    },
    Srq {
        srq: u32,
        queue: Shape,
        max_wr: u32,
        max_sge: u32,
    },
    SrqLimit(u32),
    /// `doorbell` is that of its send queue, and of its receive queue where that asks for it. `memory`: its bytes.
    /// `parcels`: where those lie in it, if peers may share memory.
    Qp {
        qpn: u32,
        capacity: Capacity,
        send: Shape,
        receive: Option<Shape>,
        parcels: Option<u32>,
        memory: u64,
        doorbell: u32,
    },
    QpInfo(Box<QpInfo>),
    Direct(DirectPeer),
    /// Where the peer has the file's pages, and how many bytes they are.
    Pages {
        address: u64,
        len: u64,
    },
    /// The peer's process, as the device sees it, and where its token is; 0: it has none.
    Memory {
        pid: i32,
        token: u64,
    },
    Cm(CmReply),
}

/// A peer that shares memory. With it come, in this order: the bond ([`Bond`](crate::Bond)), the memory of the peer's
/// queue pair, that of its completion queue for receives, its table of memory regions, our own one, that of our
/// completion queue for sends, and where `has_channel` the socket of its completion channel, on which we tell of
/// completions, and where `takes_shared` the memory of its shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as elsewhere
pub struct DirectPeer {
    pub qpn: u32,
    pub pd: u32,
    /// `ibv_access_flags` of the peer's queue pair.
    pub access: u32,
    pub receive: Shape,
    /// Its receives are those of a shared queue.
    pub takes_shared: bool,
    /// By which number we take from that.
    pub taker: u32,
    /// Where parcels lie in the memory of its queue pair.
    pub parcels: u32,
    /// Bytes of that memory.
    pub memory: u64,
    pub cq: u32,
    pub entries: u32,
    /// Regions that its table has room for, and ours.
    pub regions: u32,
    pub own_regions: u32,
    /// Completions that our queue for sends has room for.
    pub own_entries: u32,
    pub has_channel: bool,
}

/// What is not done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// As the verb's man page has it.
    pub errno: i32,
    /// For people.
    pub message: String,
}

/// Limits of the device (`ibv_device_attr`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_device_attr`'s names
pub struct DeviceInfo {
    /// Of the guest.
    pub name: String,
    /// Of the daemon, for people.
    pub version: String,
    pub node_guid: u64,
    pub max_mr_size: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    /// Regions and windows together.
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// READs and atomics under way of a queue pair, in either direction.
    pub max_rd_atomic: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    /// Doorbells in the memory that comes with this.
    pub doorbells: u32,
    /// Whether there may be peers that share memory with us.
    pub is_trusting: bool,
}

/// The port (`ibv_port_attr`). It is an Ethernet port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_port_attr`'s names
pub struct PortInfo {
    pub is_active: bool,
    /// `ibv_mtu`.
    pub active_mtu: u32,
    /// All are for `RoCE` v2.
    pub gids: Vec<Ipv6Addr>,
    pub bad_pkeys: u32,
    pub qkey_violations: u32,
}

/// A queue pair, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct QpInfo {
    pub attributes: QpAttributes,
    pub capacity: Capacity,
}

/// What comes on the socket of asynchronous events: `ibv_event_type` and the handle of what it is about (the number of
/// a queue pair, the port's), four bytes each in the machine's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// `ibv_event_type`.
    pub kind: u32,
    /// CQ, SRQ, number of a QP, or port.
    pub handle: u32,
}

impl AsyncEvent {
    /// As it travels.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.kind) | u64::from(self.handle) << 32).to_ne_bytes()
    }

    /// What travelled.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let both = u64::from_ne_bytes(bytes);
        Self { kind: both as u32, handle: (both >> 32) as u32 }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_written() {
        let asked =
            Request::RegMr { pd: 1, address: 2, length: 3, iova: u64::MAX, access: 5, pages: Some((4, 6)) };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), asked);
        assert!(serde_json::from_str::<Request>(r#"{"reg_mr":{}}"#).is_err());
    }

    #[test]
    fn a_newer_device_may_say_more() {
        let reply: Reply = serde_json::from_str(r#"{"port":{"is_active":true,"colour":"red"}}"#).unwrap();
        assert!(matches!(reply, Reply::Port(port) if port.is_active));
    }
}
