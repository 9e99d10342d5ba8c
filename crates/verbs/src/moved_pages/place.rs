//! Places of moved pages: a sealed file of their own, or a part of a window. Pages move into a place without changing
//! their addresses, and become private to the program again when they leave it.
//!
//! System calls are made directly: UCX replaces the C library's functions for memory by its own, which may write to
//! pages that nobody may write to while they move, and which may ignore the target address of `mremap`.

use super::lender::Lender;
use super::merge::merge;
use super::protection::Protection;
use crate::errno::Outcome;
use crate::lost;
use crate::mapping::Mapping;
use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap, mmap_anonymous, mprotect, mremap_fixed, munmap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::{Backing, Extent, Memory, Part};

/// The name of the files in `/proc/self/maps`.
const NAME: &str = "verbs region";

const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Bytes that become private at a time. Afterwards the chunk is searched for writes by other threads in the meantime,
/// and should still be in the caches.
const CHUNK: usize = 1 << 20;

/// Memory from which pages are mapped: a whole file of its own, or a part of a window.
#[derive(Debug)]
pub struct Source {
    file: Arc<OwnedFd>,
    /// The offset at which the source begins in the file.
    offset: u64,
    inode: u64,
    /// The part of a window that the source is, and the lender of the part; `None` for a file of its own.
    lent: Option<(Part, Arc<Lender>)>,
}

impl Source {
    pub fn file(len: usize) -> Outcome<Self> {
        let (_, file) = Memory::create(NAME, len).map_err(|_| libc::ENOMEM)?;
        Self::of(Arc::new(file), 0)
    }

    /// Creates a source from a part of a window that one of these lenders lends. The window's data starts at `base` of
    /// this file.
    pub fn window(file: Arc<OwnedFd>, base: u64, part: Part, lenders: &[Arc<Lender>]) -> Outcome<Self> {
        let mut source = Self::of(file, base.checked_add(part.offset).ok_or(libc::EIO)?)?;
        let lender = lenders.iter().find(|lender| lender.window == source.inode).ok_or(libc::EIO)?;
        source.lent = Some((part, lender.clone()));
        Ok(source)
    }

    fn of(file: Arc<OwnedFd>, offset: u64) -> Outcome<Self> {
        let inode = fstat(&*file).map_err(rustix::io::Errno::raw_os_error)?.st_ino;
        Ok(Self { file, offset, inode, lent: None })
    }

    pub fn is_lent_by(&self, lenders: &[Arc<Lender>]) -> bool {
        self.lent.as_ref().is_some_and(|(_, by)| lenders.iter().any(|lender| Arc::ptr_eq(by, lender)))
    }

    /// Drops the source in a child of a fork, without giving it back: the parent still has it.
    pub fn disown(self: Arc<Self>) {
        std::mem::forget(self);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some((part, lender)) = &self.lent
            && !lender.give_back(*part)
        {
            lost::note(self.inode, *part);
        }
    }
}

/// Bytes of a place that the program has mapped, and the mapping's permissions.
pub struct Piece {
    bytes: Range<usize>,
    access: ProtFlags,
}

#[derive(Debug)]
pub struct Place {
    /// Address of the pages in the program, and their length in bytes.
    pub address: usize,
    pub len: usize,
    /// The source of the pages, and the byte in it at which they begin.
    source: Arc<Source>,
    from: usize,
}

impl Place {
    /// Creates a place for pages at this address: bytes of a source, beginning at `from`.
    pub const fn new(address: usize, len: usize, source: Arc<Source>, from: usize) -> Self {
        Self { address, len, source, from }
    }

    /// Returns the pages' source, and the byte in it at which they begin.
    pub fn source(&self) -> (&Arc<Source>, usize) {
        (&self.source, self.from)
    }

    /// Returns the pages' file, if they have one of their own.
    pub fn file(&self) -> Option<&Arc<OwnedFd>> {
        self.source.lent.is_none().then_some(&self.source.file)
    }

    /// Describes these bytes of the pages for a registration; if the pages have their own file, it describes all of
    /// them.
    pub fn extent(&self, bytes: &Range<usize>) -> Extent {
        let Some((part, _)) = self.source.lent else {
            return Extent { address: self.address as u64, len: self.len as u64, backing: Backing::File };
        };
        let (offset, len) = (part.offset + (self.from + bytes.start) as u64, bytes.len() as u64);
        let backing = Backing::Window(Part { offset, len, ..part });
        Extent { address: (self.address + bytes.start) as u64, len, backing }
    }

    /// Returns the offset of one of the pages' bytes in the file.
    fn offset(&self, at: usize) -> u64 {
        self.source.offset + (self.from + at) as u64
    }

    /// Returns the bytes of these pages that this mapping of the program still has from this address on; `None` if
    /// something else is there.
    pub fn at(&self, address: usize, mapping: &Mapping) -> Option<Range<usize>> {
        let is_ours = mapping.inode == self.source.inode && mapping.permissions.ends_with('s');
        let from = address.checked_sub(self.address).filter(|from| is_ours && *from < self.len)?;
        let offset = mapping.offset + (address - mapping.start) as u64;
        (offset == self.offset(from)).then(|| from..self.len.min(mapping.end - self.address))
    }

    /// Maps the pages of the place once more. A child of a fork does not have them there.
    pub fn alias(&self) -> Option<Alias> {
        let alias = Alias::new(self, 0..self.len)?;
        // SAFETY: our own mapping.
        let _ = unsafe { madvise(alias.start.cast(), alias.len, Advice::LinuxDontFork) };
        Some(alias)
    }

    /// Moves the program's pages to this place.
    pub fn fill(&self) -> Outcome<()> {
        let there = Alias::new(self, 0..self.len).ok_or(libc::ENOMEM)?;
        // From here on, nothing is allocated.
        let _protection = Protection::of(self.address, self.len);
        // SAFETY: the program has readable memory there, which is replaced by a copy of it.
        let mapped = unsafe {
            std::ptr::copy_nonoverlapping(self.address as *const u8, there.start, self.len);
            self.map(self.address, 0..self.len, BOTH, MapFlags::SHARED | MapFlags::FIXED)
        };
        if mapped { Ok(()) } else { Err(libc::ENOMEM) }
    }

    /// Maps bytes of the file. Returns whether that succeeded.
    ///
    /// # Safety
    /// If the flags fix the address, the memory there must equal these bytes of the file.
    unsafe fn map(&self, address: usize, bytes: Range<usize>, access: ProtFlags, flags: MapFlags) -> bool {
        let (file, offset) = (&*self.source.file, self.offset(bytes.start));
        // SAFETY: the caller's promise.
        unsafe { mmap(address as *mut _, bytes.len(), access, flags, file, offset) }.is_ok()
    }

    /// Makes these bytes private, ordinary memory again, as far as they still exist: the program may have unmapped
    /// some. If `meanwhile`, it keeps writes by other threads during the call. Returns false if some bytes stay where
    /// they are, because there is no room for them elsewhere.
    #[must_use]
    pub fn make_private(&self, bytes: &Range<usize>, meanwhile: bool) -> bool {
        let mut are_all = true;
        for piece in &self.pieces(bytes) {
            are_all &= self.take_back(piece, meanwhile);
        }
        are_all
    }

    /// Returns the pieces of these bytes that the program still has mapped.
    pub fn pieces(&self, bytes: &Range<usize>) -> Vec<Piece> {
        let address = self.address + bytes.start;
        let piece = |mapping: &Mapping| {
            let there = self.at(mapping.start.max(address), mapping)?;
            let right = |letter, flag| {
                if mapping.permissions.contains(letter) { flag } else { ProtFlags::empty() }
            };
            let access = right('r', ProtFlags::READ) | right('w', ProtFlags::WRITE);
            Some(Piece { bytes: there.start..there.end.min(bytes.end), access })
        };
        Mapping::within(address, bytes.len()).iter().filter_map(piece).collect()
    }

    /// Makes a piece private like [`Self::make_private`]. Allocates and frees nothing.
    #[must_use]
    pub fn take_back(&self, piece: &Piece, meanwhile: bool) -> bool {
        let (Range { start, end }, mut is_all) = (piece.bytes.clone(), true);
        for start in (start..end).step_by(CHUNK) {
            let chunk = start..end.min(start + CHUNK);
            // SAFETY: the file is mapped there, at that offset. If there is no room for a copy, pages of a file stay in
            // it until they are written to; those of a window stay there.
            is_all &= unsafe {
                self.put_copy(&chunk, piece.access, meanwhile).is_some()
                    || self.source.lent.is_none()
                        && self.map(
                            self.address + chunk.start,
                            chunk.clone(),
                            piece.access,
                            MapFlags::PRIVATE | MapFlags::FIXED,
                        )
            };
        }
        is_all
    }

    /// Replaces these bytes with a private copy, in one step. Returns `None` if there is no room for it.
    ///
    /// # Safety
    /// The file must be mapped there.
    unsafe fn put_copy(&self, bytes: &Range<usize>, access: ProtFlags, meanwhile: bool) -> Option<()> {
        let len = bytes.len();
        let there = Alias::new(self, bytes.clone())?;
        // All pages are populated now, because the whole copy is written: a fault for each page would take longer.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // The second half keeps the bytes as they were when they were copied.
        let all = if meanwhile { 2 * len } else { len };
        // SAFETY: new memory, which is filled before anybody uses it, and replaces memory with the same content, or is
        // unmapped again.
        unsafe {
            let copy = mmap_anonymous(std::ptr::null_mut(), all, BOTH, flags).ok()?.cast::<u8>();
            std::ptr::copy_nonoverlapping(there.start, copy, len);
            let before = copy.add(len);
            if meanwhile {
                std::ptr::copy_nonoverlapping(copy, before, len);
            }
            let to = (self.address + bytes.start) as *mut libc::c_void;
            let only = MprotectFlags::from_bits_truncate(access.bits());
            let is_there = (access == BOTH || mprotect(copy.cast(), len, only).is_ok())
                && mremap_fixed(copy.cast(), len, len, MremapFlags::MAYMOVE, to).is_ok();
            if !is_there {
                let _ = munmap(copy.cast(), all);
                return None;
            }
            if meanwhile {
                if access == BOTH {
                    merge(there.start, before, to.cast(), len);
                }
                let _ = munmap(before.cast(), len);
            }
            Some(())
        }
    }

    /// Forgets the place in a child of a fork.
    pub fn disown(self) {
        self.source.disown();
    }
}

/// A second mapping of bytes of a place; dropping it unmaps them.
#[derive(Debug)]
pub struct Alias {
    pub start: *mut u8,
    len: usize,
}

impl Alias {
    fn new(place: &Place, bytes: Range<usize>) -> Option<Self> {
        let (none, file, offset) = (std::ptr::null_mut(), &*place.source.file, place.offset(bytes.start));
        // SAFETY: a new mapping, where there was none.
        let start = unsafe { mmap(none, bytes.len(), BOTH, MapFlags::SHARED, file, offset) };
        Some(Self { start: start.ok()?.cast(), len: bytes.len() })
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: it was mapped with that length, and nobody uses it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const PAGE: usize = 4096;

    fn memory(pages: usize) -> usize {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.addr()
    }

    fn words(start: usize, pages: usize) -> &'static [AtomicU64] {
        // SAFETY: the tests' memory, which stays.
        unsafe { std::slice::from_raw_parts(start as *const AtomicU64, pages * PAGE / 8) }
    }

    fn moved(start: usize, pages: usize) -> Place {
        let place = Place::new(start, pages * PAGE, Arc::new(Source::file(pages * PAGE).unwrap()), 0);
        place.fill().unwrap();
        place
    }

    fn is_moved(place: &Place, at: usize) -> bool {
        Mapping::within(at, 1).iter().any(|mapping| place.at(at, mapping).is_some())
    }

    #[test]
    fn pages_move_there_and_back() {
        let start = memory(600);
        let words = words(start, 600);
        // The other pages were never used.
        for page in (0..600).step_by(3) {
            words[page * 512 + page % 512].store(page as u64 + 1, Ordering::Relaxed);
        }
        let is_same = || {
            (0..600).all(|page| {
                let is_used = page % 3 == 0;
                words[page * 512 + page % 512].load(Ordering::Relaxed)
                    == if is_used { page as u64 + 1 } else { 0 }
            })
        };
        let place = moved(start, 600);
        assert!(is_same() && [0, 300, 599].into_iter().all(|page| is_moved(&place, start + page * PAGE)));
        assert!(place.make_private(&(PAGE..400 * PAGE), true));
        let are = [0, 1, 399, 400].map(|page| is_moved(&place, start + page * PAGE));
        assert_eq!((is_same(), are), (true, [true, false, false, true]));
        // SAFETY: nobody uses the last of them any more.
        unsafe { libc::munmap((start + 599 * PAGE) as *mut _, PAGE) };
        assert!(place.make_private(&(0..600 * PAGE), true));
        let mappings = Mapping::within(start, 599 * PAGE);
        assert!(mappings.iter().all(|it| it.permissions == "rw-p" && it.inode == 0), "{mappings:?}");
    }

    /// Runs `work` while another thread runs `again` repeatedly. Returns how often it did.
    fn beside(again: impl Fn(u64) + Sync, work: impl FnOnce()) -> u64 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut times = 0;
                while !is_over.load(Ordering::Relaxed) {
                    again(times);
                    times += 1;
                }
                times
            });
            work();
            is_over.store(true, Ordering::Relaxed);
            other.join().unwrap()
        })
    }

    #[test]
    fn nothing_that_others_write_is_lost_on_the_way() {
        for round in 0..40 {
            let start = memory(2);
            let counter = &words(start, 2)[round];
            if Protection::of(start, PAGE).is_none() {
                eprintln!("not possible here: userfaultfd");
                return;
            }
            let count = beside(
                |_| _ = counter.fetch_add(1, Ordering::Relaxed),
                || {
                    while counter.load(Ordering::Relaxed) < 1000 {}
                    let place = moved(start, 2);
                    let then = counter.load(Ordering::Relaxed);
                    while counter.load(Ordering::Relaxed) < then + 1000 {}
                    assert!(is_moved(&place, start));
                },
            );
            assert_eq!(counter.load(Ordering::Relaxed), count);
        }
    }

    #[test]
    fn what_others_write_once_is_not_lost_on_the_way_back() {
        let start = memory(300);
        let words = words(start, 300);
        let place = moved(start, 300);
        let count = beside(
            |times| {
                if let Some(word) = words.get(times as usize) {
                    word.store(times + 1, Ordering::Relaxed);
                }
            },
            || {
                while words[100].load(Ordering::Relaxed) == 0 {}
                assert!(place.make_private(&(0..300 * PAGE), true));
            },
        );
        for (at, word) in words.iter().enumerate().take(count as usize) {
            assert_eq!(word.load(Ordering::Relaxed), at as u64 + 1);
        }
        assert!(!is_moved(&place, start));
    }
}
