//! One connection with a peer.

use crate::config::{Config, PeerConfig};
use crate::message::{self, Kind};
use crate::names::Family;
use crate::open::{Open, Restart};
use crate::status::State;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The number of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub(crate) u64);

/// Bytes that wait for the peer, above which nothing more is made for it.
pub(crate) const OUTPUT: usize = 64 << 10;

/// Time for a connection to come up and for its OPEN to arrive.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) conn: Conn,
    /// Whether the peer opened it.
    pub(crate) incoming: bool,
    pub(crate) state: State,
    /// The beginning of a message.
    pub(crate) input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of the output that are gone.
    taken: usize,
    /// When the peer is taken for dead.
    pub(crate) hold: Option<Duration>,
    /// Whether it was to be taken for dead already, and got another second: its messages may not have been read yet.
    pub(crate) is_spared: bool,
    /// When the next KEEPALIVE is due.
    pub(crate) keepalive: Option<Duration>,
    /// Since when the peer has taken no byte of the output.
    stuck: Option<Duration>,
    pub(crate) agreed: Agreed,
}

/// The capabilities that both sides have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) router_id: Option<Ipv4Addr>,
    pub(crate) families: Vec<Family>,
    pub(crate) hold_time: u16,
    pub(crate) as4: bool,
    pub(crate) extended: bool,
    pub(crate) refresh: bool,
    pub(crate) refresh_marks: bool,
    pub(crate) v6_next_hops: Vec<Family>,
    pub(crate) restart: Option<Restart>,
    /// Families of which the peer forwards on while it restarts.
    pub(crate) forwards: Vec<Family>,
    /// Families whose packets it forwarded during the restart that has just ended.
    pub(crate) forwarded: Vec<Family>,
    /// Families of which the peer names each path by a number (RFC 7911).
    pub(crate) paths: Vec<Family>,
}

impl Agreed {
    pub(crate) fn new(open: &Open, config: &Config, peer: &PeerConfig) -> Self {
        let its = &open.capabilities;
        let families: Vec<_> =
            peer.families.iter().copied().filter(|family| its.families.contains(family)).collect();
        Self {
            router_id: Some(open.id),
            hold_time: open.hold_time.min(config.hold_time),
            as4: its.as4.is_some(),
            extended: its.extended,
            refresh: its.refresh,
            refresh_marks: its.refresh_marks,
            v6_next_hops: its.v6_next_hops.clone(),
            restart: its.restart,
            forwards: its.forwards.clone(),
            forwarded: its.forwarded.clone(),
            paths: families.iter().copied().filter(|family| its.offers_paths(*family)).collect(),
            families,
        }
    }

    /// Returns the longest message to send.
    pub(crate) const fn longest(&self) -> usize {
        if self.extended { message::LONGEST_EXTENDED } else { message::LONGEST }
    }
}

impl Session {
    pub(crate) fn new(conn: Conn, incoming: bool, now: Duration) -> Self {
        Self {
            conn,
            incoming,
            state: State::Connect,
            input: Vec::new(),
            output: Vec::new(),
            taken: 0,
            hold: Some(now + PATIENCE),
            is_spared: false,
            keepalive: None,
            stuck: None,
            agreed: Agreed::default(),
        }
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        &self.output[self.taken..]
    }

    /// Returns the place for more output.
    pub(crate) fn room(&mut self, now: Duration) -> &mut Vec<u8> {
        self.stuck.get_or_insert(now);
        if self.taken > 0 {
            self.output.drain(..self.taken);
            self.taken = 0;
        }
        &mut self.output
    }

    pub(crate) fn sent(&mut self, bytes: usize, now: Duration) {
        self.taken = self.output.len().min(self.taken + bytes);
        if self.taken == self.output.len() {
            self.output.clear();
            self.taken = 0;
            self.stuck = None;
        } else if bytes > 0 {
            self.stuck = Some(now);
        }
    }

    /// Returns when the peer is given up if it takes no byte (RFC 9687).
    pub(crate) fn patience(&self) -> Option<Duration> {
        let hold = Duration::from_secs(self.agreed.hold_time.into());
        (!hold.is_zero()).then_some(self.stuck? + 2 * hold)
    }

    pub(crate) fn write(&mut self, kind: Kind, body: &[u8], now: Duration) {
        message::write(self.room(now), kind, body);
    }

    /// Returns whether there is room for another message.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting().len() < OUTPUT
    }
}
