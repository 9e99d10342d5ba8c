//! Control packets (RFC 5880, 4.1).

/// Length of a packet, without authentication, bytes.
pub const LEN: usize = 24;

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

/// The state of a session (RFC 5880, 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// The operator holds it down.
    AdminDown = 0,
    /// Nothing comes.
    Down = 1,
    /// Packets come; the neighbour does not know that yet.
    Init = 2,
    /// Packets come and go.
    Up = 3,
}

impl State {
    const fn of(number: u8) -> Self {
        match number & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    /// Returns the state's name in RFC 5880.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdminDown => "AdminDown",
            Self::Down => "Down",
            Self::Init => "Init",
            Self::Up => "Up",
        }
    }
}

/// The reason for the last change of a session's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const EXPIRED: Self = Self(1);
    pub(crate) const NEIGHBOUR_DOWN: Self = Self(3);
    pub(crate) const FORWARDING_RESET: Self = Self(4);
    pub(crate) const ADMIN_DOWN: Self = Self(7);

    /// Returns the reason in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "none",
            1 => "detection time expired",
            2 => "echo failed",
            3 => "neighbour signaled down",
            4 => "forwarding plane reset",
            5 => "path down",
            6 => "concatenated path down",
            7 => "administratively down",
            8 => "reverse concatenated path down",
            _ => "unknown",
        }
    }
}

/// A control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The reason for the last change of the sender's state.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// The sender wants an answer with `answers` (poll).
    pub polls: bool,
    /// The packet answers such a packet (final).
    pub answers: bool,
    /// The sender wants no more than answers.
    pub demand: bool,
    /// Lost packets after which the receiver is to take the path for broken.
    pub multiplier: u8,
    /// The sender's number of the session: not 0.
    pub own: u32,
    /// The receiver's number of the session. 0: not known yet.
    pub other: u32,
    /// The time between two packets of the sender, microseconds.
    pub sends: u32,
    /// The least time between two packets that the sender takes, microseconds. 0: it takes none.
    pub takes: u32,
}

/// Why bytes are no control packet that can be used (RFC 5880, 6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet is cut off, or says that it is shorter than it must be.
    #[error("the length is wrong")]
    Length,
    /// It is of another version.
    #[error("the version is not 1")]
    Version,
    /// No packet may be lost, or the sender gives the session no number, or the packet asks and answers at once.
    #[error("a field has a value that it must not have")]
    Value,
    /// It has several receivers, or is authenticated.
    #[error("multipoint or authenticated, which is not spoken here")]
    Kind,
}

impl Packet {
    /// Parses a packet.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = bytes.first_chunk::<LEN>().ok_or(Malformed::Length)?;
        let [first, second, multiplier, length, fields @ ..] = *head;
        if first >> 5 != 1 {
            return Err(Malformed::Version);
        }
        if usize::from(length) < LEN || usize::from(length) > bytes.len() {
            return Err(Malformed::Length);
        }
        if second & (AUTHENTICATED | MULTIPOINT) != 0 {
            return Err(Malformed::Kind);
        }
        let word =
            |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let packet = Self {
            diagnostic: Diagnostic(first & 0x1f),
            state: State::of(second >> 6),
            polls: second & POLL != 0,
            answers: second & FINAL != 0,
            demand: second & DEMAND != 0,
            multiplier,
            own: word(0),
            other: word(4),
            sends: word(8),
            takes: word(12),
        };
        let is_wrong = packet.multiplier == 0 || packet.own == 0 || packet.polls && packet.answers;
        // Who does not know the receiver's number has heard nothing of it.
        let knows_none = packet.other == 0 && matches!(packet.state, State::Init | State::Up);
        if is_wrong || knows_none { Err(Malformed::Value) } else { Ok(packet) }
    }

    /// Returns the bytes of the packet.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.polls, POLL) | flag(self.answers, FINAL) | flag(self.demand, DEMAND);
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&[
            1 << 5 | self.diagnostic.0 & 0x1f,
            (self.state as u8) << 6 | flags,
            self.multiplier,
            LEN as u8,
        ]);
        // The last field says that no echo packets are taken.
        let fields = [self.own, self.other, self.sends, self.takes, 0];
        for (place, field) in bytes[4..].chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }
}
