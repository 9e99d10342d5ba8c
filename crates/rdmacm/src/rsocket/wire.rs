//! Messages between peers: the private data of a connection, and the immediate data of RDMA WRITEs. The format is that
//! of rdma-core's rsockets, version 1.

const VERSION: u8 = 1;
/// Flag: the sender stores numbers with the most significant byte first.
const BIG_ENDIAN: u8 = 1;
/// Flag: the sender has a table of mapped buffers, and the header's last byte is its size; we have none.
const HAS_MAP: u8 = 2;

/// Bytes of private data.
pub const HELLO: usize = 40;
/// Bytes of a buffer's description.
pub const BUFFER: usize = 16;
/// Number of descriptions in our table of buffers, the same as rdma-core's.
pub const TABLE: u32 = 2;
/// Largest number of entries of a peer's table that we use.
const TABLE_MOST: u32 = 256;
/// Bits of a message's value. The bits above are its type.
const VALUE: u32 = (1 << 29) - 1;

/// A buffer to which the peer may write. For the table in a [`Hello`], `len` is the number of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// The address in the process that owns the buffer.
    pub address: u64,
    pub key: u32,
    pub len: u32,
}

impl Buffer {
    fn from_network(bytes: &[u8; BUFFER]) -> Self {
        let (address, rest) = bytes.split_at(8);
        let (key, len) = rest.split_at(4);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Self { address: number(address), key: number(key) as u32, len: number(len) as u32 }
    }

    /// Returns the description as a big-endian peer has it in memory, and as a [`Hello`] carries it.
    fn to_network(self) -> [u8; BUFFER] {
        let mut bytes = [0; BUFFER];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Returns the description as a peer has it in memory.
    #[must_use]
    pub fn in_memory(self, is_big_endian: bool) -> [u8; BUFFER] {
        let mut bytes = self.to_network();
        if !is_big_endian {
            bytes[..8].reverse();
            bytes[8..12].reverse();
            bytes[12..].reverse();
        }
        bytes
    }

    /// Reads the description that a peer has written into our memory: its address, and key and length in one word.
    #[must_use]
    pub const fn from_words(address: u64, key_and_len: u64) -> Self {
        let [k0, k1, k2, k3, l0, l1, l2, l3] = key_and_len.to_ne_bytes();
        Self { address, key: u32::from_ne_bytes([k0, k1, k2, k3]), len: u32::from_ne_bytes([l0, l1, l2, l3]) }
    }
}

/// The private data of a connection's request, and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub is_big_endian: bool,
    /// Number of data messages that the sender can receive at first.
    pub credits: u16,
    /// The table in which the peer announces buffers to the sender.
    pub table: Buffer,
    pub data: Buffer,
}

impl Hello {
    #[must_use]
    pub fn to_bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0] = VERSION;
        bytes[1] = HAS_MAP | if self.is_big_endian { BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.table.to_network());
        bytes[24..].copy_from_slice(&self.data.to_network());
        bytes
    }

    /// Reads private data. Returns `None` if it does not permit a stream.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HELLO>()?;
        let hello = Self {
            is_big_endian: bytes[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            table: Buffer::from_network(bytes[8..].first_chunk()?),
            data: Buffer::from_network(bytes[24..].first_chunk()?),
        };
        let has_table = (TABLE..=TABLE_MOST).contains(&hello.table.len);
        (bytes[0] == VERSION && hello.credits > 0 && has_table).then_some(hello)
    }
}

/// The meaning of a WRITE's immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// This many bytes of the stream were written.
    Data(u32),
    /// Data messages up to this number may be sent; the table may have a new buffer.
    Credits(u16),
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// The sender wants to know whether the peer is still there; there is nothing to do.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
}

impl Message {
    #[must_use]
    pub const fn to_number(self) -> u32 {
        match self {
            Self::Data(len) => len & VALUE,
            Self::Credits(limit) => 4 << 29 | limit as u32,
            Self::Disconnect => 7 << 29,
            Self::KeepAlive => 7 << 29 | 1,
            Self::Shutdown => 7 << 29 | 2,
        }
    }

    /// Reads immediate data. Returns `None` for messages that our peers may not send.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match (number >> 29, number & VALUE) {
            (0, len) => Some(Self::Data(len)),
            // The numbers of messages are the low bits of a longer counter.
            (4, limit) => Some(Self::Credits(limit as u16)),
            (7, 0) => Some(Self::Disconnect),
            (7, 1) => Some(Self::KeepAlive),
            (7, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}
