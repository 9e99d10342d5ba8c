//! Ways out of the host: packet sockets ([`open_packet`]), AF_XDP ([`open_xdp`]) and taps ([`open_tap`]),
//! which are also how a container is plugged in.
//!
//! Owns: the sockets, their rings and buffers, the XDP program that leaves the host's own traffic to the
//! kernel, the watch that opens a device again when it comes back, and questions about the kernel's routes
//! ([`Routes`]); the sockets of BFD.  Each way gives a [`mem::Opened`]: one
//! receiving queue per worker and sending queues that all workers share.
//!
//! Needs kernel 5.9; an [`Opener`] with CAP_NET_RAW, and CAP_NET_ADMIN for taps and AF_XDP, which takes CAP_BPF
//! besides.
//!
//! Must not know: packet formats (the XDP program and filters, which are data, excepted), tables, workers.

mod bfd;
mod buffers;
mod claim;
mod device;
mod error;
mod ethtool;
mod events;
mod hops;
mod netlink;
mod nft;
mod opener;
mod packet;
mod routes;
mod shared;
mod signature;
mod state;
mod sys;
mod tap;
mod watch;
mod xdp;

pub use bfd::{bfd_hear, bfd_receiver, bfd_sender};
pub use claim::claim;
pub use device::Link;
pub use error::Error;
pub use hops::{came_within, highest_ttl, limit_hops, watch_hops};
pub use netlink::Subnet;
pub use opener::{Here, MAX_QUEUES, Opener, TapState, here};
pub use packet::{PacketPort, open_packet};
pub use routes::{Event, Hop, MOST_EVENTS, Routes, Way};
pub use shared::TunnelTraffic;
pub use signature::sign;
pub use tap::attach::{exists as tap_exists, namespace as tap_namespace, set_offload as set_tap_offload};
pub use tap::host::{
    HostForward, HostRoute, HostSide, is_set_up as has_host_side, set_up as set_up_host_side,
};
pub use tap::{TapPort, open_tap};
pub use watch::Links;
pub use xdp::{Attachment, Mode, Stage, XdpError, XdpPort, XdpProgram, XdpSocket, open_xdp};
