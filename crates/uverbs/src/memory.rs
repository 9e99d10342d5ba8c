//! Memory that both sides map.

use crate::part::Part;
use mem::{FaultWord, Guarded};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A reason why memory can't be shared.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("shared memory: {0}")]
    Kernel(#[from] rustix::io::Errno),
    /// The file could be truncated, or is already too short.
    #[error("shared memory: the file is not sealed, or too short")]
    Unsealed,
    /// The file has huge pages, or is not memory: pages that its owner removes by punching holes may be lost for good.
    #[error("shared memory: the file is not a memfd of ordinary pages (hugetlbfs is refused)")]
    NotOrdinary,
    /// The part is not whole pages of the window, or not all of them are there.
    #[error("shared memory: no whole pages inside of the window")]
    NoPart,
    /// The system has no memory for the pages.
    #[error(
        "shared memory: no memory is left for its pages (its file system is full, or a limit of memory is reached)"
    )]
    NoPages,
    #[error("shared memory: {0}")]
    Unguarded(std::io::Error),
}

/// `TMPFS_MAGIC`: a memfd of ordinary pages is on such a file system.
const TMPFS: i64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`: files there can be mapped only with huge pages.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Prefetches a cache line for reading. This has no other effect, whatever the address.
#[inline]
fn prefetch_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, and SSE is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}

/// Prefetches a cache line for writing, which takes it away from all other caches.
#[inline]
fn prefetch_line_to_write(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above; a processor without this instruction does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}

/// A mapping of shared memory, zeroed at first, or a part of one.
#[derive(Debug)]
pub struct Memory {
    /// Must be dropped before the mapping.
    guarded: Option<Guarded>,
    start: NonNull<u8>,
    len: usize,
    of: Of,
}

/// The mapping to which the memory belongs.
#[derive(Debug)]
enum Of {
    /// The memory owns the mapping with this address and length.
    Mapping(NonNull<u8>, usize),
    /// The memory is a part of another one, which stays as long as this. So does the owner of these bytes.
    Whole(#[allow(dead_code, reason = "kept, not read")] (Arc<Memory>, Arc<dyn Any + Send + Sync>)),
}

// SAFETY: it is ordinary memory, used only through raw pointers and atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates memory of `len` bytes that nobody can shrink or grow, and the file to give to the other side.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(name: &str, len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        #[cfg(loom)]
        for at in (0..len).step_by(4) {
            // SAFETY: within the mapping, which nobody else uses yet.
            unsafe { memory.at::<u32>(at).write(crate::model::new_word()) };
        }
        Ok((memory, file))
    }

    /// Maps memory that the other side created.
    ///
    /// # Errors
    /// If the other side could withdraw it, or the kernel doesn't map it.
    pub fn open(file: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        Self::check(&file, len)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Creates memory that only we can write, and the file to give to readers.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create_for_readers(name: &str, len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let ours = Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok((ours, file))
    }

    /// Maps memory that the other side created, for reading only.
    ///
    /// # Errors
    /// The same as for [`Self::open`].
    pub fn open_for_reading(file: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        Self::check(&file, len)?;
        Self::map(file, len, ProtFlags::READ)
    }

    fn check(file: impl AsFd, len: usize) -> Result<(), MemoryError> {
        // For files other than memfds this fails, and no other call is made on them.
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if rustix::fs::fstatfs(&file)?.f_type != TMPFS {
            return Err(MemoryError::NotOrdinary);
        }
        if !sealed || rustix::fs::fstat(&file)?.st_size < len as i64 {
            return Err(MemoryError::Unsealed);
        }
        Ok(())
    }

    fn map(file: impl AsFd, len: usize, access: ProtFlags) -> Result<Self, MemoryError> {
        Self::map_at(file, (0, len), access)
    }

    /// Maps bytes of a file from an offset on.
    fn map_at(file: impl AsFd, (offset, len): (u64, usize), access: ProtFlags) -> Result<Self, MemoryError> {
        let stat = rustix::fs::fstatfs(&file)?;
        let unit = if stat.f_type == HUGETLBFS { stat.f_bsize as u64 } else { 1 };
        let before = (offset % unit) as usize;
        let whole = (before + len).next_multiple_of(unit as usize);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                whole,
                access,
                MapFlags::SHARED,
                file,
                offset - before as u64,
            )
        }?;
        let mapping = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: within the mapping.
        let start = unsafe { mapping.add(before) };
        Ok(Self { guarded: None, start, len, of: Of::Mapping(mapping, whole) })
    }

    /// Maps, for the library, a part of a window whose data begins at `base` of this file or device. The library trusts
    /// the file's creator: the host, or the administrator of its machine.
    ///
    /// # Errors
    /// If there is no such part, or the kernel does not map it.
    pub fn open_part(window: impl AsFd, base: u64, part: Part) -> Result<Self, MemoryError> {
        Self::open_parts(window, base, &[part])
    }

    /// Maps, for the library, several parts of a window, which follow each other in memory. More than one part of
    /// a file with huge pages is refused.
    ///
    /// # Errors
    /// The same as for [`Self::open_part`].
    pub fn open_parts(window: impl AsFd, base: u64, parts: &[Part]) -> Result<Self, MemoryError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mut len = 0_usize;
        for part in parts {
            part.end().and_then(|end| end.checked_add(base)).ok_or(MemoryError::NoPart)?;
            len = len.checked_add(part.len as usize).ok_or(MemoryError::NoPart)?;
        }
        if let [part] = parts {
            return Self::map_at(window, (base + part.offset, len), access);
        }
        // SAFETY: as in `map_at`.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let memory = Self { guarded: None, start, len, of: Of::Mapping(start, len) };
        let mut at = 0;
        for part in parts {
            let (flags, offset) = (MapFlags::SHARED | MapFlags::FIXED, base + part.offset);
            // SAFETY: it replaces a part of what was just mapped and is not used yet.
            unsafe {
                let place = start.add(at).as_ptr().cast();
                rustix::mm::mmap(place, part.len as usize, access, flags, &window, offset)
            }?;
            at += part.len as usize;
        }
        Ok(memory)
    }

    /// Maps, for the device, a whole window: `len` bytes of data from `base` on.
    ///
    /// # Errors
    /// If the file is shorter, or the kernel does not map it.
    pub fn open_window(file: impl AsFd, base: u64, len: u64) -> Result<Self, MemoryError> {
        let end = base.checked_add(len).and_then(|end| i64::try_from(end).ok()).ok_or(MemoryError::NoPart)?;
        if rustix::fs::fstat(&file)?.st_size < end {
            return Err(MemoryError::NoPart);
        }
        Self::map_at(file, (base, len as usize), ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Returns a part of the memory; `None` if it is not all inside. `owner` is dropped with the part.
    #[must_use]
    pub fn view(self: &Arc<Self>, offset: u64, len: u64, owner: Arc<dyn Any + Send + Sync>) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let start = self.part(offset, len)?;
        Some(Self { guarded: None, start, len, of: Of::Whole((self.clone(), owner)) })
    }

    /// Makes the kernel provide all these pages, writable, so that none is missing later.
    ///
    /// # Errors
    /// If some can't be provided, or are not inside.
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let (offset, len) = (offset as usize, len as usize);
        let start = self.part(offset, len).ok_or(MemoryError::NoPart)?;
        // SAFETY: within the mapping, whose contents stay.
        let done = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), len, rustix::mm::Advice::LinuxPopulateWrite)
        };
        match done {
            // Kernels before Linux 5.14 provide pages when they are touched.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            // An access would raise SIGBUS.
            Err(rustix::io::Errno::FAULT | rustix::io::Errno::NOMEM) => Err(MemoryError::NoPages),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Copies bytes into the memory, which others may be reading. Returns false if they do not fit.
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(start) = self.part(offset, bytes.len()) else { return false };
        // SAFETY: within the mapping; the slice has that length.
        unsafe { std::ptr::copy(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        true
    }

    pub fn clear(&self) {
        // SAFETY: within the mapping.
        unsafe { std::ptr::write_bytes(self.start.as_ptr(), 0, self.len) };
    }

    /// Copies bytes from the memory, which others may be writing. Returns false if they are not all inside.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(start) = self.part(offset, out.len()) else { return false };
        // SAFETY: within the mapping; the slice has that length.
        unsafe { std::ptr::copy(start.as_ptr(), out.as_mut_ptr(), out.len()) };
        true
    }

    /// Guards the mapping against changes of the file by the other side: if a page is not available, zeros replace
    /// the whole mapping, and `fault` is raised. Only the device does this: the guard has a signal handler, which
    /// programs may not want. Does nothing for a part of another memory, which shares that memory's guard.
    ///
    /// # Errors
    /// If the handler can't be installed.
    pub fn guarded(mut self, fault: &Arc<FaultWord>) -> Result<Self, MemoryError> {
        let Of::Mapping(start, len) = self.of else { return Ok(self) };
        start.as_ptr().expose_provenance();
        // SAFETY: the whole of a mapping, which is unmapped after the guard (`drop`).
        let guarded = unsafe { Guarded::new(start.as_ptr(), len, fault) };
        self.guarded = Some(guarded.map_err(MemoryError::Unguarded)?);
        Ok(self)
    }

    /// Returns the address at which the memory is mapped.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, len: usize) {
        for line in (offset..self.len.min(offset.saturating_add(len))).step_by(64) {
            prefetch_line(self.start.as_ptr().wrapping_add(line));
        }
    }

    /// Prefetches a cache line for writing, which takes it away from all other caches.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, offset: usize) {
        if offset < self.len {
            prefetch_line_to_write(self.start.as_ptr().wrapping_add(offset));
        }
    }

    /// Returns the address of the bytes from `offset` on; `None` if they are not all inside.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let fits = offset <= self.len && len <= self.len - offset;
        // SAFETY: within the mapping, or at its end where there are none.
        fits.then(|| unsafe { self.start.add(offset) })
    }

    /// Returns the address of a `T` in the memory.
    ///
    /// # Panics
    /// If `T` does not fit there, or is not aligned. That is our own mistake, since the device defines layouts.
    #[inline]
    pub(crate) fn at<T>(&self, offset: usize) -> NonNull<T> {
        let fits = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len);
        assert!(fits && offset.is_multiple_of(align_of::<T>()), "outside of the shared memory");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.add(offset).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.guarded = None;
        if let Of::Mapping(start, len) = self.of {
            // SAFETY: it was mapped at that address with that length, and whoever used it borrowed or owned `self`.
            let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), len) };
        }
    }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_to_be_had_are_zeros_and_a_fault() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let fault = Arc::new(FaultWord::new());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let memory = Memory::map(&file, 8192, access).unwrap().guarded(&fault).unwrap();
        let place = memory.at::<u64>(4096).as_ptr();
        // SAFETY: within the mapping, which nobody else uses.
        unsafe { place.write_volatile(7) };
        assert_eq!(fault.get(), None);
        rustix::fs::ftruncate(&file, 0).unwrap();
        // SAFETY: as above.
        let seen = unsafe {
            place.write_volatile(8);
            memory.at::<u64>(0).as_ptr().read_volatile() + place.read_volatile()
        };
        assert_eq!((seen, fault.get()), (8, Some(FaultWord::BUS)));
    }

    #[test]
    fn parts_of_a_window_are_where_they_are() {
        use crate::part::{PAGE, WindowKind};
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8 * PAGE).unwrap();
        let whole = Arc::new(Memory::open_window(&file, 2 * PAGE, 6 * PAGE).unwrap());
        assert!(matches!(Memory::open_window(&file, 2 * PAGE, 6 * PAGE + 1), Err(MemoryError::NoPart)));
        let part = |offset, len| Part { window: WindowKind::Own, offset, len };
        assert!(whole.write(PAGE as usize, b"one") && whole.write(4 * PAGE as usize, b"two"));
        let both = [part(4 * PAGE, PAGE), part(0, 2 * PAGE)];
        let both = Memory::open_parts(&file, 2 * PAGE, &both).unwrap();
        let at = |memory: &Memory, offset: u64| {
            let mut bytes = [0; 3];
            assert!(memory.read(offset as usize, &mut bytes));
            bytes
        };
        assert_eq!((both.len() as u64, at(&both, 0), at(&both, 2 * PAGE)), (3 * PAGE, *b"two", *b"one"));
        let one = Memory::open_part(&file, 2 * PAGE, part(PAGE, PAGE)).unwrap();
        assert!(one.write(0, b"six") && !one.write(PAGE as usize - 1, b"no"));
        assert_eq!(at(&both, 2 * PAGE), *b"six");
        let owner = Arc::new(());
        let view = |offset, len| whole.view(offset, len, owner.clone());
        assert!(view(PAGE, 5 * PAGE + 1).is_none() && view(u64::MAX, 1).is_none());
        let view = view(PAGE, PAGE).unwrap();
        drop(whole);
        assert_eq!((at(&view, 0), Arc::strong_count(&owner)), (*b"six", 2));
        drop(view);
        assert_eq!(Arc::strong_count(&owner), 1);
        for wrong in [part(1, PAGE), part(0, 0), part(u64::MAX - PAGE + 1, PAGE)] {
            assert!(Memory::open_part(&file, 0, wrong).is_err());
        }
    }

    #[test]
    fn huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, 1 << 21).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(matches!(Memory::open(&file, 1 << 21), Err(MemoryError::NotOrdinary)));
    }
}
