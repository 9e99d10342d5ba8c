//! Control messages of the connection manager: what `librdmacm` asks for, what the device answers, and what it tells.
//!
//! They travel over a connection to the guest's socket of their own, one for each program, beside those of its verbs.
//! It begins with [`CmRequest::Hello`]. A request is answered at once; what takes time is told by a [`CmEvent`], on the
//! socket of the channel that the identifier belongs to. When the connection ends, so does all that was made over it.
//!
//! The device does each request by the method of `rdma::cm::Manager` that has its name, as the client whose connection
//! it is; a refusal has the error number of `rdma::cm::Refused`. Identifiers and channels are numbered by the device.

use crate::qp::{QpAttributes, QpType};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// What the library asks for. Answered by [`Reply::Done`](crate::Reply::Done) unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // fields have the names of `librdmacm`'s parameters
pub enum CmRequest {
    /// The first on its connection, in the place of [`Request::Hello`](crate::Request::Hello).
    Hello { version: u32 },
    /// `rdma_create_event_channel`: with a descriptor, the device's end of a pair of sockets that keep the boundaries
    /// of messages (`SOCK_SEQPACKET`, of the family `AF_UNIX`: no other is taken). The device sends [`CmEvent`]s there,
    /// each with `tag`, and never waits for it: what the socket does not take is kept until it can be written again.
    /// Nothing comes back; when the program closes its end, `DestroyChannel` came before, or the connection ends. The
    /// library may give other devices the same end. Answered by [`Reply::Handle`](crate::Reply::Handle).
    CreateChannel { tag: u32 },
    /// Its identifiers go with it.
    DestroyChannel { channel: u32 },
    /// `rdma_create_id`; `port_space` is `RDMA_PS_TCP`, `_UDP` or `_IB`. Answered by
    /// [`Reply::Handle`](crate::Reply::Handle). The device sends no event of an identifier before the answer that made
    /// it.
    CreateId { channel: u32, port_space: u32, qp_type: QpType },
    /// `rdma_destroy_id`. After the answer no event of it comes any more, nor one of a request that its listener was
    /// not told of.
    DestroyId { id: u32 },
    /// `rdma_migrate_id`. After the answer its events come on the other channel, with those that were not sent yet.
    MigrateId { id: u32, channel: u32 },
    /// `rdma_set_option`.
    SetOption { id: u32, option: CmOption },
    /// `rdma_bind_addr`: an address of the guest's, loopback's, or the unspecified one. Answered by [`CmReply::Bound`].
    BindAddr { id: u32, address: SocketAddr },
    /// `rdma_resolve_addr`. What goes to a loopback address stays in the device. The device looks up whether the
    /// guest's packets from the source (or the address that is chosen for it) get to the destination. Told by
    /// `ADDR_RESOLVED`, with the route, or `ADDR_ERROR`.
    ResolveAddr { id: u32, source: Option<SocketAddr>, destination: SocketAddr },
    /// `rdma_resolve_route`. Told by `ROUTE_RESOLVED`.
    ResolveRoute { id: u32 },
    /// `rdma_listen`; 0: as many as there may be.
    Listen { id: u32, backlog: u32 },
    /// `rdma_connect`. Told by `CONNECT_RESPONSE`, `REJECTED` or `UNREACHABLE`; of datagrams, `ESTABLISHED` or
    /// `UNREACHABLE`.
    Connect { id: u32, parameters: CmParameters },
    /// The queue pair is ready, after `CONNECT_RESPONSE`: the peer is told.
    Establish { id: u32 },
    /// `rdma_accept` of a `CONNECT_REQUEST`. Told by `ESTABLISHED`, `REJECTED` or `UNREACHABLE`; of datagrams, not at
    /// all.
    Accept { id: u32, parameters: CmParameters },
    /// `rdma_reject`; reason 0 is the program's own.
    Reject { id: u32, reason: u16, private: Vec<u8> },
    /// `rdma_disconnect`. Told by `DISCONNECTED`, and after a while `TIMEWAIT_EXIT`.
    Disconnect { id: u32 },
    /// `rdma_notify` of `IBV_EVENT_COMM_EST`: a message came before the peer said that it is ready. The device may see
    /// that itself. Told by `ESTABLISHED`, if it was not yet.
    Notify { id: u32 },
    /// `rdma_join_multicast`, of datagrams: asks for the GID of a group, that the queue pair is then attached to.
    /// Told by `MULTICAST_JOIN` or `MULTICAST_ERROR`, with the group that has this number.
    JoinMulticast { id: u32, address: SocketAddr, join: u32 },
    /// `rdma_init_qp_attr`: what the identifier's queue pair is to be told on its way to a state (`ibv_qp_state`: INIT,
    /// RTR, RTS). Answered by [`CmReply::QpAttributes`].
    InitQpAttr { id: u32, state: u32 },
}

/// What may be set of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // `rdma_set_option`'s names
pub enum CmOption {
    TypeOfService(u8),
    ReuseAddress(bool),
    OnlyIpv6(bool),
    AckTimeout(u8),
}

/// What is wanted of a connection (`rdma_conn_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `rdma_conn_param`'s names
pub struct CmParameters {
    pub qp_num: u32,
    /// Of datagrams: the queue pair's key, where it is not that of the port space.
    pub qkey: Option<u32>,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// No longer than the message's field: else it is refused.
    pub private: Vec<u8>,
}

/// What the device answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmReply {
    /// The address, with its port.
    Bound(SocketAddr),
    /// For `ibv_modify_qp`.
    QpAttributes {
        /// Which of them are meant.
        mask: u32,
        /// All that are meant.
        attributes: QpAttributes,
    },
}

/// Where a connection goes. Both GIDs are those of the addresses, or of `own`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmRoute {
    /// The guest's.
    pub local: SocketAddr,
    /// The other's.
    pub peer: SocketAddr,
    /// Of loopback addresses: the guest's address that stands for both on the wire.
    #[serde(default)]
    pub own: Option<IpAddr>,
    /// `ibv_mtu` of the path.
    pub mtu: u32,
}

/// What the peer says of its end, as `rdma_conn_param` has it in an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `rdma_conn_param`'s names
pub struct CmConnection {
    pub qp_num: u32,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
}

/// Whom to send datagrams to (`rdma_ud_param`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `rdma_ud_param`'s names
pub struct CmDatagram {
    pub qp_num: u32,
    pub qkey: u32,
}

/// A multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmGroup {
    /// The number that the library gave to the join.
    pub join: u32,
    /// Its GID.
    pub gid: Ipv6Addr,
}

/// Something happened: what comes on a channel's socket, each in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// That of the channel.
    pub tag: u32,
    /// The identifier; of `CONNECT_REQUEST` a new one, on the listener's channel.
    pub id: u32,
    /// `rdma_cm_event_type`.
    pub event: u32,
    /// 0, a negative error number, or the peer's reason.
    pub status: i32,
    /// Of `CONNECT_REQUEST`.
    #[serde(default)]
    pub listener: Option<u32>,
    /// Of `ADDR_RESOLVED` and `CONNECT_REQUEST`.
    #[serde(default)]
    pub route: Option<CmRoute>,
    /// Of connections: `CONNECT_REQUEST`, `CONNECT_RESPONSE`.
    #[serde(default)]
    pub connection: Option<CmConnection>,
    /// Of datagrams: `ESTABLISHED`, `MULTICAST_JOIN`.
    #[serde(default)]
    pub datagram: Option<CmDatagram>,
    /// Of `MULTICAST_JOIN` and `MULTICAST_ERROR`.
    #[serde(default)]
    pub group: Option<CmGroup>,
    /// What the peer's program says.
    #[serde(default)]
    pub private: Vec<u8>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Reply, Request};

    /// What a device of another age says and hears is the same.
    #[test]
    fn messages_look_as_agreed() {
        let asked = Request::Cm(CmRequest::ResolveAddr {
            id: 1,
            source: None,
            destination: "10.0.0.2:7".parse().unwrap(),
        });
        let text = r#"{"cm":{"resolve_addr":{"id":1,"source":null,"destination":"10.0.0.2:7"}}}"#;
        assert_eq!(serde_json::to_string(&asked).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), asked);
        let answer = Reply::Cm(CmReply::Bound("[fd00::1]:7".parse().unwrap()));
        assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"cm":{"bound":"[fd00::1]:7"}}"#);
        let event: CmEvent =
            serde_json::from_str(r#"{"tag":0,"id":3,"event":9,"status":0,"colour":"red"}"#).unwrap();
        assert_eq!((event.id, event.event, event.route), (3, 9, None));
    }
}
