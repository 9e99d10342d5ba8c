//! Counts the routes that lead to guests, networks and nexthops by name: a change of these changes such routes.

use super::route;
use crate::owner::Changed;
use config::{Key, Kind, Route, Target};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Targets(HashMap<Key, usize>);

impl Targets {
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Follows a change of objects.
    pub(super) fn follow(&mut self, changed: &[Changed<'_>]) {
        for changed in changed.iter().filter(|changed| changed.key.kind == Kind::Route) {
            for key in route(changed.new).into_iter().flat_map(named) {
                *self.0.entry(key).or_default() += 1;
            }
            for key in route(changed.old).into_iter().flat_map(named) {
                if let Some(count) = self.0.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.0.remove(&key);
                    }
                }
            }
        }
    }
}

fn named(route: &Route) -> impl Iterator<Item = Key> {
    route.to.iter().filter_map(Target::key)
}
