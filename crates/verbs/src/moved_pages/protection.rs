//! Protection of pages while they move: other threads that write to them wait, so that nothing they write is lost.
//!
//! The pages are write-protected by a `userfaultfd(2)`. If the program may not handle faults of the kernel
//! (`vm.unprivileged_userfaultfd`, `CAP_SYS_PTRACE`), a system call of another thread that writes there meanwhile fails
//! with `EFAULT`. Where there is no `userfaultfd` (before Linux 5.11, some sandboxes), writes by other threads may be
//! lost.

use rustix::mm::{Advice, madvise};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_API`.
const API: u64 = 0xAA;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`.
const FEATURE_PROTECTION: u64 = 1;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_PROTECTION: u64 = 2;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1;
/// Numbers of the calls (`linux/userfaultfd.h`).
const CALL_API: u32 = 0xc018_aa3f;
const CALL_REGISTER: u32 = 0xc020_aa00;
const CALL_PROTECT: u32 = 0xc018_aa06;
const CALL_WAKE: u32 = 0x8010_aa02;

/// Write protection of pages, until it is dropped.
///
/// Meanwhile this thread must not write to the pages either: it allocates nothing, and its stack is elsewhere.
pub struct Protection {
    faults: OwnedFd,
    start: u64,
    len: u64,
}

impl Protection {
    /// Protects whole pages of private anonymous memory; returns `None` if the kernel does not support that.
    pub fn of(start: usize, len: usize) -> Option<Self> {
        let open = |flags: libc::c_int| {
            // SAFETY: it makes a descriptor.
            let fd =
                unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) };
            let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            // SAFETY: a new descriptor, which nobody else has.
            Some(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        let faults = open(0).or_else(|| open(USER_MODE_ONLY))?;
        call(&faults, CALL_API, &mut [API, FEATURE_PROTECTION, 0])?;
        // Only pages that are there can be protected; those that were never used become the kernel's page of zeros.
        // SAFETY: no content changes by it.
        unsafe { madvise(start as *mut _, len, Advice::LinuxPopulateRead) }.ok()?;
        let (start, len) = (start as u64, len as u64);
        call(&faults, CALL_REGISTER, &mut [start, len, REGISTER_PROTECTION, 0])?;
        let protection = Self { faults, start, len };
        call(&protection.faults, CALL_PROTECT, &mut [start, len, PROTECT])?;
        Some(protection)
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // Pages that moved away have no protection any more, but the threads that wait for them must be woken.
        let _ = call(&self.faults, CALL_PROTECT, &mut [self.start, self.len, 0]);
        let _ = call(&self.faults, CALL_WAKE, &mut [self.start, self.len]);
    }
}

/// Makes a call whose argument is a structure of 64-bit words. The call's number encodes the structure's length.
fn call<const N: usize>(faults: &OwnedFd, number: u32, words: &mut [u64; N]) -> Option<()> {
    debug_assert_eq!(number >> 16 & 0x3fff, size_of_val(words) as u32);
    // SAFETY: the kernel reads and writes as many bytes as the number says.
    let done = unsafe { libc::ioctl(faults.as_raw_fd(), number as _, words.as_mut_ptr()) };
    (done == 0).then_some(())
}
