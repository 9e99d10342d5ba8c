//! The flows that drivers made, and their owners.

use crate::counters::{Indexes, share};
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

/// Most masks of a port's flows, because a look-up may try each of them. OVS has tens.
const MASKS: usize = 512;
/// Most bytes of matches and actions of all flows together. A million flows of OVS with some actions take
/// less.
const BYTES: usize = 512 << 20;
/// Bytes of these that are kept for each of other users.
const KEPT_BYTES: usize = BYTES / 64;

/// Number of flows, each with a message full of actions, for which there must be room before a driver need
/// not wait for answers: as many as all sessions together may request ahead.
const SPARE: usize = 16 * AHEAD as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The session of this number.
    Session(u64),
    /// Nobody, since the session ended at this time.
    Stale(Instant),
}

#[derive(Clone, Debug)]
pub struct Held {
    /// The flow as in the executor.
    pub flow: Arc<Flow>,
    pub owner: Owner,
    /// The user whose driver made it or took it over last.
    user: u32,
    /// Value of its counter before the flow existed.
    pub base: Counters,
    /// Whether a port to which it sends was closed. OVS has the flow until it destroys it, and forwards its
    /// packets itself.
    pub cut: bool,
    /// Hash of port and match ([`ByMatch`]).
    hash: u64,
}

/// The way to add a new flow.
#[derive(Debug)]
pub enum Plan {
    /// Take over the equal flow of an earlier session, which has this number.
    Adopt(u64),
    /// Add a new flow, after removing the flow of an earlier session with the same match, if there is one.
    Add(New, Option<u64>),
}

#[derive(Debug)]
pub struct New {
    /// The flow as the executor is to have it.
    pub flow: Arc<Flow>,
    /// Hash of port and match.
    hash: u64,
}

#[derive(Debug, Default)]
pub struct Flows {
    all: BTreeMap<u64, Held>,
    by_match: ByMatch,
    indexes: Indexes,
    last: u64,
    /// Number of flows that nobody owns.
    stale: usize,
    /// Number of flows with each mask, by port.
    masks: HashMap<VifId, Vec<(Key, usize)>>,
    /// Bytes of all flows together ([`size`]), and of each user.
    bytes: usize,
    bytes_by_user: HashMap<u32, usize>,
}

/// Numbers of flows by port and match. The hash is keyed with a secret, because guests choose what flows
/// match.
#[derive(Debug, Default)]
struct ByMatch {
    hasher: RandomState,
    entries: HashTable<(u64, u64)>,
}

impl ByMatch {
    fn hash(&self, port: VifId, matching: &Match) -> u64 {
        self.hasher.hash_one((port, matching))
    }

    /// Finds the flow of a port with this match, whose hash is `hash`, and the flow's number.
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

fn size(actions: &[Action]) -> usize {
    let headers = |action: &Action| if let Action::Encap(outer) = action { outer.bytes().len() } else { 0 };
    size_of::<Flow>() + size_of_val(actions) + actions.iter().map(headers).sum::<usize>()
}

impl Flows {
    /// Plans how to add a flow of this user to this port.
    ///
    /// # Errors
    /// [`Refused::Exists`], [`Refused::Full`].
    pub fn plan(
        &mut self,
        port: VifId,
        (matching, actions): (Match, Vec<Action>),
        user: u32,
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
        if size(&actions) > self.room_for_bytes(user) {
            return Err(Refused::Full("bytes of flows of this user"));
        }
        let counter = self.indexes.take(user, now).ok_or(Refused::Full("flows of this user"))?;
        self.last += 1;
        let flow = Arc::new(Flow { id: FlowId(self.last), counter, port, matching, actions });
        Ok(Plan::Add(New { flow, hash }, old))
    }

    fn room_for_bytes(&self, user: u32) -> usize {
        let all = self.bytes_by_user.iter().map(|(user, bytes)| (*user, *bytes));
        share(BYTES.saturating_sub(self.bytes), KEPT_BYTES, user, all)
    }

    fn charge(&mut self, user: u32, bytes: usize) {
        self.bytes += bytes;
        *self.bytes_by_user.entry(user).or_default() += bytes;
    }

    fn discharge(&mut self, user: u32, bytes: usize) {
        self.bytes -= bytes;
        if let Some(its) = self.bytes_by_user.get_mut(&user) {
            *its -= bytes;
            if *its == 0 {
                self.bytes_by_user.remove(&user);
            }
        }
    }

    /// Inserts the flow of a plan, for a session of the plan's user; `base` is the present value of its counter.
    pub fn insert(&mut self, New { flow, hash }: New, (session, user): (u64, u32), base: Counters) {
        self.by_match.insert(hash, flow.id.0);
        let masks = self.masks.entry(flow.port).or_default();
        match masks.iter_mut().find(|(mask, _)| mask == flow.matching.mask()) {
            Some((_, count)) => *count += 1,
            None => masks.push((*flow.matching.mask(), 1)),
        }
        self.charge(user, size(&flow.actions));
        let owner = Owner::Session(session);
        self.all.insert(flow.id.0, Held { flow, owner, user, base, cut: false, hash });
    }

    /// Returns the indexes of the counters of all flows.
    pub fn counters(&self) -> Vec<u32> {
        self.indexes.taken().collect()
    }

    /// Returns how many more flows with the mask of an existing one will be accepted without fail. The driver
    /// does not wait for the answers to these.
    pub fn ahead(&self, user: u32) -> u32 {
        let has_room = self.indexes.room(user) >= SPARE && self.room_for_bytes(user) >= SPARE * 2 * LONGEST;
        if has_room { AHEAD } else { 0 }
    }

    /// Gives a flow to this session of a user.
    pub fn adopt(&mut self, id: u64, session: u64, user: u32) -> Option<&Arc<Flow>> {
        let held = self.all.get_mut(&id)?;
        self.stale -= usize::from(matches!(held.owner, Owner::Stale(_)));
        held.owner = Owner::Session(session);
        let (before, bytes) = (std::mem::replace(&mut held.user, user), size(&held.flow.actions));
        self.indexes.move_to(user, before);
        self.discharge(before, bytes);
        self.charge(user, bytes);
        self.all.get(&id).map(|held| &held.flow)
    }

    pub fn remove(&mut self, id: u64, now: Instant) -> Option<Arc<Flow>> {
        let Held { flow, owner, user, hash, .. } = self.all.remove(&id)?;
        self.stale -= usize::from(matches!(owner, Owner::Stale(_)));
        self.by_match.remove(hash, id);
        self.indexes.give_back(flow.counter, user, now);
        self.discharge(user, size(&flow.actions));
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

    /// Leaves a flow to OVS for good.
    pub fn cut(&mut self, id: u64) {
        if let Some(held) = self.all.get_mut(&id) {
            held.cut = true;
        }
    }

    pub fn get(&self, id: u64) -> Option<&Held> {
        self.all.get(&id)
    }

    /// Returns all flows, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.all.values()
    }

    /// Returns the numbers of the flows for which `which` is true.
    pub fn find(&self, mut which: impl FnMut(&Held) -> bool) -> Vec<u64> {
        self.all.iter().filter(|(_, held)| which(held)).map(|(id, _)| *id).collect()
    }

    /// Leaves the flows of a session to nobody.
    pub fn leave(&mut self, session: u64, now: Instant) {
        for held in self.all.values_mut().filter(|held| held.owner == Owner::Session(session)) {
            held.owner = Owner::Stale(now);
            self.stale += 1;
        }
    }

    /// Is true if nobody owns some flow.
    pub fn has_stale(&self) -> bool {
        self.stale > 0
    }

    pub fn removal(&self, id: u64) -> Option<Change> {
        self.all.get(&id).map(|held| Change::Remove { port: held.flow.port, id: held.flow.id })
    }
}

/// Is true if some packet might match both.
pub fn agree(one: &Match, other: &Match) -> bool {
    one.key().masked(other.mask()) == other.key().masked(one.mask())
}

pub fn sends_to(flow: &Flow, port: VifId) -> bool {
    flow.actions.contains(&Action::Output(port))
}

/// Returns a flow as the executor is to have it while OVS has these ports down: nothing comes from them, and
/// nothing goes to them.
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
        // Headers of a tunnel belong to the output that was left out.
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
    use crate::counters::OTHERS;
    use model::ovs::Outer;

    /// The headers of a tunnel go with their output.
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

    /// Flows count with their bytes, and removed ones do not.
    #[test]
    fn flows_take_bounded_bytes() {
        let (mut flows, now) = (Flows::default(), Instant::now());
        let drops = || vec![Action::Drop];
        let plan =
            |flows: &mut Flows, port| match flows.plan(VifId(port), (Match::default(), drops()), 7, now) {
                Ok(Plan::Add(new, None)) => Ok(new),
                other => Err(other),
            };
        let one = plan(&mut flows, 1).unwrap();
        let id = one.flow.id.0;
        flows.insert(one, (1, 7), Counters::default());
        let others = BYTES - size(&drops());
        flows.bytes += others;
        assert!(matches!(plan(&mut flows, 2), Err(Err(Refused::Full("bytes of flows of this user")))));
        // Long before, drivers are no longer told that there is room for more.
        assert_eq!(flows.ahead(7), 0);
        flows.bytes = BYTES - OTHERS * KEPT_BYTES - SPARE * 2 * LONGEST;
        assert_eq!(flows.ahead(7), AHEAD);
        flows.bytes = size(&drops()) + others;
        flows.remove(id, now);
        let other = plan(&mut flows, 2).unwrap();
        flows.insert(other, (1, 7), Counters::default());
        assert_eq!((flows.bytes, flows.bytes_by_user[&7]), (BYTES, size(&drops())));
        // A different user takes it over.
        let id = flows.last;
        flows.leave(1, now);
        flows.adopt(id, 2, 8).unwrap();
        assert_eq!((flows.bytes, flows.bytes_by_user.get(&7)), (BYTES, None));
        assert_eq!(flows.bytes_by_user[&8], size(&drops()));
        assert!(flows.masks.len() == 1 && flows.masks.contains_key(&VifId(2)));
    }
}
