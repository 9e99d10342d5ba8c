//! Packets that the engine was given, whose flows may go onto the card.

use crate::carrier::{Carrier, Fault};
use crate::carry::Carry;
use crate::flows::Carried;
use crate::ports::Taken;
use card::flows::flow;
use card::frame::Key;
use model::{Decision, FlowChange, FlowState, PacketView, Verdict, VifId, decide};
use std::collections::HashSet;

/// Bytes of a packet that are looked at: the card looks at fewer.
const HEAD: usize = 192;
/// Packets that are remembered. The flows of others go onto the card with a later packet.
const MOST: usize = 1024;

/// Such a packet.
#[derive(Debug)]
pub struct Candidate {
    ingress: VifId,
    head: Vec<u8>,
    len: u32,
    gso_size: Option<u16>,
}

impl Candidate {
    /// Of a frame that came in by an interface.
    pub fn new(ingress: VifId, taken: &Taken) -> Self {
        let bytes = &taken.bytes;
        Self {
            ingress,
            head: bytes[..bytes.len().min(HEAD)].to_vec(),
            len: bytes.len() as u32,
            gso_size: taken.offload.gso.map(|gso| gso.size),
        }
    }
}

impl<C: Carry> Carrier<C> {
    /// Puts the flows of packets onto the card that the engine is done with. Meanwhile nothing moves: what comes after finds
    /// the flow there, and overtakes nothing.
    pub fn install_candidates(&mut self) -> Result<(), Fault> {
        if self.candidates.is_empty() {
            return Ok(());
        }
        let settled = self.settle()?;
        let mut candidates = std::mem::take(&mut self.candidates);
        if !settled {
            return Ok(());
        }
        self.follow_tables()?;
        candidates.truncate(MOST);
        let mut done = HashSet::new();
        for candidate in candidates {
            self.install(&candidate, &mut done)?;
        }
        self.stats.flows.set(self.driver.flows() as u64);
        Ok(())
    }

    fn install(&mut self, candidate: &Candidate, done: &mut HashSet<Key>) -> Result<(), Fault> {
        let Candidate { ingress, ref head, len, gso_size } = *candidate;
        let Ok(packet) = PacketView::parse(head, len, gso_size) else { return Ok(()) };
        let (engine, now) = (self.engine.clone(), self.engine.now());
        engine.view(|view| {
            let decision = decide(view, &packet, ingress, now);
            // A connection that an interface makes which is the engine's alone would not end a drop.
            if matches!(decision.verdict, Verdict::Drop(_)) && !self.beside.is_empty() {
                return Ok(());
            }
            let flow = flow(self.driver.compiler(view), &packet, ingress, &decision);
            if flow.as_ref().is_some_and(|flow| !done.insert(flow.key)) {
                return Ok(());
            }
            self.settle_accounts(flow.as_ref().map(|flow| &flow.key), &decision)?;
            if let Some(key) = self.driver.decided(view, &packet, ingress, &decision)?
                && let Some(flow) = flow
            {
                let base = self.driver.flow_counters(&key).unwrap_or_default();
                self.flows.insert(key, Carried::new(&flow, &decision, base));
            }
            Ok(())
        })
    }

    /// Counts what flows carried that are about to leave the card.
    fn settle_accounts(&mut self, key: Option<&Key>, decision: &Decision) -> Result<(), Fault> {
        let mut ended: Vec<Key> = key.into_iter().copied().collect();
        if let Some(FlowChange::Update { connection, .. }) = &decision.effects.flow
            && matches!(connection.state, FlowState::Closing | FlowState::Closed)
        {
            ended.extend(self.flows.of(&connection.original));
        }
        for key in ended {
            self.account(&key);
            self.flows.remove(&key);
        }
        Ok(())
    }
}
