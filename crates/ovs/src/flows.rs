//! The flows that drivers made, and whose they are.

use crate::counters::Indexes;
use crate::protocol::{AHEAD, LONGEST};
use crate::refused::Refused;
use executor::Counters;
use hashbrown::HashTable;
use model::VifId;
use model::ovs::{Action, Change, Flow, FlowId, Key, Match};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

/// Most masks of a port's flows: a look-up may try each of them. OVS has tens.
const MASKS: usize = 512;
/// Most bytes of matches and actions of all flows together. A million flows of OVS with some actions take less.
const BYTES: usize = 512 << 20;

/// Flows, each with a message of actions, for which there is always room where flows are taken ahead: as many as all
/// sessions together may ask for.
const SPARE: usize = 16 * AHEAD as usize;

/// Whose a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A session's.
    Session(u64),
    /// Nobody's, since that session ended.
    Stale(Instant),
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Held {
    /// As the executor has it.
    pub flow: Arc<Flow>,
    /// Whose it is.
    pub owner: Owner,
    /// What its counter had counted before.
    pub base: Counters,
    /// Of port and match ([`ByMatch`]).
    hash: u64,
}

/// What a new flow takes.
#[derive(Debug)]
pub enum Plan {
    /// A flow of an earlier session is the same: it has this number, and is taken over.
    Adopt(u64),
    /// A new flow, after one of an earlier session with the same match is gone.
    Add(New, Option<u64>),
}

/// A new flow.
#[derive(Debug)]
pub struct New {
    /// As the executor is to have it.
    pub flow: Arc<Flow>,
    /// Of port and match.
    hash: u64,
}

/// All flows.
#[derive(Debug, Default)]
pub struct Flows {
    all: BTreeMap<u64, Held>,
    by_match: ByMatch,
    indexes: Indexes,
    last: u64,
    /// How many are nobody's.
    stale: usize,
    /// How many flows of a port have each mask.
    masks: HashMap<VifId, Vec<(Key, usize)>>,
    /// What the flows take together ([`size`]).
    bytes: usize,
}

/// Numbers of flows by port and match: as hashes, by a secret, because guests choose what flows match.
#[derive(Debug, Default)]
struct ByMatch {
    hasher: RandomState,
    entries: HashTable<(u64, u64)>,
}

impl ByMatch {
    fn hash(&self, port: VifId, matching: &Match) -> u64 {
        self.hasher.hash_one((port, matching))
    }

    /// The flow of a port with this match, which has this hash.
    fn find<'a>(
        &self,
        all: &'a BTreeMap<u64, Held>,
        hash: u64,
        port: VifId,
        matching: &Match,
    ) -> Option<(u64, &'a Held)> {
        let mut same = self.entries.iter_hash(hash).filter(|(other, _)| *other == hash);
        same.find_map(|(_, id)| {
            let held = all.get(id)?;
            (held.flow.port == port && held.flow.matching == *matching).then_some((*id, held))
        })
    }

    fn insert(&mut self, hash: u64, id: u64) {
        self.entries.insert_unique(hash, (hash, id), |(hash, _)| *hash);
    }

    fn remove(&mut self, hash: u64, id: u64) {
        if let Ok(entry) = self.entries.find_entry(hash, |(_, other)| *other == id) {
            entry.remove();
        }
    }
}

/// Bytes that a flow takes.
fn size(actions: &[Action]) -> usize {
    let headers = |action: &Action| if let Action::Encap(outer) = action { outer.bytes().len() } else { 0 };
    size_of::<Flow>() + size_of_val(actions) + actions.iter().map(headers).sum::<usize>()
}

impl Flows {
    /// What a flow of this port takes, if it is to be there.
    ///
    /// # Errors
    /// [`Refused::Exists`], [`Refused::Full`].
    pub fn plan(
        &mut self,
        port: VifId,
        matching: Match,
        actions: Vec<Action>,
        now: Instant,
    ) -> Result<Plan, Refused> {
        let hash = self.by_match.hash(port, &matching);
        let there = self.by_match.find(&self.all, hash, port, &matching);
        match there {
            Some((_, Held { owner: Owner::Session(_), .. })) => return Err(Refused::Exists),
            Some((id, held)) if held.flow.actions == actions => return Ok(Plan::Adopt(id)),
            _ => {}
        }
        let old = there.map(|(id, _)| id);
        let is_new = |masks: &Vec<(Key, _)>| masks.iter().all(|(mask, _)| mask != matching.mask());
        if self.masks.get(&port).is_some_and(|masks| masks.len() >= MASKS && is_new(masks)) {
            return Err(Refused::Full("masks of a port's flows"));
        }
        if self.bytes.saturating_add(size(&actions)) > BYTES {
            return Err(Refused::Full("bytes of flows"));
        }
        let counter = self.indexes.take(now).ok_or(Refused::Full("flows"))?;
        self.last += 1;
        let flow = Arc::new(Flow { id: FlowId(self.last), counter, port, matching, actions });
        Ok(Plan::Add(New { flow, hash }, old))
    }

    /// The flow of a plan is there from now on; its counter begins with `base`.
    pub fn insert(&mut self, New { flow, hash }: New, session: u64, base: Counters) {
        self.by_match.insert(hash, flow.id.0);
        let masks = self.masks.entry(flow.port).or_default();
        match masks.iter_mut().find(|(mask, _)| mask == flow.matching.mask()) {
            Some((_, count)) => *count += 1,
            None => masks.push((*flow.matching.mask(), 1)),
        }
        self.bytes += size(&flow.actions);
        self.all.insert(flow.id.0, Held { flow, owner: Owner::Session(session), base, hash });
    }

    /// Indexes of the counters of all flows.
    pub fn counters(&self) -> Vec<u32> {
        self.indexes.taken().collect()
    }

    /// How many more flows with the mask of one that is there will be taken: the driver does not wait for the answers.
    pub fn ahead(&self) -> u32 {
        let has_room = self.indexes.left() >= SPARE && self.bytes + SPARE * 2 * LONGEST <= BYTES;
        if has_room { AHEAD } else { 0 }
    }

    /// A flow belongs to this session from now on.
    pub fn adopt(&mut self, id: u64, session: u64) -> Option<&Arc<Flow>> {
        let held = self.all.get_mut(&id)?;
        self.stale -= usize::from(matches!(held.owner, Owner::Stale(_)));
        held.owner = Owner::Session(session);
        Some(&held.flow)
    }

    /// The flow is not there any more. Returns it.
    pub fn remove(&mut self, id: u64, now: Instant) -> Option<Arc<Flow>> {
        let Held { flow, owner, hash, .. } = self.all.remove(&id)?;
        self.stale -= usize::from(matches!(owner, Owner::Stale(_)));
        self.by_match.remove(hash, id);
        self.indexes.give_back(flow.counter, now);
        self.bytes -= size(&flow.actions);
        if let Some(masks) = self.masks.get_mut(&flow.port) {
            if let Some(at) = masks.iter().position(|(mask, _)| mask == flow.matching.mask()) {
                masks[at].1 -= 1;
                if masks[at].1 == 0 {
                    masks.swap_remove(at);
                }
            }
            if masks.is_empty() {
                self.masks.remove(&flow.port);
            }
        }
        Some(flow)
    }

    /// A flow.
    pub fn get(&self, id: u64) -> Option<&Held> {
        self.all.get(&id)
    }

    /// All flows, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.all.values()
    }

    /// Numbers of the flows for which `which` is true.
    pub fn find(&self, mut which: impl FnMut(&Held) -> bool) -> Vec<u64> {
        self.all.iter().filter(|(_, held)| which(held)).map(|(id, _)| *id).collect()
    }

    /// The flows of a session are nobody's from now on.
    pub fn leave(&mut self, session: u64, now: Instant) {
        for held in self.all.values_mut().filter(|held| held.owner == Owner::Session(session)) {
            held.owner = Owner::Stale(now);
            self.stale += 1;
        }
    }

    /// Whether any are nobody's.
    pub fn has_stale(&self) -> bool {
        self.stale > 0
    }

    /// The change that removes a flow.
    pub fn removal(&self, id: u64) -> Option<Change> {
        self.all.get(&id).map(|held| Change::Remove { port: held.flow.port, id: held.flow.id })
    }
}

/// Whether a flow sends to a port.
pub fn sends_to(flow: &Flow, port: VifId) -> bool {
    flow.actions.contains(&Action::Output(port))
}

/// A flow as the executor is to have it while OVS has these ports down: nothing comes from them, and nothing goes to
/// them.
pub fn without(flow: &Arc<Flow>, down: &[VifId]) -> Arc<Flow> {
    let is_down = |action: &Action| matches!(action, Action::Output(to) if down.contains(to));
    let from = down.contains(&flow.port);
    if !from && !flow.actions.iter().any(is_down) {
        return flow.clone();
    }
    let mut actions = Vec::new();
    for action in flow.actions.iter().filter(|_| !from) {
        if !is_down(action) {
            actions.push(action.clone());
            continue;
        }
        // The headers of a tunnel are for that output alone.
        let mut kept = actions.iter().rposition(is_output).map_or(0, |last| last + 1);
        actions.retain(|action| {
            let earlier = kept > 0;
            kept = kept.saturating_sub(1);
            earlier || !matches!(action, Action::Encap(_))
        });
    }
    if !actions.iter().any(is_output) {
        actions = vec![Action::Drop];
    }
    Arc::new(Flow { actions, ..(**flow).clone() })
}

const fn is_output(action: &Action) -> bool {
    matches!(action, Action::Output(_))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use model::ovs::Outer;

    /// The headers of a tunnel go with the output that they are for.
    #[test]
    fn an_output_that_is_left_out_takes_its_headers_along() {
        let outer = || {
            let mut bytes = [0; 42];
            (bytes[12], bytes[14], bytes[23]) = (0x08, 0x45, 17);
            Action::Encap(Outer::new(&bytes).unwrap())
        };
        let (ttl, one, two) = (Action::SetTtl(9), Action::Output(VifId(1)), Action::Output(VifId(2)));
        let actions = vec![outer(), one.clone(), outer(), ttl.clone(), two.clone(), one.clone()];
        let flow = Flow { id: FlowId(1), counter: 2, port: VifId(3), matching: Match::default(), actions };
        let flow = Arc::new(flow);
        let left = |down: &[u16]| {
            let down: Vec<_> = down.iter().copied().map(VifId).collect();
            without(&flow, &down).actions.clone()
        };
        assert_eq!(left(&[4]), flow.actions);
        assert_eq!(left(&[1]), [outer(), ttl.clone(), two]);
        assert_eq!(left(&[2]), [outer(), one.clone(), ttl, one]);
        assert_eq!((left(&[1, 2]), left(&[3])), (vec![Action::Drop], vec![Action::Drop]));
    }

    /// Flows are counted by their bytes, and what is gone is not.
    #[test]
    fn flows_take_bounded_bytes() {
        let (mut flows, now) = (Flows::default(), Instant::now());
        let drops = || vec![Action::Drop];
        let plan = |flows: &mut Flows, port| match flows.plan(VifId(port), Match::default(), drops(), now) {
            Ok(Plan::Add(new, None)) => Ok(new),
            other => Err(other),
        };
        let one = plan(&mut flows, 1).unwrap();
        let id = one.flow.id.0;
        flows.insert(one, 1, Counters::default());
        let others = BYTES - size(&drops());
        flows.bytes += others;
        assert!(matches!(plan(&mut flows, 2), Err(Err(Refused::Full("bytes of flows")))));
        // Nobody is told that there is room for more, long before.
        assert_eq!(flows.ahead(), 0);
        flows.bytes = BYTES - SPARE * 2 * LONGEST;
        assert_eq!(flows.ahead(), AHEAD);
        flows.bytes = size(&drops()) + others;
        flows.remove(id, now);
        let other = plan(&mut flows, 2).unwrap();
        flows.insert(other, 1, Counters::default());
        assert_eq!(flows.bytes, BYTES);
        assert!(flows.masks.len() == 1 && flows.masks.contains_key(&VifId(2)));
    }
}
