//! A real card's registers: a mapped PCI BAR. It carries no packets.

use crate::card::Card;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

/// Minimum length of a card's BAR, in bytes: a few blocks.
const LEAST: u64 = 4 * 4096;
/// Alignment of windows, in bytes: the largest page size.
const GRAIN: u64 = 1 << 16;
/// Most bytes to map: everything that the directory's offsets reach.
const MOST: u64 = 1 << 28;

/// The reason why a BAR can't be mapped.
#[derive(Debug, thiserror::Error)]
pub enum BarError {
    /// The file can't be opened or mapped.
    #[error(
        "{}: {error}; give the card's resource file, such as /sys/bus/pci/devices/<address>/resource2, as root",
        path.display()
    )]
    Io { path: PathBuf, error: io::Error },
    /// The BAR is too short for a card.
    #[error(
        "{}: {len} bytes after {window:#x}, but a card's registers take at least 16384: give the file of another BAR",
        path.display()
    )]
    TooShort {
        path: PathBuf,
        /// Offset at which the registers should begin.
        window: u64,
        /// Bytes of the BAR from there on.
        len: u64,
    },
    /// Registers can't begin at this offset.
    #[error(
        "registers can't begin at {0:#x}: give a multiple of 0x10000, as 0x100000 for OpenNIC's box of 250 MHz"
    )]
    Window(u64),
}

#[derive(Debug)]
pub struct MmapBar {
    base: NonNull<u32>,
    /// Length of the mapping, in bytes.
    len: usize,
}

// SAFETY: the mapping belongs only to this value, and is not bound to a thread.
unsafe impl Send for MmapBar {}

impl MmapBar {
    /// Maps the BAR in this file from the offset `window` on, in bytes, where the card's registers begin.
    ///
    /// # Errors
    /// If the file can't be mapped, or can't be a card's BAR with registers at this offset.
    pub fn open(path: &Path, window: u64) -> Result<Self, BarError> {
        if !window.is_multiple_of(GRAIN) {
            return Err(BarError::Window(window));
        }
        let failed = |error: io::Error| BarError::Io { path: path.to_owned(), error };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len().saturating_sub(window);
        if len < LEAST {
            return Err(BarError::TooShort { path: path.to_owned(), window, len });
        }
        let len = len.min(MOST) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, window) };
        let base = base.map_err(|error| failed(error.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
        Ok(Self { base, len })
    }

    /// Returns the address of a register, if it is inside the mapping.
    fn register(&self, offset: u32) -> Option<NonNull<u32>> {
        let offset = offset as usize;
        let inside = offset.is_multiple_of(4) && offset + 4 <= self.len;
        // SAFETY: the mapping is `len` bytes long, and the register ends inside it.
        inside.then(|| unsafe { self.base.byte_add(offset) })
    }
}

impl Card for MmapBar {
    /// Reads a register. Outside the BAR, reads all ones, as on a bus where nobody answers.
    fn read32(&mut self, offset: u32) -> u32 {
        // SAFETY: mapped, aligned to four bytes, and a register: other writers are hardware.
        self.register(offset).map_or(u32::MAX, |register| u32::from_le(unsafe { register.read_volatile() }))
    }

    fn write32(&mut self, offset: u32, value: u32) {
        if let Some(register) = self.register(offset) {
            // SAFETY: mapped, aligned to four bytes, and a register: other readers are hardware.
            unsafe { register.write_volatile(value.to_le()) };
        }
    }
}

impl Drop for MmapBar {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no pointers remain.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
