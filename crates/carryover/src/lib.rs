//! State that a daemon leaves to the next one, whenever and however it ends: a table of records in a file of
//! the run-dir, which is the memory that the daemon works in ([`Table`]), and snapshots of all else that it
//! knows ([`Own::write`]).
//!
//! Two files take turns. A daemon reads the one in force ([`Former`]), fills its own, and then puts that in
//! force ([`Own::succeed`]). Until then the former one is whole, and the next daemon reads it again.
//!
//! Owns: the files, their header, which of them is in force, the mapping, snapshots that were written only in
//! part.
//!
//! Must not know: what records and snapshots say.
#![deny(unsafe_code)]

mod file;
mod header;
mod slots;
#[allow(unsafe_code)] // Maps the file.
mod table;

pub use file::{Former, Opened, Own, open};
pub use header::Refused;
pub use slots::MOST;
pub use table::Table;
