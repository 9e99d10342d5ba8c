//! Puts flows onto the card, which holds their packets until they are released.

use crate::candidates::Candidate;
use crate::flows::{Carried, Datapaths, Flows};
use card::flows::flow;
use card::frame::Key;
use card::hold::Hold;
use card::{Card, CardError};
use model::{Decision, FlowChange, FlowState, Verdict, VifId, decide};
use std::collections::{BTreeSet, HashSet};

/// Puts a batch of flows onto the card, which holds their packets.
pub struct Installing<'a, C> {
    paths: Datapaths<'a, C>,
    flows: &'a mut Flows,
    hold: Hold,
    /// Whether to put flows that are dropped onto the card, too. If only the engine serves an interface, that interface
    /// may create a connection, which would not end such a drop.
    drops: bool,
    /// The flows for which this batch has handled a packet.
    done: HashSet<Key>,
    /// The flows of this batch that are now on the card, and the interfaces by which they come in.
    keys: Vec<Key>,
    ports: BTreeSet<VifId>,
}

impl<'a, C: Card> Installing<'a, C> {
    /// Starts an empty batch. It takes flows that are dropped only if `drops`.
    pub fn new(paths: Datapaths<'a, C>, flows: &'a mut Flows, hold: Hold, drops: bool) -> Self {
        let (done, keys, ports) = (HashSet::new(), Vec::new(), BTreeSet::new());
        Self { paths, flows, hold, drops, done, keys, ports }
    }

    /// Puts a packet's flow onto the card, if the card supports it.
    ///
    /// # Errors
    /// If the card can't be used.
    pub fn install(&mut self, candidate: &Candidate) -> Result<(), CardError> {
        if let Some(key) = self.decide(candidate)? {
            self.keys.push(key);
            self.ports.insert(candidate.ingress);
        }
        Ok(())
    }

    /// Updates the counts of flows. Returns the flows that are now on the card, and the interfaces by which they come
    /// in.
    pub fn finish(self) -> (Vec<Key>, BTreeSet<VifId>) {
        self.paths.stats.flows.set(self.paths.driver.flows() as u64);
        let refused = self.paths.driver.refused();
        self.paths.stats.flows_refused.set(refused.quota + refused.full);
        (self.keys, self.ports)
    }

    fn decide(&mut self, candidate: &Candidate) -> Result<Option<Key>, CardError> {
        let Some(packet) = candidate.packet() else { return Ok(None) };
        let (engine, ingress, hold) = (self.paths.engine, candidate.ingress, self.hold);
        let now = engine.now();
        engine.view(|view| {
            let decision = decide(view, &packet, ingress, now);
            if matches!(decision.verdict, Verdict::Drop(_)) && !self.drops {
                return Ok(None);
            }
            let flow = flow(self.paths.driver.compiler(view), &packet, ingress, &decision);
            if flow.as_ref().is_some_and(|flow| !self.done.insert(flow.key)) {
                return Ok(None);
            }
            self.end_others(flow.as_ref().map(|flow| &flow.key), &decision);
            let key = self.paths.driver.decided_behind(Some(hold), view, &packet, ingress, &decision)?;
            if let (Some(key), Some(flow)) = (key, flow) {
                self.flows.insert(key, Carried::new(&flow, &decision, view.deps()), &self.paths);
            }
            Ok(key.filter(|key| self.paths.driver.is_held(key, hold)))
        })
    }

    /// Counts the packets of flows that are about to leave the card because of this decision.
    fn end_others(&mut self, key: Option<&Key>, decision: &Decision) {
        let mut ended: Vec<Key> = key.into_iter().copied().collect();
        if let Some(FlowChange::Update { connection, .. }) = &decision.effects.flow
            && matches!(connection.state, FlowState::Closing | FlowState::Closed)
        {
            ended.extend(self.flows.of(&connection.original));
        }
        for key in ended {
            self.flows.remove(&key, &mut self.paths);
        }
    }
}
