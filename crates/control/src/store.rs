//! The store: the host's objects on disk. Every write is on disk when it returns, whole or not at all.

use crate::owner::{Objects, Owner};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::path::{Path, PathBuf};

/// Key in words to place, owner and the object as TOML.
const OBJECTS: TableDefinition<'_, &str, (u64, &str, &str)> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Version of what is stored.
const VERSION: u64 = 1;

/// The daemon's storage.
pub struct Store {
    database: Database,
    path: PathBuf,
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
        std::fs::create_dir_all(state_dir)
            .map_err(|e| StoreError::Write { path: path.clone(), reason: e.to_string() })?;
        match Database::create(&path) {
            Ok(database) => Ok(Self { database, path }),
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse(path)),
            Err(e) => Err(StoreError::Damaged { path, reason: e.to_string() }),
        }
    }

    fn damaged(&self, reason: impl ToString) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }

    fn unwritable(&self, reason: impl ToString) -> StoreError {
        StoreError::Write { path: self.path.clone(), reason: reason.to_string() }
    }

    /// The objects stored; `None` where nothing ever was.
    pub(crate) fn load(&self) -> Result<Option<Objects>, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.damaged(e))?;
        let meta = match read.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(self.damaged(e)),
        };
        match meta.get("version").map_err(|e| self.damaged(e))?.map(|version| version.value()) {
            Some(VERSION) => {}
            other => {
                let version = other.map_or("none".to_owned(), |v| v.to_string());
                return Err(self.damaged(format!("its version is {version}, this daemon's is {VERSION}")));
            }
        }
        let table = read.open_table(OBJECTS).map_err(|e| self.damaged(e))?;
        let mut objects = Objects::default();
        for entry in table.iter().map_err(|e| self.damaged(e))? {
            let (key, value) = entry.map_err(|e| self.damaged(e))?;
            let (seq, owner, toml) = value.value();
            let owner = Owner::from_name(owner)
                .ok_or_else(|| self.damaged(format!("{}: unknown owner {owner}", key.value())))?;
            let read = config::parse_objects(toml);
            let read = read.map_err(|e| self.damaged(format!("{}: {e}", key.value())))?;
            read.into_iter().for_each(|object| objects.restore(seq, owner, object));
        }
        Ok(Some(objects))
    }

    /// Prepares to store the difference between two sets of objects; nothing is written before [`Pending::commit`].
    pub(crate) fn prepare(&self, old: &Objects, new: &Objects) -> Result<Pending<'_>, StoreError> {
        let write = self.database.begin_write().map_err(|e| self.unwritable(e))?;
        {
            let mut meta = write.open_table(META).map_err(|e| self.unwritable(e))?;
            meta.insert("version", VERSION).map_err(|e| self.unwritable(e))?;
            let mut table = write.open_table(OBJECTS).map_err(|e| self.unwritable(e))?;
            for (key, _) in old.iter().filter(|(key, _)| new.get(key).is_none()) {
                table.remove(key.to_string().as_str()).map_err(|e| self.unwritable(e))?;
            }
            for (key, is) in new.iter().filter(|(key, is)| old.get(key) != Some(is)) {
                let toml = is.object.to_toml();
                let value = (is.seq, is.owner.name(), toml.as_str());
                table.insert(key.to_string().as_str(), value).map_err(|e| self.unwritable(e))?;
            }
        }
        Ok(Pending { store: self, write })
    }
}

/// Changes not written yet; dropped, they are forgotten.
pub(crate) struct Pending<'a> {
    store: &'a Store,
    write: WriteTransaction,
}

impl Pending<'_> {
    /// Writes them; they are on disk when this returns.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        self.write.commit().map_err(|e| self.store.unwritable(e))
    }
}

#[cfg(test)]
mod tests;
