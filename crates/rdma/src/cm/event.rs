//! The calls of a guest's programs to the manager, and its events for them.

use super::RETRIES;
use crate::Mtu;
use packet::roce::cm::MAD_LEN;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A program with a connection to the device. The host assigns the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client(pub u64);

/// The kind of an event (`rdma_cm_event_type`, with its numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of `librdmacm`
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    /// The peer accepted: the program must make the queue pair ready, then call `establish`.
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    MulticastError = 13,
    TimewaitExit = 15,
}

/// Negative values of [`Event::status`]: error numbers of Linux. Positive ones are reasons of a REJ or a `SIDR_REP`.
pub mod status {
    #![allow(missing_docs)] // they say it
    pub const TIMED_OUT: i32 = -110;
    pub const UNREACHABLE: i32 = -113;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The guest's address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
    /// For loopback addresses: the guest's own address that both ends have on the wire.
    pub own: Option<IpAddr>,
    /// Longest payload of a packet.
    pub mtu: Mtu,
}

/// The peer's offer for its end of a connection, seen from here: its initiator depth is our responder resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionDetails {
    pub queue_pair: u32,
    pub shared_receives: bool,
    /// Largest number of READs and atomics that the peer wants to have under way.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that the peer accepts at a time.
    pub initiator_depth: u8,
    /// Whether the peer uses end-to-end flow control.
    pub flow_control: bool,
    pub retries: u8,
    pub rnr_retries: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramDetails {
    pub queue_pair: u32,
    pub queue_key: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The program's identifier of the join.
    pub join: u32,
    pub gid: Ipv6Addr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The client that owns the identifier.
    pub client: Client,
    pub channel: u32,
    /// The identifier; for `ConnectRequest`, a new one.
    pub id: u32,
    pub kind: EventKind,
    /// 0, a negative error number ([`status`]), or the peer's reason.
    pub status: i32,
    /// The listener, in `ConnectRequest`.
    pub listener: Option<u32>,
    /// Set in `AddrResolved` and `ConnectRequest`.
    pub route: Option<Route>,
    /// Set for connections, in `ConnectRequest` and `ConnectResponse`.
    pub connection: Option<ConnectionDetails>,
    /// Set for datagrams, in `Established` and `MulticastJoin`.
    pub datagram: Option<DatagramDetails>,
    /// Set in `MulticastJoin` and `MulticastError`.
    pub group: Option<Group>,
    /// The private data of the peer's program. As with Linux, it is the whole field, so zeroes may follow.
    pub private: Vec<u8>,
}

impl Event {
    pub(super) const fn new(client: Client, channel: u32, id: u32, kind: EventKind) -> Self {
        Self {
            client,
            channel,
            id,
            kind,
            status: 0,
            listener: None,
            route: None,
            connection: None,
            datagram: None,
            group: None,
            private: Vec::new(),
        }
    }
}

/// A message to another manager: a datagram from queue pair 1 to queue pair 1, with
/// [`QUEUE_KEY`](packet::roce::cm::QUEUE_KEY).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The guest's address.
    pub source: IpAddr,
    /// The other manager's address.
    pub destination: IpAddr,
    pub mad: [u8; MAD_LEN],
}

/// A program's parameters for a connection (`rdma_conn_param`, with the queue pair's number).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The program's queue pair; 24 bits.
    pub queue_pair: u32,
    /// For datagrams: the queue pair's key, if it differs from the port space's.
    pub queue_key: Option<u32>,
    pub shared_receives: bool,
    /// Largest number of READs and atomics that the queue pair accepts at a time.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that the queue pair has under way.
    pub initiator_depth: u8,
    /// Whether to use end-to-end flow control.
    pub flow_control: bool,
    /// Number of retries, 0 to 7.
    pub retries: u8,
    /// Number of retries if no receive is posted, 0 to 7.
    pub rnr_retries: u8,
    /// Private data for the peer's program.
    pub private: Vec<u8>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            queue_pair: 0,
            queue_key: None,
            shared_receives: false,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retries: RETRIES & 7,
            rnr_retries: 7,
            private: Vec::new(),
        }
    }
}

/// A reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The client has no such identifier, or channel.
    #[error("no such identifier")]
    NoSuchId,
    /// The identifier's state does not allow the request.
    #[error("not allowed in this state of the identifier")]
    State,
    /// A value is invalid.
    #[error("invalid parameter")]
    Parameter,
    /// The private data is longer than the message's field.
    #[error("private data are too long")]
    PrivateData,
    /// A different identifier has the port.
    #[error("the port is in use")]
    AddressInUse,
    /// The guest does not have the address.
    #[error("the guest does not have this address")]
    AddressNotAvailable,
    /// A limit is reached.
    #[error("too many")]
    TooMany,
}

impl Refused {
    /// Returns the error number of Linux that `librdmacm` reports.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoSuchId => 2,
            Self::State | Self::Parameter | Self::PrivateData => 22,
            Self::AddressInUse => 98,
            Self::AddressNotAvailable => 99,
            Self::TooMany => 12,
        }
    }
}
