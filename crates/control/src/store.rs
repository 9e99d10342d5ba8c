//! The store: the host's objects on disk. Writes are atomic.
//!
//! It is a database, whose every write waits for the disk, and a journal of the changes made since: a line each, in
//! the kernel's hands when the write returns, so that it outlives the daemon though not a power cut. The next write
//! to the database takes the journal's changes along and starts a new one.

mod journal;

use crate::owner::{Changed, Objects, Owner};
use journal::{Entry, Journal};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Key in words to place, owner and the object as TOML.
const OBJECTS: TableDefinition<'_, &str, (u64, &str, &str)> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Version of what is stored.
const VERSION: u64 = 1;

/// Length of a journal, bytes, beyond which its changes go to the database.
const LONG_JOURNAL: u64 = 64 << 20;

/// How safe a write shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It survives power cuts.
    Disk,
    /// It survives the daemon's death.
    Kernel,
}

/// The daemon's storage.
pub struct Store {
    database: Database,
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// What the database holds, without the journal.
    saved: Objects,
    journal: Journal,
}

/// Why the store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("the store {} is in use by another daemon; give this one its own --state-dir", .0.display())]
    InUse(PathBuf),
    /// It is not a store, or damaged.
    #[error(
        "the store {} can't be read: {reason}\nTo start anew from the configuration file, move it away: mv {} {}.bad",
        path.display(), path.display(), path.display()
    )]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It can't be written.
    #[error("the store {} can't be written: {reason}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Store {
    /// Opens the store in a directory, or makes an empty one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("viaduct.redb");
        let unwritable = |e: std::io::Error| StoreError::Write { path: path.clone(), reason: e.to_string() };
        std::fs::create_dir_all(state_dir).map_err(unwritable)?;
        let database = match Database::create(&path) {
            Ok(database) => database,
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => return Err(StoreError::InUse(path)),
            Err(e) => return Err(StoreError::Damaged { path, reason: e.to_string() }),
        };
        let journal = Journal::open(&state_dir.join("viaduct.journal")).map_err(unwritable)?;
        Ok(Self { database, path, state: Mutex::new(State { saved: Objects::default(), journal }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn damaged(&self, reason: impl ToString) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }

    fn unwritable(&self, reason: impl ToString) -> StoreError {
        StoreError::Write { path: self.path.clone(), reason: reason.to_string() }
    }

    /// The objects stored; `None` where nothing ever was.
    pub(crate) fn load(&self) -> Result<Option<Objects>, StoreError> {
        let Some((generation, mut entries)) = self.load_database()? else { return Ok(None) };
        let mut state = self.lock();
        state.saved = self.read(&entries)?;
        for Entry { key, object } in state.journal.replay(generation).map_err(|e| self.unwritable(e))? {
            match object {
                Some(object) => drop(entries.insert(key, object)),
                None => drop(entries.remove(&key)),
            }
        }
        self.read(&entries).map(Some)
    }

    /// The generation of the database's journal, and what is stored by key in words.
    #[allow(clippy::type_complexity)] // told in the line above
    fn load_database(&self) -> Result<Option<(u64, BTreeMap<String, journal::Object>)>, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.damaged(e))?;
        let meta = match read.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(self.damaged(e)),
        };
        let number = |name: &str| {
            let value = meta.get(name).map_err(|e| self.damaged(e))?;
            Ok(value.map(|value| value.value()))
        };
        match number("version")? {
            Some(VERSION) => {}
            other => {
                let version = other.map_or("none".to_owned(), |v| v.to_string());
                return Err(self.damaged(format!("its version is {version}, this daemon's is {VERSION}")));
            }
        }
        let table = read.open_table(OBJECTS).map_err(|e| self.damaged(e))?;
        let mut entries = BTreeMap::new();
        for entry in table.iter().map_err(|e| self.damaged(e))? {
            let (key, value) = entry.map_err(|e| self.damaged(e))?;
            let (seq, owner, toml) = value.value();
            let object = journal::Object { seq, owner: owner.to_owned(), toml: toml.to_owned() };
            entries.insert(key.value().to_owned(), object);
        }
        Ok(Some((number("journal")?.unwrap_or_default(), entries)))
    }

    /// What was stored, as objects.
    fn read(&self, entries: &BTreeMap<String, journal::Object>) -> Result<Objects, StoreError> {
        let mut objects = Objects::default();
        for (key, journal::Object { seq, owner, toml }) in entries {
            let owner = Owner::from_name(owner)
                .ok_or_else(|| self.damaged(format!("{key}: unknown owner {owner}")))?;
            let read = config::parse_objects(toml).map_err(|e| self.damaged(format!("{key}: {e}")))?;
            read.into_iter().for_each(|object| objects.restore(*seq, owner, object));
        }
        Ok(objects)
    }

    /// Prepares to store `new`, which differs by `changed` from what is stored; nothing is written before
    /// [`Pending::commit`]. Only one may be pending.
    pub(crate) fn prepare(
        &self,
        changed: &[Changed<'_>],
        new: &Objects,
        durability: Durability,
    ) -> Result<Pending<'_>, StoreError> {
        let state = self.lock();
        let write = if durability == Durability::Kernel && state.journal.len() < LONG_JOURNAL {
            Write::Journal(Journal::line(changed.iter().map(entry)))
        } else {
            let generation = state.journal.generation() + 1;
            let write = self.prepare_database(&state.saved, new, generation)?;
            Write::Database(write.into(), new.clone(), generation)
        };
        Ok(Pending { store: self, write })
    }

    fn prepare_database(
        &self,
        saved: &Objects,
        new: &Objects,
        generation: u64,
    ) -> Result<WriteTransaction, StoreError> {
        let write = self.database.begin_write().map_err(|e| self.unwritable(e))?;
        {
            let mut meta = write.open_table(META).map_err(|e| self.unwritable(e))?;
            meta.insert("version", VERSION).map_err(|e| self.unwritable(e))?;
            meta.insert("journal", generation).map_err(|e| self.unwritable(e))?;
            let mut table = write.open_table(OBJECTS).map_err(|e| self.unwritable(e))?;
            for Entry { key, object } in saved.changes_to(new).iter().map(entry) {
                let key = key.as_str();
                match object {
                    Some(journal::Object { seq, owner, toml }) => {
                        let value = (seq, owner.as_str(), toml.as_str());
                        table.insert(key, value).map_err(|e| self.unwritable(e))?;
                    }
                    None => drop(table.remove(key).map_err(|e| self.unwritable(e))?),
                }
            }
        }
        Ok(write)
    }
}

/// A change as it is written.
fn entry(changed: &Changed<'_>) -> Entry {
    let object = changed.new.map(|is| journal::Object {
        seq: is.seq,
        owner: is.owner.name().to_owned(),
        toml: is.object.to_toml(),
    });
    Entry { key: changed.key.to_string(), object }
}

/// Changes not written yet; dropped, they are forgotten.
pub(crate) struct Pending<'a> {
    store: &'a Store,
    write: Write,
}

enum Write {
    /// With what the database holds then, and the generation of its journal.
    Database(Box<WriteTransaction>, Objects, u64),
    /// A line.
    Journal(String),
}

impl Pending<'_> {
    /// Writes them.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        let mut state = self.store.lock();
        match self.write {
            Write::Journal(line) => state.journal.append(&line).map_err(|e| self.store.unwritable(e)),
            Write::Database(write, new, generation) => {
                write.commit().map_err(|e| self.store.unwritable(e))?;
                state.saved = new;
                state.journal.restart(generation).map_err(|e| self.store.unwritable(e))
            }
        }
    }
}

#[cfg(test)]
mod tests;
