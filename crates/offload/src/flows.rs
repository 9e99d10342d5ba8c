//! The engine's records of flows on the card: their connections do not time out while the card carries them.

use crate::stats::Stats;
use card::driver::{Driver, Usage};
use card::flows::Flow;
use card::frame::Key;
use card::ovs::Origin;
use card::{Card, CardError};
use engine::Engine;
use executor::Counters;
use model::{Decision, FlowChange, FlowKey, NexthopId, RuleId};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use tables::Deps;

/// Fewest flows to check at a time.
const PER_LOOK: usize = 32;
/// Each flow is checked once within this number of checks. That is before any connection times out, and before Open
/// vSwitch removes a flow without packets (10 s).
const LOOKS: usize = 4;
/// Number of checks in a row without packets after which a flow leaves the card.
const IDLE: u8 = 10;

/// The datapaths that have flows, and the counters of their packets.
pub struct Datapaths<'a, C> {
    pub engine: &'a Engine,
    pub driver: &'a mut Driver<C>,
    pub stats: &'a Stats,
}

/// A flow on the card.
#[derive(Debug)]
pub struct Carried {
    /// The flow's connection. For a flow that is dropped, the connection that it would be.
    connection: Option<FlowKey>,
    /// The flow's connection in the direction of the flow, if there is one.
    direction: Option<FlowKey>,
    rules: Vec<RuleId>,
    nexthop: Option<NexthopId>,
    /// The flow of an Open vSwitch from which this one was made.
    origin: Option<Origin>,
    /// The table entries on which the decision depended.
    deps: Deps,
    /// Number of checks since the flow last carried a packet.
    idle: u8,
}

impl Carried {
    /// Makes the record of a flow that a decision has just put onto the card.
    pub fn new(flow: &Flow, decision: &Decision, deps: Deps) -> Self {
        let direction = decision.effects.flow.as_ref().map(|change| match change {
            FlowChange::Update { connection, reply: true } => connection.original.reverse(),
            FlowChange::Create { connection, .. } | FlowChange::Update { connection, .. } => {
                connection.original
            }
        });
        Self {
            connection: flow.connection,
            direction,
            rules: decision.effects.rules.to_vec(),
            nexthop: decision.effects.nexthop,
            origin: flow.origin,
            deps,
            idle: 0,
        }
    }
}

#[derive(Debug, Default)]
pub struct Flows {
    carried: BTreeMap<Key, Carried>,
    /// The flow that was checked last.
    looked: Option<Key>,
}

impl Flows {
    pub fn of(&self, connection: &FlowKey) -> Vec<Key> {
        let of = |(_, carried): &(&Key, &Carried)| carried.connection.as_ref() == Some(connection);
        self.carried.iter().filter(of).map(|(key, _)| *key).collect()
    }

    /// Returns the next flows to check.
    fn next(&mut self) -> Vec<Key> {
        let from = self.looked.map_or(Unbounded, Excluded);
        let count = PER_LOOK.max(self.carried.len().div_ceil(LOOKS));
        let keys: Vec<Key> = self.carried.range((from, Unbounded)).take(count).map(|(key, _)| *key).collect();
        self.looked = if keys.len() < count { None } else { keys.last().copied() };
        keys
    }

    /// Counts the packets that a flow carried since the last check. Returns false if the flow must leave the card: it
    /// is idle, its connection no longer exists, or it has left already.
    fn account<C: Card>(&mut self, key: &Key, paths: &mut Datapaths<'_, C>) -> bool {
        if !self.carried.contains_key(key) {
            return false;
        }
        paths.driver.usage(key).is_some_and(|usage| self.count(key, usage, paths))
    }

    /// Counts the packets of `usage`. Returns false if the flow must leave the card.
    fn count<C: Card>(&mut self, key: &Key, usage: Usage, paths: &mut Datapaths<'_, C>) -> bool {
        let Some(carried) = self.carried.get_mut(key) else { return false };
        let (used, counters) = match usage {
            Usage::Counted { packets, bytes } => (packets > 0, Some(Counters { packets, bytes })),
            Usage::Seen(seen) => (seen, None),
        };
        carried.idle = if used { 0 } else { carried.idle.saturating_add(1) };
        if used {
            paths.engine.used(&carried.deps);
        }
        if let Some(counters) = counters.filter(|counters| counters.packets > 0) {
            paths.stats.tables(&carried.rules, carried.nexthop, counters);
            carried.origin.iter().for_each(|origin| paths.stats.ovs.count(origin, counters));
        }
        let alive =
            carried.direction.is_none_or(|direction| paths.engine.carried(&direction, used, counters));
        alive && carried.idle < IDLE
    }

    /// Remembers a flow that is now on the card. If the card does not count it, marks its connection's counters as
    /// incomplete before the first packet is missing from them.
    pub fn insert<C: Card>(&mut self, key: Key, carried: Carried, paths: &Datapaths<'_, C>) {
        let counters = paths.driver.is_counted(&key).then(Counters::default);
        if let Some(direction) = &carried.direction {
            paths.engine.carried(direction, false, counters);
        }
        carried.origin.iter().for_each(|origin| paths.stats.ovs.enter(origin));
        self.forget(&key, paths.stats);
        self.carried.insert(key, carried);
    }

    /// Counts the packets of a flow that is about to leave the card, and forgets the flow.
    pub fn remove<C: Card>(&mut self, key: &Key, paths: &mut Datapaths<'_, C>) {
        self.account(key, paths);
        self.forget(key, paths.stats);
    }

    /// Takes flows off the card, and counts all packets that they carried.
    pub fn end<C: Card>(&mut self, keys: &[Key], paths: &mut Datapaths<'_, C>) -> Result<(), CardError> {
        for (key, usage) in paths.driver.end(keys)? {
            self.count(&key, usage, paths);
        }
        keys.iter().for_each(|key| drop(self.forget(key, paths.stats)));
        Ok(())
    }

    fn forget(&mut self, key: &Key, stats: &Stats) -> Option<Carried> {
        let carried = self.carried.remove(key)?;
        carried.origin.iter().for_each(|origin| stats.ovs.leave(origin));
        Some(carried)
    }

    /// Checks some of the flows.
    pub fn look_after<C: Card>(&mut self, paths: &mut Datapaths<'_, C>) -> Result<(), CardError> {
        for key in self.next() {
            self.account_or_end(&key, paths)?;
        }
        paths.driver.sweep(PER_LOOK)?;
        paths.driver.follow_counters(PER_LOOK);
        paths.stats.flows.set(paths.driver.flows() as u64);
        paths.stats.flows_uncounted.set(paths.driver.uncounted() as u64);
        Ok(())
    }

    /// Takes flows off the card whose connections the engine forgot.
    pub fn end_forgotten<C: Card>(&mut self, paths: &mut Datapaths<'_, C>) -> Result<(), CardError> {
        for key in self.carried.keys().copied().collect::<Vec<_>>() {
            self.account_or_end(&key, paths)?;
        }
        Ok(())
    }

    fn account_or_end<C: Card>(&mut self, key: &Key, paths: &mut Datapaths<'_, C>) -> Result<(), CardError> {
        if self.account(key, paths) {
            return Ok(());
        }
        match self.forget(key, paths.stats).and_then(|carried| carried.connection) {
            Some(connection) => paths.driver.forgotten(&connection),
            None => paths.driver.end(&[*key]).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use card::registers::Path;
    use std::collections::BTreeSet;

    #[test]
    fn however_many_flows_there_are_each_is_looked_after_in_time() {
        for count in [0, 1, 31, 32, 33, 1000] {
            let key = |port: u16| Key {
                vrf: 1,
                path: Path::Bridged,
                from_tunnel: false,
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                protocol: 17,
                ports: (port, 1),
            };
            let carried = || Carried {
                connection: None,
                direction: None,
                rules: Vec::new(),
                nexthop: None,
                origin: None,
                deps: Deps::none(),
                idle: 0,
            };
            let mut flows =
                Flows { carried: (0..count).map(|port| (key(port), carried())).collect(), looked: None };
            for _ in 0..3 {
                let looked: BTreeSet<Key> = (0..=LOOKS).flat_map(|_| flows.next()).collect();
                assert_eq!(looked.len(), usize::from(count));
            }
        }
    }
}
