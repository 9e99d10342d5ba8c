//! What the host's decisions about packets do to the flows on the card.

use super::Driver;
use super::flowtable::Refused;
use crate::compile::Compiler;
use crate::flows::{Flow, FlowVerdict, flow};
use crate::frame::Key;
use crate::hold::Hold;
use crate::{Card, CardError};
use model::{Decision, FlowChange, FlowKey, FlowState, Lookup, PacketView, VifId, VifKind};

impl<C: Card> Driver<C> {
    /// The host decided about a packet, and carried the decision out: lets the flows end that the connection's new
    /// state ends, and puts the packet's own flow onto the card where that can be. To be told of every packet that
    /// makes or changes a connection, also of those that came by no port of the card. Returns the flow's key if it is
    /// on the card now.
    ///
    /// # Errors
    /// The card hangs.
    pub fn decided<T: Lookup>(
        &mut self,
        tables: &T,
        packet: &PacketView<'_>,
        ingress: VifId,
        decision: &Decision,
    ) -> Result<Option<Key>, CardError> {
        self.decided_behind(None, tables, packet, ingress, decision)
    }

    /// The same, but the flow's packets wait on the card until the hold group is released.
    ///
    /// # Errors
    /// The card hangs.
    pub fn decided_behind<T: Lookup>(
        &mut self,
        hold: Option<Hold>,
        tables: &T,
        packet: &PacketView<'_>,
        ingress: VifId,
        decision: &Decision,
    ) -> Result<Option<Key>, CardError> {
        if let Some(change) = &decision.effects.flow {
            self.follow(change)?;
        }
        let Some(flow) = flow(self.compiler(tables), packet, ingress, decision) else { return Ok(None) };
        if self.flows.holds(&flow) {
            return Ok(Some(flow.key));
        }
        self.remove_flow(&flow.key)?;
        Ok(self.install(tables, &flow, ingress, hold)?.then_some(flow.key))
    }

    /// Puts a flow onto the card, if there is room, and if its interface has not its share of it.
    fn install<T: Lookup>(
        &mut self,
        tables: &T,
        flow: &Flow,
        ingress: VifId,
        hold: Option<Hold>,
    ) -> Result<bool, CardError> {
        let wire = tables.vif(ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
        if !self.flows.admits(ingress, wire) {
            return Ok(false);
        }
        let Some((index, used)) = self.flows.take_counter() else { return Ok(false) };
        let counter = self.begin(index, used);
        let hop = if let FlowVerdict::Forward { hop, .. } = flow.verdict { hop } else { None };
        let attachments = self.attachments.clone();
        let compiler = Compiler { tables, attachments: &attachments };
        let nexthop = hop.map(|hop| self.acquire(compiler, hop)).transpose()?;
        match self.flows.insert(flow, ingress, nexthop, counter, hold) {
            Some(steps) => self.run(&steps).map(|()| true),
            None => {
                self.release(hop);
                Ok(false)
            }
        }
    }

    /// A new connection ends the drops of both its directions, one that closes its own flows: what comes next is the
    /// host's.
    fn follow(&mut self, change: &FlowChange) -> Result<(), CardError> {
        match change {
            FlowChange::Create { connection, .. } => {
                let original = connection.original;
                for key in [original, original.reverse()] {
                    self.remove_flows(&key, false)?;
                }
            }
            FlowChange::Update { connection, .. }
                if matches!(connection.state, FlowState::Closing | FlowState::Closed) =>
            {
                self.remove_flows(&connection.original, false)?;
            }
            FlowChange::Update { connection, .. } => {
                for key in [connection.original, connection.original.reverse()] {
                    self.remove_flows(&key, true)?;
                }
            }
        }
        Ok(())
    }

    /// The host forgot a connection: it was idle, gave way to another, or was flushed.
    ///
    /// # Errors
    /// The card hangs.
    pub fn forgotten(&mut self, connection: &FlowKey) -> Result<(), CardError> {
        self.remove_flows(connection, false)
    }

    /// Takes flows off the card that do not hold any more, of the next `count` ones; to be called from time to time.
    ///
    /// # Errors
    /// The card hangs.
    pub fn sweep(&mut self, count: usize) -> Result<(), CardError> {
        self.flows.stale(count).iter().try_for_each(|key| self.remove_flow(key))
    }

    /// How many flows are on the card, those that do not hold any more included.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// How many of them found no place in their buckets and are in the stash.
    pub fn stashed(&self) -> usize {
        self.flows.stashed()
    }

    /// How often flows were left to the host for want of room, or because their interface had its share of it.
    pub const fn refused(&self) -> Refused {
        self.flows.refused
    }

    /// How many of the flows have no counters.
    pub fn uncounted(&self) -> usize {
        self.flows.uncounted()
    }

    /// Removes the flows of a connection, or those alone that drop.
    fn remove_flows(&mut self, connection: &FlowKey, dropped_only: bool) -> Result<(), CardError> {
        let keys = self.flows.of_connection(connection, dropped_only);
        keys.iter().try_for_each(|key| self.remove_flow(key))
    }
}
