//! The message that ends a session.

use std::fmt;

/// A NOTIFICATION (RFC 4271, 4.5): why a session ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The error code.
    pub code: u8,
    /// The error subcode.
    pub subcode: u8,
    /// Data, by code and subcode.
    pub data: Vec<u8>,
}

pub(crate) const HEADER: u8 = 1;
pub(crate) const OPEN: u8 = 2;
pub(crate) const UPDATE: u8 = 3;
pub(crate) const HOLD_TIMER: u8 = 4;
pub(crate) const STATE_MACHINE: u8 = 5;
pub(crate) const CEASE: u8 = 6;

/// Subcodes of [`CEASE`] (RFC 4486, RFC 8538).
pub(crate) mod cease {
    pub(crate) const MAX_ROUTES: u8 = 1;
    pub(crate) const SHUTDOWN: u8 = 2;
    pub(crate) const REMOVED: u8 = 3;
    pub(crate) const RESET: u8 = 4;
    pub(crate) const REJECTED: u8 = 5;
    pub(crate) const CHANGED: u8 = 6;
    pub(crate) const COLLISION: u8 = 7;
    pub(crate) const HARD_RESET: u8 = 9;
    /// RFC 9384.
    pub(crate) const BFD_DOWN: u8 = 10;
}

/// Longest text of a shutdown, in bytes (RFC 9003).
const TEXT: usize = 255;
/// Octets of data that are kept of a peer's: a text and its length.
const DATA: usize = TEXT + 1;

impl Notification {
    pub(crate) const fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Vec::new() }
    }

    pub(crate) fn with(code: u8, subcode: u8, data: &[u8]) -> Self {
        Self { code, subcode, data: data.into() }
    }

    /// Makes an administrative shutdown with a text for the peer's operator (RFC 9003), cut to 255 bytes.
    pub(crate) fn shutdown(text: &str) -> Self {
        let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= TEXT).last();
        let text = &text[..end.unwrap_or(0)];
        let mut data = vec![text.len() as u8];
        data.extend(text.as_bytes());
        Self { code: CEASE, subcode: cease::SHUTDOWN, data }
    }

    /// Reads the body of a message.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let [code, subcode, data @ ..] = body else { return None };
        Some(Self::with(*code, *subcode, &data[..data.len().min(DATA)]))
    }

    /// Returns the body of the message.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = vec![self.code, self.subcode];
        body.extend(&self.data);
        body
    }

    /// Returns the text of a shutdown or reset, with what is not printable made so.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let (CEASE, cease::SHUTDOWN | cease::RESET) = (self.code, self.subcode) else { return None };
        let (length, text) = self.data.split_first()?;
        let text = String::from_utf8_lossy(text.get(..usize::from(*length))?);
        Some(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    const fn name(&self) -> &'static str {
        match (self.code, self.subcode) {
            (HEADER, _) => "malformed header",
            (OPEN, 1) => "unsupported version",
            (OPEN, 2) => "the peer has a different AS",
            (OPEN, 3) => "bad BGP identifier",
            (OPEN, 6) => "hold time not acceptable",
            (OPEN, 7) => "no address family in common",
            (OPEN, _) => "OPEN not acceptable",
            (UPDATE, _) => "malformed UPDATE",
            (HOLD_TIMER, _) => "hold timer expired",
            (STATE_MACHINE, _) => "a message at the wrong time",
            (CEASE, cease::MAX_ROUTES) => "too many routes",
            (CEASE, cease::SHUTDOWN) => "shut down",
            (CEASE, cease::REMOVED) => "peer removed",
            (CEASE, cease::RESET) => "reset",
            (CEASE, cease::REJECTED) => "connection rejected",
            (CEASE, cease::CHANGED) => "configuration changed",
            (CEASE, cease::COLLISION) => "two connections at once",
            (CEASE, 8) => "out of resources",
            (CEASE, cease::HARD_RESET) => "hard reset",
            (CEASE, cease::BFD_DOWN) => "BFD down",
            _ => "other error",
        }
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}/{})", self.name(), self.code, self.subcode)?;
        match self.text() {
            Some(text) if !text.is_empty() => write!(f, ": {text}"),
            _ => Ok(()),
        }
    }
}
