//! The connection manager of a device (IBTA 1.5, chapter 12), as Linux's RDMA CM uses it for IP addresses (annex
//! A11), without I/O.
//!
//! A [`Manager`] has the identifiers (`rdma_cm_id`) of all programs of a guest. Its methods are the programs' requests;
//! results are [`Event`]s on a client's channel. Messages to other managers are datagrams of queue pair 1, which the
//! host carries: [`Manager::receive`], [`Manager::next_datagram`], [`Manager::undelivered`]. The host has the clock,
//! too: [`Manager::poll`].
//!
//! A connection's way: `connect` sends a REQ (`active`). At the peer it becomes a new identifier of a listener
//! (`passive`), which `accept` answers with a REP. An event reports the REP here, and `establish` sends the RTU.
//! `disconnect` sends a DREQ (`ending`). Queue pairs for datagrams have only a query and an answer (`datagrams`).
//! Unanswered messages are sent again (`timers`); requests that come before somebody listens for them wait a moment
//! (`pending`).
//!
//! Messages from the wire count only if they belong to an existing conversation: from the address of its peer and with
//! its random names. Otherwise requests are refused, and nothing changes.

mod active;
mod attributes;
mod binding;
mod control;
mod datagrams;
mod describe;
mod ending;
mod endpoint;
mod event;
mod header;
mod multicast;
mod passive;
mod pending;
mod receive;
mod timers;

pub use attributes::{Retrying, Target, Transition};
pub use describe::Description;
pub use event::{
    Client, ConnectionDetails, DatagramDetails, Event, EventKind, Group, Outgoing, Parameters, Refused,
    Route, status,
};
pub use header::{IpHeader, MalformedHeader};
pub use multicast::QUEUE_PAIR as MULTICAST_QUEUE_PAIR;
pub use pending::GRACE;
pub use timers::QUOTED;

use crate::Mtu;
use endpoint::{Endpoint, State};
use pending::PendingRequest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Time to wait for an answer, and time for which to ask others to wait for ours: 4.096 us times 2 to the power of
/// this.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Number of times that a message is sent again.
pub const RETRIES: u8 = 15;
/// Time that a program may take to answer a request, once the peer is asked to wait (MRA), and the longest time that we
/// wait for others.
const SERVICE_TIMEOUT: u8 = 24;
/// Time for which the end of a connection is remembered.
const TIME_WAIT: u8 = 17;

/// Queue key of queue pairs of port space UDP.
pub const UDP_QUEUE_KEY: u32 = 0x0123_4567;

/// The space of a program's ports, which determines their number range and service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`.
    Udp = 0x0111,
    /// `RDMA_PS_IB`.
    Ib = 0x013f,
}

impl PortSpace {
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        }
    }

    /// Returns the service of one of the space's ports (IBTA A11.3.2).
    #[must_use]
    pub const fn service(self, port: u16) -> u64 {
        (self as u64) << 16 | port as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Reliable,
    Unreliable,
    /// Unreliable datagrams: there is only a query for the other end's queue pair.
    Datagram,
}

impl Transport {
    /// Returns the code in a REQ.
    const fn code(self) -> u8 {
        matches!(self, Self::Unreliable) as u8
    }
}

/// An option of an identifier (`rdma_set_option`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    TypeOfService(u8),
    /// Whether to share a port with others that allow it too.
    ReuseAddress(bool),
    /// Whether the unspecified IPv6 address means IPv6 only.
    OnlyIpv6(bool),
    /// Exponent of the queue pair's timeout, 0 to 31.
    AckTimeout(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub channels: usize,
    /// Number of identifiers, including those whose peers are still being informed of the end.
    pub ids: usize,
    /// Number of unanswered requests for connections, of all listeners.
    pub requests: usize,
    /// Number of unanswered requests for connections, of one listener.
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { channels: 4096, ids: 16384, requests: 4096, backlog: 1024 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub guid: u64,
    /// Longest payload of a packet.
    pub mtu: Mtu,
    /// Largest number of READs and atomics of a queue pair under way, in either direction.
    pub max_reads: u8,
    /// Exponent of the timeout of queue pairs.
    pub ack_timeout: u8,
    pub limits: Limits,
}

/// A source of random numbers, for names that nobody can guess.
struct Random(Box<dyn FnMut() -> u64 + Send>);

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

#[derive(Debug)]
pub struct Manager {
    config: Config,
    gids: Vec<Ipv6Addr>,
    random: Random,
    channels: BTreeMap<u32, Client>,
    last_channel: u32,
    endpoints: BTreeMap<u32, Endpoint>,
    last_id: u32,
    by_name: BTreeMap<u32, u32>,
    /// Identifiers by the peer's address and its name for the conversation, for requests that came in.
    by_peer: BTreeMap<(IpAddr, u32, bool), u32>,
    /// Connections by the peer's address and queue pair.
    by_queue_pair: BTreeMap<(IpAddr, u32), u32>,
    ports: BTreeMap<(PortSpace, u16), Vec<u32>>,
    /// Listeners by their service: at most one for each address of the guest, and those for all addresses.
    listeners: BTreeMap<u64, Vec<u32>>,
    timers: BTreeSet<(Duration, u32)>,
    /// Number of requests that nobody has answered.
    requests: usize,
    events: VecDeque<Event>,
    datagrams: VecDeque<Outgoing>,
    /// Requests without a listener, oldest first.
    pending: VecDeque<PendingRequest>,
}

impl Manager {
    /// Creates a manager for a device with these GIDs, which are the guest's addresses. `random` must be unpredictable.
    #[must_use]
    pub fn new(config: Config, gids: Vec<Ipv6Addr>, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            config,
            gids,
            random: Random(random),
            channels: BTreeMap::new(),
            last_channel: 0,
            endpoints: BTreeMap::new(),
            last_id: 0,
            by_name: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_queue_pair: BTreeMap::new(),
            ports: BTreeMap::new(),
            listeners: BTreeMap::new(),
            timers: BTreeSet::new(),
            requests: 0,
            events: VecDeque::new(),
            datagrams: VecDeque::new(),
            pending: VecDeque::new(),
        }
    }

    /// Sets the guest's addresses. Connections with old ones stay.
    pub fn set_gids(&mut self, gids: Vec<Ipv6Addr>) {
        self.gids = gids;
    }

    /// Takes the next message to another manager.
    pub fn next_datagram(&mut self) -> Option<Outgoing> {
        self.datagrams.pop_front()
    }

    /// Passes events to `take`, in the order of each channel. If `take` returns false, the channel is full: this
    /// event and the channel's later ones are kept.
    pub fn deliver(&mut self, mut take: impl FnMut(&Event) -> bool) {
        let mut full = BTreeSet::new();
        let Self { events, endpoints, .. } = self;
        events.retain(|event| {
            if full.contains(&event.channel) {
                return true;
            }
            let taken = take(event);
            if !taken {
                full.insert(event.channel);
            } else if let Some(endpoint) = endpoints.get_mut(&event.id) {
                endpoint.unheard = endpoint.unheard.saturating_sub(1);
            }
            !taken
        });
    }

    /// Counts the identifiers, including those whose peers are still being informed of the end.
    #[must_use]
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns an identifier of the client.
    fn owned(&mut self, client: Client, id: u32) -> Result<&mut Endpoint, Refused> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        let is_its = endpoint.channel.is_some_and(|channel| self.channels.get(&channel) == Some(&client));
        if is_its { Ok(endpoint) } else { Err(Refused::NoSuchId) }
    }

    fn random_name(&mut self) -> u32 {
        loop {
            let name = (self.random.0)() as u32;
            if name != 0 && !self.by_name.contains_key(&name) {
                return name;
            }
        }
    }

    /// Adds an endpoint, with new names and a first PSN.
    fn add(&mut self, mut endpoint: Endpoint) -> u32 {
        let id = loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.last_id != 0 && !self.endpoints.contains_key(&self.last_id) {
                break self.last_id;
            }
        };
        endpoint.name = self.random_name();
        endpoint.psn = (self.random.0)() as u32 & 0xff_ffff;
        self.by_name.insert(endpoint.name, id);
        self.endpoints.insert(id, endpoint);
        id
    }

    /// Adds an event for the owner of an identifier, if it has one.
    fn tell(&mut self, id: u32, kind: EventKind, change: impl FnOnce(&mut Event)) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let Some(channel) = endpoint.channel else { return };
        endpoint.unheard += 1;
        let Some(client) = self.channels.get(&channel) else { return };
        let mut event = Event::new(*client, channel, id, kind);
        change(&mut event);
        self.events.push_back(event);
    }

    /// Changes an endpoint's state, and what depends on it.
    fn set_state(&mut self, id: u32, state: State) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let was_request = endpoint.state.is_request();
        endpoint.state = state;
        if was_request && !state.is_request() {
            self.requests = self.requests.saturating_sub(1);
            if let Some(listener) = endpoint.listener.and_then(|id| self.endpoints.get_mut(&id)) {
                listener.requests = listener.requests.saturating_sub(1);
            }
        }
        if state == State::Closed {
            self.forget_conversation(id);
        }
    }

    /// Ends the conversation of an endpoint: no message from the wire belongs to it any more. Removes the endpoint
    /// if it has no owner.
    fn forget_conversation(&mut self, id: u32) {
        self.stop_timer(id);
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        self.by_name.remove(&endpoint.name);
        if let Some(key) = endpoint.queue_pair_key() {
            remove_if(&mut self.by_queue_pair, &key, id);
        }
        if endpoint.channel.is_some() {
            // The peer's request may come again, and is then recognised.
            return;
        }
        if let Some(key) = endpoint.peer_key() {
            remove_if(&mut self.by_peer, &key, id);
        }
        self.endpoints.remove(&id);
    }
}

/// Removes an entry if it belongs to this endpoint: a different one may have replaced it.
fn remove_if<K: Ord>(map: &mut BTreeMap<K, u32>, key: &K, id: u32) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}

/// Returns the time for an exponent as in messages, where exponents have five bits.
const fn duration(exponent: u8) -> Duration {
    Duration::from_nanos(4096_u64 << exponent)
}

fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
