//! What peers tell each other: the private data of a connection, and the immediate data of RDMA WRITEs. The format is
//! that of rdma-core's rsockets, version 1.

/// The version of the format.
const VERSION: u8 = 1;
/// Flag: the sender stores numbers with the most significant byte first.
const BIG_ENDIAN: u8 = 1;
/// Flag: the sender's table of mapped buffers has the size in the last byte of the header; ours has none.
const HAS_MAP: u8 = 2;

/// Bytes of private data.
pub const HELLO: usize = 40;
/// Bytes of a buffer's description.
pub const BUFFER: usize = 16;
/// Descriptions in a table of buffers.
pub const TABLE: u32 = 2;
/// Most entries of a peer's table that are used. rdma-core has as many as we.
const TABLE_MOST: u32 = 256;
/// The type of a message is in the bits above these.
const VALUE: u32 = (1 << 29) - 1;

/// A buffer that the peer may write to. In a [`Hello`], `len` of the table counts its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Its address in the process that has it.
    pub address: u64,
    /// Its remote key.
    pub key: u32,
    /// Its length.
    pub len: u32,
}

impl Buffer {
    fn from_network(bytes: &[u8; BUFFER]) -> Self {
        let (address, rest) = bytes.split_at(8);
        let (key, len) = rest.split_at(4);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Self { address: number(address), key: number(key) as u32, len: number(len) as u32 }
    }

    /// As a big-endian peer has it in memory, and as it travels in a [`Hello`].
    fn to_network(self) -> [u8; BUFFER] {
        let mut bytes = [0; BUFFER];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// As a peer has it in memory.
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

    /// What a peer has written into our memory: its address, and key and length in one word.
    #[must_use]
    pub const fn from_words(address: u64, key_and_len: u64) -> Self {
        let [k0, k1, k2, k3, l0, l1, l2, l3] = key_and_len.to_ne_bytes();
        Self { address, key: u32::from_ne_bytes([k0, k1, k2, k3]), len: u32::from_ne_bytes([l0, l1, l2, l3]) }
    }
}

/// The private data of a connection's request, and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender stores numbers with the most significant byte first.
    pub is_big_endian: bool,
    /// How many data messages the sender can receive at first.
    pub credits: u16,
    /// Where the sender wants to be told of buffers.
    pub table: Buffer,
    /// The first buffer.
    pub data: Buffer,
}

impl Hello {
    /// The private data.
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

    /// Reads private data. `None` if a stream can't be had by it.
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

/// What the immediate data of a WRITE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// As many bytes of the stream were written.
    Data(u32),
    /// Data messages up to this number may be sent; there may be another buffer in the table.
    Credits(u16),
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Nothing: the sender wants to know whether the peer is still there.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
}

impl Message {
    /// The immediate data.
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

    /// Reads immediate data. `None` for messages that no peer of ours may send.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match (number >> 29, number & VALUE) {
            (0, len) => Some(Self::Data(len)),
            // Numbers of messages are those of a longer counter.
            (4, limit) => Some(Self::Credits(limit as u16)),
            (7, 0) => Some(Self::Disconnect),
            (7, 1) => Some(Self::KeepAlive),
            (7, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}
