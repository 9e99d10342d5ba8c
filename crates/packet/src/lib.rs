//! Wire formats: parse and build Ethernet, 802.1Q, ARP, IPv4, IPv6, ICMP, ND, TCP, UDP, SCTP, GRE, MPLS, VXLAN.
#![deny(unsafe_code)]

mod error;
mod headers;
mod mac;

pub use error::ParseError;
pub use headers::{Arp, Ethernet, Fragment, Headers, Ip, L3, L4, Nd};
pub use mac::{BadMac, Mac};
