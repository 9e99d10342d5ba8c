//! Memory that both sides map.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Why memory can't be shared.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel does not give it.
    #[error("shared memory: {0}")]
    Kernel(#[from] rustix::io::Errno),
    /// The file could be made shorter, or is too short already.
    #[error("shared memory: not sealed, or shorter than agreed")]
    Unsealed,
}

/// What was stored before is seen by all others before what is loaded after is read: [`fence`](std::sync::atomic::fence), whose
/// instruction (`mfence`) takes several times as long as this one.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: no memory is changed, and the flags may be.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// A mapping of shared memory, zeroed at first.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory like any other, used through raw pointers and atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes memory of `len` bytes that nobody can shrink or grow, and the file to give to the other side.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(name: &str, len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?, file))
    }

    /// Maps what the other side made.
    ///
    /// # Errors
    /// Where the other side could take it away again, or the kernel doesn't map it.
    pub fn open(file: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        Self::check(&file, len)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Makes memory that only we can write, and the file to give to those who read it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create_for_readers(name: &str, len: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let ours = Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok((ours, file))
    }

    /// Maps what the other side made, only for reading.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn open_for_reading(file: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        Self::check(&file, len)?;
        Self::map(file, len, ProtFlags::READ)
    }

    fn check(file: impl AsFd, len: usize) -> Result<(), MemoryError> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(&file)?.st_size < len as i64 {
            return Err(MemoryError::Unsealed);
        }
        Ok(())
    }

    fn map(file: impl AsFd, len: usize, access: ProtFlags) -> Result<Self, MemoryError> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has what lies there brought near, as it will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in (offset..self.len.min(offset + len)).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: within the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.add(line).as_ptr().cast()) };
        }
    }

    /// Has a cache line taken away from all others who have it, as it will be written to soon.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, offset: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if offset < self.len {
            // SAFETY: within the mapping; nothing changes by it.
            unsafe {
                let line = self.start.add(offset).as_ptr();
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// So many bytes of it from there on; `None` where they are not all in it.
    #[inline]
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let fits = offset <= self.len && len <= self.len - offset;
        // SAFETY: within the mapping, or at its end where there are none.
        fits.then(|| unsafe { self.start.add(offset) })
    }

    /// A place in it that holds `T`.
    ///
    /// # Panics
    /// Where `T` does not fit there, or not at that alignment: our own mistake, as layouts are the device's.
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
        // SAFETY: it was mapped at that place with that length, and whoever used it borrowed or owned `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
