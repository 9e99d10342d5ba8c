//! Memory that packets lie in: guest RAM, AF_XDP frames, our own buffers.
//!
//! Owns: checked [`Segment`]s of such memory, raw copies between them, the [`Burst`] in which a port hands packets to a
//! worker, the [`Offload`] metadata that travels beside a packet, the [`Lease`] of a shared queue, guest memory
//! [`Regions`] with their limits ([`Quota`]) and the log of its pages written, the SIGBUS guard, and [`fn@signal`] for eventfds that others hold, with the
//! [`Account`] of what such calls cost. It is the one crate that touches bytes which another party may be writing, so it never forms a `&[u8]` over them.
//!
//! Must not know: rings, packet formats, tables.

mod aside;
mod backlog;
mod burst;
pub mod cycles;
mod dirty;
mod fault;
mod guard;
mod heap;
mod lease;
mod offload;
mod port;
mod quota;
mod regions;
mod segment;
mod signal;
pub mod vnet;

pub use aside::{Account, Aside, Bell, serve_aside, start_aside, waits, wake_aside};
pub use backlog::{Filler, Frame, Taker, backlog};
pub use burst::{BURST, Burst, RxPacket};
pub use dirty::{DirtyLog, LOG_PAGE};
pub use fault::FaultWord;
pub use guard::Guarded;
pub use heap::{give_back, share_arenas};
pub use lease::Lease;
pub use offload::{Csum, Gso, Offload};
pub use port::{Accepts, Frozen, NoRoom, Opened, Port, PortStatus, Refusal, Room, RxQueue, TxQueue};
pub use quota::{HostQuota, OverQuota, Quota};
pub use regions::{MAX_REGIONS, Region, RegionError, RegionSpec, Regions, Resolver, Unmapped};
pub use segment::{Segment, copy, gather, prefetch, prefetch_write, scatter};
pub use signal::{prepare as prepare_to_signal, signal, wake};
