//! Wire formats: parse and build Ethernet, 802.1Q, ARP, IPv4, IPv6, ICMP, ND, TCP, UDP, SCTP, GRE, MPLS, VXLAN.
//!
//! Owns the layout of headers, their checksums, and every rule that follows from a packet alone. It works in place on
//! byte slices and allocates nothing. It must not know tables, ports or guests: whether a packet may pass and where it
//! goes is decided elsewhere.
#![deny(unsafe_code)]

pub mod checksum;
mod error;
mod headers;
mod mac;
mod parse;
pub mod proto;
mod tunnel;

pub use error::ParseError;
pub use headers::{Arp, Ethernet, Fragment, Headers, Ip, L3, L4, Nd};
pub use mac::{BadMac, Mac};
pub use tunnel::{Tunnel, TunnelKind, tunnel};
