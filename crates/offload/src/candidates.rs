//! Packets that the engine was given, whose flows may go onto the card.

use crate::carrier::{Carrier, Fault};
use crate::carry::Carry;
use crate::flows::Carried;
use crate::ports::Taken;
use card::flows::flow;
use card::frame::Key;
use card::hold::Hold;
use model::{Decision, FlowChange, FlowState, PacketView, Verdict, VifId, decide};
use std::collections::HashSet;

/// Bytes of a packet that are looked at: the card looks at fewer.
const HEAD: usize = 192;
/// Packets that are remembered. The flows of others go onto the card with a later packet.
const MOST: usize = 1024;

/// Such a packet.
#[derive(Debug)]
pub struct Candidate {
    pub ingress: VifId,
    /// Its number among the frames that the engine was given of this interface.
    pub number: u64,
    head: [u8; HEAD],
    len: u32,
    gso_size: Option<u16>,
}

impl Candidate {
    /// Of a frame that came in by an interface.
    pub fn new(ingress: VifId, number: u64, taken: &Taken) -> Self {
        let bytes = &taken.bytes;
        let mut head = [0; HEAD];
        let len = bytes.len().min(HEAD);
        head[..len].copy_from_slice(&bytes[..len]);
        Self {
            ingress,
            number,
            head,
            len: bytes.len() as u32,
            gso_size: taken.offload.gso.map(|gso| gso.size),
        }
    }
}

impl<C: Carry> Carrier<C> {
    /// Gives the engine a frame, and remembers it.
    pub fn hand(&mut self, vif: VifId, taken: Taken) {
        let Some(line) = self.lines.get_mut(&vif) else { return };
        if self.candidates.len() < MOST {
            self.candidates.push(Candidate::new(vif, line.handed + 1, &taken));
        }
        line.hand(taken, self.driver.commands().card().buffers());
    }

    /// Tells the card of a packet's flow, whose packets it keeps until the hold group is released. The flow, where it
    /// does.
    pub fn install(
        &mut self,
        candidate: &Candidate,
        hold: Hold,
        done: &mut HashSet<Key>,
    ) -> Result<Option<Key>, Fault> {
        let Candidate { ingress, ref head, len, gso_size, .. } = *candidate;
        let head = &head[..HEAD.min(len as usize)];
        let Ok(mut packet) = PacketView::parse(head, len, gso_size) else { return Ok(None) };
        packet.checked = true;
        let (engine, now) = (self.engine.clone(), self.engine.now());
        engine.view(|view| {
            let decision = decide(view, &packet, ingress, now);
            // A connection that an interface makes which is the engine's alone would not end a drop.
            if matches!(decision.verdict, Verdict::Drop(_)) && !self.beside.is_empty() {
                return Ok(None);
            }
            let flow = flow(self.driver.compiler(view), &packet, ingress, &decision);
            if flow.as_ref().is_some_and(|flow| !done.insert(flow.key)) {
                return Ok(None);
            }
            self.settle_accounts(flow.as_ref().map(|flow| &flow.key), &decision)?;
            let key = self.driver.decided_behind(Some(hold), view, &packet, ingress, &decision)?;
            if let (Some(key), Some(flow)) = (key, flow) {
                self.carry(key, Carried::new(&flow, &decision, view.deps()));
            }
            Ok(key.filter(|key| self.driver.is_held(key, hold)))
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
