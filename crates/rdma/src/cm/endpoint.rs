//! An identifier and its conversation.

use super::{PortSpace, Refused, Transport};
use crate::Mtu;
use packet::roce::cm::{Ids, MAD_LEN};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Events of an identifier that may wait before it refuses requests for more.
const UNHEARD: u32 = 8;

/// State of an identifier (IBTA 12.9.5, and `rdma_cm`'s own states before).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New.
    Idle,
    /// It has an address.
    Bound,
    /// The destination is known, and the address from which it is reached.
    AddressResolved,
    /// It may connect.
    RouteResolved,
    /// Requests become identifiers.
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
    /// It has ended; a peer that asks learns that.
    TimeWait,
    /// Waits for a `SIDR_REP`.
    SidrReqSent,
    /// Waits until the program accepts.
    SidrReqReceived,
    /// The question was answered.
    SidrDone,
    /// Nothing more happens.
    Closed,
}

impl State {
    /// Whether it is an unanswered request.
    pub const fn is_request(self) -> bool {
        matches!(self, Self::ReqReceived | Self::SidrReqReceived)
    }

    /// Whether there is, or will be, a connection of queue pairs.
    pub const fn is_connection(self) -> bool {
        matches!(
            self,
            Self::RepReceived | Self::ReqReceived | Self::RepSent | Self::Established | Self::DreqSent
        )
    }
}

/// What one end of a connection offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Queue pair.
    pub queue_pair: u32,
    /// Most READs and atomics that it accepts at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that it has under way.
    pub initiator_depth: u8,
}

/// A message that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Retried {
    /// When it is sent again.
    pub at: Duration,
    /// How often yet.
    pub left: u8,
    /// Whether the peer asked for patience since it was sent last.
    pub asked_to_wait: bool,
}

/// An identifier.
#[derive(Debug)]
pub struct Endpoint {
    /// The channel for its owner's events; `None` if it has no owner any more.
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
    /// Number of its events that wait to be taken.
    pub unheard: u32,
    /// The listener from which it came, if any.
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

    /// Both names, as we send them.
    pub const fn ids(&self) -> Ids {
        Ids { local: self.name, remote: self.peer_name }
    }

    /// Our address and the peer's on the wire, in a conversation.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let shown = (self.local?.ip(), self.peer?.ip());
        Some(self.own.map_or(shown, |own| (own, own)))
    }

    /// Whether a message between these addresses can belong to this conversation.
    pub fn is_between(&self, from: IpAddr, to: IpAddr) -> bool {
        self.addresses() == Some((to, from))
    }

    /// The key by which a repeated request is recognised.
    pub fn peer_key(&self) -> Option<(IpAddr, u32, bool)> {
        let datagram = self.transport == Transport::Datagram;
        self.listener.and(self.addresses()).map(|(_, peer)| (peer, self.peer_name, datagram))
    }

    /// The key by which the peer's queue pair is recognised.
    pub fn queue_pair_key(&self) -> Option<(IpAddr, u32)> {
        let is_known = self.theirs.queue_pair != 0;
        self.addresses().filter(|_| is_known).map(|(_, peer)| (peer, self.theirs.queue_pair))
    }
}
