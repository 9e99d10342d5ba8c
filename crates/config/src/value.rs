//! Parsing of single values.

use crate::reader::Reader;
use crate::tree::Node;
use ipnet::IpNet;
use packet::Mac;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Reads a value from a table.
pub(crate) type FromTable<T> = fn(Reader<'_>) -> Option<T>;

/// A type of values that keys can have.
pub(crate) trait Value: Sized {
    /// Reads the value if it is a table; `None` if it can't be one.
    const TABLE: Option<FromTable<Self>> = None;

    /// Reads anything but a table. The error says what was expected.
    fn read(value: &Node<'_>) -> Result<Self, String>;
}

/// Returns the text of a string.
pub(crate) fn text<'a>(value: &'a Node<'_>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("expected a string in quotes, found {}", describe(value)))
}

/// Returns the description of a value in messages.
pub(crate) fn describe(value: &Node<'_>) -> String {
    match value {
        Node::String(s) => format!("\"{s}\""),
        Node::Integer(i) => i.to_string(),
        Node::Boolean(b) => b.to_string(),
        Node::Other(text) => text.clone(),
        Node::Array(_) => "an array".to_owned(),
        Node::Table(_) => "a table".to_owned(),
    }
}

fn from_text<T: FromStr>(value: &Node<'_>, expected: &str) -> Result<T, String> {
    let text = text(value)?;
    text.parse().map_err(|_| format!("\"{text}\" is not {expected}"))
}

impl Value for String {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value).map(str::to_owned)
    }
}

impl Value for bool {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Boolean(flag) => Ok(*flag),
            other => Err(format!("expected true or false, found {}", describe(other))),
        }
    }
}

/// Any whole number.
impl Value for i128 {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Integer(number) => Ok(*number),
            other => Err(format!("expected a number, found {}", describe(other))),
        }
    }
}

/// A number from `MIN` to `MAX`.
pub(crate) struct Within<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Value for Within<MIN, MAX> {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let number = i128::read(value)?;
        let fits = u32::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        fits.map(Self).ok_or_else(|| format!("{number} is out of range; use {MIN} to {MAX}"))
    }
}

impl<const MIN: u32, const MAX: u32> Within<MIN, MAX> {
    /// Returns the number.
    pub(crate) const fn wide(self) -> u32 {
        self.0
    }

    /// Returns the number as 16 bits. Exists only if `MAX` fits.
    pub(crate) const fn short(self) -> u16 {
        const { assert!(MAX <= u16::MAX as u32) };
        self.0 as u16
    }
}

impl Value for u16 {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        Within::<0, { Self::MAX as u32 }>::read(value).map(Within::short)
    }
}

impl Value for u32 {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        Within::<0, { Self::MAX }>::read(value).map(Within::wide)
    }
}

impl Value for Mac {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value)?.parse().map_err(|e: packet::BadMac| e.to_string())
    }
}

impl Value for IpAddr {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let text = text(value)?;
        let addr: Self = text.parse().map_err(|_| {
            let hint = if text.contains('/') { " (without prefix length)" } else { "" };
            format!("\"{text}\" is not an IP address{hint}")
        })?;
        host_address(addr)
    }
}

/// Checks that a host may have an address.
pub(crate) fn host_address(addr: IpAddr) -> Result<IpAddr, String> {
    let is_broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || is_broadcast {
        return Err(format!("{addr} can't be a host's address"));
    }
    Ok(addr)
}

impl Value for SocketAddr {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        from_text(value, "an address with port, as in \"127.0.0.1:9101\" or \"[::1]:9101\"")
    }
}

/// An address with the length of its subnet's prefix: host bits may be set.
impl Value for IpNet {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let text = text(value)?;
        let net: Self = text.parse().map_err(|_| match text.parse::<IpAddr>() {
            Ok(addr) => format!(
                "\"{text}\" lacks its prefix length, as in \"{addr}/{}\"",
                if addr.is_ipv4() { 24 } else { 64 }
            ),
            Err(_) => format!("\"{text}\" is not an address with prefix length, as in \"10.1.1.254/24\""),
        })?;
        host_address(net.addr()).map(|_| net)
    }
}

/// A prefix: no host bits.
pub(crate) struct Prefix(pub(crate) IpNet);

impl Value for Prefix {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let text = text(value)?;
        let net: IpNet = text.parse().map_err(|_| match text.parse::<IpAddr>() {
            Ok(addr) => {
                format!("\"{text}\" lacks its prefix length; one host is \"{}\"", IpNet::from(addr))
            }
            Err(_) => format!("\"{text}\" is not a prefix, as in \"10.1.1.0/24\""),
        })?;
        if net != net.trunc() {
            return Err(format!("{net} has bits set past its prefix; did you mean \"{}\"?", net.trunc()));
        }
        Ok(Self(net))
    }
}

/// Implements [`Value`], `Display` and `Serialize` for an enum by the names of its variants.
macro_rules! names {
    ($type:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $type {
            /// Returns the name in the configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                match s {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(format!("\"{s}\" is none of {}", [$($name),*].join(", "))),
                }
            }
        }

        impl $crate::value::Value for $type {
            fn read(value: &$crate::tree::Node<'_>) -> Result<Self, String> {
                $crate::value::text(value)?.parse()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
pub(crate) use names;

/// Serialises by `Display`.
pub(crate) fn display<T: Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serialises each value by `Display`.
pub(crate) fn display_all<T: Display, S: serde::Serializer>(
    values: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

/// Serialises an optional value by `Display`. Fields need `skip_serializing_if`, which leaves out `None`.
pub(crate) fn display_some<T: Display, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}
