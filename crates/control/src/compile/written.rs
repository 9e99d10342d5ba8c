//! The routes that somebody wrote.

use super::Compiler;
use super::ids::User;
use crate::owner::{Common, Routes, Written};
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
        let nexthop = self.nexthop_of_routes(route.to(), 1);
        self.out.routes.insert((self.vrf(route.network), route.prefix), nexthop);
    }

    /// Adds all routes that somebody wrote. What they have in common is compiled once.
    pub(super) fn all_written(&mut self, routes: &Routes) {
        let nexthop = |(common, count): (&Arc<Common>, u32)| {
            (Arc::as_ptr(common), self.nexthop_of_routes(&common.to, count))
        };
        let nexthops: HashMap<_, _> = routes.commons().map(nexthop).collect();
        for network in routes.networks() {
            let vrf = self.vrf(network);
            for route in routes.of_network(network) {
                if let Some(nexthop) = nexthops.get(&Arc::as_ptr(&route.kept.common)) {
                    self.out.routes.insert((vrf, route.prefix), *nexthop);
                }
            }
        }
    }

    /// Removes a route from the tables. A route that follows from something else and was hidden behind it returns.
    pub(super) fn remove_route(&mut self, route: Written<'_>) {
        self.nexthop_of_routes(route.to(), 1);
        let key = (self.vrf(route.network), route.prefix);
        match self.out.implied.get(&key) {
            Some(implied) => drop(self.out.routes.insert(key, *implied)),
            None => drop(self.out.routes.remove(&key)),
        }
    }
}
