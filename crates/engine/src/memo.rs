//! The part of a flow cache entry that is not needed for every packet.

use crate::cache::{Hot, Slot};
use crate::core::Core;
use crate::counters::WorkerCells;
use arrayvec::ArrayVec;
use model::{
    Decision, DropReason, FlowChange, FlowState, Learn, MeterId, NexthopId, RuleId, Seconds, Verdict,
};
use packet::proto;
use tables::{Deps, FlowRef, Shared, Snapshot, View};

/// Seconds without a packet after which an entry is forgotten.
const IDLE: u16 = 120;

/// The tables as a burst sees them.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub shared: &'a Shared,
    pub snapshot: &'a Snapshot,
}

impl<'a> Tables<'a> {
    /// As `decide` reads them.
    pub fn view(self, now: Seconds) -> View<'a> {
        self.snapshot.view(self.shared.flows(), now)
    }
}

/// What a memoised decision depended on, and what it does beside forwarding.
#[derive(Debug)]
pub(crate) struct Memo {
    pub deps: Deps,
    /// Epoch at which it was last known to hold.
    pub stamp: u64,
    /// Its connection, and whether its packets are replies.
    pub flow: Option<(FlowRef, bool)>,
    pub learn: Option<Learn>,
    pub meters: ArrayVec<(MeterId, DropReason), 4>,
    pub rules: ArrayVec<RuleId, 10>,
    pub nexthop: Option<NexthopId>,
}

impl Memo {
    /// Passes on what an entry counted, to the connection and the tables' counters, and says that its source was seen.
    /// False where the connection is gone.
    pub fn settle(&self, tables: Tables<'_>, cells: &WorkerCells, hot: &mut Hot, now: Seconds) -> bool {
        let (packets, bytes) = (u64::from(hot.packets), u64::from(hot.bytes));
        (hot.packets, hot.bytes) = (0, 0);
        if packets > 0 {
            cells.tables(&self.rules, self.nexthop, packets, bytes);
        }
        if let Some(learn) = &self.learn {
            tables.shared.learn(tables.snapshot, learn, now);
        }
        self.flow.is_none_or(|(flow, reply)| tables.shared.flows().touch(flow, reply, packets, bytes, now))
    }
}

impl Memo {
    /// Passes on what an entry counted since it was last settled, as of then: being looked after is no sign of life.
    pub fn settle_late(&self, tables: Tables<'_>, cells: &WorkerCells, hot: &mut Hot, now: Seconds) {
        let idle = (now as u16).wrapping_sub(hot.second);
        let seen = now.saturating_sub(idle.into());
        let (packets, bytes) = (u64::from(hot.packets), u64::from(hot.bytes));
        (hot.packets, hot.bytes) = (0, 0);
        if packets > 0 {
            cells.tables(&self.rules, self.nexthop, packets, bytes);
            if let Some((flow, reply)) = self.flow {
                tables.shared.flows().touch(flow, reply, packets, bytes, seen);
            }
        }
    }
}

/// Whether packets of the same flow, without the TCP flags that take the slow path anyway, would be decided alike as
/// long as nothing it depended on changes.
pub(crate) fn is_lasting(decision: &Decision) -> bool {
    let effects = &decision.effects;
    let single = matches!(decision.verdict, Verdict::Forward(_))
        && effects.mirror_in.is_empty()
        && effects.mirror_out.is_empty()
        && effects.neighbour.is_none()
        && effects.fragment.is_none()
        && effects.solicit.is_none();
    let settled = match &effects.flow {
        None => true,
        Some(FlowChange::Create { connection, .. } | FlowChange::Update { connection, .. }) => {
            // A TCP handshake's next packet moves the connection without a flag that says so.
            connection.original.protocol != proto::TCP
                || matches!(connection.state, FlowState::Established | FlowState::Closing)
        }
    };
    single && settled
}

/// Visits the next `lines` lines of the cache: counts what entries have not counted in the last second, and forgets those
/// long idle.
pub(crate) fn tidy(core: &mut Core, tables: Tables<'_>, lines: usize) {
    let second = core.now.seconds as u16;
    for slot in core.cache.walk(lines) {
        tidy_entry(core, tables, slot, second);
    }
}

fn tidy_entry(core: &mut Core, tables: Tables<'_>, slot: Slot, second: u16) {
    if !core.cache.is_used(slot) {
        return;
    }
    let mut hot = core.cache.hot(slot);
    if second.wrapping_sub(hot.second) > IDLE {
        if let Some(removed) = core.cache.remove(slot) {
            core.retire(tables, removed);
        }
    } else if hot.packets > 0 && hot.second != second {
        if let Some(memo) = core.cache.rest(slot) {
            memo.settle_late(tables, &core.cells, &mut hot, core.now.seconds);
        }
        core.cache.set_hot(slot, hot);
    }
}
