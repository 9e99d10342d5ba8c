//! Changes of objects by clients: transactions, those that must be confirmed, and the way back.

use super::changes::{Draft, Step};
use super::resync::{Part, may_act_as};
use super::{Core, Done, Error, State, Switching, missing};
use crate::history::{Author, History};
use crate::owner::{Listed, Objects, Owned, Owner};
use config::{Key, Kind, Object};
use std::collections::{HashSet, VecDeque};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests whose answers are kept for those who repeat them, and the longest text that names one.
const ANSWERS: usize = 256;
/// Changes of such an answer that are kept.
const LISTED: usize = 100;
const LONGEST_ID: usize = 64;
/// The longest time that a change may wait for its confirmation.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// One step of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Create(Object),
    Put(Object),
    /// Sets fields of an object to those of a table; a field that the table lacks gets its default.
    Patch {
        key: Key,
        table: toml::Table,
        fields: Vec<String>,
    },
    Delete {
        key: Key,
        allow_missing: bool,
    },
}

impl Operation {
    fn kind(&self) -> Kind {
        match self {
            Self::Create(object) | Self::Put(object) => object.kind(),
            Self::Patch { key, .. } | Self::Delete { key, .. } => key.kind,
        }
    }

    pub(super) fn key(&self) -> Key {
        match self {
            Self::Create(object) | Self::Put(object) => object.key(),
            Self::Patch { key, .. } | Self::Delete { key, .. } => key.clone(),
        }
    }
}

/// A change that a client asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    /// The owner of what it changes.
    pub(crate) owner: Owner,
    pub(crate) operations: Vec<Operation>,
    pub(crate) expected: Option<u64>,
    pub(crate) request_id: String,
    pub(crate) take_over: bool,
    pub(crate) dry_run: bool,
    pub(crate) confirm: Option<Duration>,
    pub(crate) resync: Option<Part>,
}

/// The result of a transaction's operations.
pub(super) enum Drafted {
    /// The answer that the same request had before.
    Known(Done),
    New(Objects),
}

impl Transaction {
    /// Is true if it can be made together with others: it changes routes and rules alone, so it opens no port. The end
    /// of a resync may change anything.
    pub(crate) fn can_be_joined(&self) -> bool {
        let is_light = |operation: &Operation| matches!(operation.kind(), Kind::Route | Kind::Rule);
        let ends = self.resync.is_some_and(Part::ends);
        !self.dry_run && self.confirm.is_none() && !ends && self.operations.iter().all(is_light)
    }

    /// Returns by what the same request is known again; `None`: it has no identifier.
    pub(super) fn known_by(&self, by: Author) -> Option<Asked> {
        let Self { owner, resync, request_id, .. } = self;
        (!request_id.is_empty()).then(|| (by.peer.uid, owner.clone(), *resync, request_id.clone()))
    }

    /// Carries out the operations on objects at a revision.
    pub(super) fn drafted(
        &self,
        by: Author,
        state: &State,
        objects: &Objects,
        present: u64,
    ) -> Result<Drafted, Error> {
        if self.request_id.len() > LONGEST_ID {
            return Err(Error::Conflict(format!("a request's id has {LONGEST_ID} bytes at most")));
        }
        may_act_as(&state.host, by, &self.owner)?;
        if let Some(done) = state.answers.get(by, self) {
            return Ok(Drafted::Known(done));
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != present) {
            return Err(Error::Revision { expected, present });
        }
        let mut next = objects.clone();
        for (index, operation) in self.operations.iter().enumerate() {
            self.operate(&mut next, operation, state).map_err(at(index))?;
        }
        self.resynced(by, state, &mut next)?;
        Ok(Drafted::New(next))
    }

    /// Says which operation brought the object that is wrong, if one did.
    pub(super) fn blamed(&self, e: Error) -> Error {
        let Error::Invalid(problems) = &e else { return e };
        let wrong: HashSet<&str> = problems.iter().map(|problem| problem.at.as_str()).collect();
        let is_wrong = |operation: &Operation| wrong.contains(operation.key().to_string().as_str());
        match self.operations.iter().position(is_wrong) {
            Some(index) => at(index)(e),
            None => e,
        }
    }

    /// Carries out one step on `next`.
    fn operate(&self, next: &mut Objects, operation: &Operation, state: &State) -> Result<(), Error> {
        let (owner, take_over) = (&self.owner, self.take_over);
        let may_change = |old: Listed<'_>| take_over || old.owner() == owner;
        match operation {
            Operation::Create(object) => match next.namesake(object) {
                Some(old) if old.is(object) => {}
                Some(old) => return Err(differs(old.owner(), &object.key())),
                None => next.put(owner.clone(), object.clone()),
            },
            Operation::Put(object) => match next.namesake(object) {
                Some(old) if old.is(object) && (old.owner() == owner || !take_over) => {}
                Some(old) if !may_change(old) => return Err(is_anothers(old.owner(), &object.key())),
                _ => next.put(owner.clone(), object.clone()),
            },
            Operation::Patch { key, .. } if self.resync.is_some() => {
                return Err(Error::Conflict(format!("{key}: a resync takes whole objects: use put")));
            }
            Operation::Patch { key, table, fields } => {
                let old = next.get(key).ok_or_else(|| missing(key, state))?;
                if !may_change(old) {
                    return Err(is_anothers(old.owner(), key));
                }
                let (seq, object) = (old.seq(), patched(&old.owned(), table, fields)?);
                // The key of a rule is its text.
                match object.key() {
                    same if same == *key => {}
                    _ if key.kind == Kind::Rule => drop(next.remove(key)),
                    other => {
                        return Err(Error::Conflict(format!(
                            "{key} can't become {other}; remove and add it"
                        )));
                    }
                }
                next.restore(seq, owner.clone(), object);
            }
            Operation::Delete { key, allow_missing } => match next.get(key) {
                None if *allow_missing => {}
                None => return Err(missing(key, state)),
                Some(old) if !may_change(old) => return Err(is_anothers(old.owner(), key)),
                Some(_) => drop(next.remove(key)),
            },
        }
        Ok(())
    }
}

/// Makes the refusal of an operation that of its request.
fn at(index: usize) -> impl FnOnce(Error) -> Error {
    move |error| Error::Operation { index, error: Box::new(error) }
}

/// A change that is undone unless it is confirmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unconfirmed {
    /// The revision that it made.
    pub(crate) revision: u64,
    pub(crate) until: Instant,
}

/// The part of a request by which it is known again: who asked, as which owner, in which resync, and the identifier.
pub(super) type Asked = (Option<u32>, Owner, Option<Part>, String);

/// The last requests that had an identifier.
#[derive(Debug, Default)]
pub(super) struct Answers(VecDeque<(Asked, Done)>);

impl Answers {
    /// Returns the answer to a request. One without identifier has none.
    fn get(&self, by: Author, asked: &Transaction) -> Option<Done> {
        let asked = asked.known_by(by)?;
        self.0.iter().find(|(known, _)| *known == asked).map(|(_, done)| done.clone())
    }

    /// Keeps the answer to a request that has an identifier.
    fn keep(&mut self, by: Author, asked: &Transaction, done: &Done) {
        let Some(known) = asked.known_by(by).filter(|_| self.get(by, asked).is_none()) else { return };
        if self.0.len() == ANSWERS {
            self.0.pop_front();
        }
        let changes = done.changes.iter().take(LISTED).cloned().collect();
        self.0.push_back((known, Done { changes, ..done.clone() }));
    }
}

impl Core {
    /// Changes objects without others that wait.
    ///
    /// # Errors
    /// As for any change; [`Error::Revision`].
    pub(crate) fn transact_alone(&self, by: Author, asked: Transaction) -> Result<Done, Error> {
        let draft = |state: &State| {
            let next = match asked.drafted(by, state, &state.objects, state.revision)? {
                Drafted::Known(done) => return Ok(Step::Answer(done)),
                Drafted::New(next) => next,
            };
            let draft = Draft::of(state, next)?;
            if asked.dry_run {
                return self.tried(state, &draft).map(Step::Answer);
            }
            may_wait(state, asked.confirm)?;
            Ok(Step::Make(draft))
        };
        let done = self.change(
            draft,
            || Switching::by(by),
            |state, before, done| {
                self.wait(state, asked.confirm, before);
                state.remember(by, &asked, done, &self.history());
            },
        );
        done.map_err(|e| asked.blamed(e))
    }

    /// Has the change that followed a revision wait to be confirmed.
    pub(super) fn wait(&self, state: &mut State, wait: Option<Duration>, before: u64) {
        let revision = self.history().number();
        if let Some(wait) = wait.filter(|_| revision > before) {
            state.unconfirmed =
                Some(Unconfirmed { revision, until: Instant::now() + wait.min(LONGEST_WAIT) });
        }
    }

    /// Keeps the change that waits to be confirmed, and returns its revision.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn confirm(&self) -> Result<u64, Error> {
        let mut state = self.lock_to_change()?;
        let kept = state.unconfirmed.take();
        kept.map(|kept| kept.revision).ok_or_else(|| {
            Error::Conflict("no change waits to be confirmed: it was undone, or confirmed before".to_owned())
        })
    }

    /// Returns the change that waits to be confirmed.
    pub(crate) fn unconfirmed(&self) -> Option<Unconfirmed> {
        self.lock().unconfirmed
    }

    /// Returns to an earlier revision, or to the one before the last change.
    ///
    /// # Errors
    /// As for any change.
    pub(crate) fn rollback(&self, by: Author, to: Option<u64>) -> Result<Done, Error> {
        let draft = |state: &State| Ok(Step::Make(Draft::of(state, self.back(to, &state.objects)?)?));
        self.change(
            draft,
            || Switching::by(by),
            |state, _, _| {
                let is_gone = |unconfirmed: &Unconfirmed| to.is_none_or(|to| to < unconfirmed.revision);
                state.unconfirmed = state.unconfirmed.filter(|unconfirmed| !is_gone(unconfirmed));
            },
        )
    }

    /// Returns the objects as they were at a revision, or before the last change.
    fn back(&self, to: Option<u64>, now: &Objects) -> Result<Objects, Error> {
        let history = self.history();
        let (first, number) = (history.first(), history.number());
        let to = to.unwrap_or(number.saturating_sub(1));
        history.back(to, now).ok_or_else(|| {
            Error::NotFound(format!("there is no way back to revision {to}: known are {first} to {number}"))
        })
    }

    /// Undoes a change that nobody confirmed in time, or whose daemon ends. What others changed meanwhile stays, unless
    /// it depends on that change.
    pub(super) fn undo_unconfirmed(&self, state: &mut State, ends: bool) {
        let Some(late) = state.unconfirmed.filter(|it| ends || it.until <= Instant::now()) else { return };
        state.unconfirmed = None;
        let by = Author::daemon("unconfirmed");
        let without = self.history().without(late.revision, &state.objects);
        let undone = without.map(|without| self.change_now(state, without, by));
        let undone = match undone {
            Some(Ok(done)) => Ok(done),
            // Later changes may need it.
            _ => {
                let before = self.back(Some(late.revision - 1), &state.objects);
                before.and_then(|before| self.change_now(state, before, by))
            }
        };
        match undone {
            Ok(done) => {
                tracing::warn!(revision = late.revision, "nobody confirmed this change, so it is undone");
                done.changes
                    .iter()
                    .for_each(|change| tracing::info!("undo: {} {}", change.what, change.object));
            }
            Err(e) => {
                tracing::error!(revision = late.revision, "nobody confirmed this change; it stays: {e}")
            }
        }
    }

    /// Returns the last changes, for reading.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a change may wait to be confirmed, if it shall.
///
/// # Errors
/// Another change waits.
pub(super) fn may_wait(state: &State, wait: Option<Duration>) -> Result<(), Error> {
    match (wait, state.unconfirmed) {
        (Some(_), Some(other)) => Err(Error::Conflict(format!(
            "revision {} waits to be confirmed: run `viaduct confirm`, or `viaduct rollback`",
            other.revision
        ))),
        _ => Ok(()),
    }
}

impl State {
    /// Remembers a transaction that was made: its answer, and what an owner sent anew.
    pub(super) fn remember(&mut self, by: Author, asked: &Transaction, done: &Done, history: &History) {
        self.answers.keep(by, asked, done);
        self.resyncs.note(asked, &self.objects, history, done.revision);
    }
}

/// Returns an object with these fields of a table.
fn patched(old: &Owned, table: &toml::Table, fields: &[String]) -> Result<Object, Error> {
    let key = old.object.key();
    let mut all = toml::Table::try_from(&old.object).map_err(|e| Error::Conflict(format!("{key}: {e}")))?;
    for field in fields {
        match table.get(field) {
            Some(value) => drop(all.insert(field.clone(), value.clone())),
            None => drop(all.remove(field)),
        }
    }
    Ok(config::object(key.kind, all)?)
}

fn differs(owner: &Owner, key: &Key) -> Error {
    let advice = match owner {
        Owner::File => "change it in the host's file, and apply that",
        Owner::Api | Owner::Named(_) => "remove it first, or change it (`set`)",
    };
    Error::Conflict(format!("{key} is there already (owner {}) and differs; {advice}", owner.name()))
}

/// Returns the error that the object belongs to another owner.
fn is_anothers(owner: &Owner, key: &Key) -> Error {
    let how = match owner {
        Owner::File => "comes from the host's file; change it there and run `viaduct apply FILE`".to_owned(),
        other => format!("belongs to {}; change it there, or take it over (`--take-over`)", other.name()),
    };
    Error::Conflict(format!("{key} {how}"))
}
