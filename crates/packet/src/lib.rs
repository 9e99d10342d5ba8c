//! Wire formats: parse and build Ethernet, 802.1Q, ARP, IPv4, IPv6, ICMP, ND, TCP, UDP, SCTP, GRE, MPLS,
//! VXLAN, Geneve, RoCEv2.
//!
//! Owns the layout of headers, their checksums, and every rule that follows from a packet alone. It works in
//! place on byte slices and allocates nothing. It must not know tables, ports or guests: other crates decide
//! whether a packet may pass and where it goes.
#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod build;
pub mod checksum;
mod crc32c;
pub mod ecn;
pub mod edit;
mod entropy;
mod error;
mod fragment;
mod headers;
mod mac;
pub mod mld;
mod mss;
pub mod neighbour;
mod parse;
pub mod proto;
mod reassembly;
pub mod reply;
pub mod roce;
mod shared;
mod tunnel;

pub use ecn::{EcnDrop, ecn_decap, ecn_encap};
pub use entropy::{FIRST_PORT, entropy, entropy_l2, entropy_port};
pub use error::{ParseError, WriteError};
pub use fragment::{Piece, Pieces};
pub use headers::{Arp, Ethernet, Fragment, Headers, Ip, L3, L4, MAX_TAGS, Nd, Tag};
pub use mac::{BadMac, Mac};
pub use mss::mss;
pub use reassembly::{Fit, Reassembly};
pub use reply::IcmpError;
pub use shared::{FIRST_SHARED_PORT, PortBlock, address_tag};
pub use tunnel::{Tunnel, TunnelKind, geneve_options, takes_geneve, tunnel};
