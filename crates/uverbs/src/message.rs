//! Control messages: the library's requests on a guest's socket, and the device's answers.
//!
//! A message is JSON, and items may come with it ([`Given`](crate::Given)). Each request has one reply, in order. An
//! addition that older libraries can ignore keeps the version.
//!
//! Where a reply "has memory", a descriptor comes with it to a program of this kernel, or a window's pages: for a
//! program in a virtual machine a [`Given::Part`](crate::Given::Part), for others whose guest is in a trust with a
//! common window a [`Given::Window`](crate::Given::Window). Where it "has a socket", it is a descriptor, or a
//! ticket.

use crate::address::AddressVector;
use crate::cm::{CmReply, CmRequest};
use crate::part::Part;
use crate::qp::{QpAttributes, QpType};
use crate::suspect::Suspect;
use crate::window::Uuid;
use crate::work::Shape;
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// Number of bytes that identify an application.
pub const TOKEN: usize = 16;

pub const VERSION: u32 = 9;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // fields have the names of the verbs' parameters
pub enum Request {
    /// The first request, with a descriptor of the application's own `/proc/self/mem`, open for reading and
    /// writing, unless it comes over a stream. The answer is [`Reply::Device`]. It has the memory of the
    /// doorbells, a way to wake the device (an event descriptor or, as a ticket, a stream), and the socket for
    /// asynchronous events, which is a `SOCK_SEQPACKET` or a stream; when that ends, the device is gone.
    ///
    /// `token`: the address of [`TOKEN`] bytes that no other application has, by which peers that share memory
    /// recognise this one.
    ///
    /// `program`: a random number that no other application knows. Connections with the same number belong to one
    /// application, which may use pages of windows with any of them ([`DeviceInfo::program`]). Zero: the
    /// application has no other connection.
    Hello {
        version: u32,
        #[serde(default)]
        token: u64,
        #[serde(default)]
        program: Uuid,
    },
    /// The answer is [`Reply::Port`].
    QueryPort,
    /// The answer is [`Reply::Handle`].
    AllocPd,
    DeallocPd {
        pd: u32,
    },
    /// Requests pages of a window. The answer is [`Reply::Done`] with one or more parts that have this length together
    /// (whole pages), zeroed. Refused with `ENOMEM` if there is no room, and with `EOPNOTSUPP` if the program has no
    /// window.
    AllocPages {
        len: u64,
    },
    /// Gives back a part that came as a whole in an answer to [`Self::AllocPages`], on any connection of the
    /// application. Regions that still have it keep it.
    ///
    /// If the device was gone and came back, the program gives back the parts that it got before, once it has moved its
    /// memory elsewhere: nobody else gets them until then.
    FreePages {
        part: Part,
    },
    /// Reports which of the programs in [`DeviceInfo::suspects`] have ended: others may get their pages. The answer is
    /// [`Reply::Done`].
    Ended {
        gone: Vec<Suspect>,
    },
    /// The answer is [`Reply::Mr`]. `pages`: whole pages around or in the region that others may map, in the order of
    /// their addresses, without overlap. Whoever may use the region may map them. Over a stream, they must cover all of
    /// it: the device has no other access to the program's memory.
    RegMr {
        pd: u32,
        address: u64,
        length: u64,
        iova: u64,
        access: u32,
        pages: Vec<Extent>,
    },
    /// Begins to copy for regions of [`Self::RegStandIn`]. The answer is [`Reply::Done`] with the memory of a
    /// [`CopyReport`](crate::CopyReport), and with the `SOCK_SEQPACKET` or stream on which each
    /// [`CopyJob`](crate::CopyJob) comes.
    ServeCopies,
    /// Registers a region like [`Self::RegMr`], over a stream. `pages`: pages that stand for the region's own, which
    /// can't move. Before the program posts a request that sends from there, it copies what the request sends to these
    /// pages; else the device asks its copier. Nobody else maps these pages.
    RegStandIn {
        pd: u32,
        address: u64,
        length: u64,
        iova: u64,
        access: u32,
        pages: Vec<Extent>,
    },
    /// Changes a region, except for the properties that are `None`. A region with a new range no longer has pages that
    /// others may map, so a range over a stream is refused. The answer is [`Reply::Mr`].
    ReregMr {
        mr: u32,
        pd: Option<u32>,
        range: Option<(u64, u64)>,
        access: Option<u32>,
    },
    DeregMr {
        mr: u32,
    },
    /// Creates a memory window of type 1 or 2 (`ibv_mw_type`), not bound yet. The answer is [`Reply::Mw`].
    AllocMw {
        pd: u32,
        mw_type: u32,
    },
    DeallocMw {
        mw: u32,
    },
    /// The answer is [`Reply::Handle`] with a socket: the `SOCK_SEQPACKET` or stream on which the handles of completion
    /// queues come, four bytes each in the machine's byte order.
    CreateChannel,
    DestroyChannel {
        channel: u32,
    },
    /// The answer is [`Reply::Cq`] with its memory.
    CreateCq {
        entries: u32,
        channel: Option<u32>,
        /// Whether completions have the time when they were added.
        timestamps: bool,
    },
    /// The answer is [`Reply::Cq`] with its new memory.
    ResizeCq {
        cq: u32,
        entries: u32,
    },
    /// Notifies the channel of a completion queue that is no longer armed.
    TellChannel {
        cq: u32,
    },
    /// Notifies the channel of the queue pair's peer: a message was stored there, and the channel had no room for the
    /// notification.
    TellPeer {
        qpn: u32,
    },
    DestroyCq {
        cq: u32,
    },
    /// The answer is [`Reply::Srq`] with its memory.
    CreateSrq {
        pd: u32,
        max_wr: u32,
        max_sge: u32,
    },
    /// The answer is [`Reply::Srq`] with its new memory, to which waiting receives are moved; nobody may post
    /// meanwhile. `limit` is the same as for [`Self::ArmSrq`]; `None` keeps it.
    ResizeSrq {
        srq: u32,
        max_wr: u32,
        limit: Option<u32>,
    },
    /// Requests an event once fewer than `limit` receives are left. The answer is [`Reply::Done`].
    ArmSrq {
        srq: u32,
        limit: u32,
    },
    /// Reports that few receives are left in the shared queue of a peer that shares memory. The answer is
    /// [`Reply::Done`].
    PeerIsLow {
        qpn: u32,
    },
    /// The answer is [`Reply::SrqLimit`].
    QuerySrq {
        srq: u32,
    },
    DestroySrq {
        srq: u32,
    },
    /// The answer is [`Reply::Qp`] with its memory.
    CreateQp(CreateQp),
    ModifyQp {
        qpn: u32,
        mask: u32,
        attributes: QpAttributes,
    },
    /// The answer is [`Reply::QpInfo`].
    QueryQp {
        qpn: u32,
    },
    DestroyQp {
        qpn: u32,
    },
    /// `ibv_attach_mcast` for a queue pair for datagrams: it then receives the group's datagrams, too. Refused with
    /// `ENOMEM` if the limit is reached.
    AttachMcast {
        qpn: u32,
        gid: Ipv6Addr,
    },
    /// `ibv_detach_mcast`.
    DetachMcast {
        qpn: u32,
        gid: Ipv6Addr,
    },
    /// Requests shared memory with the peer of a reliable connection. The answer is [`Reply::Direct`]; it is refused
    /// with `EAGAIN` if the peer is not ready yet, with `EPERM` if it never will be.
    Direct {
        qpn: u32,
    },
    /// Requests the pages of a region of that peer, once memory is shared with it. The answer is [`Reply::Pages`] with
    /// their memory; it is refused like [`Self::Direct`].
    Pages {
        qpn: u32,
        rkey: u32,
    },
    /// Requests access to all memory of that peer's process, for memory that is in no file. The answer is
    /// [`Reply::Memory`] with a descriptor of its `/proc/self/mem`; it is refused like [`Self::Direct`].
    Memory {
        qpn: u32,
    },
    /// The answer is [`Reply::Handle`].
    CreateAh {
        pd: u32,
        vector: AddressVector,
    },
    DestroyAh {
        ah: u32,
    },
    /// A request to the connection manager, on a separate connection.
    Cm(CmRequest),
}

/// Pages of a program's memory that others may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The pages' address in the program: a multiple of [`PAGE`](crate::PAGE).
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    pub backing: Backing,
}

/// The place of pages that others may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// The pages are a whole memfd, sealed against shrinking, whose descriptor comes with the request. There is no
    /// other extent.
    File,
    /// The pages are in a part that the program got with [`Request::AllocPages`], on any of its connections, and
    /// did not give back.
    Window(Part),
}

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

/// Sizes of a queue pair (`ibv_qp_cap`): the requested ones, or the actual ones, which may be larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // `ibv_qp_cap`'s names
pub struct Capacity {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// An answer of the device.
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
    /// Binding the window changes the lowest byte of `rkey`.
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
    /// `doorbell` belongs to the send queue, and to the receive queue if that requests it. `memory` is the length in
    /// bytes, `message ring` their offset in the memory if peers may share it.
    Qp {
        qpn: u32,
        capacity: Capacity,
        send: Shape,
        receive: Option<Shape>,
        #[serde(rename = "parcels")]
        message_ring: Option<u32>,
        memory: u64,
        doorbell: u32,
    },
    QpInfo(Box<QpInfo>),
    Direct(DirectPeer),
    /// The address of the pages in the peer, and their length in bytes. Their memory is one descriptor, or parts that
    /// follow each other at these addresses. `file` equals the one in the region's entry of the table.
    Pages {
        address: u64,
        len: u64,
        file: u64,
    },
    /// The peer's process number in the device's namespace, and the address of its token; 0 if it has none.
    Memory {
        pid: i32,
        token: u64,
    },
    Cm(CmReply),
}

/// A peer that shares memory. This memory comes with it, in this order: that of the
/// [`DirectSession`](crate::DirectSession); the memory of the peer's queue pair; that of its completion queue for
/// receives; its table of memory regions; our own table; that of our completion queue for sends; if `has_socket`, the
/// socket of its completion channel, on which we notify it of completions; if `takes_shared`, the memory of its shared
/// receive queue. If it `has_channel` without a socket, [`Request::TellPeer`] notifies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as elsewhere
pub struct DirectPeer {
    pub qpn: u32,
    pub pd: u32,
    /// `ibv_access_flags` of the peer's queue pair.
    pub access: u32,
    pub receive: Shape,
    /// Whether the peer's receives come from a shared queue.
    pub takes_shared: bool,
    /// Our number as a taker of that queue.
    pub taker: u32,
    /// Offset of the message ring in the memory of the peer's queue pair.
    #[serde(rename = "parcels")]
    pub message_ring: u32,
    /// Bytes of that memory.
    pub memory: u64,
    pub cq: u32,
    pub entries: u32,
    /// Number of regions for which the peer's table and ours have room.
    pub regions: u32,
    pub own_regions: u32,
    /// Number of completions for which our queue for sends has room.
    pub own_entries: u32,
    pub has_channel: bool,
    pub has_socket: bool,
}

/// A reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The error number of the verb's man page.
    pub errno: i32,
    /// An explanation for people.
    pub message: String,
}

/// Limits of the device (`ibv_device_attr`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_device_attr`'s names
pub struct DeviceInfo {
    pub name: String,
    /// Version of the daemon, for display.
    pub version: String,
    pub node_guid: u64,
    pub max_mr_size: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    /// Largest number of memory regions and windows together.
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// Largest number of READs and atomics of a queue pair in progress, in either direction.
    pub max_rd_atomic: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    /// Number of doorbells in the memory that comes with this.
    pub doorbells: u32,
    /// Whether there may be peers that share memory with us.
    pub is_trusting: bool,
    /// Connections with the same number share pages of the windows that they have in common. 0: this one shares with
    /// none.
    pub program: u64,
    /// Programs of the same virtual machine that may have ended while there was no daemon. [`Request::Ended`]
    /// tells which have.
    pub suspects: Vec<Suspect>,
}

/// The port (`ibv_port_attr`), which is an Ethernet port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_port_attr`'s names
pub struct PortInfo {
    pub is_active: bool,
    /// `ibv_mtu`.
    pub active_mtu: u32,
    /// The port's GIDs, all for `RoCE` v2.
    pub gids: Vec<Ipv6Addr>,
    pub bad_pkeys: u32,
    pub qkey_violations: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct QpInfo {
    pub attributes: QpAttributes,
    pub capacity: Capacity,
}

/// A message on the socket of asynchronous events: `ibv_event_type` and the handle of its object (the number of a
/// queue pair or port), four bytes each in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// `ibv_event_type`.
    pub kind: u32,
    /// The CQ's or SRQ's handle, the QP's number, or the port.
    pub handle: u32,
}

impl AsyncEvent {
    /// Returns the event in the form in which it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.kind) | u64::from(self.handle) << 32).to_ne_bytes()
    }

    /// Reads an event that was received.
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
    use crate::part::WindowKind;

    #[test]
    fn requests_are_read_as_written() {
        let backing = Backing::Window(Part { window: WindowKind::Own, offset: 0, len: 4096 });
        let pages = vec![Extent { address: 4096, len: 4096, backing }];
        let asked = Request::RegMr { pd: 1, address: 2, length: 3, iova: u64::MAX, access: 5, pages };
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
