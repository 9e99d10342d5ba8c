//! Reads connections of a table that somebody else wrote, and may have left at any instant.
//!
//! An entry is torn if it was being filled: the packet that opened the connection went nowhere yet. Each
//! later change of an entry is a store to one word, or several stores between which every reader finds a
//! connection that is right: workers read entries while others write them.

use super::entry::{Entry, WORDS};
use executor::{BadRecord, FlowInfo};
use model::Seconds;
use std::sync::atomic::AtomicU64;

/// An entry's words, as numbers of this machine.
pub type Record = [u64; WORDS];

/// Version of [`Record`]: records of a different version are refused. A test fails if the words change their
/// meaning.
pub const FORMAT: u32 = 1;

/// Returns the connection of a record; `None` if it holds none. `now` is on the clock of the writer.
///
/// # Errors
/// [`BadRecord`]: the record is torn, or no table writes such a one.
pub fn remembered(record: &Record, now: Seconds) -> Result<Option<FlowInfo>, BadRecord> {
    let words = record.map(AtomicU64::new);
    let entry = Entry(&words);
    match entry.info(now) {
        Some(info) if entry.is_sound(now) => Ok(Some(info)),
        None if entry.is_free() => Ok(None),
        _ => Err(BadRecord),
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
