//! The effect of the host's decisions about packets on the card's flows.

use super::Driver;
use super::flowtable::Refused;
use super::usage::Usage;
use crate::compile::Compiler;
use crate::flows::{Flow, FlowVerdict, flow};
use crate::frame::Key;
use crate::hold::Hold;
use crate::{Card, CardError};
use model::ovs::{self, FlowId};
use model::{Decision, FlowChange, FlowKey, FlowState, Lookup, PacketView, VifId, VifKind};
use std::collections::{BTreeMap, BTreeSet};

impl<C: Card> Driver<C> {
    /// Follows a decision that the host made about a packet, and executed. Ends flows that the connection's new state
    /// ends, and puts the packet's own flow onto the card if possible. Call it for every packet that creates or changes
    /// a connection, including those that did not come by a port of the card. Returns the flow's key if it is now on
    /// the card.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn decided<T: Lookup>(
        &mut self,
        tables: &T,
        packet: &PacketView<'_>,
        ingress: VifId,
        decision: &Decision,
    ) -> Result<Option<Key>, CardError> {
        self.decided_behind(None, tables, packet, ingress, decision)
    }

    /// Follows a decision like [`Self::decided`], but the flow's packets wait on the card until the hold group is
    /// released.
    ///
    /// # Errors
    /// If the card hangs.
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

    /// Puts a flow onto the card, unless there is no room or its interface has used up its share.
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
        let Some((index, used)) = self.flows.take_counter(flow.origin.is_some()) else { return Ok(false) };
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

    /// Ends flows after a change of a connection. A new connection ends the drops of both its directions; a closing one
    /// ends its own flows, because the host decides its further packets.
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

    /// Ends the flows of a connection that the host forgot: it was idle, evicted, or flushed.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn forgotten(&mut self, connection: &FlowKey) -> Result<(), CardError> {
        self.remove_flows(connection, false)
    }

    /// Returns the flows that may no longer hold after changes of an Open vSwitch's flows, each once: those made from a
    /// flow that is removed or replaced, and those made from flows younger than a new one, which takes packets from
    /// them. They must leave the card before the changes count as made.
    #[must_use]
    pub fn of_changes(&self, changes: &[ovs::Change]) -> Vec<Key> {
        const LAST: FlowId = FlowId(u64::MAX);
        // For each port, the oldest flow from which on all are affected; and single flows.
        let (mut from, mut single) = (BTreeMap::new(), BTreeSet::new());
        for change in changes {
            let (port, id) = match change {
                ovs::Change::Add(flow) => (flow.port, flow.id),
                ovs::Change::Flush { port } => (*port, FlowId(0)),
                ovs::Change::Remove { port, id } => {
                    single.insert((*port, *id));
                    continue;
                }
            };
            from.entry(port).and_modify(|oldest| *oldest = id.min(*oldest)).or_insert(id);
        }
        single.retain(|(port, id)| from.get(port).is_none_or(|oldest| id < oldest));
        let ranges = from.into_iter().map(|(port, id)| (port, id)..=(port, LAST));
        let ranges = ranges.chain(single.into_iter().map(|one| one..=one));
        ranges.flat_map(|range| self.flows.of_origins(range)).collect()
    }

    /// Returns all flows that were made from flows of an Open vSwitch.
    #[must_use]
    pub fn of_ovs(&self) -> Vec<Key> {
        self.flows.of_origins((VifId(0), FlowId(0))..=(VifId(u16::MAX), FlowId(u64::MAX)))
    }

    /// Takes flows off the card. Returns all packets that each carried since the last query: when this returns, none of
    /// their packets is in a pipe.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn end(&mut self, keys: &[Key]) -> Result<Vec<(Key, Usage)>, CardError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        for key in keys {
            let steps = self.flows.hide(key);
            self.run(&steps)?;
        }
        self.barrier()?;
        let used = keys.iter().filter_map(|key| Some((*key, self.usage(key)?))).collect();
        keys.iter().try_for_each(|key| self.remove_flow(key))?;
        Ok(used)
    }

    /// Takes invalid flows among the next `count` ones off the card. Call it from time to time.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn sweep(&mut self, count: usize) -> Result<(), CardError> {
        self.flows.stale(count).iter().try_for_each(|key| self.remove_flow(key))
    }

    /// Returns the number of flows on the card, including invalid ones.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of flows in the stash, which found no place in their buckets.
    pub fn stashed(&self) -> usize {
        self.flows.stashed()
    }

    /// Returns how often a flow stayed on the host because there was no room, or its interface had used up its share.
    pub const fn refused(&self) -> Refused {
        self.flows.refused
    }

    pub fn uncounted(&self) -> usize {
        self.flows.uncounted()
    }

    /// Removes the flows of a connection, or only those that drop packets.
    fn remove_flows(&mut self, connection: &FlowKey, dropped_only: bool) -> Result<(), CardError> {
        let keys = self.flows.of_connection(connection, dropped_only);
        keys.iter().try_for_each(|key| self.remove_flow(key))
    }
}
