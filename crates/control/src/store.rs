//! The store: the host's objects on disk, in `STATE_DIR/store.0` and `store.1`.
//!
//! A change is a record at the end of a file. It is stored as a whole or not at all, survives the daemon's
//! death when the write returns, and a power cut when the disk has it. If the disk fails, changes are refused
//! and nothing else happens; later ones succeed again. On a full disk there is still room for removals. Damage
//! is reported, and costs only the record in which it is.

mod files;
mod frame;
mod log;
mod past;
mod record;

use crate::history::{History, Revision};
use crate::owner::{Changed, Listed, Objects, Owned, Owner, Written};
use crate::run_dir_lock::when_free;
use config::{Key, Object};
use files::{Locked, Waiting, copy_files, open_files};
use ipnet::IpNet;
use log::{Log, Medium, Room};
use past::Past;
use record::{Entry, Made, Record, RouteEntry, Stored, Undo};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How safe a write shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Disk,
    Kernel,
    /// As `Disk`, but a change that can't be stored now is in force all the same, and is stored later.
    DiskOrLater,
}

/// Changes that are to be stored, all or none.
pub(crate) struct Update<'a> {
    /// In their order. If there is none, no object changes.
    pub(crate) revisions: &'a [Arc<Revision>],
    /// The objects after them.
    pub(crate) objects: &'a Objects,
    /// The digest of the daemon's file, if its objects were taken.
    pub(crate) taken: Option<&'a str>,
    /// Returns the number by which people name an object.
    pub(crate) number: &'a dyn Fn(&Key) -> Option<u32>,
    pub(crate) durability: Durability,
}

pub struct Store {
    dir: PathBuf,
    state: Mutex<State>,
    /// The last changes. Locked for moments only, never while the disk is waited for.
    history: Arc<Mutex<History>>,
    /// The problems after the last access, in words. Who asks for them never waits for the disk.
    problems: Mutex<Arc<Vec<String>>>,
    /// The lock of the store's files, if they could be opened.
    lock: Option<OwnedFd>,
    is_anothers: Arc<AtomicBool>,
}

struct State {
    /// In the second case, the reason why there is no log.
    log: Result<Log, String>,
    is_used: bool,
    objects: Objects,
    taken: Option<String>,
    history: Arc<Mutex<History>>,
    /// Numbers by which people name objects.
    numbers: BTreeMap<Key, u32>,
    /// The records of objects that this version does not understand, by key, and records of which it understands
    /// nothing.
    kept: BTreeMap<String, String>,
    foreign: Vec<String>,
    /// Whether the files have a form that takes longer to read than the present one.
    is_old: bool,
    /// Descriptions of what was lost.
    damaged: Vec<String>,
    /// The reason why the last write failed.
    failed: Option<String>,
    is_anothers: Arc<AtomicBool>,
}

/// The store's contents when it was opened.
pub(crate) struct Loaded {
    pub(crate) objects: Objects,
    /// The digest of the daemon's file whose objects were last taken; `None`: the version that wrote the
    /// store did not note it.
    pub(crate) taken: Option<String>,
    /// Whether something may be missing.
    pub(crate) is_damaged: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store in {} is in use by another daemon; give this one its own --state-dir", .0.display())]
    InUse(PathBuf),
    #[error("the store in {} can't be written: {reason}", dir.display())]
    Write { dir: PathBuf, reason: String },
}

impl Store {
    /// Opens the store in a directory, or makes an empty one. Must run while the daemon may still open files.
    /// If the files can't be opened, the store refuses changes, and `problems` tells why.
    ///
    /// # Errors
    /// [`StoreError::InUse`].
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        Self::open_from(state_dir, None)
    }

    /// Opens the store of the daemon that still has it and handed over its lock `other`. Nothing is written
    /// before `take`.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_from(state_dir: &Path, other: Option<OwnedFd>) -> Result<Self, StoreError> {
        let is_anothers = Arc::new(AtomicBool::new(false));
        let opened = match other {
            None => when_free(|| open_files(state_dir, None)),
            other => open_files(state_dir, other),
        };
        let (files, lock) = match opened {
            Ok(Some(Locked { files, lock, by_other })) => {
                is_anothers.store(by_other, Ordering::Relaxed);
                let medium = |file| Box::new(Waiting { file, waits: is_anothers.clone() }) as Box<dyn Medium>;
                (Ok(files.map(medium)), Some(lock))
            }
            Ok(None) => return Err(StoreError::InUse(state_dir.to_owned())),
            Err(e) => {
                let dir = state_dir.display();
                tracing::error!("the store in {dir} can't be opened, and changes are refused: {e}");
                (Err(format!("{e}; repair it and restart the daemon")), None)
            }
        };
        let store = Self::over(state_dir, files);
        store.lock().is_anothers = is_anothers.clone();
        Ok(Self { lock, is_anothers, ..store })
    }

    /// Duplicates the lock of the store's files, for a daemon that takes over.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn share(&self) -> std::io::Result<Option<OwnedFd>> {
        self.lock.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Takes the store, because the old daemon is gone, and writes what had to wait.
    pub(crate) fn take(&self) {
        self.is_anothers.store(false, Ordering::Relaxed);
        self.try_again();
    }

    /// Reads the store from these files.
    fn over(dir: &Path, files: Result<[Box<dyn Medium>; 2], String>) -> Self {
        let mut state = State {
            log: Err(String::new()),
            failed: None,
            is_used: false,
            objects: Objects::default(),
            taken: None,
            history: Arc::default(),
            numbers: BTreeMap::new(),
            kept: BTreeMap::new(),
            foreign: Vec::new(),
            is_old: false,
            damaged: Vec::new(),
            is_anothers: Arc::default(),
        };
        let mut past = Past::default();
        let mut replay = |record: &str| state.replay(record, &mut past);
        let read = files.and_then(|files| Log::read(files, &mut replay).map_err(|e| e.to_string()));
        match read {
            Ok((log, contents)) => {
                state.log = Ok(log);
                (state.is_used, state.damaged) = (contents.is_used, contents.damaged);
            }
            Err(reason) => (state.failed, state.log) = (Some(reason.clone()), Err(reason)),
        }
        state.understand(past);
        let history = state.history.clone();
        let (dir, state) = (dir.to_owned(), Mutex::new(state));
        let problems = Mutex::default();
        let store = Self { dir, state, history, problems, lock: None, is_anothers: Arc::default() };
        store.settle();
        store
    }

    /// Logs what is damaged, and copies the damaged files.
    fn settle(&self) {
        let state = &mut *self.lock();
        for damage in &state.damaged {
            tracing::error!(dir = %self.dir.display(), "the store: {damage}; what was stored there is lost");
        }
        if !state.damaged.is_empty()
            && let Err(e) = copy_files(&self.dir)
        {
            let why = format!("no copy can be made of what is damaged in {}: {e}", self.dir.display());
            tracing::error!("the store is left as it is, and changes are refused: {why}");
            let why = format!("{why}; make room there and restart the daemon");
            (state.failed, state.log) = (Some(why.clone()), Err(why));
        }
        self.tell(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwritable(&self, reason: impl ToString) -> StoreError {
        StoreError::Write { dir: self.dir.clone(), reason: reason.to_string() }
    }

    /// Returns the store's contents; `None` if nothing was ever stored.
    pub(crate) fn load(&self) -> Option<Loaded> {
        let state = self.lock();
        state.is_used.then(|| Loaded {
            objects: state.objects.clone(),
            taken: state.taken.clone(),
            is_damaged: !state.damaged.is_empty(),
        })
    }

    /// Returns the number of the last change.
    pub(crate) fn revision(&self) -> u64 {
        locked(&self.history).number()
    }

    /// Returns the last changes, which every write continues.
    pub(crate) fn history(&self) -> Arc<Mutex<History>> {
        self.history.clone()
    }

    /// Returns the numbers by which people named objects when the store was opened.
    pub(crate) fn numbers(&self) -> Vec<(Key, u32)> {
        self.lock().numbers.iter().map(|(key, number)| (key.clone(), *number)).collect()
    }

    /// Stores changes.
    ///
    /// # Errors
    /// [`StoreError::Write`]; the earlier contents are still stored.
    pub(crate) fn write(&self, update: &Update<'_>) -> Result<(), StoreError> {
        let state = &mut *self.lock();
        let before = (state.objects.clone(), state.taken.clone(), state.kept.clone());
        let mut records: Vec<_> =
            update.revisions.iter().map(|revision| record(revision, update.number)).collect();
        if records.is_empty() && update.taken.is_some() {
            records.push(Record::default());
        }
        if let Some(last) = records.last_mut() {
            last.taken = update.taken.map(str::to_owned);
        }
        if !state.kept.is_empty() {
            let changed = update.revisions.iter().flat_map(|revision| revision.changed());
            changed.for_each(|changed| drop(state.kept.remove(&changed.key().to_string())));
        }
        state.objects = update.objects.clone();
        state.taken = update.taken.map(str::to_owned).or(before.1.clone());
        let written =
            if records.is_empty() { state.sync() } else { state.append_or_snapshot(&records, Some(update)) };
        // A removal may have found room where others would not.
        if written.is_err() || !only_remove(&records) {
            state.note(&self.dir, &written);
        }
        let result = match written {
            Ok(()) => Ok(()),
            Err(_) if update.durability == Durability::DiskOrLater => {
                state.owe();
                Ok(())
            }
            Err(e) => {
                (state.objects, state.taken, state.kept) = before;
                Err(self.unwritable(e))
            }
        };
        if result.is_ok() {
            state.number(update);
            let mut history = locked(&self.history);
            update.revisions.iter().for_each(|revision| history.push(revision.clone()));
        }
        self.tell(state);
        result
    }

    /// Keeps stored objects that can't be in force, until others with their keys are stored.
    pub(crate) fn put_aside(&self, keys: &[config::Key]) {
        let state = &mut *self.lock();
        for key in keys {
            if let Some(listed) = state.objects.get(key) {
                let object = Some(stored(&listed.owned(), state.numbers.get(key).copied()));
                state.kept.insert(key.to_string(), record::one(Entry { key: key.to_string(), object }));
                state.objects.remove(key);
            }
        }
        self.tell(state);
    }

    /// Tries whether the disk works again if the last write failed.
    pub(crate) fn heal(&self) {
        if self.try_again() {
            tracing::info!(dir = %self.dir.display(), "the store can be written again");
        }
    }

    /// Writes what is missing if the last write failed. Returns whether that succeeds now.
    fn try_again(&self) -> bool {
        let state = &mut *self.lock();
        let fails = state.failed.is_some() && state.log.is_ok();
        if fails {
            let written = state.append_or_snapshot(&[Record::default()], None);
            state.note(&self.dir, &written);
            self.tell(state);
        }
        fails && state.failed.is_none()
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).to_vec()
    }

    /// Describes the problems for those who ask later.
    fn tell(&self, state: &State) {
        let failed = state.failed.iter();
        let failed =
            failed.map(|why| format!("changes are refused, {} can't be written: {why}", self.dir.display()));
        let copy = if state.log.is_ok() { "; a copy of the file is beside it (*.damaged)" } else { "" };
        let lost = state.damaged.iter().map(|what| format!("{what}: what was stored there is lost{copy}"));
        let kept = state.kept.keys().map(|key| {
            format!("{key} is kept, but not in force: this version of Viaduct can't read it, or it does not fit the rest")
        });
        let foreign = (!state.foreign.is_empty()).then(|| {
            format!("{} records of a newer version are kept, but not in force", state.foreign.len())
        });
        let all = failed.chain(lost).chain(kept).chain(foreign).collect();
        *self.problems.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(all);
    }
}

impl State {
    fn replay(&mut self, text: &str, past: &mut Past) {
        let Ok(record) = serde_json::from_str(text) else { return self.foreign.push(text.to_owned()) };
        let Record { changed, routes, taken, revision, made, made_with_routes, undo, undone, unknown } =
            record;
        past.replay((changed, routes), revision, made.or(made_with_routes));
        undo.into_iter().chain(undone).for_each(|undo| past.rewind(undo));
        self.taken = taken.or(self.taken.take());
        if !unknown.is_empty() {
            self.foreign.push(Record { unknown, ..Record::default() }.text());
        }
    }

    /// Makes objects of what was stored. What it can't read is kept as it is.
    fn understand(&mut self, mut past: Past) {
        self.objects = past.take_routes();
        self.objects.pack();
        self.kept = past.take_unread().collect();
        self.is_old = past.is_old;
        let (touched, mut known) = (past.touched(), HashMap::new());
        for (text, stored) in past.entries() {
            let Some((owner, object)) = object(stored) else {
                let object = Some(stored.clone());
                self.kept.insert(text.clone(), record::one(Entry { key: text.clone(), object }));
                continue;
            };
            let key = object.key();
            self.objects.restore(stored.seq, owner, object);
            if touched.contains(text.as_str()) {
                known.extend(self.objects.shared(&key).map(|shared| (text.as_str(), shared)));
            }
            self.numbers.extend(stored.number.map(|number| (key, number)));
        }
        let history = past.history(&known);
        let remembered = history.last().flat_map(|revision| revision.changed());
        remembered.filter_map(Changed::last_seq).for_each(|seq| self.objects.leave_free(seq));
        *locked(&self.history) = history;
    }

    /// Takes over the numbers of changes.
    fn number(&mut self, update: &Update<'_>) {
        for changed in update.revisions.iter().flat_map(|revision| revision.changed()) {
            // People name rules by numbers.
            let Changed::Other { key, new, .. } = changed else { continue };
            match (update.number)(key).filter(|_| new.is_some()) {
                Some(number) => drop(self.numbers.insert(Key::clone(key), number)),
                None => drop(self.numbers.remove(&**key)),
            }
        }
    }

    /// Stores changes that were already made in memory.
    fn append_or_snapshot(&mut self, records: &[Record], update: Option<&Update<'_>>) -> Result<(), String> {
        let log = self.log.as_ref().map_err(String::clone)?;
        if log.needs_snapshot() {
            return self.write_snapshot(update);
        }
        // This snapshot is only worthwhile, not needed, so it may fail: the records can still be appended.
        if (log.is_long() || self.is_old) && self.write_snapshot(update).is_ok() {
            return Ok(());
        }
        let log = self.log.as_mut().map_err(|reason| reason.clone())?;
        let room = match records {
            records if only_remove(records) => Room::Spare,
            records if records.iter().all(Record::is_empty) => Room::Lacking,
            _ => Room::More,
        };
        let waits = update.is_none_or(|update| update.durability != Durability::Kernel);
        log.append(records.iter().map(Record::text), waits, room).map_err(|e| e.to_string())
    }

    /// Makes the next write store everything.
    fn owe(&mut self) {
        if let Ok(log) = &mut self.log {
            log.distrust();
        }
    }

    /// Waits until the disk has all that is stored.
    fn sync(&mut self) -> Result<(), String> {
        let log = self.log.as_mut().map_err(|reason| reason.clone())?;
        if log.needs_snapshot() { self.write_snapshot(None) } else { log.sync().map_err(|e| e.to_string()) }
    }

    /// Writes all that is stored anew, with what an update adds to it: the objects, and the changes that are remembered,
    /// the last one first. So damage to one of these costs the way back beyond it, and no object.
    fn write_snapshot(&mut self, update: Option<&Update<'_>>) -> Result<(), String> {
        let mut history = locked(&self.history).clone();
        let coming = update.map(|update| update.revisions).unwrap_or_default();
        coming.iter().for_each(|revision| history.push(revision.clone()));
        let number = |key: &Key| {
            let coming = update.and_then(|update| (update.number)(key));
            coming.or_else(|| self.numbers.get(key).copied())
        };
        let begin =
            Record { taken: self.taken.clone(), revision: Some(history.number()), ..Record::default() };
        let objects = self.objects.listed().map(|listed| match listed {
            Listed::Route(Written { network, prefix, kept }) => {
                let routes = vec![RouteEntry::new(network, prefix, Some(kept))];
                Record { routes, ..Record::default() }.text()
            }
            Listed::Other(owned) => {
                let key = owned.object.key();
                record::one(entry(&key, Some(owned), number(&key)))
            }
        });
        let changes = history.last().rev().map(|revision| {
            let (before, routes) = (others_before(revision), routes_before(revision));
            let has_routes = !routes.is_empty();
            let undo = Some(Undo { revision: revision.number, made: made(revision), before, routes });
            let (undo, undone) = if has_routes { (None, undo) } else { (undo, None) };
            Record { undo, undone, ..Record::default() }.text()
        });
        let records = std::iter::once(begin.text())
            .chain(self.foreign.iter().cloned())
            .chain(objects)
            .chain(self.kept.values().cloned())
            .chain(changes);
        let log = self.log.as_mut().map_err(|reason| reason.clone())?;
        log.snapshot(records).map_err(|e| e.to_string())?;
        self.is_old = false;
        Ok(())
    }

    /// Notes the result of a write. While the old daemon has the store, no write can succeed, so failures are
    /// not logged.
    fn note(&mut self, dir: &Path, written: &Result<(), String>) {
        if let Err(e) = written
            && self.failed.as_ref() != Some(e)
            && !self.is_anothers.load(Ordering::Relaxed)
        {
            let dir = dir.display();
            tracing::error!("the store in {dir} can't be written, and changes are refused: {e}");
        }
        self.failed = written.as_ref().err().cloned();
        self.is_used |= written.is_ok();
    }
}

fn locked(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the record of a change; `number` returns the number by which people name an object.
fn record(revision: &Revision, number: &dyn Fn(&Key) -> Option<u32>) -> Record {
    let (mut changed, mut routes) = (Vec::new(), Vec::new());
    for difference in revision.changed() {
        match difference {
            Changed::Route { network, prefix, new, .. } => routes.push(RouteEntry::new(network, prefix, new)),
            Changed::Other { key, new, .. } => changed.push(entry(key, new.map(|new| &**new), number(key))),
        }
    }
    let (revision, made) = (Some(revision.number), Some(made(revision)));
    let (made, made_with_routes) = if routes.is_empty() { (made, None) } else { (None, made) };
    Record { changed, routes, revision, made, made_with_routes, ..Record::default() }
}

/// Returns the objects before a change that are no routes.
fn others_before(revision: &Revision) -> Vec<Entry> {
    let others = revision.changed().filter_map(|changed| match changed {
        Changed::Other { key, old, .. } => Some(entry(key, old.map(|old| &**old), None)),
        Changed::Route { .. } => None,
    });
    others.collect()
}

fn routes_before(revision: &Revision) -> Vec<RouteEntry> {
    let routes = revision.changed().filter_map(|changed| match changed {
        Changed::Route { network, prefix, old, .. } => Some(RouteEntry::new(network, prefix, old)),
        Changed::Other { .. } => None,
    });
    routes.collect()
}

fn only_remove(records: &[Record]) -> bool {
    !records.is_empty() && records.iter().all(Record::only_removes)
}

fn made(revision: &Revision) -> Made {
    let (time, request) = (revision.since_1970(), revision.request.clone().into_owned());
    Made { time, uid: revision.uid, request }
}

fn entry(key: &Key, owned: Option<&Owned>, number: Option<u32>) -> Entry {
    Entry { key: key.to_string(), object: owned.map(|owned| stored(owned, number)) }
}

fn stored(owned: &Owned, number: Option<u32>) -> Stored {
    Stored { seq: owned.seq, owner: owned.owner.name().to_owned(), toml: owned.object.to_toml(), number }
}

/// Returns network and prefix of a route from its key in words; `None` if it is the key of something else.
fn place_in(key: &str) -> Option<(String, IpNet)> {
    let (prefix, network) =
        key.strip_prefix("route \"")?.strip_suffix('"')?.split_once("\" of network \"")?;
    Some((network.to_owned(), prefix.parse().ok()?))
}

/// Reads a stored object; `None` if this version can't.
fn object(stored: &Stored) -> Option<(Owner, Object)> {
    let read = config::parse_objects(&stored.toml).ok()?;
    Some((Owner::from_name(&stored.owner)?, read.into_iter().next()?))
}

#[cfg(test)]
mod tests;
