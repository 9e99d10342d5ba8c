//! The changes that a store holds, as they are read: what is there after all of them, and the last ones for the history.

use super::object;
use super::record::{Entry, Made, Stored, Undo};
use crate::history::{History, MOST, Revision};
use crate::owner::{Difference, Owned};
use config::Key;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An object that is there.
pub(super) type Known = (Arc<Key>, Arc<Owned>);

#[derive(Default)]
pub(super) struct Past {
    entries: BTreeMap<String, Stored>,
    /// The number of the last change.
    number: u64,
    last: VecDeque<Change>,
    /// The objects before those changes of a snapshot that were read so far, if they were others.
    earlier: HashMap<String, Option<Stored>>,
}

struct Change {
    number: u64,
    made: Made,
    /// Each changed object, by key, before and after.
    objects: Vec<(String, [Option<Stored>; 2])>,
}

impl Past {
    /// Carries out a record.
    pub(super) fn replay(&mut self, changed: Vec<Entry>, revision: Option<u64>, made: Option<Made>) {
        let mut objects = Vec::new();
        for Entry { key, object } in changed {
            let old = match object.clone() {
                Some(object) => self.entries.insert(key.clone(), object),
                None => self.entries.remove(&key),
            };
            if made.is_some() {
                objects.push((key, [old, object]));
            }
        }
        let Some(number) = revision else { return };
        if number != self.number {
            self.number = number;
            match made {
                Some(made) => self.last.push_back(Change { number, made, objects }),
                None => self.last.clear(),
            }
        }
        if self.last.len() > MOST.0 {
            self.last.pop_front();
        }
    }

    /// Adds a change of which the snapshot has the result: the one before those that are known. If one between them is
    /// damaged, the history begins behind that.
    pub(super) fn rewind(&mut self, Undo { revision, made, before }: Undo) {
        let known = self.last.front().map_or(self.number + 1, |first| first.number);
        if revision + 1 != known || self.last.len() >= MOST.0 {
            return;
        }
        let objects = before.into_iter().map(|Entry { key, object: old }| {
            let later = self.earlier.insert(key.clone(), old.clone());
            let new = later.unwrap_or_else(|| self.entries.get(&key).cloned());
            (key, [old, new])
        });
        let objects = objects.collect();
        self.last.push_front(Change { number: revision, made, objects });
    }

    /// Returns what is stored, by key.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, &Stored)> {
        self.entries.iter()
    }

    /// Returns the keys of what the last changes changed.
    pub(super) fn touched(&self) -> HashSet<&str> {
        self.last.iter().flat_map(|change| &change.objects).map(|(key, _)| key.as_str()).collect()
    }

    /// Makes the history that leads to the objects that are there now, of which `known` has those that were touched. It
    /// begins after the last change that can't be read.
    pub(super) fn history(&self, known: &HashMap<&str, Known>) -> History {
        let first = self.last.front().map_or(self.number, |first| first.number.saturating_sub(1));
        let mut history = History::from(first);
        for Change { number, made, objects } in &self.last {
            let differences = objects.iter().map(|(key, sides)| self.difference(key, sides, known));
            match differences.collect() {
                Some(differences) => history.push(Arc::new(Revision {
                    number: *number,
                    time: SystemTime::UNIX_EPOCH + Duration::from_secs(made.time),
                    uid: made.uid,
                    request: made.request.clone().into(),
                    differences,
                })),
                None => history = History::from(*number),
            }
        }
        history
    }

    /// Reads what a change did to an object; `None` if this version can't. What is there now is not read again, and
    /// takes no more memory.
    fn difference(
        &self,
        text: &str,
        sides: &[Option<Stored>; 2],
        known: &HashMap<&str, Known>,
    ) -> Option<Difference> {
        let present = |stored: &Stored| known.get(text).filter(|_| self.entries.get(text) == Some(stored));
        let read = |stored: &Stored| match present(stored) {
            Some((key, owned)) => Some((key.clone(), owned.clone())),
            None => {
                let (owner, object) = object(stored)?;
                Some((Arc::new(object.key()), Arc::new(Owned { owner, seq: stored.seq, object })))
            }
        };
        // An object that was not there has no side; one that can't be read ends the way back.
        let side = |side: &Option<Stored>| match side {
            None => Some(None),
            Some(stored) => read(stored).map(Some),
        };
        let (old, new) = (side(&sides[0])?, side(&sides[1])?);
        let key = old.as_ref().or(new.as_ref())?.0.clone();
        Some(Difference { key, old: old.map(|(_, old)| old), new: new.map(|(_, new)| new) })
    }
}
