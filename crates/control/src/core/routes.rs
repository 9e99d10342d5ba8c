//! Routes of programs: sources that send them in batches. They are no objects, and nobody stores them. A batch costs only
//! as much as its routes, and waits for no port.

use super::{Core, Error, State};
use crate::compile::{self, BridgeChange, Desired, Ids};
use ipnet::IpNet;
use model::Vrf;
use rib::{Nexthops, PathSet, Rib, SourceId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most stale routes that are swept at once: others may change the state between two such batches.
const SWEPT: usize = 10_000;

impl Core {
    /// Adds a source of routes, or finds that of the name. Of two sources that have the same prefix, the one with the
    /// lower preference counts; routes of objects count before all of them.
    ///
    /// # Errors
    /// There are too many.
    pub fn source_of_routes(&self, name: &str, preference: u8, limit: usize) -> Result<SourceId, Error> {
        let mut state = self.lock_to_change()?;
        self.with_rib(&mut state, |rib, _| rib.source(name, preference, limit))
    }

    /// Begins a session of a source: what it had before is stale until it is sent again.
    ///
    /// # Errors
    /// Another daemon takes over.
    pub fn begin_routes(&self, of: SourceId) -> Result<(), Error> {
        let mut state = self.lock_to_change()?;
        state.stale_routes.retain(|(source, _)| *source != of);
        self.with_rib(&mut state, |rib, _| {
            rib.begin(of);
            Ok(())
        })
    }

    /// Replaces the paths that a source has for prefixes of a network; withdraws those without paths.
    ///
    /// # Errors
    /// There is no such network, or the source would have too many routes. Then nothing was done.
    pub fn update_routes(
        &self,
        of: SourceId,
        vrf: Vrf,
        routes: &[(IpNet, Option<PathSet>)],
    ) -> Result<(), Error> {
        let mut state = self.lock_to_change()?;
        if !state.desired.networks.contains_key(&vrf) {
            return Err(no_network(vrf));
        }
        self.with_rib(&mut state, |rib, nexthops| {
            rib.update(of, vrf, routes.iter().map(|(prefix, paths)| (*prefix, paths.as_ref())), nexthops)
        })
    }

    /// Changes what is learned of a network's bridge.
    ///
    /// # Errors
    /// There is no such network.
    pub fn update_bridge(&self, vrf: Vrf, change: &BridgeChange) -> Result<(), Error> {
        let mut state = self.lock_to_change()?;
        if !state.desired.networks.contains_key(&vrf) {
            return Err(no_network(vrf));
        }
        let mut ids = state.ids.clone();
        let desired = compile::learn_bridge(&state.desired, &state.index, &mut ids, (vrf, change));
        self.put_in_force(&mut state, desired, ids)
    }

    /// Returns the routes of a source.
    pub fn routes_of(&self, of: SourceId) -> Vec<(Vrf, IpNet, PathSet)> {
        let view = self.view();
        let route = |((vrf, prefix), nexthop)| {
            compile::paths_of(&view.tables.nexthops, nexthop).map(|paths| (vrf, prefix, paths))
        };
        view.tables.learned.of(of).filter_map(route).collect()
    }

    /// Returns what is learned of bridges, as changes from nothing.
    pub fn learned_bridges(&self) -> BTreeMap<Vrf, BridgeChange> {
        self.view().tables.bridges.as_changes()
    }

    /// Withdraws what a source did not send again since its session began, and returns how much.
    ///
    /// # Errors
    /// Another daemon takes over.
    pub fn end_routes(&self, of: SourceId) -> Result<usize, Error> {
        let (mut after, mut swept) = (None, 0);
        loop {
            let stale = self.view().tables.learned.stale(of, after, SWEPT);
            let mut state = self.lock_to_change()?;
            swept += self.with_rib(&mut state, |rib, nexthops| Ok(rib.sweep(of, &stale, nexthops)))?;
            if stale.len() < SWEPT {
                state.stale_routes.retain(|(source, _)| *source != of);
                return self.with_rib(&mut state, |rib, _| {
                    rib.swept(of);
                    Ok(swept)
                });
            }
            after = stale.last().copied();
        }
    }

    /// Keeps the routes of a source that is gone, as stale ones, until a time has passed or its next session ends.
    ///
    /// # Errors
    /// Another daemon takes over.
    pub fn lose_routes(&self, of: SourceId, keep: Duration) -> Result<(), Error> {
        self.begin_routes(of)?;
        self.lock_to_change()?.stale_routes.push((of, Instant::now() + keep));
        Ok(())
    }

    /// Withdraws the routes of sources that did not come back in time.
    pub(super) fn expire_routes(&self, state: &mut State) -> Result<(), Error> {
        let now = Instant::now();
        let late: Vec<_> = state.stale_routes.extract_if(.., |(_, until)| *until <= now).collect();
        for (of, _) in late {
            let stale = state.desired.learned.stale(of, None, usize::MAX);
            self.with_rib(state, |rib, nexthops| {
                rib.sweep(of, &stale, nexthops);
                rib.swept(of);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes a change of learned routes, or none of it.
    fn with_rib<T>(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut Rib, &mut dyn Nexthops) -> Result<T, rib::Error>,
    ) -> Result<T, Error> {
        let mut ids = state.ids.clone();
        let (desired, result) = compile::learn(&state.desired, &state.index, &mut ids, change);
        let result = result?;
        self.put_in_force(state, desired, ids)?;
        Ok(result)
    }

    fn put_in_force(&self, state: &mut State, desired: Desired, ids: Ids) -> Result<(), Error> {
        let changes = state.desired.changes_to(&desired);
        self.put(&state.desired, &changes)?;
        (state.desired, state.ids) = (desired, ids);
        self.publish(self.view().after(state));
        Ok(())
    }
}

fn no_network(vrf: Vrf) -> Error {
    Error::NotFound(format!("there is no network with vrf {}", vrf.0))
}
