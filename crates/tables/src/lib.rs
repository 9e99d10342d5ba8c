//! The tables an executor reads: fast, live, and consistent.
//!
//! Owns: the persistent form of [`model`]'s tables (FIB, rule classifier, bridge and the rest) and their hand-over to
//! readers by quiescent states ([`Shared`], [`Reader`], [`Snapshot`]); the generation cells by which memoised
//! decisions learn that they are out of date ([`Deps`]); learned entries (MACs, neighbours); and the connection
//! table ([`Flows`]). `model`'s `decide` reads all of it through a [`View`].
//!
//! Must not know: packets, ports, workers, the source of changes.
//!
//! A worker's loop, in short:
//! ```
//! # use tables::{FlowLimits, Shared};
//! let shared = Shared::new(FlowLimits { connections: 1024, ..FlowLimits::default() });
//! let mut reader = shared.reader();
//! let now = 0; // seconds since the start
//! {
//!     let snapshot = reader.pin(); // once a burst
//!     let view = snapshot.view(shared.flows(), now);
//!     // decide(&view, ...), or a memoised decision for which shared.still_valid(&deps, stamp)
//! }
//! reader.offline(); // before sleeping
//! ```
#![deny(unsafe_code)]

mod cells;
mod classifier;
mod config;
mod draft;
mod flow;
mod learned;
mod neighbours;
mod ovs;
#[allow(unsafe_code)] // Returns references to memory that another thread frees; see there.
mod rcu;
mod resolver;
mod shared;
mod snapshot;
mod sync;
mod trie;

pub use cells::{Deps, FlowCell};
pub use flow::{Account, FORMAT, FlowLimits, FlowRef, Flows, Fragments, Record, remembered};
pub use learned::{MAC_AGE, MACS_BEHIND_TUNNELS, MACS_PER_PORT, PATHS};
pub use neighbours::{NEIGHBOURS_PER_GUEST, NEIGHBOURS_PER_WIRE};
pub use rcu::{Pinned, Reader};
pub use resolver::{
    FAILED_FOR, MAX_SOLICITATIONS, PROBES_PER_ASKER, PROBES_PER_SCOPE, SPARE_QUESTIONS, STALE, UNUSED,
    Waiting,
};
pub use shared::{Applied, Shared};
pub use snapshot::{Floods, Snapshot, View};
