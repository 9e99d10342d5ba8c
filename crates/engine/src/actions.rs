//! Actions: memoised decisions, shared by all flows treated alike. An action holds the rewrite of the packets, the
//! generation cells of the table entries that the decision read, and the counters that packets increment. The cell and
//! the counter of a flow of Open vSwitch are in the cache entries instead, because a switch makes a flow for each of
//! its entries, if it has to, and one line is read faster than two.
//!
//! A flow's cache entry holds the number of its action. Validity is checked per action, so a change of the tables
//! costs one comparison of generation cells for each action, however many flows there are. An invalid action never
//! becomes valid again: the next packet of each of its flows is decided anew and gets another action.

use crate::cache::Entry;
use crate::counters::{WorkerCells, there};
use crate::pinned::Tables;
use crate::template::Template;
use arrayvec::ArrayVec;
use model::{Crossings, DropReason, Learn, MeterId, NexthopId, RuleId, Seconds, ovs};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tables::Deps;

/// Age limit in seconds: packets that are counted now came no longer ago than this. Cache entries pass their
/// counts on within two seconds, and actions within one.
const LATE: Seconds = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub template: Template,
    /// The table entries on which the decision depended.
    pub deps: Deps,
    pub learn: Option<Learn>,
    /// Whether the packets belong to a tracked TCP connection.
    pub follows: bool,
    /// Policers, with the reason to drop packets over their rate.
    pub meters: ArrayVec<(MeterId, DropReason), 4>,
    pub rules: ArrayVec<RuleId, 10>,
    pub nexthop: Option<NexthopId>,
    /// Ports of tunnels that packets pass.
    pub crossings: Option<Box<Crossings>>,
    /// Whether the packets go to Open vSwitch with the counters of their entries' flows.
    pub marks: bool,
    /// The counter of the flow of Open vSwitch, if entries belong to connections instead.
    pub ovs_counter: Option<u32>,
    /// The fields that a flow of Open vSwitch sets.
    pub fields: Option<Box<ovs::Edits>>,
    /// If set, packets are dropped for this reason instead of forwarded.
    pub drops: Option<DropReason>,
    /// The ports to which packets go, in this order, if there are several.
    pub copies: Box<[Copy]>,
}

/// A copy of a packet that goes to several ports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub template: Template,
    pub fields: Option<ovs::Edits>,
}

/// Most ports to which memoised decisions send a packet.
pub(crate) const MOST_COPIES: usize = 32;

impl Hash for Policy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Enough to distinguish nearly all.
        self.deps.hash(state);
        self.template.hash(state);
        self.rules.hash(state);
        self.fields.hash(state);
        self.copies.iter().for_each(|copy| (&copy.template, &copy.fields).hash(state));
    }
}

#[derive(Debug)]
pub(crate) struct Action {
    /// Epoch at which it was last known to hold; [`GONE`] once it no longer does.
    stamp: u64,
    /// How packets are rewritten. It comes first because every packet needs it.
    pub template: Template,
    /// Whether packets belong to a tracked TCP connection, are policed, copied, dropped or have a mark.
    pub looks: bool,
    /// Whether packets go to Open vSwitch with the counters of their entries' flows.
    pub marks: bool,
    pub metered: bool,
    /// Whether packets belong to a tracked TCP connection.
    pub follows: bool,
    /// If set, packets are dropped for this reason instead of forwarded.
    pub drops: Option<DropReason>,
    /// Whether packets go to several ports.
    pub copied: bool,
    /// Number of cache entries that refer to the action.
    users: u32,
    /// Packets and bytes not yet counted to its rules, nexthop and flow.
    pending: (u64, u64),
    /// The rest; `None` if the number is free.
    policy: Option<Arc<Policy>>,
}

/// Stamp of an action that no longer holds: no epoch has this number.
const GONE: u64 = u64::MAX;

impl Action {
    #[inline(always)]
    pub const fn holds(&self, epoch: u64) -> bool {
        self.stamp == epoch
    }

    /// Counts packets to its rules, nexthop and flow.
    #[inline(always)]
    pub const fn count(&mut self, packets: u64, bytes: u64) {
        self.pending.0 += packets;
        self.pending.1 += bytes;
    }

    pub fn fields(&self) -> Option<&ovs::Edits> {
        self.policy()?.fields.as_deref()
    }

    pub fn copies(&self) -> &[Copy] {
        self.policy().map_or(&[], |policy| &policy.copies)
    }

    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_deref()
    }

    fn flush(&mut self, cells: &WorkerCells) {
        let (packets, bytes) = std::mem::take(&mut self.pending);
        if packets > 0
            && let Some(policy) = &self.policy
        {
            cells.tables(&policy.rules, policy.nexthop, packets, bytes);
            let crossings = policy.crossings.as_deref();
            crossings.into_iter().for_each(|crossings| cells.cross(crossings, packets, bytes));
            let bytes = there(Crossings::grown(crossings), packets, bytes);
            policy.ovs_counter.into_iter().for_each(|counter| cells.ovs.add(counter, packets, bytes));
        }
    }
}

/// A worker's actions, by number.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    all: Vec<Action>,
    free: Vec<u32>,
    numbers: HashMap<Arc<Policy>, u32>,
    /// The number that was looked up last.
    recent: u32,
}

impl Actions {
    /// Returns the number of the action of `policy`, decided at `epoch`, and counts one more user of it.
    /// `None` if there are too many actions.
    pub fn take(&mut self, policy: Policy, tables: Tables<'_>, epoch: u64) -> Option<u32> {
        if let Some(number) = self.find(&policy)
            && self.revalidate(number, tables, epoch)
        {
            self.all[number as usize].users += 1;
            return Some(number);
        }
        let Policy { marks, follows, drops, .. } = policy;
        let metered = !policy.meters.is_empty();
        let copied = !policy.copies.is_empty();
        let looks = follows || metered || copied || marks || drops.is_some();
        let policy = Arc::new(policy);
        let action = Action {
            stamp: epoch,
            template: policy.template.clone(),
            looks,
            marks,
            metered,
            follows,
            drops,
            copied,
            users: 1,
            pending: (0, 0),
            policy: Some(Arc::clone(&policy)),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = action;
                number
            }
            None if self.all.len() < Entry::ACTIONS => {
                self.all.push(action);
                self.all.len() as u32 - 1
            }
            None => return None,
        };
        self.numbers.insert(policy, number);
        self.recent = number;
        Some(number)
    }

    /// Returns the number of actions in use.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Finds the number of a policy's action; it is usually the one found last.
    fn find(&mut self, policy: &Policy) -> Option<u32> {
        let recent = self.all.get(self.recent as usize).filter(|action| action.stamp != GONE);
        if recent.is_none_or(|action| action.policy() != Some(policy)) {
            self.recent = *self.numbers.get(policy)?;
        }
        Some(self.recent)
    }

    /// Returns an action; the number must be in use.
    #[inline(always)]
    pub fn get(&self, number: u32) -> &Action {
        &self.all[number as usize]
    }

    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> &mut Action {
        &mut self.all[number as usize]
    }

    /// Returns whether an action still holds at the epoch of these tables. If it does not, it never will
    /// again.
    pub fn revalidate(&mut self, number: u32, tables: Tables<'_>, epoch: u64) -> bool {
        let action = &mut self.all[number as usize];
        if action.stamp == epoch {
            return true;
        }
        let Some(policy) = &action.policy else { return false };
        if action.stamp != GONE && tables.shared.still_valid(&policy.deps, action.stamp) {
            action.stamp = epoch;
            return true;
        }
        if action.stamp != GONE {
            action.stamp = GONE;
            self.numbers.remove(policy);
        }
        false
    }

    /// Gives a use of an action back. The last use passes on the action's counts and frees its number.
    pub fn give_back(&mut self, number: u32, cells: &WorkerCells) {
        let action = &mut self.all[number as usize];
        action.users -= 1;
        if action.users > 0 {
            return;
        }
        action.flush(cells);
        if let Some(policy) = action.policy.take()
            && action.stamp != GONE
        {
            self.numbers.remove(&policy);
        }
        action.stamp = GONE;
        self.free.push(number);
    }

    /// Passes on the counts, confirms what the tables learned from the packets, and marks the neighbours as
    /// used. Runs once a second.
    pub fn settle(&mut self, tables: Tables<'_>, cells: &WorkerCells, now: Seconds) {
        for action in &mut self.all {
            let counted = action.pending.0 > 0 && action.stamp != GONE;
            if let Some(policy) = action.policy.as_deref().filter(|_| counted) {
                tables.shared.used(&policy.deps, now);
                if let Some(learn) = &policy.learn {
                    tables.shared.learn_late(tables.snapshot, learn, LATE, now);
                }
            }
            action.flush(cells);
        }
    }
}
