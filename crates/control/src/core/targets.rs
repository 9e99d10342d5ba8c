//! The guests, networks and nexthops that routes name, the interfaces that rules name, and the names of rules: on what
//! objects depend that are compiled one by one.

use super::rule;
use crate::owner::{Changed, Objects, Written};
use config::{Key, Kind, Rule, RuleAction, Target};
use imbl::OrdSet;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Targets {
    routes: Uses,
    rules: Uses,
    names: RuleNames,
}

impl Targets {
    /// Is true if a change of this guest, network or nexthop changes routes.
    pub(super) fn of_routes(&self, key: &Key) -> bool {
        self.routes.0.contains_key(key)
    }

    /// Is true if a change of this guest or wire changes rules.
    pub(super) fn of_rules(&self, key: &Key) -> bool {
        self.rules.0.contains_key(key)
    }

    pub(super) const fn names(&self) -> &RuleNames {
        &self.names
    }

    /// Returns those of these objects.
    pub(super) fn of(objects: &Objects) -> Self {
        let mut targets = Self::default();
        for (common, count) in objects.routes().commons() {
            common.to.iter().filter_map(Target::key).for_each(|key| targets.routes.add(key, count as usize));
        }
        let rules = objects.of_kind(Kind::Rule);
        rules.for_each(|owned| {
            let rule = rule(Some(owned));
            named_by_rule(rule).into_iter().for_each(|key| targets.rules.add(key, 1));
            rule.and_then(name_of).into_iter().for_each(|name| drop(targets.names.0.insert(name)));
        });
        targets
    }

    /// Follows a change of objects.
    pub(super) fn follow(&mut self, changed: &[Changed<'_>]) {
        for changed in changed {
            match changed.kind() {
                Kind::Route => {
                    let of = [changed.new_route(), changed.old_route()];
                    let of = of.map(|route| route.map(Written::to));
                    self.routes.follow(of.each_ref().map(|to| named(to.as_deref().unwrap_or_default())));
                }
                Kind::Rule => {
                    self.rules.follow([changed.now(), changed.old()].map(|owned| named_by_rule(rule(owned))));
                }
                _ => {}
            }
        }
        self.names.follow(changed);
    }
}

/// Objects, each with the number of those that name it.
#[derive(Default)]
struct Uses(HashMap<Key, usize>);

impl Uses {
    fn add(&mut self, key: Key, uses: usize) {
        *self.0.entry(key).or_default() += uses;
    }

    fn follow(&mut self, [new, old]: [Vec<Key>; 2]) {
        new.into_iter().for_each(|key| self.add(key, 1));
        for key in old {
            if let Some(count) = self.0.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&key);
                }
            }
        }
    }
}

/// The names of rules, with those of their networks. A clone is cheap.
#[derive(Clone, Default)]
pub(super) struct RuleNames(OrdSet<(String, String)>);

impl RuleNames {
    /// Follows a change of objects. Returns whether no two rules have one name.
    pub(super) fn follow(&mut self, changed: &[Changed<'_>]) -> bool {
        for gone in changed.iter().filter_map(|changed| name_of(rule(changed.old())?)) {
            self.0.remove(&gone);
        }
        let mut new = changed.iter().filter_map(|changed| name_of(rule(changed.now())?));
        new.all(|new| self.0.insert(new).is_none())
    }
}

fn named(targets: &[Target]) -> Vec<Key> {
    targets.iter().filter_map(Target::key).collect()
}

/// Returns the name of a rule that has one, with that of its network.
fn name_of(rule: &Rule) -> Option<(String, String)> {
    Some((rule.network.clone(), rule.name.clone()?))
}

fn named_by_rule(rule: Option<&Rule>) -> Vec<Key> {
    let key = |kind, name: &str| Key { kind, network: None, name: name.to_owned() };
    let of = |rule: &Rule| {
        let ends = [&rule.from, &rule.to].into_iter().filter_map(|end| end.guest.as_deref());
        let mut all: Vec<_> = ends.map(|guest| key(Kind::Guest, guest)).collect();
        if let RuleAction::Mirror(interface) = &rule.action {
            all.extend([Kind::Guest, Kind::Wire].map(|kind| key(kind, interface)));
        }
        all
    };
    rule.map(of).unwrap_or_default()
}
