//! Resyncs: an owner, for example a program that was restarted, sends all of its objects anew. At the end the daemon
//! removes the owner's objects that it did not send.

use super::{Core, Done, Error, Operation, State, Transaction};
use crate::history::{Author, History};
use crate::owner::{Changed, Listed, Objects, Owner};
use config::Host;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time after which a resync ends by itself, if the owner names none, and the longest one.
const WAIT: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(3600));

/// Places of objects that are gone which a resync may keep.
const SPARE: usize = 1024;

/// The resync to which a transaction belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It has more parts.
    More(u64),
    /// This is the last part.
    Last(u64),
    /// This is all of it.
    Whole,
}

impl Part {
    /// Returns the part that a request is, if it belongs to a resync.
    pub(crate) const fn of(number: u64, ends: bool) -> Option<Self> {
        match (number, ends) {
            (0, false) => None,
            (0, true) => Some(Self::Whole),
            (number, false) => Some(Self::More(number)),
            (number, true) => Some(Self::Last(number)),
        }
    }

    pub(super) const fn ends(self) -> bool {
        matches!(self, Self::Last(_) | Self::Whole)
    }
}

/// The resyncs under way: at most one for each owner.
#[derive(Debug, Default)]
pub(super) struct Resyncs {
    open: BTreeMap<Owner, Resync>,
    last: u64,
}

#[derive(Debug)]
struct Resync {
    number: u64,
    /// The places of what the owner sent: an object keeps its place while it exists.
    sent: HashSet<u64>,
    until: Instant,
}

impl Resyncs {
    /// Begins a resync, and returns its number. An earlier one of the owner is forgotten.
    fn begin(&mut self, owner: Owner, until: Instant) -> u64 {
        // One of an earlier daemon must not be taken for it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        self.last = (self.last + 1).max(u64::try_from(now).unwrap_or_default());
        self.open.insert(owner, Resync { number: self.last, sent: HashSet::new(), until });
        self.last
    }

    /// Returns the objects that an owner sent in a resync.
    fn sent(&self, owner: &Owner, number: u64) -> Result<&HashSet<u64>, Error> {
        let of = self.open.get(owner).filter(|resync| resync.number == number);
        of.map(|resync| &resync.sent).ok_or_else(|| {
            Error::NotFound(format!(
                "resync {number} of owner \"{}\" is not under way: it ended, another began, or the daemon was \
                 restarted: call BeginResync again",
                owner.name()
            ))
        })
    }

    /// Notes the objects that a transaction of an owner sent. Transactions outside the resync count as well: another
    /// process of the owner may make something meanwhile.
    pub(super) fn note(&mut self, asked: &Transaction, objects: &Objects, history: &History, made: u64) {
        if asked.resync.is_some_and(Part::ends) {
            self.open.remove(&asked.owner);
            return;
        }
        let Some(Resync { sent, .. }) = self.open.get_mut(&asked.owner) else { return };
        let mut is_renamed = false;
        for operation in &asked.operations {
            match objects.get(&operation.key()).map(Listed::seq) {
                Some(seq) => drop(sent.insert(seq)),
                None => is_renamed |= matches!(operation, Operation::Patch { .. }),
            }
        }
        if is_renamed {
            // A rule whose text was changed has another key.
            let revision = history.last().rev().find(|revision| revision.number == made);
            let changed = revision.into_iter().flat_map(|revision| revision.changed());
            let own = changed.filter_map(Changed::new_owner).filter(|(owner, _)| **owner == asked.owner);
            sent.extend(own.map(|(_, seq)| seq));
        }
        if sent.len() > 2 * objects.len() + SPARE {
            let there: HashSet<u64> = objects.listed().map(Listed::seq).collect();
            sent.retain(|seq| there.contains(seq));
        }
    }

    /// Forgets the resyncs of owners that the host's file does not name any more: their objects stay.
    fn forget_strangers(&mut self, host: &Host) {
        self.open.retain(|owner, _| host.owners.iter().any(|known| known.name == owner.name()));
    }

    /// Takes out the owners whose time is up, with what they sent.
    fn take_late(&mut self, now: Instant) -> Vec<(Owner, HashSet<u64>)> {
        let is_late = |(_, resync): &(&Owner, &Resync)| resync.until <= now;
        let late: Vec<_> = self.open.iter().filter(is_late).map(|(owner, _)| owner.clone()).collect();
        late.into_iter()
            .filter_map(|owner| self.open.remove_entry(&owner))
            .map(|(owner, it)| (owner, it.sent))
            .collect()
    }
}

/// Removes an owner's objects that are not among those that it sent, by their places.
fn sweep(objects: &mut Objects, owner: &Owner, is_sent: impl Fn(u64) -> bool) {
    let old = objects.clone();
    let gone = old.listed().filter(|listed| listed.owner() == owner && !is_sent(listed.seq()));
    gone.map(Listed::key).for_each(|key| {
        objects.remove(&key);
    });
}

impl Transaction {
    /// Removes what the owner did not send, if this ends its resync.
    ///
    /// # Errors
    /// The resync is not under way; [`Error::Denied`].
    pub(super) fn resynced(&self, by: Author, state: &State, next: &mut Objects) -> Result<(), Error> {
        let Some(part) = self.resync else { return Ok(()) };
        may_resync(&state.host, by, &self.owner)?;
        let sent = match part {
            Part::Whole => None,
            Part::More(number) | Part::Last(number) => Some(state.resyncs.sent(&self.owner, number)?),
        };
        if part.ends() {
            let own = self.operations.iter().filter_map(|operation| next.get(&operation.key()));
            let own: HashSet<u64> = own.map(Listed::seq).collect();
            sweep(next, &self.owner, |seq| {
                own.contains(&seq) || sent.is_some_and(|sent| sent.contains(&seq))
            });
        }
        Ok(())
    }
}

impl Core {
    /// Begins a resync of an owner, which ends by itself after a time. Returns its number.
    ///
    /// # Errors
    /// [`Error::Denied`]; a new daemon takes over.
    pub(crate) fn begin_resync(
        &self,
        by: Author,
        owner: Owner,
        wait: Option<Duration>,
    ) -> Result<u64, Error> {
        let mut state = self.lock_to_change()?;
        may_resync(&state.host, by, &owner)?;
        let wait = wait.unwrap_or(WAIT.0).min(WAIT.1);
        tracing::info!(owner = owner.name(), uid = by.peer.uid, pid = by.peer.pid, "sends its objects anew");
        Ok(state.resyncs.begin(owner, Instant::now() + wait))
    }

    /// Makes an owner's objects those of a text, which has objects alone.
    ///
    /// # Errors
    /// As for any change.
    pub(crate) fn apply_as(
        &self,
        by: Author,
        owner: Owner,
        text: &str,
        dry_run: bool,
        confirm: Option<Duration>,
    ) -> Result<Done, Error> {
        let objects = config::parse_objects(text)?;
        let operations = objects.into_iter().map(Operation::Put).collect();
        let resync = Some(Part::Whole);
        self.transact_alone(
            by,
            Transaction { owner, operations, dry_run, confirm, resync, ..Transaction::default() },
        )
    }

    /// Ends the resyncs whose owners did not end them in time.
    pub(super) fn end_late_resyncs(&self, state: &mut State) {
        let host = state.host.clone();
        state.resyncs.forget_strangers(&host);
        for (owner, sent) in state.resyncs.take_late(Instant::now()) {
            let mut next = state.objects.clone();
            sweep(&mut next, &owner, |seq| sent.contains(&seq));
            let owner = owner.name();
            match self.change_now(state, next, Author::daemon("resync")) {
                Ok(done) => {
                    tracing::warn!(owner, removed = done.changes.len(), "did not end its resync in time");
                    crate::object_change::log(Author::daemon("resync"), &done.changes);
                }
                Err(e) => {
                    tracing::error!(owner, "did not end its resync, and what it did not send stays: {e}")
                }
            }
        }
    }
}

/// Checks that a client may resync an owner. Many clients share the API as an owner, and none of them knows all of its
/// objects.
///
/// # Errors
/// [`Error::Denied`].
fn may_resync(host: &Host, by: Author, owner: &Owner) -> Result<(), Error> {
    if *owner == Owner::Api {
        return Err(Error::Denied(
            "a resync, and `apply` with --as, are for an owner with a name (`owners` in [host])".to_owned(),
        ));
    }
    may_act_as(host, by, owner)
}

/// Checks that a client may act as an owner.
///
/// # Errors
/// [`Error::Denied`].
pub(super) fn may_act_as(host: &Host, by: Author, owner: &Owner) -> Result<(), Error> {
    let name = match owner {
        Owner::Api => return Ok(()),
        Owner::File => {
            return Err(Error::Denied(
                "objects of owner \"file\" are those of the host's file: change it there, and run `viaduct apply FILE` \
                 without --as"
                    .to_owned(),
            ));
        }
        Owner::Named(name) => &**name,
    };
    let Some(known) = host.owners.iter().find(|known| known.name == name) else {
        return Err(Error::Denied(format!(
            "there is no owner \"{name}\": add it to `owners` in [host] of the host's file, and apply that"
        )));
    };
    match by.peer.uid {
        Some(uid) if !known.may_be_used_by(uid) => Err(Error::Denied(format!(
            "user {uid} may not act as owner \"{name}\": `owners` in [host] of the host's file says who may"
        ))),
        _ => Ok(()),
    }
}
