//! Memory that a VMM keeps beyond the end of this process, so that rings go on where they were (vhost-user,
//! "Inflight I/O tracking").
//!
//! Its content is the device's own matter. The specification suggests one for devices that complete chains in
//! any order. Our devices complete chains in the order in which they took them. So the used index alone tells
//! where a split ring goes on, and nothing is kept here for it. For a packed ring, a copy of its [`Journal`]
//! is kept. In the words of the specification, a ring's part begins with features. Ours are used by nobody
//! else, with version zero, so that any other device takes the part for memory that was not used yet. In the
//! same way, we begin anew in a different device's memory.
//!
//! The VMM can write all of it at any time, as it can write the ring itself.

use crate::ring::Journal;
use mem::{FaultWord, Quota, Region, RegionError, RegionSpec, Regions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use vhost::vhost_user::message::VhostUserInflight;

/// The features at the beginning of a ring's part; the last digit is the version of the journal in it.
const OURS: u64 = u64::from_le_bytes(*b"viaduct1");
/// Bytes before the journal; also the unit of a ring's part: a cache line.
const HEADER: usize = 64;
/// The longest ring (VIRTIO 1.2, 2.8).
const MAX_SIZE: u16 = 1 << 15;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InflightError {
    /// No memory can be made for so many rings, or such long ones.
    #[error("{queues} rings of {size} descriptors: there are {most} rings, of at most {MAX_SIZE}")]
    Rings { queues: u16, size: u16, most: usize },
    /// The rings do not fit into the memory.
    #[error("{0} bytes are too few for the rings")]
    Short(u64),
    /// The parts are not aligned to words, as journals must be.
    #[error("it begins at {0}, no multiple of 8")]
    Unaligned(u64),
    /// The memory can't be mapped.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The memory can't be made.
    #[error("it can't be made: {0}")]
    Os(#[from] io::Error),
}

/// The memory that a VMM keeps.
pub(crate) struct Inflight {
    regions: Arc<Regions>,
    /// The memory's form, as the VMM says it.
    form: VhostUserInflight,
    file: File,
}

/// Returns the length in bytes of the part of one ring.
fn part(size: u16) -> u64 {
    (HEADER + Journal::bytes(size)).next_multiple_of(HEADER) as u64
}

/// Returns the length in bytes of memory for the rings in `form`, of which there can be at most `most`.
fn bytes(form: &VhostUserInflight, most: usize) -> Result<u64, InflightError> {
    let &VhostUserInflight { num_queues: queues, queue_size: size, .. } = form;
    if queues == 0 || usize::from(queues) > most || !(1..=MAX_SIZE).contains(&size) {
        return Err(InflightError::Rings { queues, size, most });
    }
    Ok(u64::from(queues) * part(size))
}

/// Handles GET_INFLIGHT_FD: makes new memory. `most` is the number of rings that there can be.
pub(crate) fn create(
    asked: &VhostUserInflight,
    most: usize,
) -> Result<(VhostUserInflight, File), InflightError> {
    let form = VhostUserInflight { mmap_size: bytes(asked, most)?, mmap_offset: 0, ..*asked };
    let create = || {
        let file = memfd_create("viaduct-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, form.mmap_size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    Ok((form, create().map_err(|e: rustix::io::Errno| io::Error::from(e))?.into()))
}

impl Inflight {
    /// Handles SET_INFLIGHT_FD: maps memory that the VMM kept, or just got. `fault` is raised if the memory
    /// disappears.
    pub(crate) fn map(
        form: &VhostUserInflight,
        most: usize,
        file: File,
        (fault, quota): (&Arc<FaultWord>, &Arc<Quota>),
    ) -> Result<Self, InflightError> {
        let &VhostUserInflight { mmap_size: len, mmap_offset: offset, .. } = form;
        if len < bytes(form, most)? {
            return Err(InflightError::Short(len));
        }
        if offset % 8 != 0 {
            return Err(InflightError::Unaligned(offset));
        }
        let mut regions = Regions::default();
        regions.insert(Region::map(&RegionSpec { gpa: 0, len, user: 0, offset }, &file, fault, quota)?)?;
        Ok(Self { regions: Arc::new(regions), form: *form, file })
    }

    /// Returns the form and the file, for a process that goes on with the memory.
    pub(crate) fn source(&self) -> (&VhostUserInflight, &File) {
        (&self.form, &self.file)
    }

    /// Makes the journal of this ring keep its copy here, if the ring has a part that is long enough.
    pub(crate) fn keep(&self, index: usize, size: u16, journal: &mut Journal) {
        let &VhostUserInflight { num_queues, queue_size, .. } = &self.form;
        if index >= usize::from(num_queues) || size > queue_size {
            return;
        }
        let len = part(queue_size);
        let Some(at) = self.regions.user(index as u64 * len, len) else { return };
        // SAFETY: mapped, and aligned to 8; the VMM accesses it as anybody accesses shared memory.
        let header = unsafe { AtomicU64::from_ptr(at.cast()) };
        // SAFETY: behind the header, as long as a journal of `queue_size` entries, and this ring has no more.
        unsafe { journal.copy_to(at.add(HEADER), Box::new(self.regions.clone())) };
        if header.load(Ordering::Relaxed) != OURS {
            journal.end_copy();
            compiler_fence(Ordering::SeqCst);
            header.store(OURS, Ordering::Relaxed);
        }
    }
}
