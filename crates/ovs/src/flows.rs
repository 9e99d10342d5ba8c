//! The flows that drivers made, and whose they are.

use crate::counters::Indexes;
use crate::refused::Refused;
use executor::Counters;
use model::VifId;
use model::ovs::{Action, Change, Flow, FlowId, Match};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

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
}

/// What a new flow takes.
#[derive(Debug)]
pub enum Plan {
    /// A flow of an earlier session is the same: it has this number, and is taken over.
    Adopt(u64),
    /// A new flow, after one of an earlier session with the same match is gone.
    Add(Arc<Flow>, Option<u64>),
}

/// All flows.
#[derive(Debug, Default)]
pub struct Flows {
    all: BTreeMap<u64, Held>,
    by_match: HashMap<(VifId, Match), u64>,
    indexes: Indexes,
    last: u64,
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
        let there = self.by_match.get(&(port, matching)).and_then(|id| Some((*id, self.all.get(id)?)));
        match there {
            Some((_, Held { owner: Owner::Session(_), .. })) => return Err(Refused::Exists),
            Some((id, held)) if held.flow.actions == actions => return Ok(Plan::Adopt(id)),
            _ => {}
        }
        let old = there.map(|(id, _)| id);
        let counter = self.indexes.take(now).ok_or(Refused::Full)?;
        self.last += 1;
        let flow = Flow { id: FlowId(self.last), counter, port, matching, actions };
        Ok(Plan::Add(Arc::new(flow), old))
    }

    /// The executor did not take the flow of a plan.
    pub fn cancel(&mut self, flow: &Flow, now: Instant) {
        self.indexes.give_back(flow.counter, now);
    }

    /// The executor has the flow, whose counter begins with `base`.
    pub fn insert(&mut self, flow: Arc<Flow>, session: u64, base: Counters) {
        self.by_match.insert((flow.port, flow.matching), flow.id.0);
        self.all.insert(flow.id.0, Held { flow, owner: Owner::Session(session), base });
    }

    /// A flow belongs to this session from now on.
    pub fn adopt(&mut self, id: u64, session: u64) -> Option<&Arc<Flow>> {
        let held = self.all.get_mut(&id)?;
        held.owner = Owner::Session(session);
        Some(&held.flow)
    }

    /// The executor no longer has the flow.
    pub fn remove(&mut self, id: u64, now: Instant) {
        let Some(Held { flow, .. }) = self.all.remove(&id) else { return };
        let key = (flow.port, flow.matching);
        if self.by_match.get(&key) == Some(&id) {
            self.by_match.remove(&key);
        }
        self.indexes.give_back(flow.counter, now);
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
        }
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
