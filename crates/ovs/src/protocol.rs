//! Messages of drivers, and answers to them: the other side of `ovs-pmd/protocol.h`. All numbers are
//! little-endian.

use crate::kinds::{item, part};
use executor::Counters;
use std::fmt;

/// "VOVS", the start of a hello.
const MAGIC: u32 = 0x5356_4f56;
pub const VERSION: u32 = 1;
/// Level of the protocol: 1 adds counting, quality of service, the names of devices, and what a driver has
/// read when it destroys a flow. The answer to a hello says it, and a driver sends none of these to a
/// viaductd whose answer does not.
pub const LEVEL: u16 = 1;
/// Longest message, bytes.
pub const LONGEST: usize = 8192;
/// Bytes of a port's name, with its final zero.
const NAME: usize = 64;
/// Bytes of the text in an answer, with its final zero.
const TEXT: usize = 192;
/// Most items, and most actions, of a flow.
const MOST_PARTS: usize = 64;
/// Most requests for whose answers a driver does not wait. That is two turns, so that the driver sends more
/// while one turn is carried out. The answers fit into a socket even if each is a message of its own (each
/// takes 1280 of 212,992 bytes).
pub const AHEAD: u32 = 128;

/// Most requests in a message, each about one flow. Sending and receiving a message takes longer than many a
/// request.
pub const TOGETHER: u32 = 16;

const HELLO: u32 = 1;
const PORT_OPEN: u32 = 2;
const PORT_CLOSE: u32 = 3;
const PORT_MTU: u32 = 4;
const FLOW_CREATE: u32 = 5;
const FLOW_DESTROY: u32 = 6;
const FLOW_FLUSH: u32 = 7;
const PORT_LINK: u32 = 8;
const PORT_QOS: u32 = 9;
const COUNT: u32 = 10;
const SETTLED: u32 = 11;

/// The reason why a message ends its session: no driver of ours sends such a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// It ends too early, or its length differs from its length field.
    #[error("a message whose length is wrong")]
    Length,
    #[error("a message of unknown kind {0}")]
    Kind(u32),
    #[error("a name that is not UTF-8, or has no end")]
    Text,
    /// A hello that does not begin with `MAGIC`.
    #[error("not the driver of Viaduct")]
    Magic,
    #[error("a flow with more than {MOST_PARTS} items or actions")]
    TooMany,
    /// A message with descriptors, which no request has.
    #[error("a message with descriptors")]
    Files,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first message.
    Hello {
        /// The driver's version of the protocol.
        version: u32,
        /// Process ID, as the driver tells it.
        pid: u32,
        /// Most answers that the driver takes in one message; 0 from an older driver, which takes one.
        answers: u32,
        /// Version of DPDK, in words.
        dpdk: String,
    },
    /// Opens a port, and gives it a number for further requests.
    PortOpen {
        port: u32,
        /// Name of a guest or wire.
        name: String,
        /// Whether OVS has the port down.
        down: bool,
        /// Name of the port in DPDK; empty from an older driver.
        device: String,
    },
    /// Closes a port and removes its flows.
    PortClose {
        port: u32,
    },
    /// Sets the length of packets that OVS takes.
    PortMtu {
        port: u32,
        /// Bytes of an IP packet.
        mtu: u32,
    },
    PortLink {
        port: u32,
        down: bool,
    },
    /// Tells what OVS itself does to packets of a port: bits of [`qos`].
    PortQos {
        port: u32,
        qos: u32,
    },
    FlowCreate(Create<'a>),
    FlowDestroy {
        flow: u64,
        /// The last value of its counter that OVS has read, if the driver says it.
        seen: Option<Counters>,
    },
    FlowFlush {
        port: u32,
    },
    /// Brings the counters of flows up to date.
    Count,
    /// Tells that the session has opened all ports that OVS has.
    Settled,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Create<'a> {
    /// Number of its port.
    pub port: u32,
    /// Bits of `rte_flow_attr`: 1 ingress, 2 egress, 4 transfer.
    pub attributes: u32,
    pub group: u32,
    pub priority: u32,
    /// Whether the driver does not wait for the answer.
    pub ahead: bool,
    pub items: Vec<Item<'a>>,
    /// Kind and bytes of each action.
    pub actions: Vec<(u16, &'a [u8])>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item<'a> {
    /// One of [`item`].
    pub kind: u16,
    pub spec: Option<&'a [u8]>,
    pub mask: Option<&'a [u8]>,
    /// Upper end of a range.
    pub last: Option<&'a [u8]>,
}

impl Item<'_> {
    /// Returns the name of an item of unknown kind.
    pub fn name(&self) -> String {
        name(self.spec.unwrap_or_default())
    }
}

/// Converts a driver's name of something to text that can be shown.
pub fn name(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(NAME)]);
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Reads a message from its start.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], BadMessage> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(BadMessage::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (head, rest) = self.0.split_first_chunk().ok_or(BadMessage::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, BadMessage> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, BadMessage> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadMessage> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads the counter at the end of a message, if it is there.
    fn seen(&mut self) -> Result<Option<Counters>, BadMessage> {
        if self.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(Counters { packets: self.u64()?, bytes: self.u64()? }))
    }

    /// Reads a text from a field of `len` bytes, up to its first zero.
    fn text(&mut self, len: usize) -> Result<String, BadMessage> {
        let field = self.bytes(len)?;
        let end = field.iter().position(|byte| *byte == 0).ok_or(BadMessage::Text)?;
        let text = std::str::from_utf8(&field[..end]).map_err(|_| BadMessage::Text)?;
        Ok(text.chars().filter(|c| !c.is_control()).collect())
    }

    fn item(&mut self) -> Result<Item<'a>, BadMessage> {
        let (kind, parts, len, _) = (self.u16()?, self.u16()?, self.u16()?, self.u16()?);
        let mut part = |which| (parts & which != 0).then(|| self.bytes(len.into())).transpose();
        Ok(Item { kind, spec: part(part::SPEC)?, mask: part(part::MASK)?, last: part(part::LAST)? })
    }

    fn action(&mut self) -> Result<(u16, &'a [u8]), BadMessage> {
        let (kind, len) = (self.u16()?, self.u16()?);
        Ok((kind, self.bytes(len.into())?))
    }

    fn create(&mut self) -> Result<Create<'a>, BadMessage> {
        let [port, attributes, group, priority] = [self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        let (items, actions) = (usize::from(self.u16()?), usize::from(self.u16()?));
        let ahead = self.u32()? != 0;
        if items.max(actions) > MOST_PARTS {
            return Err(BadMessage::TooMany);
        }
        let (mut all, mut done) = (Vec::with_capacity(items), Vec::with_capacity(actions));
        for _ in 0..items {
            all.push(self.item()?);
        }
        for _ in 0..actions {
            done.push(self.action()?);
        }
        Ok(Create { port, attributes, group, priority, ahead, items: all, actions: done })
    }

    fn hello(&mut self) -> Result<Request<'a>, BadMessage> {
        if self.u32()? != MAGIC {
            return Err(BadMessage::Magic);
        }
        let (version, pid, answers) = (self.u32()?, self.u32()?, self.u32()?);
        Ok(Request::Hello { version, pid, answers, dpdk: self.text(32)? })
    }
}

/// Is true if a message is about one flow. Others may concern all flows.
pub fn is_of_one_flow(message: &[u8]) -> bool {
    matches!(Reader(message).u32(), Ok(FLOW_CREATE | FLOW_DESTROY))
}

/// Splits a message into requests: one, or several about one flow each, the last of which may concern more.
/// Any remaining bytes stay in the last request, whose length field then is wrong.
pub fn requests(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut left) = (message, TOGETHER);
    std::iter::from_fn(move || {
        let mut header = Reader(rest);
        let len = match (header.u32(), header.u32()) {
            (Ok(_), Ok(len)) if left > 1 && is_of_one_flow(rest) => len as usize,
            _ => rest.len(),
        };
        left = left.saturating_sub(1);
        let (one, more) = rest.split_at_checked(len.max(8)).unwrap_or((rest, &[]));
        rest = more;
        (!one.is_empty()).then_some(one)
    })
}

impl<'a> Request<'a> {
    /// Decodes a request.
    ///
    /// # Errors
    /// [`BadMessage`].
    pub fn decode(message: &'a [u8]) -> Result<Self, BadMessage> {
        let mut r = Reader(message);
        let (kind, length) = (r.u32()?, r.u32()?);
        if length as usize != message.len() {
            return Err(BadMessage::Length);
        }
        let request = match kind {
            HELLO => r.hello()?,
            PORT_OPEN => {
                let (port, down, name) = (r.u32()?, r.u32()? != 0, r.text(NAME)?);
                let device = if r.0.is_empty() { String::new() } else { r.text(NAME)? };
                Self::PortOpen { port, name, down, device }
            }
            PORT_CLOSE | PORT_MTU | PORT_LINK | PORT_QOS | FLOW_FLUSH => {
                let (port, value) = (r.u32()?, r.u32()?);
                match kind {
                    PORT_CLOSE => Self::PortClose { port },
                    PORT_MTU => Self::PortMtu { port, mtu: value },
                    PORT_LINK => Self::PortLink { port, down: value != 0 },
                    PORT_QOS => Self::PortQos { port, qos: value },
                    _ => Self::FlowFlush { port },
                }
            }
            FLOW_CREATE => Self::FlowCreate(r.create()?),
            FLOW_DESTROY => Self::FlowDestroy { flow: r.u64()?, seen: r.seen()? },
            COUNT => Self::Count,
            SETTLED => Self::Settled,
            kind => return Err(BadMessage::Kind(kind)),
        };
        if r.0.is_empty() { Ok(request) } else { Err(BadMessage::Length) }
    }
}

/// The answer to a request. Fields that do not concern the request are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or an errno.
    pub status: u32,
    /// The reason why a flow is refused ([`crate::Refused::number`]).
    pub reason: u32,
    /// Number of counters in the file that comes with the answer.
    pub counters: u32,
    pub mtu: u32,
    /// Slots of each of the port's rings.
    pub slots: u32,
    /// The port's MAC in OVS.
    pub mac: [u8; 6],
    /// [`LEVEL`], for a session.
    pub level: u16,
    /// Index of a flow's counter.
    pub counter: u32,
    /// How many more flows will be accepted that differ from this one only in the values of items.
    pub ahead: u32,
    /// Most requests about one flow in a message of the driver.
    pub together: u32,
    /// Number of a flow.
    pub flow: u64,
    /// Present value of a flow's counter. It takes the place of the text.
    pub seen: Counters,
    /// The error.
    pub text: String,
}

impl Answer {
    /// Bytes of an answer.
    pub const LEN: usize = 48 + TEXT;

    pub fn refuse(errno: rustix::io::Errno, text: impl fmt::Display) -> Self {
        Self { status: errno.raw_os_error() as u32, text: text.to_string(), ..Self::default() }
    }

    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let words = [self.status, self.reason, self.counters, self.mtu, self.slots];
        for (at, word) in words.into_iter().enumerate() {
            put(at * 4, &word.to_le_bytes());
        }
        put(20, &self.mac);
        put(26, &self.level.to_le_bytes());
        put(28, &self.counter.to_le_bytes());
        put(32, &self.ahead.to_le_bytes());
        put(36, &self.together.to_le_bytes());
        put(40, &self.flow.to_le_bytes());
        put(48, &self.seen.packets.to_le_bytes());
        put(56, &self.seen.bytes.to_le_bytes());
        if self.text.is_empty() {
            return out;
        }
        let mut end = self.text.len().min(TEXT - 1);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        put(48, &self.text.as_bytes()[..end]);
        out
    }
}

/// Returns the bytes of each part of an item; `None` if the kind is unknown.
pub const fn item_len(kind: u16) -> Option<usize> {
    Some(match kind {
        item::ETH | item::IPV4 | item::TCP => 20,
        item::VLAN | item::IPV6_FRAG | item::UDP | item::ICMP => 8,
        item::IPV6 => 44,
        item::SCTP => 12,
        item::ICMP6 => 4,
        _ => return None,
    })
}
