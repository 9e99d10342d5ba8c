//! Owns the memory that the device shares with programs: windows, files, and the record of whose pages are whose. May
//! import `base`.
//!
//! A window is memory of the host that virtual machines have as a device (`uverbs::window`). Programs in them, or in
//! containers of the same trust, share it with the device and each other.
//!
//! The daemon maps a window once, guarded: whatever a machine's administrator does to the file harms only programs that
//! use the window. What programs write there is read as hostile, and nothing that the daemon itself needs is kept
//! there.

mod challenge;
pub(crate) mod host_process;
pub(crate) mod notes;
mod orphaned;
pub(crate) mod owners;
pub(crate) mod page_bitmap;
pub(crate) mod program_pages;
pub(crate) mod queue_memory;
pub(crate) mod ranges;
pub(crate) mod rings;
pub(crate) mod source;

use crate::base::refusal_log::RefusalLog;
use crate::window::notes::{ProgramNote, WindowNotes};
use crate::window::owners::Owners;
use crate::window::page_bitmap::PageBitmap;
use crate::window::ranges::Ranges;
pub(crate) use challenge::Challenge;
use mem::FaultWord;
use rustix::fs::{FallocateFlags, FileType, fallocate, fstat, fstatfs, ftruncate};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::window::{CHALLENGES, DATA, FIRST, PORT};
use uverbs::{Memory, MemoryError, PAGE, Part, Uuid, WindowHeader, WindowKind};

/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Bytes of the largest page that a file system may use: a file takes memory for a whole page at its end.
const HUGE_PAGE: u64 = 2 << 20;

/// Most pieces of windows that one program has at a time.
pub(crate) const PIECES: u32 = 1 << 16;

/// Why a file can't be a window.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// The kernel refuses.
    #[error("{0}")]
    Kernel(#[from] Errno),
    /// It can't be mapped.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// It is no file, or has no room for data.
    #[error("not a regular file of at least 4 MiB")]
    NoRoom,
}

/// No pages are left, for a program or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPages {
    #[error("the window of the guest has no {0} bytes left (`window_mb`)")]
    Own(u64),
    #[error(
        "the window of the trust has no {0} bytes left for this guest: a guest may have at most what is then left for others (`window_mb`)"
    )]
    Common(u64),
    #[error("the host has no memory for {0} bytes of the window")]
    Host(u64),
    #[error(
        "the program has {PIECES} pieces of the window already: it can free some, or ask for larger ones"
    )]
    Pieces,
    #[error("too many programs have pages of the window, or had, and may still use them")]
    Programs,
    #[error("there is no room to note whose pages of the window are ({0}: `windows` in the run-dir)")]
    Notes(Errno),
}

/// A program that has pages of a window.
#[derive(Debug)]
pub(crate) struct Account {
    window: Weak<Window>,
    /// The number of the program in the window's notes.
    number: u16,
    guest: String,
    pid: i32,
    /// The name of a program in a virtual machine, as it claims.
    program: Option<String>,
    bytes: AtomicU64,
    pieces: AtomicU32,
    /// True if the device closes, not the program: its pages stay as they are.
    is_orphaned: AtomicBool,
}

impl Account {
    /// Orphans the program's pages: from now on, pages that are given back stay as they are, and nobody gets them,
    /// since the program may still use them.
    pub fn leave(&self) {
        self.is_orphaned.store(true, Ordering::Relaxed);
    }

    /// Orphans the pages of a program that has ended: nobody gets them before its present peers have ended, too.
    pub fn leave_to_peers(&self) {
        self.leave();
        if let Some(window) = self.window.upgrade() {
            lock(&window.state).owners.end_at_work(self.number);
        }
    }

    /// Makes pages that it leaves wait for those that were given access to them.
    fn await_peers(&self) {
        if let Some(window) = self.window.upgrade() {
            lock(&window.state).owners.await_peers(self.number);
        }
    }

    /// Notes that nobody hears of the program any more, though it may go on.
    fn lose(&self) {
        if let Some(window) = self.window.upgrade() {
            lock(&window.state).owners.lose(self.number);
        }
    }

    /// Notes that the program is given access to pages of others.
    pub fn share(&self) {
        if let Some(window) = self.window.upgrade() {
            let mut state = lock(&window.state);
            if state.owners.share(self.number) {
                let _ = window.note_program(&state.owners, self.number);
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(window) = self.window.upgrade() {
            let mut state = lock(&window.state);
            if state.owners.strike(self.number) {
                let _ = window.note_program(&state.owners, self.number);
            }
        }
    }
}

/// The description of a program that has pages of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowUser {
    /// The guest to which it belongs.
    pub guest: String,
    /// The process number: in the virtual machine, as the program claims, or in the daemon's namespace.
    pub pid: i32,
    /// The name of a program in a virtual machine, as it claims; `None`: it is in a container.
    pub program: Option<String>,
    /// How many bytes it has.
    pub bytes: u64,
}

/// The description of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowDescription {
    /// Whether the window is for one guest or for a trust.
    pub kind: WindowKind,
    /// The guest, or the trust.
    pub name: String,
    /// The identifier of the window.
    pub uuid: Uuid,
    /// Bytes that programs may have together.
    pub len: u64,
    /// Bytes that they have.
    pub used: u64,
    /// Bytes that programs of an earlier device may still have.
    pub orphaned: u64,
    /// The programs that have bytes of it.
    pub programs: Vec<WindowUser>,
}

/// The daemon's mapping of a window's data.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: Arc<Memory>,
    /// The note of which pages are taken, if there is room for it.
    bitmap: Option<PageBitmap>,
    /// Set when memory of the window went away.
    pub fault: Arc<FaultWord>,
}

#[derive(Debug, Default)]
struct State {
    free: Ranges,
    /// The programs that have pages, and those of an earlier device that may still use pages.
    owners: Owners,
    used: HashMap<String, u64>,
    accounts: Vec<Weak<Account>>,
}

const _: () = assert!(CHALLENGES == u64::BITS as u64);

/// A window of a guest, or of a trust, and who has which of its pages.
#[derive(Debug)]
pub struct Window {
    file: OwnedFd,
    is_huge: bool,
    kind: WindowKind,
    uuid: Uuid,
    name: String,
    /// Bytes of its data.
    len: u64,
    mapping: Mutex<Arc<Mapping>>,
    state: Mutex<State>,
    /// The record for the next daemon of who has which pages.
    notes: Option<WindowNotes>,
    /// The pages of challenges that are in use, one bit each. Streams that prove nothing wait for no program.
    challenges: Mutex<u64>,
    writer: Mutex<challenge::Writer>,
    faults: RefusalLog,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Window {
    /// Opens a window of which nothing was noted, like [`Self::open_noted`].
    ///
    /// # Errors
    /// As there.
    pub fn open(file: OwnedFd, kind: WindowKind, uuid: Uuid, name: &str) -> Result<Arc<Self>, WindowError> {
        Self::open_noted(file, kind, uuid, name, None)
    }

    /// Maps a window's file, whose size and information block the caller has checked, and writes its header. Nobody
    /// gets pages that programs of a daemon before this one have, according to `notes`, before the programs give
    /// them back ([`uverbs::Request::FreePages`]) or have ended (`sweep`). If nothing is noted, all pages
    /// that are not empty may be theirs.
    ///
    /// # Errors
    /// It is too small, or can't be mapped.
    pub fn open_noted(
        file: OwnedFd,
        kind: WindowKind,
        uuid: Uuid,
        name: &str,
        notes: Option<WindowNotes>,
    ) -> Result<Arc<Self>, WindowError> {
        let stat = fstat(&file)?;
        let len = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(DATA) / PAGE * PAGE;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || len < 2 << 20 {
            return Err(WindowError::NoRoom);
        }
        let is_huge = fstatfs(&file)?.f_type == HUGETLBFS;
        let mapping =
            Arc::new(map(&file, len, &WindowHeader { kind, uuid, len, port: PORT, name: name.to_owned() })?);
        let state = orphaned::state(&file, len, is_huge, &mapping, notes.as_ref())?;
        mapping.bitmap.iter().for_each(|bitmap| bitmap.note_all(&state.free));
        let (mapping, state) = (Mutex::new(mapping), Mutex::new(state));
        let (name, challenges, writer) = (name.to_owned(), Mutex::default(), Mutex::default());
        let faults = RefusalLog::default();
        Ok(Arc::new(Self {
            file,
            is_huge,
            kind,
            uuid,
            name,
            len,
            mapping,
            state,
            notes,
            challenges,
            writer,
            faults,
        }))
    }

    /// Returns the identifier of the window.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    pub(crate) const fn kind(&self) -> WindowKind {
        self.kind
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Describes the window and the programs that have pages of it.
    #[must_use]
    pub fn describe(&self) -> WindowDescription {
        // The last one to have an account locks the state.
        let accounts: Vec<_>;
        let mut state = lock(&self.state);
        state.accounts.retain(|account| account.strong_count() > 0);
        accounts = state.accounts.iter().filter_map(Weak::upgrade).collect();
        let programs = accounts.iter().map(|account| WindowUser {
            guest: account.guest.clone(),
            pid: account.pid,
            program: account.program.clone(),
            bytes: account.bytes.load(Ordering::Relaxed),
        });
        let mut programs: Vec<_> = programs.filter(|program| program.bytes > 0).collect();
        programs.sort_by(|a, b| (&a.guest, a.pid).cmp(&(&b.guest, b.pid)));
        WindowDescription {
            kind: self.kind,
            name: self.name.clone(),
            uuid: self.uuid,
            len: self.len - FIRST,
            used: state.used.values().sum(),
            orphaned: state.owners.orphaned_bytes(None),
            programs,
        }
    }

    /// Returns the mapping. If memory of the last mapping went away, restores the size of the file and maps it
    /// anew: whoever may write the file, and cut it, harms only programs that had the window at that time.
    pub(crate) fn mapping(&self) -> Result<Arc<Mapping>, MemoryError> {
        let mut mapping = lock(&self.mapping);
        if mapping.fault.get().is_some() {
            let Self { kind, uuid, len, .. } = *self;
            let (has, needs) = (fstat(&self.file)?.st_size.cast_unsigned(), self.file_len());
            if has != needs {
                ftruncate(&self.file, needs)?;
            }
            self.faults.warn(&format_args!(
                "memory of the window of {} went away, and programs that have it end: its file had {has} of {needs} \
                 bytes; the VMMs and containers that have it may have cut it",
                self.name
            ));
            let header = WindowHeader { kind, uuid, len, port: PORT, name: self.name.clone() };
            *mapping = Arc::new(map(&self.file, len, &header)?);
            let new = mapping.clone();
            drop(mapping);
            // The bitmap went away as well.
            new.bitmap.iter().for_each(|bitmap| bitmap.note_all(&lock(&self.state).free));
            return Ok(new);
        }
        Ok(mapping.clone())
    }

    /// Returns the length of the file, bytes.
    const fn file_len(&self) -> u64 {
        DATA + self.len
    }

    /// Cuts off bytes by which somebody who may write the file made it longer, and pages behind its end
    /// (`FALLOC_FL_KEEP_SIZE`). They belong to nobody, and take memory that other windows of the file system need.
    /// A file that is too short is restored by `mapping`.
    pub fn cut_excess(&self) {
        let Ok(stat) = fstat(&self.file) else { return };
        let needs = self.file_len();
        let (has, takes) = (stat.st_size.cast_unsigned(), 512 * stat.st_blocks.cast_unsigned());
        // The last page may be a huge one.
        let is_large = has > needs || takes > needs.next_multiple_of(HUGE_PAGE);
        if is_large && ftruncate(&self.file, has.min(needs)).is_ok() {
            self.faults.warn(&format_args!(
                "the file of the window of {} had {has} bytes and took {takes} of memory, though a window has {needs}, \
                 and was cut: VMMs and containers that have it can take memory from other windows so, unless they have \
                 a memory limit",
                self.name
            ));
        }
    }

    /// Starts to count the pages of a program. `program`: the name of one in a virtual machine.
    ///
    /// # Errors
    /// Too many programs have pages, or it can't be noted.
    pub(crate) fn account(
        self: &Arc<Self>,
        note: ProgramNote,
        program: Option<String>,
    ) -> Result<Arc<Account>, NoPages> {
        let (guest, pid) = (note.guest.clone(), if note.is_remote { note.pid } else { note.process.pid });
        let (bytes, pieces, is_orphaned) = Default::default();
        let mut state = lock(&self.state);
        state.accounts.retain(|account| account.strong_count() > 0);
        let number = state.owners.enlist(note).ok_or(NoPages::Programs)?;
        if let Err(errno) = self.note_program(&state.owners, number) {
            state.owners.strike(number);
            return Err(NoPages::Notes(errno));
        }
        let window = Arc::downgrade(self);
        let account = Arc::new(Account { window, number, guest, pid, program, bytes, pieces, is_orphaned });
        state.accounts.push(Arc::downgrade(&account));
        Ok(account)
    }

    /// Writes the note of a program to the record.
    fn note_program(&self, owners: &Owners, number: u16) -> Result<(), Errno> {
        self.notes.as_ref().map_or(Ok(()), |notes| notes.enlist(number, owners.note(number)))
    }

    /// Notes who has these pages; `None`: nobody.
    fn note_pages(&self, start: u64, len: u64, owner: Option<u16>) -> Result<(), Errno> {
        self.notes.as_ref().map_or(Ok(()), |notes| notes.note(start, len, owner))
    }

    /// Takes pages, zeroed, for at least this many bytes: in one piece, or in several (`may_split`).
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: u64,
        may_split: bool,
        mapping: &Arc<Mapping>,
        account: &Arc<Account>,
    ) -> Result<Vec<Arc<Pages>>, NoPages> {
        let exhausted = match self.kind {
            WindowKind::Own => NoPages::Own(bytes),
            WindowKind::Common => NoPages::Common(bytes),
        };
        let len = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(exhausted)?;
        if account.pieces.load(Ordering::Relaxed) >= PIECES {
            return Err(NoPages::Pieces);
        }
        let pieces = {
            let mut state = lock(&self.state);
            // Orphaned pages of a guest's programs count as the guest's: else it could orphan all pages, one
            // program after the other.
            let has = state.used.get(&account.guest).copied().unwrap_or(0)
                + state.owners.orphaned_bytes(Some(&account.guest));
            let left = state.free.bytes().checked_sub(len).ok_or(exhausted)?;
            if self.kind == WindowKind::Common && has + len > left {
                return Err(exhausted);
            }
            let taken = self.pick(&mut state, len, may_split).ok_or(exhausted)?;
            let note = |(start, len): &(u64, u64)| self.note_pages(*start, *len, Some(account.number));
            if let Err(errno) = taken.iter().try_for_each(note) {
                taken.iter().for_each(|(start, len)| self.put_back(&mut state, *start, *len));
                return Err(NoPages::Notes(errno));
            }
            taken.iter().for_each(|(start, len)| mapping.note(*start, *len, true));
            *state.used.entry(account.guest.clone()).or_default() += len;
            taken
        };
        account.bytes.fetch_add(len, Ordering::Relaxed);
        account.pieces.fetch_add(pieces.len() as u32, Ordering::Relaxed);
        let pages = |(offset, len)| {
            let (window, mapping, account) = (self.clone(), mapping.clone(), account.clone());
            let [is_orphaned, is_abandoned, is_given_back] = [const { AtomicBool::new(false) }; 3];
            Arc::new(Pages {
                window,
                mapping,
                account,
                offset,
                len,
                is_orphaned,
                is_abandoned,
                is_given_back,
            })
        };
        let pages: Vec<_> = pieces.into_iter().map(pages).collect();
        let is_there = |pages: &Arc<Pages>| mapping.memory.populate(pages.offset, pages.len).is_ok();
        if pages.iter().all(is_there) { Ok(pages) } else { Err(NoPages::Host(len)) }
    }

    /// Takes free pages.
    fn pick(&self, state: &mut State, len: u64, may_split: bool) -> Option<Vec<(u64, u64)>> {
        loop {
            let taken =
                if may_split { state.free.take(len)? } else { vec![(state.free.take_one(len)?, len)] };
            let ours = |(start, len): &(u64, u64)| self.not_given_since(state, *start, *len, None);
            let ours: Vec<_> = taken.iter().flat_map(ours).collect();
            if ours.iter().map(|(start, end)| end - start).sum::<u64>() == len {
                return Some(taken);
            }
            ours.into_iter().for_each(|(start, end)| state.free.add(start, end - start));
        }
    }

    /// Returns pages that nobody has to the free ones.
    fn put_back(&self, state: &mut State, start: u64, len: u64) {
        state.free.add(start, len);
        lock(&self.mapping).note(start, len, false);
        // If it can't be noted, the next daemon frees them once the program has ended.
        let _ = self.note_pages(start, len, None);
    }

    /// Zeroes pages. Memory of ordinary pages goes back to the host; huge pages stay reserved for the window.
    fn clear(&self, offset: u64, len: u64) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if self.is_huge || fallocate(&self.file, hole, DATA + offset, len).is_err() {
            let mapping = lock(&self.mapping).clone();
            for page in (offset..offset + len).step_by(PAGE as usize) {
                let _ = mapping.memory.write(page as usize, &[0; PAGE as usize]);
            }
        }
    }
}

/// Maps the data of a window, and writes its header. The pages that the daemon itself writes get their memory here:
/// if others filled the file system later, writing a challenge would otherwise end the window's programs.
fn map(file: &OwnedFd, len: u64, header: &WindowHeader) -> Result<Mapping, MemoryError> {
    let fault = Arc::new(FaultWord::new());
    let memory = Memory::open_window(file, DATA, len)?.guarded(&fault)?;
    memory.populate(0, FIRST)?;
    let _ = memory.write(0, &header.to_bytes());
    let bitmap = match header.kind {
        WindowKind::Own => PageBitmap::open(file, len, &fault)?,
        WindowKind::Common => None,
    };
    Ok(Mapping { memory: Arc::new(memory), bitmap, fault })
}

impl Mapping {
    /// Notes that pages are taken, or free. The window's state is locked.
    fn note(&self, start: u64, len: u64, is_taken: bool) {
        self.bitmap.iter().for_each(|bitmap| bitmap.note(start, len, is_taken));
    }
}

/// Pages of a window that a program or the device has. They are zeroed and free again when the last user drops
/// them.
#[derive(Debug)]
pub(crate) struct Pages {
    window: Arc<Window>,
    mapping: Arc<Mapping>,
    account: Arc<Account>,
    offset: u64,
    len: u64,
    /// True if somebody may go on using them, whatever the program says.
    is_orphaned: AtomicBool,
    /// True if the program may go on using them, until it gives them back. The account has such a flag for all its
    /// pages.
    is_abandoned: AtomicBool,
    is_given_back: AtomicBool,
}

impl Pages {
    pub const fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Returns the part of the window that they are.
    pub fn part(&self) -> Part {
        Part { window: self.window.kind, offset: self.offset, len: self.len }
    }

    /// Is true if memory of the window went away since the program got them.
    pub fn are_faulty(&self) -> bool {
        self.mapping.fault.get().is_some()
    }

    /// Orphans them: when they are dropped, they stay as they are, and nobody gets them.
    pub fn leave(&self) {
        self.is_orphaned.store(true, Ordering::Relaxed);
    }

    /// Orphans them, unless the program gives them back itself.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Notes that the program uses them no more.
    pub fn give_back(&self) {
        self.is_given_back.store(true, Ordering::Relaxed);
    }

    /// Returns the memory of a part of them, which keeps all of them; `None` if not all of the part is theirs.
    pub fn view(self: &Arc<Self>, offset: u64, len: u64) -> Option<Memory> {
        let is_theirs = offset.checked_sub(self.offset)?.checked_add(len)? <= self.len;
        if is_theirs { self.mapping.memory.view(offset, len, self.clone()) } else { None }
    }

    /// Returns the memory of their first bytes.
    pub fn first(self: &Arc<Self>, len: usize) -> Option<Memory> {
        self.view(self.offset, len as u64)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let is_abandoned = *self.is_abandoned.get_mut() || self.account.is_orphaned.load(Ordering::Relaxed);
        let is_orphaned = *self.is_orphaned.get_mut() || is_abandoned && !*self.is_given_back.get_mut();
        if !is_orphaned {
            self.window.clear(self.offset, self.len);
        }
        self.account.bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.account.pieces.fetch_sub(1, Ordering::Relaxed);
        let mut state = lock(&self.window.state);
        if let Some(used) = state.used.get_mut(&self.account.guest) {
            *used -= self.len;
            if *used == 0 {
                state.used.remove(&self.account.guest);
            }
        }
        if is_orphaned {
            state.owners.leave(self.account.number, self.offset, self.len);
        } else {
            self.window.put_back(&mut state, self.offset, self.len);
        }
    }
}

#[cfg(test)]
mod tests;
