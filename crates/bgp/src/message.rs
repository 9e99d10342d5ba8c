//! Messages: where they begin and end.

use crate::notification::{self, Notification};

/// Bytes of a message's header (RFC 4271, 4.1).
const HEADER: usize = 19;
/// Longest message, unless both sides take longer ones.
pub(crate) const LONGEST: usize = 4096;
/// Longest message of sides that take long ones (RFC 8654). OPEN and KEEPALIVE stay short.
pub(crate) const LONGEST_EXTENDED: usize = 65535;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Open = 1,
    Update = 2,
    Notification = 3,
    Keepalive = 4,
    Refresh = 5,
}

impl Kind {
    const fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Open,
            2 => Self::Update,
            3 => Self::Notification,
            4 => Self::Keepalive,
            5 => Self::Refresh,
            _ => return None,
        })
    }

    /// Returns the lengths that a message of this type may have.
    const fn lengths(self, extended: bool) -> (usize, usize) {
        let longest = if extended { LONGEST_EXTENDED } else { LONGEST };
        match self {
            Self::Open => (29, LONGEST),
            Self::Update => (23, longest),
            Self::Notification => (21, longest),
            Self::Keepalive => (HEADER, HEADER),
            Self::Refresh => (23, 23),
        }
    }
}

/// A message's type and body, and the bytes behind it.
pub(crate) type Found<'a> = (Kind, &'a [u8], &'a [u8]);

/// Finds the first message. Nothing: there is no whole one yet.
pub(crate) fn first(bytes: &[u8], extended: bool) -> Result<Option<Found<'_>>, Notification> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let [marker @ .., high, low, kind] = header;
    if marker != &[0xff; 16] {
        return Err(Notification::new(notification::HEADER, 1));
    }
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let kind = Kind::of(*kind).ok_or_else(|| Notification::with(notification::HEADER, 3, &[*kind]))?;
    let (shortest, longest) = kind.lengths(extended);
    if length < shortest || length > longest {
        return Err(Notification::with(notification::HEADER, 2, &[*high, *low]));
    }
    let Some((message, rest)) = bytes.split_at_checked(length) else { return Ok(None) };
    Ok(Some((kind, &message[HEADER..], rest)))
}

/// Appends a message with this body, which is short enough.
pub(crate) fn write(to: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    let length = HEADER + body.len();
    debug_assert!(length <= LONGEST_EXTENDED);
    to.extend([0xff; 16]);
    to.extend((length as u16).to_be_bytes());
    to.push(kind as u8);
    to.extend(body);
}
