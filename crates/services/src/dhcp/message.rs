//! Messages of DHCP clients. All of it is checked here, because answers depend on a few of its fields only.

use crate::Refused;
use dhcproto::v4::{MessageType, OptionCode};
use packet::Mac;
use std::net::Ipv4Addr;

/// Offset of the options: after the fixed fields (RFC 2131, 2) and the cookie.
pub(crate) const OPTIONS: usize = 240;
/// The cookie before the options (RFC 2131, 3).
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// A request, or an answer, by Ethernet, with a MAC of six bytes.
const REQUEST: [u8; 3] = [1, 1, 6];
const ANSWER: [u8; 3] = [2, 1, 6];
const PAD: u8 = 0;
const END: u8 = 255;

/// A client's message, or a server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) xid: u32,
    pub(crate) flags: u16,
    /// The address that the client uses, if it has one.
    pub(crate) ciaddr: Ipv4Addr,
    pub(crate) giaddr: Ipv4Addr,
    pub(crate) mac: Mac,
    pub(crate) kind: MessageType,
    pub(crate) requested: Option<Ipv4Addr>,
    pub(crate) server: Option<Ipv4Addr>,
    /// The longest message that the client takes, bytes.
    pub(crate) most: Option<u16>,
    /// Whether the client takes an address at once (RFC 4039).
    pub(crate) rapid: bool,
}

impl Message {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Refused> {
        Self::parse(bytes, REQUEST).ok_or(Refused::Malformed)
    }

    /// Reads a server's message.
    pub(crate) fn answer(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, ANSWER)
    }

    fn parse(bytes: &[u8], begin: [u8; 3]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<OPTIONS>()?;
        if fixed[..3] != begin || fixed[OPTIONS - 4..] != COOKIE {
            return None;
        }
        let word = |at: usize| [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
        let mut message = Self {
            xid: u32::from_be_bytes(word(4)),
            flags: u16::from_be_bytes([fixed[10], fixed[11]]),
            ciaddr: word(12).into(),
            giaddr: word(24).into(),
            mac: Mac(*fixed[28..].first_chunk()?),
            kind: MessageType::Unknown(0),
            requested: None,
            server: None,
            most: None,
            rapid: false,
        };
        options(rest, &mut |code, value| message.option(code.into(), value))?;
        (message.kind != MessageType::Unknown(0)).then_some(message)
    }

    fn option(&mut self, code: OptionCode, value: &[u8]) -> Option<()> {
        let addr = || <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
        match code {
            OptionCode::MessageType => self.kind = <[u8; 1]>::try_from(value).ok()?[0].into(),
            OptionCode::RequestedIpAddress => self.requested = Some(addr()?),
            OptionCode::ServerIdentifier => self.server = Some(addr()?),
            OptionCode::MaxMessageSize => self.most = Some(u16::from_be_bytes(value.try_into().ok()?)),
            OptionCode::RapidCommit => self.rapid = true,
            _ => {}
        }
        Some(())
    }

    /// Returns whether answers go to all on the link, because the client takes no others yet (RFC 2131, 4.1).
    pub(crate) const fn wants_broadcast(&self) -> bool {
        self.flags & 0x8000 != 0
    }
}

/// Calls `each` for all options, up to their end, which there must be. Returns where that is.
pub(crate) fn options<'a>(all: &'a [u8], each: &mut dyn FnMut(u8, &'a [u8]) -> Option<()>) -> Option<usize> {
    let mut rest = all;
    loop {
        let (code, behind) = rest.split_first()?;
        rest = match *code {
            END => return Some(all.len() - rest.len()),
            PAD => behind,
            code => {
                let (len, behind) = behind.split_first()?;
                let (value, behind) = behind.split_at_checked((*len).into())?;
                each(code, value)?;
                behind
            }
        };
    }
}
