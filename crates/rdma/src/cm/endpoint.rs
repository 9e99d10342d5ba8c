//! An identifier, and the conversation it has.

use super::{PortSpace, Refused, Transport};
use crate::Mtu;
use packet::roce::cm::{Ids, MAD_LEN};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Events of an identifier that may wait, before more is asked for.
const UNHEARD: u32 = 8;

/// State of an identifier (IBTA 12.9.5, with those of `rdma_cm` before).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New.
    Idle,
    /// It has an address.
    Bound,
    /// The destination is known, and from which address it is reached.
    AddressResolved,
    /// It may connect.
    RouteResolved,
    /// Requests become identifiers.
    Listening,
    /// Waits for a REP.
    ReqSent,
    /// Waits for the program to be ready.
    RepReceived,
    /// Waits for the program to accept.
    ReqReceived,
    /// Waits for an RTU.
    RepSent,
    Established,
    /// Waits for a DREP.
    DreqSent,
    /// Its end is told to who asks.
    TimeWait,
    /// Waits for a `SIDR_REP`.
    SidrReqSent,
    /// Waits for the program to accept.
    SidrReqReceived,
    /// The question was answered.
    SidrDone,
    /// Nothing more happens.
    Closed,
}

impl State {
    /// Whether it is a request that nobody has answered.
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
    /// READs and atomics it takes at a time.
    pub responder_resources: u8,
    /// READs and atomics it has under way.
    pub initiator_depth: u8,
}

/// A message that is sent until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Retried {
    /// When it is sent again.
    pub at: Duration,
    /// How often yet.
    pub left: u8,
    /// The peer asked for patience, since it was sent last.
    pub asked_to_wait: bool,
}

/// An identifier.
#[derive(Debug)]
pub struct Endpoint {
    /// Where its owner hears of it; none, where nobody owns it any more.
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
    /// Of a conversation of the guest with itself by loopback addresses: the guest's address that both ends have on the
    /// wire.
    pub own: Option<IpAddr>,
    /// Of a listener: how many requests may wait, and how many do.
    pub backlog: u32,
    pub requests: u32,
    /// Events of it that wait to be taken.
    pub unheard: u32,
    /// Where it came from, if from a listener.
    pub listener: Option<u32>,
    /// Our name of the conversation, and the peer's.
    pub name: u32,
    pub peer_name: u32,
    pub transaction: u64,
    /// First PSN that we want to be sent, and that the peer does.
    pub psn: u32,
    pub peer_psn: u32,
    pub ours: End,
    pub theirs: End,
    pub mtu: Mtu,
    pub retries: u8,
    pub rnr_retries: u8,
    /// Of the queue pair, exponent.
    pub timeout: u8,
    /// What was sent last and may have to be sent again.
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

    /// Whether more may be asked for that is told by events: what is asked for again and again must not pile up.
    pub const fn listens_for_more(&self) -> Result<(), Refused> {
        if self.unheard >= UNHEARD { Err(Refused::TooMany) } else { Ok(()) }
    }

    /// Both names, as we send them.
    pub const fn ids(&self) -> Ids {
        Ids { local: self.name, remote: self.peer_name }
    }

    /// Our address and the peer's on the wire, of a conversation.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let shown = (self.local?.ip(), self.peer?.ip());
        Some(self.own.map_or(shown, |own| (own, own)))
    }

    /// Whether a message from there to here can be of this conversation.
    pub fn is_between(&self, from: IpAddr, to: IpAddr) -> bool {
        self.addresses() == Some((to, from))
    }

    /// Under what a request is known that came again.
    pub fn peer_key(&self) -> Option<(IpAddr, u32, bool)> {
        let datagram = self.transport == Transport::Datagram;
        self.listener.and(self.addresses()).map(|(_, peer)| (peer, self.peer_name, datagram))
    }

    /// Under what the peer's queue pair is known.
    pub fn queue_pair_key(&self) -> Option<(IpAddr, u32)> {
        let is_known = self.theirs.queue_pair != 0;
        self.addresses().filter(|_| is_known).map(|(_, peer)| (peer, self.theirs.queue_pair))
    }
}
