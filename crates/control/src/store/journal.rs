//! The changes since the database was last written: a header, then a line of JSON for each.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::Path;

/// A changed object.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Its key in words.
    pub(super) key: String,
    /// What it is now; `None`: removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<Object>,
}

/// An object as it is stored.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) seq: u64,
    pub(super) owner: String,
    pub(super) toml: String,
}

/// The first line. A journal of another generation than the database names was left behind by a crash: what it
/// tells is in the database already.
#[derive(Serialize, Deserialize)]
struct Header {
    generation: u64,
}

/// The file.
pub(super) struct Journal {
    file: File,
    generation: u64,
    len: u64,
}

impl Journal {
    /// Opens it, or makes an empty one.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        Ok(Self { file, generation: 0, len: 0 })
    }

    /// Its generation, as of the last [`Self::replay`] or [`Self::restart`].
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Its length, bytes.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// What it tells, if it is of this generation. It ends before the first line that is not whole, which was being
    /// written when the machine stopped; that is cut off.
    pub(super) fn replay(&mut self, generation: u64) -> io::Result<Vec<Entry>> {
        (self.generation, self.len) = (generation, 0);
        self.file.rewind()?;
        let mut reader = BufReader::new(&self.file);
        let (mut line, mut entries) = (Vec::new(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            if self.len == 0 {
                let header = serde_json::from_slice::<Header>(&line);
                if header.map_or(true, |header| header.generation != generation) {
                    break;
                }
            } else {
                let Ok(change) = serde_json::from_slice::<Vec<Entry>>(&line) else { break };
                entries.extend(change);
            }
            self.len += line.len() as u64;
            line.clear();
        }
        match self.len {
            0 => self.restart(generation)?,
            len => self.file.set_len(len)?,
        }
        Ok(entries)
    }

    /// Empties it.
    pub(super) fn restart(&mut self, generation: u64) -> io::Result<()> {
        self.file.set_len(0)?;
        (self.generation, self.len) = (generation, 0);
        self.append(&text(&Header { generation }))
    }

    /// A line that tells of a change.
    pub(super) fn line(entries: impl Iterator<Item = Entry>) -> String {
        text(&entries.collect::<Vec<_>>())
    }

    /// Appends a line. If that fails, the journal is as before.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes()).inspect_err(|_| {
            let _ = self.file.set_len(self.len);
        })?;
        self.len += line.len() as u64;
        Ok(())
    }
}

/// A line.
fn text<T: Serialize>(value: &T) -> String {
    // Numbers and strings always are JSON.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
