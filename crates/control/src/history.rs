//! The last changes: who asked for them, and what they changed, so that they can be undone.

use crate::clients::Peer;
use crate::owner::{Changed, Difference, Kept, Objects, Written};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

/// Most changes that are remembered, and most objects that they may have changed together: beyond that the oldest are
/// forgotten, but never the last one.
pub(crate) const MOST: (usize, usize) = (100, 200_000);

/// The process that asks for a change, and the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author {
    pub(crate) peer: Peer,
    pub(crate) request: &'static str,
}

impl Author {
    /// Returns the daemon itself.
    pub(crate) fn daemon(request: &'static str) -> Self {
        Self { peer: Peer::default(), request }
    }
}

/// A change that was made.
#[derive(Debug)]
pub(crate) struct Revision {
    pub(crate) number: u64,
    pub(crate) time: SystemTime,
    /// The user who asked; `None`: the daemon itself.
    pub(crate) uid: Option<u32>,
    pub(crate) request: Cow<'static, str>,
    pub(crate) differences: Vec<Difference>,
}

impl Revision {
    pub(crate) fn changed(&self) -> impl Iterator<Item = Changed<'_>> {
        self.differences.iter().map(Difference::changed)
    }

    /// Makes the revision of this number; `None` if nothing differs.
    pub(crate) fn new(number: u64, by: Author, differences: Vec<Difference>) -> Option<Arc<Self>> {
        let (time, uid, request) = (SystemTime::now(), by.peer.uid, by.request.into());
        (!differences.is_empty()).then(|| Arc::new(Self { number, time, uid, request, differences }))
    }

    /// Returns when it was made, in seconds since 1970.
    pub(crate) fn since_1970(&self) -> u64 {
        since_1970(self.time)
    }
}

/// Returns a time in seconds since 1970.
pub(crate) fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The present revision, and the changes that led to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    number: u64,
    last: VecDeque<Arc<Revision>>,
    /// Objects in all of `last`.
    objects: usize,
}

impl History {
    /// Begins at a revision, without a way back.
    pub(crate) fn from(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the earliest revision to which there is a way back.
    pub(crate) fn first(&self) -> u64 {
        self.number - self.last.len() as u64
    }

    pub(crate) fn last(&self) -> impl DoubleEndedIterator<Item = &Arc<Revision>> {
        self.last.iter()
    }

    /// Returns what was changed after a revision; `None` if that is not known any more, or is still to come.
    pub(crate) fn since(&self, number: u64) -> Option<Vec<Arc<Revision>>> {
        let known = (self.first()..=self.number).contains(&number);
        known.then(|| self.last.iter().filter(|revision| revision.number > number).cloned().collect())
    }

    /// Makes the revision that comes next; `None` if nothing differs.
    pub(crate) fn next(&self, by: Author, differences: Vec<Difference>) -> Option<Arc<Revision>> {
        Revision::new(self.number + 1, by, differences)
    }

    /// Adds a revision. If it does not follow the last one, there is no way back beyond it.
    pub(crate) fn push(&mut self, revision: Arc<Revision>) {
        if revision.number != self.number + 1 {
            *self = Self::from(revision.number.saturating_sub(1));
        }
        self.number = revision.number;
        self.objects += revision.differences.len();
        self.last.push_back(revision);
        while self.last.len() > MOST.0 || (self.objects > MOST.1 && self.last.len() > 1) {
            let Some(oldest) = self.last.pop_front() else { break };
            self.objects -= oldest.differences.len();
        }
    }

    /// Returns the objects as they were at a revision; `None` if that is not known any more, or is still to come.
    pub(crate) fn back(&self, to: u64, now: &Objects) -> Option<Objects> {
        let since = self.since(to)?;
        let mut objects = now.clone();
        since.iter().rev().for_each(|revision| undo(revision, &mut objects));
        Some(objects)
    }

    /// Returns the objects without one change, as far as they are still as it left them; `None` if it is forgotten.
    pub(crate) fn without(&self, number: u64, now: &Objects) -> Option<Objects> {
        let revision = self.last.iter().find(|revision| revision.number == number)?;
        let mut objects = now.clone();
        undo(revision, &mut objects);
        Some(objects)
    }
}

/// Puts back what a change changed, except what somebody changed after it.
fn undo(revision: &Revision, objects: &mut Objects) {
    // No two are of one object.
    for difference in &revision.differences {
        match difference {
            Difference::Route { network, prefix, old, new } => {
                let now = objects.routes().get(network, *prefix).map(Written::to);
                if now.as_deref() != new.as_ref().map(Kept::to).as_deref() {
                    continue;
                }
                match old {
                    Some(old) => objects.restore_route(network, *prefix, old.clone()),
                    None => drop(objects.remove_route(network, *prefix)),
                }
            }
            Difference::Other { key, old, new } => {
                if objects.other(key).map(|owned| &owned.object) != new.as_ref().map(|owned| &owned.object) {
                    continue;
                }
                match old {
                    Some(old) => objects.restore(old.seq, old.owner.clone(), old.object.clone()),
                    None => drop(objects.remove(key)),
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use config::Object;

    fn network(name: &str, vrf: u16) -> Object {
        let text = format!("[[network]]\nname = \"{name}\"\nvrf = {vrf}\n");
        config::parse_objects(&text).unwrap().remove(0)
    }

    fn changed(history: &mut History, objects: &mut Objects, change: impl FnOnce(&mut Objects)) {
        let before = objects.clone();
        change(objects);
        let next = history.next(Author::daemon("test"), before.differences_to(objects));
        history.push(next.unwrap());
    }

    #[test]
    fn every_revision_can_be_returned_to_and_one_change_be_left_out() {
        let (mut history, mut objects) = (History::from(7), Objects::default());
        let mut states = vec![objects.clone()];
        for step in 0..4_u16 {
            changed(&mut history, &mut objects, |objects| match step {
                0 | 2 => objects.put(Owner::Api, network("blue", step + 1)),
                1 => objects.put(Owner::File, network("red", 9)),
                _ => drop(objects.remove(&network("red", 9).key())),
            });
            states.push(objects.clone());
        }
        assert_eq!((history.first(), history.number()), (7, 11));
        for (number, state) in (7..).zip(&states) {
            assert!(history.back(number, &objects).unwrap().differences_to(state).is_empty(), "{number}");
        }
        assert!(history.back(10, &objects).unwrap().differences_to(&states[3]).is_empty());
        assert!(history.back(6, &objects).is_none());
        assert!(history.back(12, &objects).is_none());
        // The third change made blue what it is, so the first one has nothing to put back.
        assert!(history.without(8, &objects).unwrap().differences_to(&objects).is_empty());
        let without = history.without(11, &objects).unwrap();
        assert!(without.differences_to(&states[3]).is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let (mut history, mut objects) = (History::default(), Objects::default());
        for vrf in 0..150 {
            changed(&mut history, &mut objects, |objects| objects.put(Owner::Api, network("blue", vrf + 1)));
        }
        assert_eq!((history.first(), history.number(), history.last().count()), (50, 150, 100));
        assert_eq!(history.since(140).unwrap().len(), 10);
        assert!(history.since(49).is_none());
    }
}
