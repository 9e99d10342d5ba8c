//! Memory that is shared with the device.

use anyhow::{Context, Result};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU16;
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

const HUGE_PAGE: usize = 2 << 20;

/// A guest's memory, of huge pages as a VMM takes them.
pub struct Memory {
    region: MmapRegion,
    taken: usize,
}

impl Memory {
    /// Allocates at least this many bytes, zeroed.
    pub fn new(bytes: usize) -> Result<Self> {
        let size = bytes.next_multiple_of(HUGE_PAGE);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = File::from(rustix::fs::memfd_create("replay", flags)?);
        file.set_len(size as u64)?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), size).context("huge pages")?;
        Ok(Self { region, taken: 0 })
    }

    /// Takes bytes from what is left; returns their offset.
    pub fn take(&mut self, bytes: usize, align: usize) -> Result<usize> {
        let offset = self.taken.next_multiple_of(align);
        self.taken = offset + bytes;
        anyhow::ensure!(self.taken <= self.region.size(), "memory is too small");
        Ok(offset)
    }

    pub fn slice(&self, offset: usize, bytes: usize) -> Result<VolatileSlice<'_>> {
        Ok(self.region.get_slice(offset, bytes)?)
    }

    /// Returns the 16 bits at an offset, as both sides of a ring share them.
    pub fn index(&self, offset: usize) -> Result<&AtomicU16> {
        Ok(self.region.get_atomic_ref(offset)?)
    }

    /// Returns the address of this offset in our own address space, by which a vhost-user front end names
    /// rings.
    pub fn host_address(&self, offset: usize) -> u64 {
        self.region.as_ptr() as u64 + offset as u64
    }

    /// Describes the memory for a device. Guest addresses are offsets.
    pub fn region_info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.region.size() as u64,
            userspace_addr: self.host_address(0),
            mmap_offset: 0,
            mmap_handle: self.region.file_offset().map_or(-1, |file| file.file().as_raw_fd()),
        }
    }
}
