//! Enters connections while the daemon that remembers them still forwards, and brings them up to date when
//! that daemon has stopped: the second step takes much less time, and packets wait for it.

use super::entry::Entry;
use super::{FlowRef, Flows, Record, lock};
use executor::{BadRecord, Entered, FlowInfo};
use model::Seconds;
use std::sync::atomic::AtomicU64;

impl Flows {
    /// Enters the connection of a record as [`Self::enter`] does; `None` if that returns false. The words of
    /// the record may have been read at different instants.
    pub fn enter_early(&self, flow: &FlowInfo, record: &Record, now: Seconds) -> Option<Entered> {
        let seq = Entry(&record.map(AtomicU64::new)).holds();
        self.entered(flow, now).map(|flow| Entered { flow: flow.to_bits(), seq })
    }

    /// Brings a connection that was entered early up to date with its record. Nobody writes the record any
    /// more, and no packet of the connection has come here yet. Returns false if the record holds a different
    /// connection now, or none (then this removes the connection), or if this table has forgotten the
    /// connection.
    ///
    /// # Errors
    /// [`BadRecord`], as for [`fn@super::remembered`]; the connection is removed.
    pub fn catch_up(&self, entered: Entered, record: &Record, now: Seconds) -> Result<bool, BadRecord> {
        let FlowRef { index, seq } = FlowRef::from_bits(entered.flow);
        let words = record.map(AtomicU64::new);
        let (own, from) = (self.entry(index), Entry(&words));
        let is_same = from.holds() == entered.seq;
        if is_same && own.is(seq) && own.is_up_to_date_with(from) {
            return Ok(true);
        }
        if !is_same || !from.is_sound(now) {
            self.remove_if_still(index, seq, |_| true);
            return if is_same { Err(BadRecord) } else { Ok(false) };
        }
        let _shard = lock(&self.shards[index as usize / self.per_shard]);
        let is_here = own.is(seq);
        if is_here {
            own.catch_up_with(from);
        }
        Ok(is_here)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
