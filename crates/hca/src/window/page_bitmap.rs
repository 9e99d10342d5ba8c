//! The note in front of a window's data of which pages are not free. It is for a daemon after this one, and for the
//! daemon of another host to which the window's contents move with its virtual machine. Pages that programs have
//! may be empty, and free ones may be in memory, so their contents do not tell.
//!
//! Programs can't write there, but the machine's administrator can: the note decides only which pages of the
//! machine's own window its own programs get.

use crate::window::ranges::Ranges;
use mem::FaultWord;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::window::{DATA, FIRST, PAGE_BITMAP};
use uverbs::{Memory, MemoryError, PAGE};

/// Begins the note, if there is one; the length of the window's data follows.
const MAGIC: [u8; 16] = *b"VIADUCT-TAKEN-1\0";
/// The offset of the bits, one for each page, in the note.
const BITS: usize = 64;

/// Most runs of taken pages that are told apart. A machine's administrator could note more, and each takes memory.
const RUNS: usize = 1 << 18;

/// The mapped note in a window's file.
#[derive(Debug)]
pub(crate) struct PageBitmap {
    memory: Memory,
    /// Bytes of the window's data.
    len: u64,
}

/// A copy of the note's bits.
#[derive(Debug)]
pub(crate) struct BitmapSnapshot(Vec<u8>);

const fn page(offset: u64) -> usize {
    (offset / PAGE) as usize
}

impl PageBitmap {
    /// Maps the note. `None`: the window has too many pages for it.
    ///
    /// # Errors
    /// It can't be mapped, or there is no memory for it.
    pub fn open(file: &OwnedFd, len: u64, fault: &Arc<FaultWord>) -> Result<Option<Self>, MemoryError> {
        let bytes = PAGE_BITMAP + (BITS + page(len).div_ceil(8)) as u64;
        if bytes > DATA {
            return Ok(None);
        }
        // All of what is in front of the data, which may be one page.
        let memory = Memory::open_window(file, 0, DATA)?.guarded(fault)?;
        memory.populate(PAGE_BITMAP, (bytes - PAGE_BITMAP).next_multiple_of(PAGE))?;
        Ok(Some(Self { memory, len }))
    }

    /// Returns the offset of byte `at` of the bits in the file.
    const fn place(at: usize) -> usize {
        PAGE_BITMAP as usize + BITS + at
    }

    /// Notes that these pages alone are free.
    pub fn note_all(&self, free: &Ranges) {
        let _ = self.memory.write(Self::place(0), &vec![0xff; page(self.len).div_ceil(8)]);
        free.clone().into_iter().for_each(|(start, len)| self.note(start, len, false));
        let _ = self.memory.write(PAGE_BITMAP as usize + MAGIC.len(), &self.len.to_le_bytes());
        let _ = self.memory.write(PAGE_BITMAP as usize, &MAGIC);
    }

    /// Notes whether these pages are taken. The caller holds the lock of the window's state.
    pub fn note(&self, start: u64, len: u64, is_taken: bool) {
        let (first, end) = (page(start), page(start + len));
        let mut bits = vec![0; end.div_ceil(8) - first / 8];
        let place = Self::place(first / 8);
        let _ = self.memory.read(place, &mut bits);
        for at in first..end {
            let (byte, bit) = (&mut bits[at / 8 - first / 8], 1 << (at % 8));
            *byte = if is_taken { *byte | bit } else { *byte & !bit };
        }
        let _ = self.memory.write(place, &bits);
    }

    /// Copies the note; `None` if there is none for a window of this size.
    pub fn snapshot(&self) -> Option<BitmapSnapshot> {
        let (mut magic, mut len) = ([0; MAGIC.len()], [0; 8]);
        let is_there = self.memory.read(PAGE_BITMAP as usize, &mut magic)
            && self.memory.read(PAGE_BITMAP as usize + MAGIC.len(), &mut len);
        if !is_there || magic != MAGIC || u64::from_le_bytes(len) != self.len {
            return None;
        }
        let mut bits = vec![0; page(self.len).div_ceil(8)];
        self.memory.read(Self::place(0), &mut bits).then_some(BitmapSnapshot(bits))
    }
}

impl BitmapSnapshot {
    /// Returns the taken pages in these ranges, which have a start and a length each, as starts and ends. If there
    /// are too many, all pages after them count as taken.
    pub fn of(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let is_taken = |offset: u64| self.0[page(offset) / 8] & 1 << (page(offset) % 8) != 0;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (start, len) in ranges {
            let pages = (*start..start + len).step_by(PAGE as usize);
            for at in pages.filter(|at| *at >= FIRST && is_taken(*at)) {
                let is_full = taken.len() >= RUNS;
                match taken.last_mut() {
                    Some((from, end)) if *end == at && *from >= *start => *end += PAGE,
                    _ if !is_full => taken.push((at, at + PAGE)),
                    _ => {
                        taken.push((at, start + len));
                        break;
                    }
                }
            }
        }
        taken
    }
}

/// Returns the pages that a file of ordinary pages has, as ranges of its data. They count as taken if nothing is
/// noted.
pub(crate) fn filled(file: &OwnedFd, len: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let (mut at, end, mut found) = (DATA + FIRST, DATA + len, Vec::new());
    while at < end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start / PAGE * PAGE,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        at = seek(file, SeekFrom::Hole(start))?.next_multiple_of(PAGE).min(end);
        if start < at {
            found.push((start.max(DATA + FIRST) - DATA, at - DATA));
        }
    }
    Ok(found)
}

/// Returns the pages that are not empty, for files whose holes can't be told from pages.
pub(crate) fn written(memory: &Memory, len: u64) -> Vec<(u64, u64)> {
    let mut page = [0; PAGE as usize];
    let is_empty = |at: u64| memory.read(at as usize, &mut page) && page.iter().all(|byte| *byte == 0);
    let mut pages = (FIRST..len).step_by(PAGE as usize);
    let mut is_empty = is_empty;
    let mut found = Vec::new();
    for at in pages.by_ref() {
        if !is_empty(at) {
            found.push((at, at + PAGE));
        }
    }
    found
}

#[cfg(test)]
#[path = "page_bitmap_tests.rs"]
mod tests;
