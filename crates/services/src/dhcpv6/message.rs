//! Messages of DHCPv6 clients (RFC 8415, 8 and 21).

use crate::Refused;
use dhcproto::v6::{MessageType, OptionCode};
use std::net::Ipv6Addr;

/// Most associations in a message, and most addresses in one; more is no host's.
const MOST: usize = 8;
/// Longest identifier of a client, bytes (RFC 8415, 11.1).
const MAX_DUID: usize = 130;

/// A client's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: MessageType,
    pub(crate) xid: [u8; 3],
    /// The client's identifier, which answers repeat.
    pub(crate) client: Option<Vec<u8>>,
    pub(crate) server: Option<Vec<u8>>,
    pub(crate) associations: Vec<Association>,
    /// Whether the client takes addresses at once.
    pub(crate) rapid: bool,
}

/// A client's wish for addresses (IA_NA).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Association {
    pub(crate) id: u32,
    /// The addresses that it has, or wants.
    pub(crate) addresses: Vec<Ipv6Addr>,
}

impl Message {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Refused> {
        Self::parse(bytes).ok_or(Refused::Malformed)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let ([kind, xid @ ..], rest) = bytes.split_first_chunk::<4>()?;
        let (client, server, associations) = Default::default();
        let mut message =
            Self { kind: (*kind).into(), xid: *xid, client, server, associations, rapid: false };
        options(rest, &mut |code, value| message.option(code, value))?;
        Some(message)
    }

    fn option(&mut self, code: OptionCode, value: &[u8]) -> Option<()> {
        match code {
            OptionCode::ClientId => self.client = Some(duid(value)?),
            OptionCode::ServerId => self.server = Some(duid(value)?),
            OptionCode::RapidCommit => self.rapid = true,
            OptionCode::IANA => {
                let (fixed, rest) = value.split_first_chunk::<12>()?;
                let id = u32::from_be_bytes(*fixed.first_chunk()?);
                let mut association = Association { id, addresses: Vec::new() };
                options(rest, &mut |code, value| {
                    if code == OptionCode::IAAddr {
                        let (addr, _) = value.split_first_chunk::<16>()?;
                        association.addresses.push((*addr).into());
                    }
                    (association.addresses.len() <= MOST).then_some(())
                })?;
                self.associations.push(association);
            }
            _ => {}
        }
        (self.associations.len() <= MOST).then_some(())
    }
}

fn duid(value: &[u8]) -> Option<Vec<u8>> {
    (1..=MAX_DUID).contains(&value.len()).then(|| value.to_vec())
}

/// Calls `each` for all options, to the end.
pub(crate) fn options<'a>(
    mut rest: &'a [u8],
    each: &mut dyn FnMut(OptionCode, &'a [u8]) -> Option<()>,
) -> Option<()> {
    while !rest.is_empty() {
        let ([c0, c1, l0, l1], behind) = rest.split_first_chunk::<4>()?;
        let (value, behind) = behind.split_at_checked(u16::from_be_bytes([*l0, *l1]).into())?;
        each(u16::from_be_bytes([*c0, *c1]).into(), value)?;
        rest = behind;
    }
    Some(())
}
