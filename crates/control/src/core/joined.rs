//! Changes of routes and rules that are made together: each is checked on top of the one before, and then all are put in
//! force and stored at once.

use super::changes::compiled_changes;
use super::targets::RuleNames;
use super::{Core, Done, Error, State, none_of};
use crate::compile::{self, Desired, Ids, recompile};
use crate::history::{Author, Revision};
use crate::object_change::describe;
use crate::owner::{Changed, Difference, Objects};
use crate::store::{Durability, Update};
use std::sync::Arc;

/// The state after changes that are not in force yet.
pub(super) struct Joined {
    pub(super) objects: Objects,
    /// The number of the last of them.
    pub(super) number: u64,
    ids: Ids,
    desired: Desired,
    names: RuleNames,
    revisions: Vec<Arc<Revision>>,
}

impl Joined {
    /// Begins with the state in force.
    pub(super) fn on(state: &State) -> Self {
        let State { objects, ids, desired, revision, .. } = state;
        let (objects, ids, desired) = (objects.clone(), ids.clone(), desired.clone());
        let names = state.targets.names().clone();
        Self { objects, number: *revision, ids, desired, names, revisions: Vec::new() }
    }

    /// Adds a change that leads to `next`. Returns `None` if other objects change as well, or depend on the routes and
    /// rules that do, or if two rules have one name.
    ///
    /// # Errors
    /// A route or rule does not fit the other objects.
    pub(super) fn add(&mut self, state: &State, next: &Objects, by: Author) -> Result<Option<Done>, Error> {
        let differences = self.objects.differences_to(next);
        let changed: Vec<Changed<'_>> = differences.iter().map(Difference::changed).collect();
        let mut names = self.names.clone();
        if !state.is_plain(&changed, next) || !names.follow(&changed) {
            return Ok(None);
        }
        let added = changed.iter().filter_map(|changed| changed.new_object());
        none_of(config::check_routes_and_rules(&state.index, added))?;
        let changes = compiled_changes(&state.index, &changed);
        let desired = std::mem::take(&mut self.desired);
        self.desired = recompile(desired, &state.index, &changes, &mut self.ids);
        self.names = names;
        let changes = describe(&changed);
        if let Some(revision) = Revision::new(self.number + 1, by, differences) {
            self.number = revision.number;
            self.revisions.push(revision);
            self.objects = next.clone();
        }
        Ok(Some(Done { changes, notes: Vec::new(), revision: self.number }))
    }
}

impl Core {
    /// Puts changes in force. The cost depends on their number alone.
    ///
    /// # Errors
    /// Executor or store refuse them. Then nothing was done.
    pub(super) fn make_together(&self, state: &mut State, joined: Joined) -> Result<(), Error> {
        let Joined { objects, number: _, mut ids, mut desired, names: _, revisions } = joined;
        if revisions.is_empty() {
            return Ok(());
        }
        compile::sweep(&mut desired, &mut ids);
        #[cfg(test)]
        super::tests::is_as_compiled_whole(
            &desired,
            (&state.host, &state.index),
            &objects,
            &super::Links {
                away: state.away.clone(),
                wires: state.slots.iter().map(|(name, slot)| (name.clone(), slot.link())).collect(),
            },
            &ids,
        );
        let update = Update {
            revisions: &revisions,
            objects: &objects,
            taken: None,
            number: &|key| ids.number(key),
            durability: Durability::Kernel,
        };
        self.commit((&state.desired, &desired), &update)?;
        if !desired.vifs.ptr_eq(&state.desired.vifs) {
            state.inherited.follow(&state.desired, &desired, &*self.executor);
        }
        let changed = revisions.iter().map(|revision| revision.changed().collect::<Vec<_>>());
        changed.for_each(|changed| state.targets.follow(&changed));
        state.revision = self.announce();
        (state.objects, state.ids, state.desired) = (objects, ids, desired);
        self.publish(self.view().after(state));
        Ok(())
    }
}
