//! The routes that somebody wrote.

use super::Compiler;
use super::ids::User;
use crate::owner::{Routes, Written};
use config::Target;
use model::NexthopId;
use std::collections::HashMap;
use std::sync::Arc;

impl Compiler<'_> {
    /// Returns the nexthop of so many routes that somebody wrote.
    fn nexthop_of_routes(&mut self, to: &[Target], routes: u32) -> NexthopId {
        self.user = User::Routes(routes);
        let nexthop = self.group(to);
        self.user = User::Other;
        nexthop
    }

    /// Adds a route that somebody wrote.
    pub(super) fn written(&mut self, route: Written<'_>) {
        let nexthop = self.nexthop_of_routes(&route.to(), 1);
        self.out.routes.insert((self.vrf(route.network), route.prefix), nexthop);
    }

    /// Adds all routes that somebody wrote. What they have in common is compiled once.
    pub(super) fn all_written(&mut self, routes: &Routes) {
        // Nexthops, with the number of further routes that have them.
        let mut nexthops = HashMap::<_, (NexthopId, u32)>::new();
        let key = |route: &Written<'_>| (Arc::as_ptr(&route.kept.common), route.kept.label());
        for network in routes.networks() {
            let vrf = self.vrf(network);
            for route in routes.of_network(network) {
                let (nexthop, _) = nexthops
                    .entry(key(&route))
                    .and_modify(|(_, more)| *more += 1)
                    .or_insert_with(|| (self.nexthop_of_routes(&route.to(), 1), 0));
                self.out.routes.insert((vrf, route.prefix), *nexthop);
            }
        }
        nexthops.retain(|_, (_, more)| *more > 0);
        let mut left = routes.iter();
        while !nexthops.is_empty()
            && let Some(route) = left.next()
        {
            if let Some((_, more)) = nexthops.remove(&key(&route)) {
                self.nexthop_of_routes(&route.to(), more);
            }
        }
    }

    /// Removes a route from the tables. A route that follows from something else and was hidden behind it returns.
    pub(super) fn remove_route(&mut self, route: Written<'_>) {
        self.nexthop_of_routes(&route.to(), 1);
        let key = (self.vrf(route.network), route.prefix);
        match self.out.implied.get(&key) {
            Some(implied) => drop(self.out.routes.insert(key, *implied)),
            None => drop(self.out.routes.remove(&key)),
        }
    }
}
