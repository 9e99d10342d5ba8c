//! Pages of the program's memory that are moved into a sealed file, in place, when a region is registered. The device
//! and peers that share memory map the file, and need no system call to access it. This happens only if the program's
//! user requests it with `VIADUCT_RDMA_SHARE=1`: moving pages there and back takes time, nobody may write to them
//! meanwhile, and children of a fork share them too.

use crate::errno::Outcome;
use crate::mapping::{Mapping, are_all, are_all_flagged, has_pinned_pages, has_policy};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use uverbs::{Backing, Extent, Memory};

/// The files' name in `/proc/self/maps`.
const NAME: &str = "verbs region";

/// Pages and their file.
#[derive(Debug)]
struct Moved {
    address: usize,
    len: usize,
    file: OwnedFd,
    inode: u64,
}

/// All moved pages, each with the number of its users.
static MOVED: Mutex<Vec<(Arc<Moved>, u32)>> = Mutex::new(Vec::new());

fn moved() -> MutexGuard<'static, Vec<(Arc<Moved>, u32)>> {
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of moved pages. After the last one they become private to the program again.
#[derive(Debug)]
pub struct MovedPages(Arc<Moved>);

impl MovedPages {
    /// Moves the whole pages of this memory, if that is wanted and possible.
    pub fn of(address: usize, len: usize) -> Option<Self> {
        static IS_WANTED: OnceLock<bool> = OnceLock::new();
        let is_wanted = || std::env::var_os("VIADUCT_RDMA_SHARE").is_some_and(|value| value == "1");
        if *IS_WANTED.get_or_init(is_wanted) { Self::take(address, len) } else { None }
    }

    fn take(address: usize, len: usize) -> Option<Self> {
        let page = rustix::param::page_size();
        let start = address.checked_next_multiple_of(page)?;
        let len = (address.checked_add(len)? / page * page).checked_sub(start).filter(|len| *len > 0)?;
        let mut all = moved();
        let within =
            |(it, _): &&mut (Arc<Moved>, u32)| it.address <= start && start + len <= it.address + it.len;
        if let Some((pages, users)) = all.iter_mut().find(within) {
            *users += 1;
            return Some(Self(pages.clone()));
        }
        if !is_movable(start, len, &Mapping::within(start, len)) {
            return None;
        }
        let pages = Arc::new(Moved::new(start, len).ok()?);
        all.push((pages.clone(), 1));
        Some(Self(pages))
    }

    /// Where they are.
    pub fn extent(&self) -> Extent {
        Extent { address: self.0.address as u64, len: self.0.len as u64, backing: Backing::File }
    }

    /// The file that they are in.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Drop for MovedPages {
    fn drop(&mut self) {
        let mut all = moved();
        let Some(at) = all.iter().position(|(pages, _)| Arc::ptr_eq(pages, &self.0)) else { return };
        all[at].1 -= 1;
        if all[at].1 == 0 {
            self.0.make_private();
            all.swap_remove(at);
        }
    }
}

/// Flags of a mapping that works as well elsewhere (`VmFlags` of `proc_pid_smaps(5)`): readable and writable, now and
/// later, accounted or not. Advice about huge pages is lost. Other flags would be lost as well, but matter more: the
/// mapping is locked, kept from children of a fork, or emptied for them, or watched by a `userfaultfd`.
const PLAIN: [&str; 10] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd", "hg", "nh"];

/// Whether all these pages may be mapped from elsewhere.
fn is_movable(start: usize, len: usize, mappings: &[Mapping]) -> bool {
    let is_plain =
        |flags: &str, key| key == 0 && flags.split_ascii_whitespace().all(|it| PLAIN.contains(&it));
    let is_free = |it: &Mapping| is_private_memory(it) && !has_policy(it.start.max(start));
    are_all(start, len, mappings, is_free) && !has_pinned_pages() && are_all_flagged(start, len, is_plain)
}

/// Whether it is the program's own memory, without a meaning to the kernel.
fn is_private_memory(mapping: &Mapping) -> bool {
    let name = &mapping.name;
    let is_own = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    mapping.permissions == "rw-p" && mapping.inode == 0 && is_own
}

impl Moved {
    /// Moves pages of the program.
    fn new(address: usize, len: usize) -> Outcome<Self> {
        let (_, file) = Memory::create(NAME, len).map_err(|_| libc::ENOMEM)?;
        let inode = rustix::fs::fstat(&file).map_err(rustix::io::Errno::raw_os_error)?.st_ino;
        let mut done = 0;
        while done < len {
            let from = (address + done) as *const libc::c_void;
            // SAFETY: the kernel reads what is there; missing memory is an error.
            let copied = unsafe { libc::pwrite(file.as_raw_fd(), from, len - done, done as i64) };
            done += usize::try_from(copied).ok().filter(|copied| *copied > 0).ok_or(libc::EFAULT)?;
        }
        let moved = Self { address, len, file, inode };
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: private memory is replaced by a copy of it.
        unsafe { moved.map(address, len, access, flags, 0) }.then_some(moved).ok_or(libc::ENOMEM)
    }

    /// # Safety
    /// The memory at this address must equal the file at this offset.
    unsafe fn map(&self, address: usize, len: usize, access: i32, flags: i32, offset: i64) -> bool {
        let fd = self.file.as_raw_fd();
        // SAFETY: the caller's promise.
        let mapped = unsafe { libc::mmap(address as *mut _, len, access, flags, fd, offset) };
        mapped != libc::MAP_FAILED
    }

    /// Makes them private, ordinary memory again, as far as they still exist: the program may have unmapped some.
    fn make_private(&self) {
        let is_ours = |it: &Mapping| it.inode == self.inode && it.permissions.ends_with('s');
        let mut mappings = Mapping::within(self.address, self.len);
        if !are_all(self.address, self.len, &mappings, is_ours) {
            // Some of it is elsewhere now.
            mappings = Mapping::all();
        }
        for mapping in mappings.iter().filter(|it| is_ours(it)) {
            let (start, end) = (mapping.start.max(self.address), mapping.end.min(self.address + self.len));
            if start >= end {
                continue;
            }
            let offset = mapping.offset + (start - mapping.start) as u64;
            let right = |letter, flag| if mapping.permissions.contains(letter) { flag } else { 0 };
            let access = right('r', libc::PROT_READ) | right('w', libc::PROT_WRITE);
            let (len, flags) = (end - start, libc::MAP_PRIVATE | libc::MAP_FIXED);
            // SAFETY: the file is mapped there, at that offset; what is written from now on is only the program's. If
            // there is no room for a copy, pages that are not written to stay the file's.
            unsafe {
                let _ = self.put_copy(start, len, access, offset)
                    || self.map(start, len, access, flags, offset as i64);
            }
        }
    }

    /// Puts a copy of a part of the file at an address, in one step. False if there is no room for it.
    ///
    /// # Safety
    /// The memory at this address must equal the file at this offset.
    unsafe fn put_copy(&self, address: usize, len: usize, access: i32, offset: u64) -> bool {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // All of it is written: a fault for each page would take longer.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: new memory, which is filled before anybody uses it, and replaces memory with the same content, or is
        // unmapped again.
        unsafe {
            let copy = libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0);
            if copy == libc::MAP_FAILED {
                return false;
            }
            let is_whole = self.read(copy.cast(), len, offset)
                && (access == rights || libc::mprotect(copy, len, access) == 0);
            let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let is_there = is_whole && libc::mremap(copy, len, len, moves, address) != libc::MAP_FAILED;
            if !is_there {
                libc::munmap(copy, len);
            }
            is_there
        }
    }

    /// # Safety
    /// There must be room for `len` bytes.
    unsafe fn read(&self, to: *mut u8, len: usize, offset: u64) -> bool {
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise.
            let read = unsafe {
                libc::pread(
                    self.file.as_raw_fd(),
                    to.add(done).cast(),
                    len - done,
                    offset as i64 + done as i64,
                )
            };
            let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { return false };
            done += read;
        }
        true
    }
}
