//! The DSCP of a guest's packets.

use crate::tree::Node;
use crate::value::{Value, display, text};
use serde::{Serialize, Serializer};
use std::fmt::{Display, Formatter, Result as Written};
use std::str::FromStr;

/// A differentiated services code point (RFC 2474).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dscp(u8);

impl Dscp {
    /// Returns the number, six bits.
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Returns the code point of this name: expedited forwarding (RFC 3246), lower effort (RFC 8622), class selectors
    /// (RFC 2474), assured forwarding (RFC 2597).
    const fn named(name: &str) -> Option<u8> {
        match name.as_bytes() {
            b"ef" => Some(46),
            b"le" => Some(1),
            [b'c', b's', class @ b'0'..=b'7'] => Some((*class - b'0') << 3),
            [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
                Some((*class - b'0') << 3 | (*drop - b'0') << 1)
            }
            _ => None,
        }
    }
}

/// The greatest code point.
const MAX: u8 = 63;

impl FromStr for Dscp {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number = || s.parse().ok().filter(|number| *number <= MAX);
        Self::named(s).or_else(number).map(Self).ok_or_else(|| {
            format!("\"{s}\" is no DSCP; use 0 to {MAX}, \"ef\", \"le\", \"cs0\" to \"cs7\", or \"af11\" to \"af43\"")
        })
    }
}

impl Display for Dscp {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let (class, drop) = (self.0 >> 3, self.0 >> 1 & 3);
        match self.0 {
            46 => f.write_str("ef"),
            1 => f.write_str("le"),
            _ if self.0.is_multiple_of(8) => write!(f, "cs{class}"),
            _ if self.0.is_multiple_of(2) && (1..=4).contains(&class) => write!(f, "af{class}{drop}"),
            other => write!(f, "{other}"),
        }
    }
}

impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        display(self, serializer)
    }
}

impl Value for Dscp {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Integer(number) => number.to_string().parse(),
            other => text(other)?.parse(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_same() {
        for (name, number) in
            [("ef", 46), ("le", 1), ("cs0", 0), ("cs6", 48), ("af11", 10), ("af43", 38), ("af22", 20)]
        {
            assert_eq!(name.parse::<Dscp>().unwrap().value(), number, "{name}");
        }
        for number in 0..=MAX {
            let dscp: Dscp = number.to_string().parse().unwrap();
            assert_eq!(dscp.value(), number);
            assert_eq!(dscp.to_string().parse::<Dscp>().unwrap(), dscp);
        }
        for wrong in ["64", "-1", "EF", "af14", "af51", "cs8", "", "256"] {
            wrong.parse::<Dscp>().unwrap_err();
        }
    }
}
