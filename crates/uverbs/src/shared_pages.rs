//! Pages of an application's memory in a sealed file, as seen by others that map it too: its device, and peers that
//! share memory with it. Access to them needs no system call.

use crate::{Memory, MemoryError};
use mem::FaultWord;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Pages of an application, with their addresses there.
#[derive(Debug)]
pub struct SharedPages {
    memory: Memory,
    address: u64,
    file: u64,
}

impl SharedPages {
    /// Maps a whole file that the application has at this address.
    ///
    /// # Errors
    /// If the application could withdraw the file (it is not sealed against that), or the kernel doesn't map it.
    pub fn open(file: impl AsFd, address: u64, len: u64) -> Result<Self, MemoryError> {
        Self::open_with(file, (address, len), Ok)
    }

    /// Maps a whole file like [`Self::open`], guarded ([`Memory::guarded`]).
    ///
    /// # Errors
    /// Those of both functions.
    pub fn open_guarded(
        file: impl AsFd,
        address: u64,
        len: u64,
        fault: &Arc<FaultWord>,
    ) -> Result<Self, MemoryError> {
        Self::open_with(file, (address, len), |memory| memory.guarded(fault))
    }

    fn open_with(
        file: impl AsFd,
        (address, len): (u64, u64),
        guard: impl FnOnce(Memory) -> Result<Memory, MemoryError>,
    ) -> Result<Self, MemoryError> {
        let inode = rustix::fs::fstat(&file)?.st_ino;
        let len = usize::try_from(len).map_err(|_| MemoryError::Unsealed)?;
        Ok(Self::new(guard(Memory::open(file, len)?)?, address, inode))
    }

    /// Returns pages that the application has at this address, mapped already. [`Self::file`] will return `file`.
    #[must_use]
    pub const fn new(memory: Memory, address: u64, file: u64) -> Self {
        Self { memory, address, file }
    }

    /// Returns a number that identifies the pages, for all to whom the same device gives them
    /// ([`Region::file`](crate::Region::file)): the inode of their file, or another number if they are in a window.
    #[must_use]
    pub const fn file(&self) -> u64 {
        self.file
    }

    /// Returns the pages' first address, and their length in bytes.
    #[must_use]
    pub const fn range(&self) -> (u64, u64) {
        (self.address, self.memory.len() as u64)
    }

    /// Returns our address for bytes of the application; `None` if not all of them are in these pages.
    #[inline]
    fn find(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.memory.part(offset, len)
    }

    /// Is true if all these bytes are in these pages.
    #[must_use]
    #[inline]
    pub fn covers(&self, address: u64, len: usize) -> bool {
        self.find(address, len).is_some()
    }

    /// Prefetches bytes of the application that will be read soon.
    #[inline]
    pub fn prefetch(&self, address: u64, len: usize) {
        self.memory.prefetch(address.wrapping_sub(self.address) as usize, len);
    }

    /// Copies from the application. Copies nothing and returns false if not all bytes are in these pages.
    ///
    /// # Safety
    /// `len` bytes must be writable at `to`.
    #[must_use]
    #[inline]
    pub unsafe fn read_to(&self, address: u64, to: *mut u8, len: usize) -> bool {
        let Some(from) = self.find(address, len) else { return false };
        // SAFETY: within the mapping; the caller's promise. Both may be the same memory, if a program is connected to
        // itself.
        unsafe { std::ptr::copy(from.as_ptr(), to, len) };
        true
    }

    /// Copies to the application, the last byte after all others, because applications wait for it. Copies nothing and
    /// returns false if not all bytes are in these pages.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from`.
    #[must_use]
    #[inline]
    pub unsafe fn write_from(&self, address: u64, from: *const u8, len: usize) -> bool {
        let Some(to) = self.find(address, len) else { return false };
        // SAFETY: within the mapping; the caller's promise; words that are stored at once are aligned.
        unsafe {
            match len {
                0 => {}
                8 if to.addr().get().is_multiple_of(8) => {
                    to.cast::<AtomicU64>()
                        .as_ref()
                        .store(from.cast::<u64>().read_unaligned(), Ordering::Release);
                }
                4 if to.addr().get().is_multiple_of(4) => {
                    to.cast::<AtomicU32>()
                        .as_ref()
                        .store(from.cast::<u32>().read_unaligned(), Ordering::Release);
                }
                _ => {
                    let tail = from.add(len - 1).read();
                    std::ptr::copy(from, to.as_ptr(), len - 1);
                    to.add(len - 1).cast::<AtomicU8>().as_ref().store(tail, Ordering::Release);
                }
            }
        }
        true
    }

    /// Copies to a slice like [`Self::read_to`].
    #[must_use]
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        // SAFETY: the slice has that length.
        unsafe { self.read_to(address, out.as_mut_ptr(), out.len()) }
    }

    /// Copies from a slice like [`Self::write_from`].
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        // SAFETY: the slice has that length.
        unsafe { self.write_from(address, bytes.as_ptr(), bytes.len()) }
    }

    /// Returns an aligned word for atomic operations; `None` if it is not in these pages, or not aligned.
    #[must_use]
    #[inline]
    pub fn word(&self, address: u64) -> Option<&AtomicU64> {
        let word = self.find(address, 8).filter(|word| word.addr().get().is_multiple_of(8))?;
        // SAFETY: within the mapping, which lives as long as `self`, and aligned.
        Some(unsafe { word.cast().as_ref() })
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x7000_0000_1000;

    #[test]
    fn both_see_what_one_writes() {
        let (_, file) = Memory::create("test", 8192).unwrap();
        let [one, other] = [(); 2].map(|()| SharedPages::open(&file, ADDRESS, 8192).unwrap());
        assert_eq!((one.file(), one.range()), (other.file(), (ADDRESS, 8192)));
        let message: Vec<u8> = (0..100).collect();
        // Aligned and unaligned places, for each way to store.
        for (at, len) in [(0, 8), (3, 8), (8, 4), (13, 4), (21, 1), (40, 100), (141, 2), (8184, 8), (200, 0)]
        {
            assert!(one.write(ADDRESS + at, &message[..len]));
            let mut seen = vec![0; len];
            assert!(other.read(ADDRESS + at, &mut seen));
            assert_eq!(seen, message[..len]);
        }
        one.word(ADDRESS + 512).unwrap().fetch_add(7, Ordering::SeqCst);
        assert_eq!(other.word(ADDRESS + 512).unwrap().load(Ordering::SeqCst), 7);
    }

    #[test]
    fn what_is_outside_is_not_touched() {
        let (_, file) = Memory::create("test", 4096).unwrap();
        let pages = SharedPages::open(&file, ADDRESS, 4096).unwrap();
        for (address, len) in
            [(ADDRESS - 1, 1), (ADDRESS + 4096, 1), (ADDRESS + 4090, 7), (0, 8), (u64::MAX, 8)]
        {
            let mut bytes = vec![1; len];
            assert!(!pages.covers(address, len) && !pages.write(address, &bytes));
            assert!(!pages.read(address, &mut bytes));
            assert_eq!(bytes, vec![1; len]);
        }
        let words = [ADDRESS + 4, ADDRESS + 4089, ADDRESS - 8, ADDRESS + 4096];
        assert!(words.into_iter().all(|address| pages.word(address).is_none()));
    }

    #[test]
    fn what_could_be_taken_away_is_not_taken() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(matches!(SharedPages::open(&file, ADDRESS, 4096), Err(MemoryError::Unsealed)));
        let (_, sealed) = Memory::create("test", 4096).unwrap();
        assert!(matches!(SharedPages::open(&sealed, ADDRESS, 8192), Err(MemoryError::Unsealed)));
    }
}
