//! TCP's sequence numbers (RFC 9293, 3.4), as far as connection tracking needs them: which segments belong to the
//! stream, and which resets end it (RFC 9293, 3.10.7.4; RFC 5961, 3).
//!
//! A segment changes only the state of its sender, except for windows, which only grow. So two threads can track the
//! two directions of a connection without waiting for each other.

use packet::{Headers, L4, proto};

/// Sides of a connection: its opener and its answerer.
const SIDES: usize = 2;
/// The shift of a side whose SYN was not seen: the largest there is (RFC 7323, 2.3).
pub const UNKNOWN_SCALE: u8 = 14;
/// Instead of a shift: the side's SYN had no window scale, so windows are not shifted (RFC 7323, 2.2).
pub const UNSCALED: u8 = 15;
/// The largest window of all, bytes.
const LARGEST_WINDOW: u32 = 0xffff << UNKNOWN_SCALE;
/// The least distance, in bytes, at which an acknowledgment may lie behind the last one and still count as old. For
/// the end of a retransmission it is twice that.
const LEAST_BACK: u32 = 1 << 16;

/// The end of one side's stream so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// Sequence number after the last byte, SYN or FIN that the side sent.
    pub end: u32,
    /// The highest sequence number that the side acknowledged, if any: it expects this one next.
    pub ack: Option<u32>,
}

/// A TCP segment, or a large send of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Flags.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Sequence numbers that the segment takes: its bytes, SYN and FIN.
    pub len: u32,
    /// Acknowledgment number, if the flag ACK is set.
    pub ack: u32,
    /// Window, as in the header.
    pub window: u16,
    /// Window scale option of a SYN.
    pub scale: Option<u8>,
}

impl Segment {
    /// Returns the segment in a packet, if it is TCP.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let ip = headers.ip()?;
        let L4::Tcp { flags, header_len, seq, ack, window, scale, .. } = headers.l4 else { return None };
        let data = ip.len.saturating_sub(u32::from(headers.l4_at - ip.at) + u32::from(header_len));
        let controls = (flags & (proto::TCP_SYN | proto::TCP_FIN)).count_ones();
        Some(Self { flags, seq, len: data + controls, ack, window, scale })
    }

    /// Returns whether these flags are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns whether the segment opens a connection: a SYN without ACK.
    #[must_use]
    pub const fn opens(&self) -> bool {
        self.flags & (proto::TCP_SYN | proto::TCP_ACK) == proto::TCP_SYN
    }

    /// Returns whether the segment may be the first one of a connection that is seen: a SYN, or any other that
    /// acknowledges something and is no reset.
    #[must_use]
    pub(crate) const fn begins(&self) -> bool {
        self.flags & (proto::TCP_SYN | proto::TCP_ACK) != 0 && !self.has(proto::TCP_RST)
    }

    /// Returns whether the segment is neither SYN, FIN nor RST.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.flags & (proto::TCP_SYN | proto::TCP_FIN | proto::TCP_RST) == 0
    }

    #[inline(always)]
    pub(crate) const fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }

    /// Returns the state of a side whose first segment this is.
    #[inline(always)]
    const fn edge(&self) -> Edge {
        Edge { end: self.end(), ack: if self.has(proto::TCP_ACK) { Some(self.ack) } else { None } }
    }
}

/// Returns the later of two sequence numbers.
#[inline(always)]
const fn later(a: u32, b: u32) -> u32 {
    if distance(a, b) > 0 { b } else { a }
}

/// Returns how far `b` comes after `a`. The result is negative if `b` comes before.
#[inline(always)]
const fn distance(a: u32, b: u32) -> i32 {
    b.wrapping_sub(a) as i32
}

/// The effect of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The reset has exactly the number that its receiver expects: the connection ends.
    Exact,
    /// The reset lies in the window: its receiver sends a challenge ACK (RFC 5961, 3.2), and the connection
    /// continues.
    Doubtful,
    /// The reset lies outside the window.
    Outside,
}

/// The sequence numbers of a TCP connection. Arrays are by side, the opener first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The streams of the sides; `None` for a side that sent nothing yet.
    pub edges: [Option<Edge>; SIDES],
    /// The largest window that each side advertised, as in the header of a segment that is not a SYN. 0: none yet.
    pub windows: [u16; SIDES],
    /// The number of bits by which each side's windows are shifted; also [`UNKNOWN_SCALE`] and [`UNSCALED`].
    pub scales: [u8; SIDES],
    /// The sequence number after a SYN that the opener sent while the connection was open. If the SYN is
    /// answered, the connection starts anew there.
    pub reopen: Option<u32>,
    /// Whether segments may go unseen. Then no segment counts as forged.
    pub liberal: bool,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            edges: [None; SIDES],
            windows: [0; SIDES],
            scales: [UNKNOWN_SCALE; SIDES],
            reopen: None,
            liberal: false,
        }
    }
}

impl Tcp {
    /// Returns the state after the first segment, which `side` sent.
    #[must_use]
    pub fn first(side: usize, segment: &Segment, liberal: bool) -> Self {
        let mut tcp = Self { liberal, ..Self::default() };
        tcp.open(side, segment);
        tcp
    }

    /// Returns the state after this segment, if it answers the SYN in [`Tcp::reopen`].
    pub(crate) fn reopened(&self, segment: &Segment) -> Option<Self> {
        let opener = self.reopen.filter(|end| *end == segment.ack).map(|end| Edge { end, ack: None });
        let edges = [Some(opener?), Some(segment.edge())];
        Some(Self { edges, liberal: self.liberal, ..Self::default() })
    }

    /// Records a side's SYN, or its first segment.
    pub(crate) fn open(&mut self, side: usize, segment: &Segment) {
        self.edges[side] = Some(segment.edge());
        self.note_window(side, segment);
    }

    /// Returns whether a side has sent nothing but this segment.
    pub(crate) fn only(&self, side: usize, segment: &Segment) -> bool {
        self.edges[side].is_none_or(|edge| edge == segment.edge())
    }

    /// Records the window, and by how much later windows are shifted. A SYN's own window is not shifted (RFC
    /// 7323, 2.2).
    fn note_window(&mut self, side: usize, segment: &Segment) {
        let mut window = segment.window;
        if segment.has(proto::TCP_SYN) {
            self.scales[side] = segment.scale.unwrap_or(UNSCALED);
            window = window.div_ceil(1 << segment.scale.unwrap_or(0).min(UNKNOWN_SCALE));
            if segment.scale.is_none() && self.scales[1 - side] != UNSCALED && self.windows[1 - side] != 0 {
                // The window in the other side's SYN was recorded as if it were to be shifted.
                self.windows[1 - side] = u16::MAX;
            }
        }
        self.windows[side] = self.windows[side].max(window);
    }

    fn window(&self, side: usize) -> u32 {
        window_size(self.windows[side], self.scales[side], self.scales[1 - side])
    }

    /// Records a segment of `side` without SYN and RST. Returns false, and records nothing, if the segment
    /// does not belong to the stream.
    pub(crate) fn advance(&mut self, side: usize, segment: &Segment) -> bool {
        let [own, other] = [self.edges[side], self.edges[1 - side]];
        // A segment before the answer to a SYN belongs to an older connection.
        let opened = self.scales[1 - side] != UNKNOWN_SCALE && other.is_some_and(|other| other.ack.is_none());
        if opened && own.is_none() && !self.liberal {
            return false;
        }
        let windows = [self.window(side), self.window(1 - side)];
        let edge = advance(own, other, windows, self.liberal, segment);
        if edge.is_some() {
            self.edges[side] = edge;
            self.note_window(side, segment);
        }
        edge.is_some()
    }

    /// Returns the effect of a reset that `side` sends.
    pub(crate) fn reset(&self, side: usize, segment: &Segment) -> Reset {
        let (own, other) = (self.edges[side], self.edges[1 - side]);
        let sent = own.map(|own| own.end);
        let Some(expected) = other.and_then(|other| other.ack).or(sent) else {
            // The reset answers a SYN, which it must acknowledge (RFC 9293, 3.10.7.3).
            let acknowledges =
                segment.has(proto::TCP_ACK) && other.is_some_and(|other| other.end == segment.ack);
            return if acknowledges { Reset::Exact } else { Reset::Outside };
        };
        // The last segment of the reset's sender passed here, so the receiver has it or will have it soon.
        if segment.seq == expected || sent == Some(segment.seq) {
            return Reset::Exact;
        }
        let ahead = distance(expected, segment.seq);
        let inside = ahead > 0 && ahead as u32 <= self.window(1 - side);
        if inside { Reset::Doubtful } else { Reset::Outside }
    }

    /// Returns whether a SYN with ACK answers the other side's SYN, or is the first segment seen.
    pub(crate) fn answers(&self, side: usize, segment: &Segment) -> bool {
        self.edges[1 - side].is_none_or(|other| {
            let behind = distance(segment.ack, other.end);
            // The answer need not acknowledge data in the SYN.
            behind >= 0 && behind < LEAST_BACK as i32
        })
    }
}

/// Returns a side's window in bytes. `window` is the largest in its headers, `scale` the scale in its SYN,
/// and `other_scale` the scale in the other side's SYN.
#[inline(always)]
#[must_use]
pub const fn window_size(window: u16, scale: u8, other_scale: u8) -> u32 {
    if window == 0 {
        LARGEST_WINDOW
    } else if scale == UNSCALED || other_scale == UNSCALED {
        window as u32
    } else {
        (window as u32) << scale
    }
}

/// Does the same as [`advance`] for the usual case, in few steps: a segment that begins where the last one
/// ended, in a connection whose sides are both known. `None` says nothing about the segment.
#[inline(always)]
#[must_use]
pub fn advance_in_order(own: Edge, other: Edge, window: u32, segment: &Segment) -> Option<Edge> {
    let (Some(acknowledged), Some(expected)) = (own.ack, other.ack) else { return None };
    let more = segment.ack.wrapping_sub(acknowledged);
    let outstanding = other.end.wrapping_sub(acknowledged);
    let in_order = segment.seq == own.end
        && segment.has(proto::TCP_ACK)
        && segment.seq.wrapping_sub(expected) <= window
        && more <= outstanding
        && outstanding <= i32::MAX as u32;
    in_order.then(|| segment.edge())
}

/// Returns the new state of a side after a segment without SYN and RST. `own` is its state before, `other`
/// the other side's; `windows` are their windows in bytes. `None` if the segment does not belong to the stream:
/// its bytes must lie in the window or just before, and it must acknowledge something (RFC 9293, 3.10.7.4), but
/// neither data that was not sent nor data from long ago (RFC 5961, 5.2).
#[inline(always)]
#[must_use]
pub fn advance(
    own: Option<Edge>,
    other: Option<Edge>,
    [own_window, window]: [u32; SIDES],
    liberal: bool,
    segment: &Segment,
) -> Option<Edge> {
    let new = segment.edge();
    let ack = new.ack?;
    let expected = match (own, other) {
        (_, Some(Edge { ack: Some(ack), .. })) => ack,
        (Some(own), _) => own.end,
        _ => segment.seq,
    };
    let back = |window: u32| window.max(LEAST_BACK) as i32;
    let fits =
        distance(expected, segment.seq) <= window as i32 && distance(expected, new.end) >= -2 * back(window);
    let sent = other.map(|other| other.end);
    let last = own.and_then(|own| own.ack).or(sent);
    let acknowledges = sent.is_none_or(|sent| distance(ack, sent) >= 0)
        && last.is_none_or(|last| distance(ack, last) <= back(own_window));
    if !(fits && acknowledges) {
        return liberal.then_some(new);
    }
    let Some(own) = own else { return Some(new) };
    Some(Edge { end: later(own.end, new.end), ack: Some(own.ack.map_or(ack, |own| later(own, ack))) })
}
