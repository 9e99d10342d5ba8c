//! The words for the state of a connection and for a TCP connection's sequence numbers.

use model::tcp::{Edge, UNSCALED, window_size};
use model::{Connection, FlowState, Tcp};

/// The state of a connection. From the lowest bit: state, traffic seen, flags, and (high half) the entry's
/// sequence number, which tells the connection to which all of these belong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(pub u64);

/// Set if the windows of both sides are shifted.
const SCALED: u64 = 1 << 2;
const SEEN_AT: u32 = 8;
/// Set if packets are missing in the counters.
const APPROXIMATE: u64 = 1 << 16;
/// Shifts of the sides' windows, four bits each.
const SCALES_AT: u32 = 17;
/// [`Tcp::liberal`].
const LIBERAL: u64 = 1 << 25;
/// Whether the first side's edge is known, and whether it acknowledges something; then the same for the other side.
const KNOWN_AT: u32 = 26;
const SENT: u64 = 1;
const ACKNOWLEDGES: u64 = 2;
/// Set if [`Tcp::reopen`] is known.
const REOPENS: u64 = 1 << 30;
/// Set if a TCP segment that is neither SYN, FIN nor RST does not change the state.
const SETTLED: u64 = 1 << 31;
/// Bits that are only ever set.
const MARKS: u64 = APPROXIMATE | LIBERAL | REOPENS;

const fn rank(state: FlowState) -> u8 {
    match state {
        FlowState::New => 0,
        FlowState::Established => 1,
        FlowState::Closing => 2,
        FlowState::Closed => 3,
    }
}

const fn later(a: FlowState, b: FlowState) -> FlowState {
    if rank(a) >= rank(b) { a } else { b }
}

impl State {
    pub fn of(connection: &Connection, seq: u32) -> Self {
        let Tcp { edges, scales, reopen, liberal, .. } = &connection.tcp;
        let mut word = u64::from(seq) << 32;
        for (side, edge) in edges.iter().enumerate() {
            let known = match edge {
                None => 0,
                Some(Edge { ack: None, .. }) => SENT,
                Some(_) => SENT | ACKNOWLEDGES,
            };
            word |= known << (KNOWN_AT + 2 * side as u32);
            word |= u64::from(scales[side]) << (SCALES_AT + 4 * side as u32);
        }
        word |= if *liberal { LIBERAL } else { 0 };
        word |= if reopen.is_some() { REOPENS } else { 0 };
        Self(word).standing(connection.state, connection.seen)
    }

    /// Returns the same with this state and these marks.
    fn standing(self, state: FlowState, seen: u8) -> Self {
        let both = seen & Connection::BOTH_WAYS == Connection::BOTH_WAYS;
        let moves = state == FlowState::New && (both || self.is_liberal());
        let scaled = self.scale(0) != UNSCALED && self.scale(1) != UNSCALED;
        let word = self.0 & !(SETTLED | 0xffff) | u64::from(seen) << SEEN_AT | u64::from(rank(state));
        Self(word | if moves { 0 } else { SETTLED } | if scaled { SCALED } else { 0 })
    }

    /// Merges the connection after a packet: marks add up, states only advance.
    pub fn merged(self, to: &Connection, reply: bool) -> Self {
        const FINS: u8 = Connection::FINS;
        let seen = self.seen() | to.seen;
        let state = match later(self.state(), to.state) {
            FlowState::Closing if seen & FINS == FINS => FlowState::Closed,
            state => state,
        };
        let after = Self::of(to, self.seq());
        // Only a side's own packets change the knowledge about it.
        let side = u32::from(reply);
        let own = 0xf << (SCALES_AT + 4 * side) | (SENT | ACKNOWLEDGES) << (KNOWN_AT + 2 * side);
        let word = self.0 & !own | after.0 & (own | MARKS);
        Self(word).standing(state, seen)
    }

    /// Returns whether it is the state of this connection, as the connection was read from it. Only some
    /// fields need to be compared: all others follow from them.
    pub fn is_of(self, connection: &Connection, seq: u32) -> bool {
        const SEEN: u8 = Connection::FIN | Connection::REPLY_FIN | Connection::BOTH_WAYS;
        Self(self.0 & !APPROXIMATE) == Self::of(connection, seq) && self.seen() & !SEEN == 0
    }

    pub const fn seq(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub const fn state(self) -> FlowState {
        match self.0 & 3 {
            0 => FlowState::New,
            1 => FlowState::Established,
            2 => FlowState::Closing,
            _ => FlowState::Closed,
        }
    }

    pub const fn seen(self) -> u8 {
        (self.0 >> SEEN_AT) as u8
    }

    pub const fn is_approximate(self) -> bool {
        self.0 & APPROXIMATE != 0
    }

    pub const fn approximate(self) -> Self {
        Self(self.0 | APPROXIMATE)
    }

    #[inline(always)]
    pub const fn is_liberal(self) -> bool {
        self.0 & LIBERAL != 0
    }

    pub fn liberal(self) -> Self {
        Self(self.0 | LIBERAL).standing(self.state(), self.seen())
    }

    /// Returns whether it belongs to this connection, and a side's plain segments change only the side's
    /// edge.
    #[inline(always)]
    pub const fn is_plain_for(self, side: usize, seq: u32) -> bool {
        let settled = self.0 & SETTLED != 0 && self.seq() == seq;
        settled && self.known(side) == SENT | ACKNOWLEDGES && self.known(1 - side) != SENT
    }

    /// Returns whether it belongs to this connection, a plain segment changes only edges, both sides are
    /// known, and the shifts have the form that [`Self::plain_window`] needs.
    #[inline(always)]
    pub const fn is_followed(self, seq: u32) -> bool {
        const KNOWN: u64 = (SENT | ACKNOWLEDGES) << KNOWN_AT | (SENT | ACKNOWLEDGES) << (KNOWN_AT + 2);
        const ALL: u64 = SETTLED | SCALED | KNOWN;
        (self.0 ^ ((seq as u64) << 32 | ALL)) & (u64::MAX << 32 | ALL) == 0
    }

    /// Returns a side's window in bytes, if [`Self::is_followed`]; 0 if it is unknown.
    #[inline(always)]
    pub const fn plain_window(self, windows: u64, side: usize) -> u32 {
        (window_of(windows, side) as u32) << self.scale(side)
    }

    #[inline(always)]
    const fn known(self, side: usize) -> u64 {
        self.0 >> (KNOWN_AT + 2 * side as u32) & (SENT | ACKNOWLEDGES)
    }

    #[inline(always)]
    pub const fn acknowledges(self, side: usize) -> bool {
        self.known(side) & ACKNOWLEDGES != 0
    }

    #[inline(always)]
    const fn scale(self, side: usize) -> u8 {
        (self.0 >> (SCALES_AT + 4 * side as u32)) as u8 & 0xf
    }

    /// Returns a side's window in bytes, given the largest ones.
    #[inline(always)]
    pub const fn window(self, windows: u64, side: usize) -> u32 {
        window_size(window_of(windows, side), self.scale(side), self.scale(1 - side))
    }

    /// Unpacks the TCP state with these edges and windows.
    pub fn tcp(self, edges: [u64; 2], windows: u64) -> Tcp {
        let edge = |side: usize| {
            let known = self.known(side);
            let Edge { end, ack } = unpack_edge(edges[side]);
            (known & SENT != 0).then_some(Edge { end, ack: ack.filter(|_| known & ACKNOWLEDGES != 0) })
        };
        Tcp {
            edges: [edge(0), edge(1)],
            windows: [window_of(windows, 0), window_of(windows, 1)],
            scales: [self.scale(0), self.scale(1)],
            reopen: (self.0 & REOPENS != 0).then_some((windows >> 32) as u32),
            liberal: self.is_liberal(),
        }
    }
}

#[inline(always)]
pub(super) const fn pack_edge(edge: Option<Edge>) -> u64 {
    match edge {
        None => 0,
        Some(Edge { end, ack: None }) => (end as u64) << 32,
        Some(Edge { end, ack: Some(ack) }) => (end as u64) << 32 | ack as u64,
    }
}

/// Unpacks an edge that is known and acknowledges something.
#[inline(always)]
pub(super) const fn unpack_edge(word: u64) -> Edge {
    Edge { end: (word >> 32) as u32, ack: Some(word as u32) }
}

/// Packs the largest windows, and the number at which a SYN would start the connection anew.
pub(super) fn pack_windows(tcp: &Tcp) -> u64 {
    let [first, second] = tcp.windows.map(u64::from);
    first | second << 16 | u64::from(tcp.reopen.unwrap_or(0)) << 32
}

#[inline(always)]
pub(super) const fn window_of(windows: u64, side: usize) -> u16 {
    (windows >> (16 * side)) as u16
}
