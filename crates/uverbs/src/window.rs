//! The layout of a window: a file of the host that a virtual machine has as a device (`/dev/daxN.M`).
//!
//! | bytes of the file | what is there |
//! |---|---|
//! | 0 to 2 MiB | for the guest's kernel: at 4 KiB, the information block of the device; from [`PAGE_BITMAP`] on, which pages of the data are not free, for the next daemon |
//! | from [`DATA`] on | the data, which is all that the guest's device has; the offsets of [`Part`](crate::Part)s count from here |
//!
//! | pages of the data | what is there |
//! |---|---|
//! | 0 | [`WindowHeader`], by which a library finds the device; the daemon writes it and never reads it |
//! | 1 to [`CHALLENGES`] | challenges ([`Opening`](crate::Opening)) |
//! | others | what the daemon gives to programs |

use crate::part::{PAGE, WindowKind};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::str::FromStr;

/// Offset of the data in the file, in bytes.
pub const DATA: u64 = 2 << 20;
/// Offset in the file at which it may list the pages of the data that are not free.
pub const PAGE_BITMAP: u64 = 16 << 10;
/// Number of pages with challenges.
pub const CHALLENGES: u64 = 64;
/// Offset of the first page that programs may get.
pub const FIRST: u64 = (1 + CHALLENGES) * PAGE;
/// The daemon's port of the family `AF_VSOCK`.
pub const PORT: u32 = 4791;
/// The first bytes of the data.
pub const MAGIC: [u8; 16] = *b"VIADUCT-WINDOW\0\0";
const LAYOUT: u32 = 1;

/// Identifies a window. As text, it is hexadecimal without hyphens.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the identifier of a window, which has 32 hexadecimal digits")]
pub struct NoUuid;

impl FromStr for Uuid {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Self, NoUuid> {
        let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or(NoUuid)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        let mut text = Self::with_capacity(32);
        let _ = write!(text, "{uuid}");
        text
    }
}

impl TryFrom<String> for Uuid {
    type Error = NoUuid;

    fn try_from(text: String) -> Result<Self, NoUuid> {
        text.parse()
    }
}

/// The content of page 0 of the data. Numbers are stored with the lowest byte first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowHeader {
    /// A device's own window stands for the device; libraries find common windows by their identifiers
    /// ([`Welcome::Accepted`](crate::Welcome::Accepted)).
    pub kind: WindowKind,
    pub uuid: Uuid,
    /// Bytes of the data.
    pub len: u64,
    /// The daemon's port of the family `AF_VSOCK`, on the host (CID 2).
    pub port: u32,
    /// The name of the guest, or of the trust for a common window; at most 63 bytes.
    pub name: String,
}

impl WindowHeader {
    /// Bytes that the header takes.
    pub const BYTES: usize = 128;
    /// Bytes of the name, including the zero at its end.
    const NAME: usize = 64;

    /// Returns the header as it is stored. Truncates a name that is too long.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let kind: u32 = match self.kind {
            WindowKind::Own => 0,
            WindowKind::Common => 1,
        };
        let mut end = self.name.len().min(Self::NAME - 1);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let mut name = [0; Self::NAME];
        name[..end].copy_from_slice(&self.name.as_bytes()[..end]);
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &LAYOUT.to_le_bytes(),
            &kind.to_le_bytes(),
            &self.uuid.0,
            &self.len.to_le_bytes(),
            &self.port.to_le_bytes(),
            &[0; 4],
            &name,
        ];
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// Reads a stored header; returns `None` if it is no header of this layout.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let kind = match (bytes.starts_with(&MAGIC) && number(16) == LAYOUT).then(|| number(20))? {
            0 => WindowKind::Own,
            1 => WindowKind::Common,
            _ => return None,
        };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[24..40]);
        let len = u64::from(number(40)) | u64::from(number(44)) << 32;
        let name = bytes[56..56 + Self::NAME].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Self { kind, uuid: Uuid(uuid), len, port: number(48), name })
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn header(name: &str) -> WindowHeader {
        let uuid = Uuid(*b"0123456789abcdef");
        WindowHeader { kind: WindowKind::Common, uuid, len: 3 << 32, port: PORT, name: name.into() }
    }

    #[test]
    fn headers_are_read_as_written() {
        for name in ["", "web1", "ä"] {
            assert_eq!(WindowHeader::from_bytes(&header(name).to_bytes()), Some(header(name)));
        }
        let cut = WindowHeader::from_bytes(&header(&"ä".repeat(40)).to_bytes()).unwrap();
        assert_eq!(cut.name, "ä".repeat(31));
    }

    #[test]
    fn what_is_no_header_is_none() {
        let good = header("web1").to_bytes();
        for at in [0, 15, 16, 20] {
            let mut bytes = good;
            bytes[at] ^= 0x80;
            assert_eq!(WindowHeader::from_bytes(&bytes), None);
        }
        let mut bytes = good;
        bytes[56..].fill(0xff);
        assert!(WindowHeader::from_bytes(&bytes).is_some());
    }

    #[test]
    fn identifiers_are_read_as_written() {
        let text = "000102030405060708090a0b0c0d0eff";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!((uuid.0[15], uuid.to_string()), (0xff, text.to_owned()));
        assert_eq!(serde_json::to_string(&uuid).unwrap(), format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<Uuid>(&format!("\"{text}\"")).unwrap(), uuid);
        let wrong = ["", "00", "+00102030405060708090a0b0c0d0eff", "g00102030405060708090a0b0c0d0eff"];
        assert!(wrong.into_iter().all(|text| text.parse::<Uuid>().is_err()));
    }
}
