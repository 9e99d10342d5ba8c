//! Messages between the library in a program and the daemon, one in each packet of a `SOCK_SEQPACKET` socket.

/// Bytes of a message.
pub const LEN: usize = 32;
/// Version of this protocol and of the memory's layout.
const VERSION: u32 = 1;
/// Bits of an offer.
const CARRIES: u8 = 1;
const DOORS: u8 = 2;
const RELAYS: u8 = 4;

/// A message. A token names an open connection of a program, a pair the two ends that the daemon has matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Program: a connection may be moved; its socket comes along.
    Offer {
        /// The program's name of it.
        token: u64,
        /// Whether the program can have its memory in a file for many connections ([`Message::File`]). Libraries whose
        /// programs shared their doorbells said so elsewhere in the message, and have a file for each connection now.
        doors: bool,
        /// Whether it can have memory that the daemon carries to another host ([`Message::Carried`]).
        carries: bool,
        /// Whether an agent in a virtual machine passes the offer on, and bells as well ([`Message::Wake`]).
        relays: bool,
    },
    /// Daemon: the other end is there. Offer it again, so that both sockets are seen alive at the same time.
    Again {
        /// As in the offer.
        token: u64,
    },
    /// Program: the offer ends.
    Cancel {
        /// As in the offer.
        token: u64,
    },
    /// Program: the other end of a pair has to look at its directions.
    Poke {
        /// The pair.
        pair: u64,
    },
    /// Program: it has let go of its end.
    Gone {
        /// The program's name of it.
        token: u64,
        /// The pair.
        pair: u64,
    },
    /// Program: it has an end of a pair that another process was given.
    Adopt {
        /// The program's name of it.
        token: u64,
        /// The pair.
        pair: u64,
    },
    /// Daemon: an offer was matched; the memory comes along.
    Matched {
        /// As in the offer.
        token: u64,
        /// The pair.
        pair: u64,
        /// Whether this is the second end.
        second: bool,
        /// The offset of the memory in what comes along. It is 0 unless that is a window of a virtual machine, with
        /// other memory in it.
        offset: u64,
        /// The slot of the memory in a file for many connections, and the number of the file is `offset`. 0: it is in none.
        slot: u8,
    },
    /// Daemon: a file for connections with another program comes along ([`crate::Doors`]).
    File {
        /// The number of the file.
        file: u64,
        /// Whether this is the second side.
        second: bool,
    },
    /// Daemon: a bell of a file comes along: an event descriptor that counts one at a time. Whoever takes one wakes who
    /// waits for room in it. (To take does not wait, whatever the other side does to the descriptor.)
    Bell {
        /// The number of the file.
        file: u64,
        /// Whether this is the second side.
        second: bool,
        /// Whether it wakes this side, or the other.
        own: bool,
    },
    /// Daemon: no connection is put into a file any more. Program, with 0: the same of all its files.
    Full {
        /// The number of the file.
        file: u64,
    },
    /// Daemon: an offer was matched with an end on another host. Memory that the daemon carries there comes along, and
    /// three event descriptors: the daemon waits for the first, and takes from the second when the program must look,
    /// from the third when there is room. In a virtual machine they are the agent's.
    Carried {
        /// As in the offer.
        token: u64,
        /// The pair.
        pair: u64,
        /// Whether this is the second end.
        second: bool,
        /// The offset of the memory in what comes along, as in [`Message::Matched`].
        offset: u64,
    },
    /// Daemon, to an agent: take from a bell of a connection whose other end is on another host. Agent: a program has
    /// something to carry.
    Wake {
        /// As in the offer. The agent's: 0.
        token: u64,
        /// Whether there is room, too.
        room: bool,
    },
    /// Daemon: it is not known any more what has arrived on the other host. The connection has to end.
    Cut {
        /// As in the offer.
        token: u64,
    },
    /// Daemon: look at the directions of this connection.
    Look {
        /// As in the offer.
        token: u64,
    },
    /// Daemon: the connection has to return to TCP, whatever the peer does.
    Return {
        /// As in the offer.
        token: u64,
    },
    /// Daemon: the offer has no use: the other end is not a program of this host that may share memory.
    Refused {
        /// As in the offer.
        token: u64,
    },
}

impl Message {
    /// Returns the bytes of the message.
    #[must_use]
    pub fn bytes(self) -> [u8; LEN] {
        const NONE: (bool, u64) = (false, 0);
        let slot = match self {
            Self::Matched { slot, .. } => slot,
            Self::Offer { doors, carries, relays, .. } => {
                u8::from(doors) * DOORS + u8::from(carries) * CARRIES + u8::from(relays) * RELAYS
            }
            Self::Bell { own, .. } => own.into(),
            Self::Wake { room, .. } => room.into(),
            _ => 0,
        };
        let (kind, a, b, (second, offset)) = match self {
            Self::Offer { token, .. } => (1, token, 0, NONE),
            Self::Cancel { token } => (2, token, 0, NONE),
            Self::Poke { pair } => (3, 0, pair, NONE),
            Self::Gone { token, pair } => (4, token, pair, NONE),
            Self::Adopt { token, pair } => (5, token, pair, NONE),
            Self::Matched { token, pair, second, offset, .. } => (6, token, pair, (second, offset)),
            Self::Look { token } => (7, token, 0, NONE),
            Self::Refused { token } => (8, token, 0, NONE),
            Self::Again { token } => (9, token, 0, NONE),
            Self::Return { token } => (10, token, 0, NONE),
            Self::Carried { token, pair, second, offset } => (11, token, pair, (second, offset)),
            Self::Cut { token } => (12, token, 0, NONE),
            Self::File { file, second } => (13, file, 0, (second, 0)),
            Self::Full { file } => (15, file, 0, NONE),
            Self::Bell { file, second, .. } => (16, file, 0, (second, 0)),
            Self::Wake { token, .. } => (17, token, 0, NONE),
        };
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[4] = kind;
        bytes[5] = second.into();
        bytes[6] = slot;
        bytes[8..16].copy_from_slice(&u64::to_le_bytes(a));
        bytes[16..24].copy_from_slice(&u64::to_le_bytes(b));
        bytes[24..].copy_from_slice(&u64::to_le_bytes(offset));
        bytes
    }

    /// Reads a message. `None`: it is none of this version.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[..4] != VERSION.to_le_bytes() || bytes[5] > 1 {
            return None;
        }
        let (token, pair, offset, second) = (word(8)?, word(16)?, word(24)?, bytes[5] == 1);
        Some(match bytes[4] {
            1 => {
                let has = |bit| bytes[6] & bit != 0;
                Self::Offer { token, doors: has(DOORS), carries: has(CARRIES), relays: has(RELAYS) }
            }
            2 => Self::Cancel { token },
            3 => Self::Poke { pair },
            4 => Self::Gone { token, pair },
            5 => Self::Adopt { token, pair },
            6 => Self::Matched { token, pair, second, offset, slot: bytes[6] },
            7 => Self::Look { token },
            8 => Self::Refused { token },
            9 => Self::Again { token },
            10 => Self::Return { token },
            11 => Self::Carried { token, pair, second, offset },
            12 => Self::Cut { token },
            13 => Self::File { file: token, second },
            15 => Self::Full { file: token },
            16 => Self::Bell { file: token, second, own: bytes[6] == 1 },
            17 => Self::Wake { token, room: bytes[6] == 1 },
            _ => return None,
        })
    }
}
