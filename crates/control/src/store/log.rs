//! The store's two files. One has a snapshot of all records and, behind it, later records. A new snapshot
//! goes to the other file, which counts from the moment at which its header is written. The daemon can't
//! create or rename files, so both are open from the start.

use super::frame::{Frame, frames, put};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;

/// Version of the stored format.
pub(super) const VERSION: u64 = 2;

/// Length in bytes beyond which a new snapshot may be worthwhile.
const LONG: u64 = 64 << 20;

/// Bytes of the disk that are kept free for records that only remove something, and bytes that are taken at a time as
/// long as there are as many.
const SPARE: u64 = 16 << 10;
const AHEAD: u64 = 1 << 20;

/// The room that records may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The disk's space beside the spare room.
    More,
    /// The spare room.
    Spare,
    /// As much more as was lacking last.
    Lacking,
}

/// Bytes of a snapshot that are written at a time.
const CHUNK: usize = 1 << 20;

/// A file, or a simulation that can fail like one.
pub(super) trait Medium: Send {
    fn contents(&mut self) -> io::Result<Vec<u8>>;
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Takes the disk's space up to `end`, without changing the contents. Does nothing where that is impossible.
    fn reserve(&mut self, end: u64) -> io::Result<()>;
}

impl Medium for File {
    fn contents(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.rewind()?;
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn reserve(&mut self, end: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::KEEP_SIZE, 0, end) {
            Err(e @ (Errno::NOSPC | Errno::DQUOT)) => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of the daemon that wrote it.
    version: u64,
    /// Counts snapshots, from 1, in sixteen hexadecimal digits; 0 while a snapshot is being written.
    generation: String,
}

impl Header {
    fn text(version: u64, generation: u64) -> String {
        let header = Self { version, generation: format!("{generation:016x}") };
        // A number and a string always are JSON.
        serde_json::to_string(&header).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// No snapshot was ever finished in it.
    Empty,
    /// The header is damaged.
    Unknown,
    /// The snapshot of this generation was finished.
    Finished { generation: u64, version: u64 },
}

impl Standing {
    fn of(bytes: &[u8], found: &[Frame<'_>]) -> Self {
        let header = match found.first() {
            Some(Frame::Record(record)) => serde_json::from_str::<Header>(record).ok(),
            _ => None,
        };
        let read = |header: Header| {
            let generation = u64::from_str_radix(&header.generation, 16).ok()?;
            Some((generation, header.version))
        };
        match header.and_then(read) {
            _ if bytes.is_empty() => Self::Empty,
            Some((0, _)) => Self::Empty,
            Some((generation, version)) => Self::Finished { generation, version },
            None => Self::Unknown,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Whether anything was ever stored.
    pub(super) is_used: bool,
    /// Descriptions of the damage.
    pub(super) damaged: Vec<String>,
}

pub(super) struct Log {
    files: [Box<dyn Medium>; 2],
    /// Index of the file that counts.
    current: usize,
    generation: u64,
    /// Version in its header. A newer one stays.
    version: u64,
    /// Length of the valid part of that file, bytes.
    len: u64,
    /// Length of its snapshot, bytes.
    snapshot: u64,
    /// End of the space that the file has on the disk, as far as we know, and length of records for which there was
    /// none.
    reserved: u64,
    lacking: u64,
    /// Whether there may be something behind the valid part.
    is_torn: bool,
    /// Whether nothing can be appended, because of damage or because the disk may lack earlier writes.
    is_suspect: bool,
    /// Whether the other file may have contents.
    is_other_used: bool,
}

impl Log {
    /// Reads the files. `each` takes the records, without the header, in their order.
    ///
    /// # Errors
    /// A file can't be read.
    pub(super) fn read(
        mut files: [Box<dyn Medium>; 2],
        each: &mut dyn FnMut(&str),
    ) -> io::Result<(Self, Contents)> {
        let [one, two] = &mut files;
        let bytes = [one.contents()?, two.contents()?];
        let found = [frames(&bytes[0]), frames(&bytes[1])];
        let standings = [0, 1].map(|at| Standing::of(&bytes[at], &found[at]));
        let current = usize::from((standings[1], bytes[1].len()) > (standings[0], bytes[0].len()));
        let (generation, version) = match standings[current] {
            Standing::Finished { generation, version } => (generation, version),
            Standing::Empty | Standing::Unknown => (0, VERSION),
        };
        let is_used = standings[current] != Standing::Empty;
        let mut log = Self {
            files,
            current,
            generation,
            version: version.max(VERSION),
            len: bytes[current].len() as u64,
            snapshot: 0,
            reserved: 0,
            lacking: 0,
            is_torn: false,
            is_suspect: !is_used,
            is_other_used: !bytes[1 - current].is_empty(),
        };
        let mut contents = Contents { is_used, ..Contents::default() };
        if is_used {
            log.take(&found[current], &mut contents, each);
        }
        if standings[1 - current] == Standing::Unknown {
            contents.damaged.push(format!("store.{} has no header that can be read", 1 - current));
        }
        Ok((log, contents))
    }

    /// Takes the frames found in the file that counts.
    fn take(&mut self, found: &[Frame<'_>], contents: &mut Contents, each: &mut dyn FnMut(&str)) {
        for (number, frame) in found.iter().enumerate() {
            match frame {
                Frame::Record(_) if number == 0 && self.generation > 0 => {}
                Frame::Record(record) => each(record),
                Frame::Damaged { at, len } => {
                    self.is_suspect = true;
                    let damage = format!(
                        "{len} bytes from {at} on of store.{} are damaged or incomplete",
                        self.current
                    );
                    contents.damaged.push(damage);
                }
            }
        }
    }

    /// Is true if a new snapshot must be written before records can be appended.
    pub(super) const fn needs_snapshot(&self) -> bool {
        self.is_suspect
    }

    /// Makes the next write a snapshot.
    pub(super) const fn distrust(&mut self) {
        self.is_suspect = true;
    }

    /// Is true if a new snapshot is worthwhile.
    pub(super) const fn is_long(&self) -> bool {
        self.len > LONG && self.len / 2 > self.snapshot
    }

    /// Appends records by one write; with `sync`, waits for the disk.
    ///
    /// # Errors
    /// No record is stored.
    pub(super) fn append(
        &mut self,
        records: impl Iterator<Item = String>,
        sync: bool,
        room: Room,
    ) -> io::Result<()> {
        if self.is_suspect {
            return Err(io::Error::other("a new snapshot has to be written first"));
        }
        self.tidy()?;
        let mut lines = Vec::new();
        records.for_each(|record| put(&mut lines, &record));
        let need = lines.len() as u64;
        match room {
            Room::More => {
                let reserved = self.reserve(self.len + need);
                if reserved.is_err() {
                    self.lacking = need;
                }
                reserved?;
            }
            Room::Lacking => self.reserve(self.len + need.max(self.lacking))?,
            Room::Spare => {}
        }
        let file = &mut self.files[self.current];
        let written = file.write_at(&lines, self.len);
        let synced = written.and_then(|()| if sync { file.sync() } else { Ok(()) });
        if let Err(e) = synced {
            // After a failed sync the kernel takes pages for written that the disk does not have (fsync(2)).
            self.is_suspect = sync;
            self.is_torn = true;
            let _ = self.tidy();
            return Err(e);
        }
        self.len += need;
        Ok(())
    }

    /// Takes space on the disk for contents up to `end`, and the spare room behind them.
    ///
    /// # Errors
    /// There is not enough.
    fn reserve(&mut self, end: u64) -> io::Result<()> {
        if end + SPARE <= self.reserved {
            return Ok(());
        }
        let file = &mut self.files[self.current];
        let most = end + SPARE + AHEAD;
        self.reserved = match file.reserve(most) {
            Ok(()) => most,
            Err(_) => file.reserve(end + SPARE).map(|()| end + SPARE)?,
        };
        self.lacking = 0;
        Ok(())
    }

    /// Cuts off what a failed write left behind, and empties the other file.
    ///
    /// # Errors
    /// A file can't be cut off.
    fn tidy(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.files[self.current].truncate(self.len)?;
            (self.is_torn, self.reserved) = (false, 0);
        }
        if self.is_other_used {
            self.files[1 - self.current].truncate(0)?;
            self.is_other_used = false;
        }
        Ok(())
    }

    /// Waits until the disk has all that was appended.
    ///
    /// # Errors
    /// The disk fails.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.files[self.current].sync().inspect_err(|_| self.is_suspect = true)
    }

    /// Writes all records anew, and waits for the disk.
    ///
    /// # Errors
    /// All is as before.
    pub(super) fn snapshot(&mut self, records: impl Iterator<Item = String>) -> io::Result<()> {
        let generation = self.generation + 1;
        self.is_other_used = true;
        let written = self.write_snapshot(records, generation);
        if written.is_err() {
            // Frees the space, and undoes a header that the disk may have.
            let _ = self.files[1 - self.current].truncate(0).map(|()| self.is_other_used = false);
        }
        self.len = written?;
        (self.snapshot, self.generation, self.current) = (self.len, generation, 1 - self.current);
        (self.is_torn, self.is_suspect, self.is_other_used) = (false, false, true);
        self.reserved = 0;
        let _ = self.tidy();
        // Whether there is room for more is the business of those who write more.
        let _ = self.reserve(self.len);
        Ok(())
    }

    /// Writes the records to the other file, and returns its length.
    fn write_snapshot(&mut self, records: impl Iterator<Item = String>, generation: u64) -> io::Result<u64> {
        let file = &mut self.files[1 - self.current];
        file.truncate(0)?;
        let (mut chunk, mut len) = (Vec::new(), 0);
        put(&mut chunk, &Header::text(self.version, 0));
        for record in records {
            put(&mut chunk, &record);
            if chunk.len() >= CHUNK {
                file.write_at(&chunk, len)?;
                len += chunk.len() as u64;
                chunk.clear();
            }
        }
        file.write_at(&chunk, len)?;
        len += chunk.len() as u64;
        file.sync()?;
        let mut header = Vec::new();
        put(&mut header, &Header::text(self.version, generation));
        file.write_at(&header, 0)?;
        file.sync()?;
        Ok(len)
    }
}
