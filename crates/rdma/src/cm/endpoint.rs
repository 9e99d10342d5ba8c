//! An identifier and its conversation.

use super::{PortSpace, Refused, Transport};
use crate::Mtu;
use packet::roce::cm::{Ids, MAD_LEN};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Number of an identifier's events that may wait before it refuses requests for more.
const UNHEARD: u32 = 8;

/// State of an identifier (IBTA 12.9.5, preceded by `rdma_cm`'s own states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    /// The identifier has an address.
    Bound,
    /// The destination is known, and the address from which it is reached.
    AddressResolved,
    /// The identifier may connect.
    RouteResolved,
    /// Requests to the address become new identifiers.
    Listening,
    /// Waits for a REP.
    ReqSent,
    /// Waits until the program is ready.
    RepReceived,
    /// Waits until the program accepts.
    ReqReceived,
    /// Waits for an RTU.
    RepSent,
    Established,
    /// Waits for a DREP.
    DreqSent,
    /// The connection has ended; a peer that asks learns that.
    TimeWait,
    /// Waits for a `SIDR_REP`.
    SidrReqSent,
    /// Waits until the program accepts.
    SidrReqReceived,
    /// The query was answered.
    SidrDone,
    /// Nothing more happens.
    Closed,
}

impl State {
    /// Is true for an unanswered request.
    pub const fn is_request(self) -> bool {
        matches!(self, Self::ReqReceived | Self::SidrReqReceived)
    }

    /// Is true if there is, or will be, a connection of queue pairs.
    pub const fn is_connection(self) -> bool {
        matches!(
            self,
            Self::RepReceived | Self::ReqReceived | Self::RepSent | Self::Established | Self::DreqSent
        )
    }
}

/// The properties that one end of a connection offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub queue_pair: u32,
    /// Largest number of READs and atomics that it accepts at a time.
    pub responder_resources: u8,
    /// Largest number of READs and atomics that it has under way.
    pub initiator_depth: u8,
}

/// A message that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Retried {
    /// Time at which the message is sent again.
    pub at: Duration,
    /// Number of times that it will still be sent.
    pub left: u8,
    /// Whether the peer has asked us to wait since the message was sent last.
    pub asked_to_wait: bool,
}

/// An identifier, and its conversation with a peer.
#[derive(Debug)]
pub struct Endpoint {
    /// The channel for the owner's events; `None` if the endpoint has no owner any more.
    pub channel: Option<u32>,
    pub space: PortSpace,
    pub transport: Transport,
    pub state: State,
    pub reuse_address: bool,
    pub only_ipv6: bool,
    pub type_of_service: u8,
    pub ack_timeout: Option<u8>,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// For a conversation of the guest with itself through loopback addresses: the guest's address that both ends have
    /// on the wire.
    pub own: Option<IpAddr>,
    /// For a listener: how many requests may wait, and how many do.
    pub backlog: u32,
    pub requests: u32,
    /// Number of the identifier's events that wait to be taken.
    pub unheard: u32,
    /// The listener that received the request, if the endpoint came from one.
    pub listener: Option<u32>,
    /// Our name for the conversation, and the peer's.
    pub name: u32,
    pub peer_name: u32,
    pub transaction: u64,
    /// The first PSNs: the one we expect, and the one the peer expects.
    pub psn: u32,
    pub peer_psn: u32,
    pub ours: End,
    pub theirs: End,
    pub mtu: Mtu,
    pub retries: u8,
    pub rnr_retries: u8,
    /// Exponent of the queue pair's timeout.
    pub timeout: u8,
    /// The last message, which may have to be sent again.
    pub sent: Option<Box<[u8; MAD_LEN]>>,
    pub retried: Option<Retried>,
}

impl Endpoint {
    pub const fn new(channel: Option<u32>, space: PortSpace, transport: Transport, mtu: Mtu) -> Self {
        Self {
            channel,
            space,
            transport,
            state: State::Idle,
            reuse_address: false,
            only_ipv6: false,
            type_of_service: 0,
            ack_timeout: None,
            local: None,
            peer: None,
            own: None,
            backlog: 0,
            requests: 0,
            unheard: 0,
            listener: None,
            name: 0,
            peer_name: 0,
            transaction: 0,
            psn: 0,
            peer_psn: 0,
            ours: End { queue_pair: 0, responder_resources: 0, initiator_depth: 0 },
            theirs: End { queue_pair: 0, responder_resources: 0, initiator_depth: 0 },
            mtu,
            retries: 7,
            rnr_retries: 7,
            timeout: 0,
            sent: None,
            retried: None,
        }
    }

    /// Refuses requests whose result is an event while too many events wait: repeated requests must not pile up.
    pub const fn listens_for_more(&self) -> Result<(), Refused> {
        if self.unheard >= UNHEARD { Err(Refused::TooMany) } else { Ok(()) }
    }

    /// Returns both names, as we send them.
    pub const fn ids(&self) -> Ids {
        Ids { local: self.name, remote: self.peer_name }
    }

    /// Returns our address and the peer's on the wire, in a conversation.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let shown = (self.local?.ip(), self.peer?.ip());
        Some(self.own.map_or(shown, |own| (own, own)))
    }

    /// Is true if a message between these addresses can belong to this conversation.
    pub fn is_between(&self, from: IpAddr, to: IpAddr) -> bool {
        self.addresses() == Some((to, from))
    }

    /// Returns the key that identifies a repeated request.
    pub fn peer_key(&self) -> Option<(IpAddr, u32, bool)> {
        let datagram = self.transport == Transport::Datagram;
        self.listener.and(self.addresses()).map(|(_, peer)| (peer, self.peer_name, datagram))
    }

    /// Returns the key that identifies the peer's queue pair.
    pub fn queue_pair_key(&self) -> Option<(IpAddr, u32)> {
        let is_known = self.theirs.queue_pair != 0;
        self.addresses().filter(|_| is_known).map(|(_, peer)| (peer, self.theirs.queue_pair))
    }
}
