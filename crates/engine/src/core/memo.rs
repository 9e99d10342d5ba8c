//! Which decisions are memoised, and how the counts of their entries reach connections and tables.

use super::{Core, hash_bit};
use crate::actions::{Actions, Policy};
use crate::cache::{Entry, Owner, Slot};
use crate::counters::{WorkerCells, there};
use crate::key::Key;
use crate::pinned::Tables;
use model::{Connection, Crossings, Decision, FlowChange, FlowState, Seconds};
use packet::proto;

/// Ticks without a packet after which an entry is decided anew. A tick is less than half the shortest timeout of a
/// connection ([`model::FlowState::timeout`]), so no connection is used that may have timed out.
pub(super) const QUIET: u8 = 2;

/// Ticks without a packet after which an entry is removed: two minutes.
const IDLE: u8 = 28;

/// Passes an entry's counts on to its connection or flow, and to its action. False if the connection no longer exists.
#[inline]
pub(super) fn settle(
    entry: &mut Entry,
    actions: &mut Actions,
    cells: &WorkerCells,
    tables: Tables<'_>,
    now: Seconds,
) -> bool {
    let (packets, bytes) = (u64::from(entry.packets), u64::from(entry.bytes));
    (entry.packets, entry.bytes) = (0, 0);
    actions.get_mut(entry.action).count(packets, bytes);
    match entry.owner {
        Owner::Nobody => true,
        Owner::Connection(flow, reply) => tables.shared.flows().touch(flow, reply, packets, bytes, now),
        Owner::Ovs(flow) => {
            let crossings = actions.get(entry.action).policy().and_then(|policy| policy.crossings.as_deref());
            let bytes = there(Crossings::grown(crossings), packets, bytes);
            flow.counter.into_iter().for_each(|counter| cells.ovs.add(counter, packets, bytes));
            true
        }
    }
}

/// Returns whether later packets of the same flow would be decided alike as long as none of the decision's
/// dependencies change. TCP flags that take the slow path anyway are not considered.
pub(super) fn is_lasting(decision: &Decision) -> bool {
    let effects = &decision.effects;
    let alone = super::slow::is_memoised(&decision.verdict)
        && effects.mirror_in.is_empty()
        && effects.mirror_out.is_empty()
        && effects.neighbour.is_none()
        && !effects.once
        && effects.fragment.is_none()
        && effects.solicit.is_none();
    let settled = match &effects.flow {
        None => true,
        Some(FlowChange::Create { connection, .. } | FlowChange::Update { connection, .. }) => {
            // The next packet of a TCP handshake changes the connection without a flag that shows it.
            let both = connection.seen & Connection::BOTH_WAYS == Connection::BOTH_WAYS;
            connection.original.protocol != proto::TCP
                || connection.state != FlowState::New
                || !both && !connection.tcp.liberal
        }
    };
    alone && settled
}

impl Core {
    /// Visits the next `lines` lines of the cache: passes on the counts of their entries, and removes those idle for
    /// long. Contexts that no entry has any more are forgotten with each round.
    pub fn tidy(&mut self, tables: Tables<'_>, lines: usize) {
        if self.cache.is_empty() {
            self.cache.contexts.clear();
            return;
        }
        for slot in self.cache.walk(lines) {
            self.visit(tables, slot);
        }
        self.cache.forget_contexts(lines);
    }

    /// Passes on the counts of an entry, if there is one, or removes it.
    fn visit(&mut self, tables: Tables<'_>, slot: Slot) {
        if !self.cache.is_used(slot) {
            return;
        }
        let mut entry = self.cache.get(slot);
        if self.now.tick.wrapping_sub(entry.tick) >= IDLE {
            return self.forget(tables, slot);
        }
        if entry.packets > 0 {
            settle(&mut entry, &mut self.actions, &self.cells, tables, self.now.seconds);
            self.cache.set(slot, &entry);
        }
        self.cache.keep_context(slot);
    }

    /// Removes an entry that does not hold.
    pub(super) fn forget(&mut self, tables: Tables<'_>, slot: Slot) {
        if let Some(removed) = self.cache.remove(slot) {
            self.retire(tables, removed);
        }
    }

    /// Passes on the counts of an entry that was removed.
    pub(super) fn retire(&mut self, tables: Tables<'_>, mut removed: Entry) {
        if removed.packets > 0 {
            settle(&mut removed, &mut self.actions, &self.cells, tables, self.now.seconds);
        }
        self.actions.give_back(removed.action, &self.cells);
    }

    /// Enters a decision of the current epoch into the cache.
    pub(super) fn memoise(&mut self, tables: Tables<'_>, key: &Key, policy: Policy, entry: Entry) {
        let Some(action) = self.actions.take(policy, tables, self.epoch) else { return };
        let hash = self.cache.hash(key);
        self.memoised |= hash_bit(hash);
        if let Some(removed) = self.cache.insert(hash, key, &Entry { action, ..entry }) {
            self.retire(tables, removed);
        }
    }
}
