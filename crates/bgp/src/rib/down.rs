//! Remotes of tunnels that are down: routes to them give way to worse ones that lead elsewhere.
//!
//! They do so only if nothing of the best is left. While some of equal paths are up, the tables themselves pass the
//! others over, at no cost for each route. If all routes of a name lead to remotes that are down, they count as before.

use super::{Contender, Rib, note};
use crate::update::nlri::Place;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl Rib {
    /// Follows whether remotes are down. Notes what routes to those that changed are about.
    pub(crate) fn set_down(&mut self, remotes: &[(IpAddr, bool)]) {
        let mut changed = BTreeSet::new();
        for (remote, is_down) in remotes {
            let is_new = if *is_down { self.down.insert(*remote) } else { self.down.remove(remote) };
            changed.extend((is_new && self.names(remote)).then_some(*remote));
        }
        if changed.is_empty() {
            return;
        }
        for (key, route) in &self.routes {
            let remote = self.store.get(route.attributes).remote();
            // Floods go to all, whether they are down or not.
            if remote.is_some_and(|remote| changed.contains(&remote))
                && !matches!(key.name.place, Place::Flood(_))
            {
                let (routes, macs) = self.store.networks(route.attributes);
                note(&mut self.changed, &key.name, routes, macs);
            }
        }
    }

    /// Returns whether routes name a remote.
    pub(crate) fn names(&self, remote: &IpAddr) -> bool {
        self.store.remotes().contains_key(remote)
    }

    /// Returns the remotes that routes name, in order.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.store.remotes().keys().copied()
    }

    /// Returns whether a route leads to a remote that is down.
    pub(crate) fn is_down(&self, one: &Contender<'_>) -> bool {
        one.attributes.remote().is_some_and(|remote| self.down.contains(&remote))
    }

    /// Chooses the best of all, or the best one that is up if the first is down. The argument of `choose` says whether
    /// those that are down count.
    pub(super) fn choose<'a, T>(
        &self,
        of: impl Fn(&T) -> &Contender<'a>,
        choose: impl Fn(bool) -> Option<T>,
    ) -> Option<T> {
        let first = choose(true)?;
        if self.is_down(of(&first)) { choose(false).or(Some(first)) } else { Some(first) }
    }
}
