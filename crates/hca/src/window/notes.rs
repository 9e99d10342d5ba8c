//! The file `RUN_DIR/windows`, which records for a later daemon which program has which pages of which window.
//!
//! | bytes | what is there |
//! |---|---|
//! | 0 to 64 KiB | the version, and an entry for each window: its name, its identifier, where its area is |
//! | the area of a window | records of programs, then a number of two bytes for each page: that of the program that has it |
//!
//! Nobody but the daemon's own user may write the file, and guests never have it. What is read is checked all the
//! same. Unlike the note in a window, which guests may write, it can be trusted to tell whose pages are whose.

use crate::window::host_process::{End, HostProcess};
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate, unlink};
use rustix::io::{Errno, pread, pwrite};
use sockets::{OwnFileError, open_own_file};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs::{PAGE, Uuid};

/// Begins the file; the last digits are the version of all that follows.
const MAGIC: &[u8; 16] = b"viaduct pages 01";
/// Bytes before the first area, and of an entry, whose name has the rest.
const HEADER: u64 = 1 << 16;
const ENTRY: usize = 256;
const NAME: usize = 40;
/// The most windows in the file.
const WINDOWS: usize = HEADER as usize / ENTRY - 1;
/// Most pages of a window: 16 TiB.
const PAGES: u64 = 1 << 32;
/// All areas begin before this byte: file systems have no files longer than twice that.
const LAST: u64 = 1 << 43;

/// Most programs that have pages of a window, and bytes of a record.
pub(crate) const PROGRAMS: u16 = 1 << 13;
const RECORD: usize = 512;
/// Bytes of a record before the guest's name.
const GUEST: usize = 74;
/// Bytes of an area before its pages.
const BEFORE: u64 = PROGRAMS as u64 * RECORD as u64;

/// The number for pages of an unknown program.
pub(crate) const UNKNOWN: u16 = PROGRAMS;

/// A program that has pages of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramNote {
    /// The guest of the program.
    pub guest: String,
    /// True if it is in a virtual machine.
    pub is_remote: bool,
    /// True if it was given access to pages of others.
    pub shares: bool,
    /// The program, or the VMM of its machine: once that has ended, so has the program.
    pub process: HostProcess,
    /// Bytes that only the program knows; zeros: there are none.
    pub secret: Uuid,
    /// The boot of its machine; and there, its process number, when it was started, and the namespace of that
    /// number.
    pub boot: Uuid,
    pub pid: i32,
    pub started: u64,
    pub pid_namespace: u64,
}

impl ProgramNote {
    fn to_bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        // Guests' names are shorter; of another one nothing is known after a restart.
        let name = self.guest.as_bytes();
        let fields: [&[u8]; 10] = [
            &[1, u8::from(self.is_remote) | u8::from(self.shares) << 1, 0, 0],
            &self.process.pid.to_le_bytes(),
            &self.process.at.to_le_bytes(),
            &self.secret.0,
            &self.boot.0,
            &self.pid.to_le_bytes(),
            &[0; 4],
            &self.started.to_le_bytes(),
            &self.pid_namespace.to_le_bytes(),
            &(name.len() as u16).to_le_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        if name.len() <= RECORD - GUEST {
            bytes[at..at + name.len()].copy_from_slice(name);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD]) -> Option<Self> {
        let four = |at: usize| [0, 1, 2, 3].map(|byte| bytes[at + byte]);
        let eight = |at: usize| {
            u64::from(u32::from_le_bytes(four(at))) | u64::from(u32::from_le_bytes(four(at + 4))) << 32
        };
        let uuid = |at: usize| Uuid(std::array::from_fn(|byte| bytes[at + byte]));
        let len = usize::from(u16::from_le_bytes([bytes[72], bytes[73]]));
        let pid = i32::from_le_bytes(four(4));
        if bytes[0] != 1 || bytes[1] > 3 || pid < 0 {
            return None;
        }
        let guest = std::str::from_utf8(bytes.get(GUEST..GUEST + len)?).ok()?.to_owned();
        Some(Self {
            guest,
            is_remote: bytes[1] & 1 != 0,
            shares: bytes[1] & 2 != 0,
            process: HostProcess { pid, at: eight(8) },
            secret: uuid(16),
            boot: uuid(32),
            pid: i32::from_le_bytes(four(48)),
            started: eight(56),
            pid_namespace: eight(64),
        })
    }
}

/// The place of a window's area in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The name of the window's file; empty: the entry is free.
    name: String,
    uuid: Uuid,
    start: u64,
    pages: u64,
}

const fn area(pages: u64) -> u64 {
    (BEFORE + 2 * pages).next_multiple_of(HEADER)
}

impl Entry {
    fn to_bytes(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..16].copy_from_slice(&self.uuid.0);
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.pages.to_le_bytes());
        bytes[32..34].copy_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes[NAME..NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes
    }

    /// Parses an entry; `None`: it makes no sense.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let len = usize::from(u16::from_le_bytes([*bytes.get(32)?, *bytes.get(33)?]));
        let name = std::str::from_utf8(bytes.get(NAME..NAME + len)?).ok()?.to_owned();
        let (start, pages) = (number(16)?, number(24)?);
        let fits = start >= HEADER && start.is_multiple_of(HEADER) && start < LAST && pages <= PAGES;
        let uuid = Uuid(bytes.get(..16)?.try_into().ok()?);
        (name.is_empty() || fits).then_some(Self { name, uuid, start, pages })
    }

    const fn end(&self) -> u64 {
        self.start + area(self.pages)
    }
}

/// The file that records who has which pages of windows.
#[derive(Debug)]
pub struct Notes {
    file: OwnedFd,
    entries: Mutex<Vec<Entry>>,
    /// Processes of programs and VMMs that ended before: others have their numbers.
    ended: BTreeSet<HostProcess>,
}

impl Notes {
    /// Opens the file in a run-dir, or makes it, while the process may look at `/proc`. One that is not of this
    /// version, or makes no sense, is made anew.
    ///
    /// # Errors
    /// [`OwnFileError`].
    pub fn open(run_dir: &Path) -> Result<Self, OwnFileError> {
        let path = run_dir.join("windows");
        let failed = |source| OwnFileError::Os { path: path.clone(), source };
        let file = open_any(&path)?;
        let (file, entries) = match read_entries(&file).map_err(failed)? {
            Some(entries) => (file, entries),
            None => {
                tracing::warn!(
                    "{} is of another version and made anew: what programs may still have of windows is freed only \
                     if they give it back",
                    path.display()
                );
                // The daemon of that version may be there still.
                unlink(&path).map_err(failed)?;
                (open_any(&path)?, vec![Entry::default(); WINDOWS])
            }
        };
        let mut notes = Self { file, entries: Mutex::new(entries), ended: BTreeSet::new() };
        let all = notes.entries().clone();
        for entry in all.iter().filter(|entry| !entry.name.is_empty()) {
            let programs = notes.programs(entry).map_err(failed)?;
            notes.ended.extend(programs.values().map(|it| it.process).filter(|process| process.is_another()));
        }
        Ok(notes)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record of the window whose file has this name and identifier, and this many bytes of data. Makes
    /// an empty one if there is none.
    ///
    /// # Errors
    /// The file has no room.
    pub fn of(self: &Arc<Self>, name: &str, uuid: Uuid, len: u64) -> Result<WindowNotes, Errno> {
        let pages = len / PAGE;
        if pages > PAGES || name.is_empty() || name.len() > ENTRY - NAME {
            return Err(Errno::NAMETOOLONG);
        }
        let mut entries = self.entries();
        let known = entries.iter().position(|entry| entry.name == name);
        if let Some(entry) = known.map(|at| entries[at].clone())
            && (entry.uuid, entry.pages) == (uuid, pages)
        {
            return Ok(WindowNotes { notes: self.clone(), entry, is_new: false });
        }
        known.into_iter().try_for_each(|at| self.clear(&mut entries, at))?;
        let at = entries.iter().position(|entry| entry.name.is_empty()).ok_or(Errno::NOSPC)?;
        let start = place_for(&entries, area(pages));
        if start >= LAST {
            return Err(Errno::NOSPC);
        }
        let entry = Entry { name: name.to_owned(), uuid, start, pages };
        punch(&self.file, &entry)?;
        write(&self.file, &entry.to_bytes(), entry_at(at))?;
        entries[at] = entry.clone();
        Ok(WindowNotes { notes: self.clone(), entry, is_new: true })
    }

    /// Forgets a window whose file is removed.
    pub fn forget(&self, name: &str) {
        let mut entries = self.entries();
        if let Some(at) = entries.iter().position(|entry| entry.name == name) {
            let _ = self.clear(&mut entries, at);
        }
    }

    fn clear(&self, entries: &mut [Entry], at: usize) -> Result<(), Errno> {
        write(&self.file, &[0; ENTRY], entry_at(at))?;
        let gone = std::mem::take(&mut entries[at]);
        punch(&self.file, &gone)
    }

    fn programs(&self, entry: &Entry) -> Result<BTreeMap<u16, ProgramNote>, Errno> {
        let mut bytes = vec![0; BEFORE as usize];
        read(&self.file, &mut bytes, entry.start)?;
        let records = (0..PROGRAMS).zip(bytes.as_chunks::<RECORD>().0);
        Ok(records.filter_map(|(number, record)| Some((number, ProgramNote::from_bytes(record)?))).collect())
    }
}

const fn entry_at(at: usize) -> u64 {
    ((at + 1) * ENTRY) as u64
}

/// Opens the file. A new file gets its header.
fn open_any(path: &Path) -> Result<OwnedFd, OwnFileError> {
    let failed = |source| OwnFileError::Os { path: path.to_owned(), source };
    let file = open_own_file(path)?;
    if fstat(&file).map_err(failed)?.st_size == 0 {
        ftruncate(&file, HEADER).map_err(failed)?;
        write(&file, MAGIC, 0).map_err(failed)?;
    }
    Ok(file)
}

/// Reads the entries; `None`: they are of another version, or make no sense together.
fn read_entries(file: &OwnedFd) -> Result<Option<Vec<Entry>>, Errno> {
    let mut header = vec![0; HEADER as usize];
    read(file, &mut header, 0)?;
    let entries: Option<Vec<_>> = header[ENTRY..].chunks(ENTRY).map(Entry::from_bytes).collect();
    let Some(entries) = entries.filter(|_| header.starts_with(MAGIC)) else { return Ok(None) };
    let mut sorted: Vec<_> = entries.iter().filter(|entry| !entry.name.is_empty()).collect();
    sorted.sort_by_key(|entry| entry.start);
    let names: BTreeSet<_> = sorted.iter().map(|entry| &entry.name).collect();
    let is_sound = names.len() == sorted.len() && sorted.is_sorted_by(|a, b| a.end() <= b.start);
    Ok(is_sound.then_some(entries))
}

/// Returns the first place between areas with room for so many bytes.
fn place_for(entries: &[Entry], bytes: u64) -> u64 {
    let mut areas: Vec<_> = entries.iter().filter(|entry| !entry.name.is_empty()).collect();
    areas.sort_by_key(|entry| entry.start);
    let mut at = HEADER;
    for entry in areas {
        if entry.start - at >= bytes {
            break;
        }
        at = entry.end();
    }
    at
}

/// Fills an area with zeros.
fn punch(file: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, entry.start, area(entry.pages))
}

/// Reads bytes; behind the file's end there are zeros.
fn read(file: &OwnedFd, mut out: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !out.is_empty() {
        match pread(file, &mut *out, at) {
            Ok(0) => {
                out.fill(0);
                return Ok(());
            }
            Ok(len) => (out, at) = (&mut out[len..], at + len as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(len) => (bytes, at) = (&bytes[len..], at + len as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The record of one window.
#[derive(Debug)]
pub struct WindowNotes {
    notes: Arc<Notes>,
    entry: Entry,
    is_new: bool,
}

impl WindowNotes {
    /// Is true if nothing was noted of the window before.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Reads the programs, by their numbers.
    pub(crate) fn programs(&self) -> Result<BTreeMap<u16, ProgramNote>, Errno> {
        self.notes.programs(&self.entry)
    }

    /// Reads which pages somebody has: where they begin and end, and who has them ([`UNKNOWN`] and more: nobody
    /// knows).
    pub(crate) fn owners(&self) -> Result<Vec<(u64, u64, u16)>, Errno> {
        self.owners_of(0, self.entry.pages * PAGE)
    }

    /// Reads who has pages, among these.
    pub(crate) fn owners_of(&self, start: u64, len: u64) -> Result<Vec<(u64, u64, u16)>, Errno> {
        let mut bytes = vec![0; 2 * (len / PAGE) as usize];
        read(&self.notes.file, &mut bytes, self.entry.start + BEFORE + 2 * (start / PAGE))?;
        let mut runs: Vec<(u64, u64, u16)> = Vec::new();
        for (page, number) in (0..).zip(bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))) {
            let Some(owner) = number.checked_sub(1) else { continue };
            let (start, end) = (start + page * PAGE, start + (page + 1) * PAGE);
            match runs.last_mut() {
                Some((_, last, its)) if *last == start && *its == owner => *last = end,
                _ => runs.push((start, end, owner)),
            }
        }
        Ok(runs)
    }

    /// Notes who has these pages; `None`: nobody.
    pub(crate) fn note(&self, start: u64, len: u64, owner: Option<u16>) -> Result<(), Errno> {
        let number = owner.map_or(0, |owner| owner + 1).to_le_bytes();
        let (page, pages) = (start / PAGE, len / PAGE);
        if page + pages > self.entry.pages {
            return Err(Errno::INVAL);
        }
        write(&self.notes.file, &number.repeat(pages as usize), self.entry.start + BEFORE + 2 * page)
    }

    /// Replaces the record of all pages.
    pub(crate) fn note_all(&self, owners: &[(u64, u64, u16)]) -> Result<(), Errno> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.notes.file, hole, self.entry.start + BEFORE, 2 * self.entry.pages)?;
        owners.iter().try_for_each(|(start, end, owner)| self.note(*start, end - start, Some(*owner)))
    }

    /// Notes a program; `None`: there is none with this number.
    pub(crate) fn enlist(&self, number: u16, program: Option<&ProgramNote>) -> Result<(), Errno> {
        let record = program.map_or([0; RECORD], ProgramNote::to_bytes);
        write(&self.notes.file, &record, self.entry.start + u64::from(number) * RECORD as u64)
    }

    /// Returns how the daemon learns of the end of a process that was noted before.
    pub(crate) fn end(&self, process: HostProcess) -> End {
        if self.notes.ended.contains(&process) { End::Ended } else { End::of(process.pid) }
    }
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
