//! Control messages of the connection manager: the requests of `librdmacm`, the device's answers, and its events.
//!
//! They travel over a separate connection to the guest's socket, one for each program, besides the one for its verbs.
//! It begins with [`CmRequest::Hello`]. Each request is answered at once; if the result takes time, it is a
//! [`CmEvent`] on the socket of the identifier's channel. When the connection ends, everything created over it is
//! removed.
//!
//! The device handles each request by the method of `rdma::cm::Manager` with the same name, on behalf of the
//! connection's client; a refusal has the error number of `rdma::cm::Refused`. The device assigns the numbers of
//! identifiers and channels.

use crate::qp::{QpAttributes, QpType};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Requests of the library. The answer is [`Reply::Done`](crate::Reply::Done) unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // fields have the names of `librdmacm`'s parameters
pub enum CmRequest {
    /// The first request on its connection, instead of [`Request::Hello`](crate::Request::Hello).
    Hello { version: u32 },
    /// `rdma_create_event_channel`. A descriptor comes with it: the device's end of a pair of sockets that keep
    /// message boundaries (`SOCK_SEQPACKET` of the family `AF_UNIX`; no other kind is accepted). The device sends
    /// [`CmEvent`]s there, each with `tag`, and never waits for it: events that do not fit are kept until the socket
    /// is writable again. The device receives nothing from it. The program closes its end only after `DestroyChannel`
    /// or with the connection. The library may give other devices the same end. The answer is
    /// [`Reply::Handle`](crate::Reply::Handle). Over a stream, no descriptor comes with the request, but a ticket with
    /// the answer.
    CreateChannel { tag: u32 },
    /// `rdma_destroy_event_channel`. The channel's identifiers are destroyed with it.
    DestroyChannel { channel: u32 },
    /// `rdma_create_id`; `port_space` is `RDMA_PS_TCP`, `_UDP` or `_IB`. The answer is
    /// [`Reply::Handle`](crate::Reply::Handle). The device sends no event of an identifier before the answer that
    /// created it.
    CreateId { channel: u32, port_space: u32, qp_type: QpType },
    /// `rdma_destroy_id`. After the answer there are no more events of it, nor of requests that its listener has not
    /// received.
    DestroyId { id: u32 },
    /// `rdma_migrate_id`. After the answer its events, including those not sent yet, come on the other channel.
    MigrateId { id: u32, channel: u32 },
    /// `rdma_set_option`.
    SetOption { id: u32, option: CmOption },
    /// `rdma_bind_addr`: one of the guest's addresses, a loopback address, or the unspecified one. The answer is
    /// [`CmReply::Bound`].
    BindAddr { id: u32, address: SocketAddr },
    /// `rdma_resolve_addr`. Packets to a loopback address stay in the device. The device checks whether the guest's
    /// packets from the source (or the address chosen for it) reach the destination. The result is the event
    /// `ADDR_RESOLVED`, with the route, or `ADDR_ERROR`.
    ResolveAddr { id: u32, source: Option<SocketAddr>, destination: SocketAddr },
    /// `rdma_resolve_route`. The result is the event `ROUTE_RESOLVED`.
    ResolveRoute { id: u32 },
    /// `rdma_listen`; 0 stands for the largest backlog.
    Listen { id: u32, backlog: u32 },
    /// `rdma_connect`. The result is the event `CONNECT_RESPONSE`, `REJECTED` or `UNREACHABLE`; for datagrams,
    /// `ESTABLISHED` or `UNREACHABLE`.
    Connect { id: u32, parameters: CmParameters },
    /// After `CONNECT_RESPONSE`: the queue pair is ready, and the device tells the peer.
    Establish { id: u32 },
    /// `rdma_accept` of a `CONNECT_REQUEST`. The result is the event `ESTABLISHED`, `REJECTED` or `UNREACHABLE`; for
    /// datagrams there is none.
    Accept { id: u32, parameters: CmParameters },
    /// `rdma_reject`; reason 0 means that the program rejects.
    Reject { id: u32, reason: u16, private: Vec<u8> },
    /// `rdma_disconnect`. The result is the event `DISCONNECTED`, and after a while `TIMEWAIT_EXIT`.
    Disconnect { id: u32 },
    /// `rdma_notify` of `IBV_EVENT_COMM_EST`: a message arrived before the peer said that it is ready. The device may
    /// notice that itself. The result is the event `ESTABLISHED`, unless it was sent before.
    Notify { id: u32 },
    /// `rdma_join_multicast`, for datagrams: requests the GID of a group, to which the queue pair is then attached.
    /// The result is the event `MULTICAST_JOIN` or `MULTICAST_ERROR`, with this number in its group.
    JoinMulticast { id: u32, address: SocketAddr, join: u32 },
    /// `rdma_init_qp_attr`: the attributes for the identifier's queue pair in a transition to a state (`ibv_qp_state`:
    /// INIT, RTR, RTS). The answer is [`CmReply::QpAttributes`].
    InitQpAttr { id: u32, state: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // `rdma_set_option`'s names
pub enum CmOption {
    TypeOfService(u8),
    ReuseAddress(bool),
    OnlyIpv6(bool),
    AckTimeout(u8),
}

/// The parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `rdma_conn_param`'s names
pub struct CmParameters {
    pub qp_num: u32,
    /// For datagrams: the queue pair's key, if it differs from the port space's.
    pub qkey: Option<u32>,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Refused if it is longer than the message's field.
    pub private: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmReply {
    /// The bound address, with its port.
    Bound(SocketAddr),
    /// Attributes for `ibv_modify_qp`.
    QpAttributes {
        /// Bits of the attributes that are set.
        mask: u32,
        attributes: QpAttributes,
    },
}

/// The route of a connection. Both GIDs are those of the addresses; if `own` is set, both are its GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmRoute {
    /// The guest's address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// For loopback addresses: the guest's address that replaces both on the wire.
    #[serde(default)]
    pub own: Option<IpAddr>,
    /// `ibv_mtu` of the path.
    pub mtu: u32,
}

/// The peer's parameters of its end, as in an event's `rdma_conn_param`.
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

/// The destination of datagrams (`rdma_ud_param`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `rdma_ud_param`'s names
pub struct CmDatagram {
    pub qp_num: u32,
    pub qkey: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmGroup {
    /// The number that the library gave to the join.
    pub join: u32,
    pub gid: Ipv6Addr,
}

/// An event: a message on a channel's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// The channel's tag.
    pub tag: u32,
    /// The identifier; for `CONNECT_REQUEST` a new one, on the listener's channel.
    pub id: u32,
    /// `rdma_cm_event_type`.
    pub event: u32,
    /// 0, a negative error number, or the peer's reason.
    pub status: i32,
    /// Set in `CONNECT_REQUEST`.
    #[serde(default)]
    pub listener: Option<u32>,
    /// Set in `ADDR_RESOLVED` and `CONNECT_REQUEST`.
    #[serde(default)]
    pub route: Option<CmRoute>,
    /// Set for connections, in `CONNECT_REQUEST` and `CONNECT_RESPONSE`.
    #[serde(default)]
    pub connection: Option<CmConnection>,
    /// Set for datagrams, in `ESTABLISHED` and `MULTICAST_JOIN`.
    #[serde(default)]
    pub datagram: Option<CmDatagram>,
    /// Set in `MULTICAST_JOIN` and `MULTICAST_ERROR`.
    #[serde(default)]
    pub group: Option<CmGroup>,
    /// The private data of the peer's program.
    #[serde(default)]
    pub private: Vec<u8>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Reply, Request};

    /// Other versions of the device use the same messages.
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
