//! Notices of packets: counts and logs drops, and shows captures what passes.

use crate::capture::{DropLog, LogBudget, Seen, Tap};
use crate::clock::Now;
use crate::counters::WorkerCells;
use crate::linear::MAX_HEAD;
use model::{DropReason, VifId};
use std::sync::Arc;

/// A dropped packet, and who is notified.
pub(crate) struct Dropped<'a> {
    pub vif: VifId,
    pub outbound: bool,
    pub reason: DropReason,
    pub len: usize,
    pub bytes: &'a [u8],
}

/// Counts, logs and shows a drop.
pub(crate) fn note(
    cells: &WorkerCells,
    log: &DropLog,
    budget: &mut LogBudget,
    taps: &[Arc<Tap>],
    now: Now,
    dropped: Dropped<'_>,
) {
    let Dropped { vif, outbound, reason, len, bytes } = dropped;
    cells.drop(vif, reason);
    if budget.take() {
        log.note(now.unix_ns, vif, reason, len, bytes);
    }
    show(taps, now, vif, outbound, Some(reason), len, bytes);
}

/// Returns how many bytes of a packet captures examine or take at most.
pub(crate) fn shown_len(taps: &[Arc<Tap>]) -> usize {
    taps.iter().map(|tap| tap.snap_len()).max().unwrap_or(0).max(MAX_HEAD)
}

pub(crate) fn show(
    taps: &[Arc<Tap>],
    now: Now,
    vif: VifId,
    outbound: bool,
    dropped: Option<DropReason>,
    len: usize,
    bytes: &[u8],
) {
    for tap in taps {
        tap.show(&Seen { time_ns: now.unix_ns, vif, outbound, dropped, len, bytes });
    }
}
