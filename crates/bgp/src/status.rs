//! The state of the speaker, for its operator.

use crate::bandwidth::Bandwidth;
use crate::names::{Family, Rd, RouteTarget};
use crate::notification::Notification;
use crate::rib::Rank;
use crate::route::Path;
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The state of a session (RFC 4271, 8.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It waits: for the time of the next try, or for the peer.
    Idle,
    /// It opens a connection.
    Connect,
    /// It has sent OPEN.
    OpenSent,
    /// Both have sent OPEN.
    OpenConfirm,
    /// It exchanges routes.
    Established,
}

impl State {
    /// Returns the state's name in RFC 4271.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::OpenSent => "OpenSent",
            Self::OpenConfirm => "OpenConfirm",
            Self::Established => "Established",
        }
    }
}

/// Why a connection or session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Down {
    /// It could not be opened, or ended without a message.
    Closed,
    /// The peer connected anew while the session was up: it has restarted.
    Reconnected,
    /// The peer took nothing for twice the hold time (RFC 9687).
    Stuck,
    /// The peer sent a message that says why.
    Received(Notification),
    /// This speaker sent a message that says why.
    Sent(Notification),
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "connection closed"),
            Self::Reconnected => write!(f, "the peer connected anew"),
            Self::Stuck => write!(f, "the peer takes no bytes"),
            Self::Received(why) => write!(f, "the peer said: {why}"),
            Self::Sent(why) => write!(f, "{why}"),
        }
    }
}

/// Counters of a peer since it was configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages received.
    pub received: u64,
    /// Messages sent.
    pub sent: u64,
    /// UPDATE messages received.
    pub updates_received: u64,
    /// UPDATE messages sent.
    pub updates_sent: u64,
    /// Sessions that came up.
    pub sessions: u64,
    /// Routes that count as withdrawn because an attribute was malformed (RFC 7606).
    pub malformed: u64,
    /// Routes that were left out because their type is not known or a value is wrong.
    pub unknown: u64,
    /// UPDATE messages with routes of families that are not spoken.
    pub foreign: u64,
    /// Routes that this host announced itself.
    pub own: u64,
    /// Routes that went through this speaker's AS, or through itself.
    pub looped: u64,
    /// Routes whose targets no network imports.
    pub unwanted: u64,
    /// Plain IPv4 and IPv6 routes that no network takes.
    pub unused: u64,
    /// Routes with an encapsulation that the host can't send.
    pub encapsulation: u64,
    /// Routes of a prefix or address that has too many already.
    pub crowded: u64,
    /// Routes whose next hop, label or router MAC is none, or that need more than a label: a gateway, an Ethernet tag.
    /// Plain ones whose next hop is on no link of a network that takes them.
    pub unusable: u64,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's address.
    pub address: IpAddr,
    /// The range from which it called; `None`: the configuration names it.
    pub range: Option<IpNet>,
    /// The peer's autonomous system.
    pub asn: u32,
    /// The state of its session.
    pub state: State,
    /// When the session came up or ended last.
    pub since: Duration,
    /// The peer's BGP identifier, while there is a session.
    pub router_id: Option<Ipv4Addr>,
    /// The families of the session.
    pub families: Vec<Family>,
    /// Seconds without a message that end the session.
    pub hold_time: u16,
    /// Routes that are kept of it.
    pub routes: usize,
    /// Until when those of an earlier session are kept, if there are any.
    pub stale_until: Option<Duration>,
    /// Announcements and withdrawals that it has still to get.
    pub pending: usize,
    /// Counters.
    pub counts: Counts,
    /// Why the last session or connection ended.
    pub last: Option<Down>,
}

/// A range of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeStatus {
    /// The addresses.
    pub range: IpNet,
    /// Most peers at a time.
    pub max_peers: usize,
    /// Connections that were refused because so many peers had a session.
    pub refused: u64,
}

/// Why a route is used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is used.
    Used,
    /// It is not: there are better ones, for this reason.
    Worse(&'static str),
}

impl Verdict {
    pub(crate) const fn worse(rank: Rank) -> Self {
        Self::Worse(match rank {
            Rank::Down => "its remote is down by BFD, or the kernel has no route to it",
            Rank::Preference => "another has a higher LOCAL_PREF",
            Rank::PathLength => "another has a shorter AS path",
            Rank::Origin => "another has a better ORIGIN",
            Rank::Med => "another has a lower MULTI_EXIT_DISC",
            Rank::Internal => "another comes from a different AS",
            Rank::Identifier => "another peer's is alike and has a lower identifier",
            Rank::Clusters => "another peer's is alike and has a shorter cluster list",
            Rank::Peer => "another peer's is alike",
        })
    }
}

/// Most routes of one prefix that are explained.
pub const MAX_CANDIDATES: usize = 256;

/// A learned route of a prefix, in one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The peer that sent it.
    pub peer: IpAddr,
    /// The route's distinguisher.
    pub rd: Rd,
    /// The family by which it came.
    pub family: Family,
    /// The path that it would be.
    pub path: Path,
    /// The bandwidth of the path's link, if the route says one.
    pub bandwidth: Option<Bandwidth>,
    /// The path's share of the flows, in proportion to those of others. 0: it has none.
    pub weight: usize,
    /// The route's targets: all that the host imports, and some others.
    pub targets: Vec<RouteTarget>,
    /// LOCAL_PREF.
    pub preference: u32,
    /// The length of its AS path.
    pub as_path: u16,
    /// Whether it is of an earlier session, and not confirmed yet.
    pub stale: bool,
    /// Whether its remote is down.
    pub down: bool,
    /// Whether it is used.
    pub verdict: Verdict,
}
