//! Memory that the device shares with an application: queues, and direct sessions between queue pairs.

use crate::base::refusal::no_memory;
use mem::FaultWord;
use rustix::fs::FallocateFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::{Memory, Refusal};

/// Creates memory to share with an application. It is sealed or guarded: whatever an application does to its file
/// harms only itself.
pub(crate) fn guarded_memory(
    name: &str,
    bytes: usize,
    fault: &Arc<FaultWord>,
) -> Result<(Memory, OwnedFd), Refusal> {
    let (memory, file) = Memory::create(name, bytes).map_err(no_memory)?;
    Ok((memory.guarded(fault).map_err(no_memory)?, file))
}

/// Frees the pages of a file that nobody needs any more: an application may keep the file, and pages that the daemon
/// touched count as the daemon's.
pub(crate) fn empty(file: &OwnedFd) {
    // The whole last page, whatever the page size.
    let len = rustix::fs::fstat(file).map_or(0, |stat| (stat.st_size as u64).next_multiple_of(1 << 16));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(file, hole, 0, len);
}
