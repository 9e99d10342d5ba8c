//! The store as version 1 had it: a database, and a journal of the changes made since.

use super::record::{Entry, Stored};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Key in words to place, owner and the object as TOML.
const OBJECTS: TableDefinition<'_, &str, (u64, &str, &str)> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const VERSION: u64 = 1;

/// Its files.
const FILES: [&str; 2] = ["viaduct.redb", "viaduct.journal"];

/// The first line of the journal. One of another generation than the database names was left behind by a crash: what
/// it tells is in the database already.
#[derive(Deserialize)]
struct Header {
    generation: u64,
}

/// What it held.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    pub(super) entries: Vec<Entry>,
    /// What is damaged, in words.
    pub(super) damaged: Vec<String>,
}

/// Why it can't be read.
#[derive(Debug)]
pub(super) enum LegacyError {
    /// A daemon of that version runs.
    InUse,
    /// What is wrong.
    Damaged(String),
}

impl<E: std::error::Error> From<E> for LegacyError {
    fn from(error: E) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Where it is.
pub(super) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILES[0])
}

/// Puts its files aside.
///
/// # Errors
/// They stay where they are.
pub(super) fn put_aside(state_dir: &Path) -> std::io::Result<()> {
    for name in FILES.map(|name| state_dir.join(name)).iter().filter(|name| name.exists()) {
        let mut aside = name.clone().into_os_string();
        aside.push(".old");
        std::fs::rename(name, aside)?;
    }
    Ok(())
}

/// Reads it; `None` where there is none, or nothing was ever stored.
///
/// # Errors
/// [`LegacyError`].
pub(super) fn read(state_dir: &Path) -> Result<Option<Legacy>, LegacyError> {
    if !path(state_dir).exists() {
        return Ok(None);
    }
    let database = match Database::create(path(state_dir)) {
        Err(redb::DatabaseError::DatabaseAlreadyOpen) => return Err(LegacyError::InUse),
        other => other?,
    };
    let read = database.begin_read()?;
    let meta = match read.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        other => other?,
    };
    match meta.get("version")?.map(|version| version.value()) {
        Some(VERSION) => {}
        other => return Err(LegacyError::Damaged(format!("its version is {other:?}, not {VERSION}"))),
    }
    let generation = meta.get("journal")?.map_or(0, |generation| generation.value());
    let mut entries = BTreeMap::new();
    for entry in read.open_table(OBJECTS)?.iter()? {
        let (key, value) = entry?;
        let (seq, owner, toml) = value.value();
        let object = Stored { seq, owner: owner.to_owned(), toml: toml.to_owned() };
        entries.insert(key.value().to_owned(), object);
    }
    let damaged =
        replay(&std::fs::read(state_dir.join(FILES[1])).unwrap_or_default(), generation, &mut entries);
    let entries = entries.into_iter().map(|(key, object)| Entry { key, object: Some(object) }).collect();
    Ok(Some(Legacy { entries, damaged }))
}

/// Makes the changes of a journal, and returns which of its lines can't be read.
fn replay(journal: &[u8], generation: u64, entries: &mut BTreeMap<String, Stored>) -> Vec<String> {
    let mut damaged = Vec::new();
    for (number, line) in journal.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if number == 0 {
            match serde_json::from_slice::<Header>(line) {
                Ok(header) if header.generation == generation => continue,
                _ => return damaged,
            }
        }
        let Ok(changes) = serde_json::from_slice::<Vec<Entry>>(line) else {
            damaged.push(format!("line {} of {} is damaged or incomplete", number + 1, FILES[1]));
            continue;
        };
        for Entry { key, object } in changes {
            match object {
                Some(object) => drop(entries.insert(key, object)),
                None => drop(entries.remove(&key)),
            }
        }
    }
    damaged
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A store of version 1 with these objects in its database, and these lines in its journal.
    pub(crate) fn write(state_dir: &Path, objects: &[(&str, &str)], journal: &[&str]) {
        let database = Database::create(path(state_dir)).unwrap();
        let write = database.begin_write().unwrap();
        {
            let mut meta = write.open_table(META).unwrap();
            meta.insert("version", VERSION).unwrap();
            meta.insert("journal", 3).unwrap();
            let mut table = write.open_table(OBJECTS).unwrap();
            for (seq, (key, toml)) in objects.iter().enumerate() {
                table.insert(key, (seq as u64, "api", *toml)).unwrap();
            }
        }
        write.commit().unwrap();
        let lines: String = journal.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(state_dir.join(FILES[1]), format!("{{\"generation\":3}}\n{lines}")).unwrap();
    }

    #[test]
    fn changes_behind_a_damaged_line_count() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let journal = [
            "[{\"key\":\"a\"}]",
            "[{\"key\":\"b\"",
            "[{\"key\":\"c\",\"object\":{\"seq\":7,\"owner\":\"api\",\"toml\":\"c\"}}]",
        ];
        write(dir.path(), &[("a", "A"), ("b", "B")], &journal);
        let found = read(dir.path()).unwrap().unwrap();
        let keys: Vec<_> = found.entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["b", "c"]);
        assert_eq!(found.damaged, ["line 3 of viaduct.journal is damaged or incomplete"]);
        put_aside(dir.path()).unwrap();
        assert!(read(dir.path()).unwrap().is_none() && dir.path().join("viaduct.redb.old").exists());
    }

    #[test]
    fn a_journal_that_the_database_has_taken_up_counts_no_more() {
        let mut entries = BTreeMap::new();
        let journal = b"{\"generation\":2}\n[{\"key\":\"a\",\"object\":{\"seq\":1,\"owner\":\"api\",\"toml\":\"x\"}}]\n";
        assert_eq!(replay(journal, 3, &mut entries), [""; 0]);
        assert!(entries.is_empty());
        assert_eq!(replay(journal, 2, &mut entries), [""; 0]);
        assert_eq!(entries.len(), 1);
    }
}
