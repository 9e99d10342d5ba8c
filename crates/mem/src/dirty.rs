//! The log of written pages, from which a VMM copies the memory of a running guest (vhost-user, "Migration").

use crate::{FaultWord, Quota, Region, RegionError, RegionSpec, Regions, Segment};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of guest memory for which a bit stands.
pub const LOG_PAGE: u64 = 4096;

/// One bit for each page of guest-physical memory, shared with the VMM, which clears the bits that it has
/// read.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    bits: Region,
}

impl DirtyLog {
    /// Maps `len` bytes of `file`, from `offset`, guarded as guest memory is.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map(
        len: u64,
        offset: u64,
        file: impl AsFd,
        fault: &Arc<FaultWord>,
        quota: &Arc<Quota>,
    ) -> Result<Self, RegionError> {
        let spec = RegionSpec { gpa: 0, len, user: 0, offset };
        Ok(Self { bits: Region::map(&spec, file, fault, quota)? })
    }

    /// Creates a log in memory that is already mapped.
    ///
    /// # Errors
    /// [`RegionError::Range`].
    ///
    /// # Safety
    /// As [`Region::from_raw`].
    pub unsafe fn from_raw(len: u64, host: *mut u8) -> Result<Self, RegionError> {
        // SAFETY: the caller's promise.
        let bits = unsafe { Region::from_raw(&RegionSpec { gpa: 0, len, user: 0, offset: 0 }, host) }?;
        Ok(Self { bits })
    }

    /// Marks all pages of `written`, which is memory of `regions`. Call it after writing: then a VMM that
    /// clears a bit sees everything that was written before. Pages beyond the log's end are left out; the VMM
    /// asked for no more.
    pub fn mark(&self, regions: &Regions, written: &Segment) {
        let Some(first) = regions.gpa(written.as_ptr()).filter(|_| !written.is_empty()) else { return };
        let last = first + (written.len() as u64 - 1);
        for page in first / LOG_PAGE..=last / LOG_PAGE {
            let Some(byte) = self.bits.byte(page / 8) else { return };
            // SAFETY: mapped as long as the region is; whoever shares these bytes writes them by atomic operations.
            unsafe { AtomicU8::from_ptr(byte) }.fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPA: u64 = 0x4000_0000;

    #[test]
    fn every_page_touched_is_marked_and_no_other() {
        let mut ram = vec![0_u8; 0xc000];
        // A bit for each page up to the first eight of the guest.
        let mut bits = vec![0_u8; (GPA / LOG_PAGE / 8) as usize + 1];
        let mut regions = Regions::default();
        for (gpa, at) in [(GPA, 0x4000), (GPA + 0x4000, 0), (GPA + 0x8000, 0x8000)] {
            let spec = RegionSpec { gpa, len: 0x4000, user: gpa, offset: 0 };
            // SAFETY: the memory outlives the test's use of it.
            regions.insert(unsafe { Region::from_raw(&spec, ram.as_mut_ptr().add(at)) }.unwrap()).unwrap();
        }
        // SAFETY: as above.
        let log = unsafe { DirtyLog::from_raw(bits.len() as u64, bits.as_mut_ptr()) }.unwrap();
        let mut pages = |offset: usize, len| {
            // SAFETY: inside `ram`.
            let written = unsafe { Segment::new(ram.as_mut_ptr().add(offset), len) };
            log.mark(&regions, &written);
            let set = (0..8 * bits.len()).filter(|page| bits[page / 8] & 1 << (page % 8) != 0);
            let set: Vec<u64> = set.map(|page| page as u64 - GPA / LOG_PAGE).collect();
            bits.fill(0);
            set
        };
        assert_eq!(pages(0x4000, 1), [0]);
        assert_eq!(pages(0x4fff, 1), [0]);
        assert_eq!(pages(0x4fff, 2), [0, 1]);
        assert_eq!(pages(0x4800, 0x2801), [0, 1, 2, 3]);
        assert_eq!(pages(0x0000, 0x10), [4]);
        assert_eq!(pages(0x4000, 0), [0; 0]);
        assert_eq!(pages(0x8000, 0x2000), [0; 0], "beyond the log");
        let mut other = [0_u8; 16];
        // SAFETY: as above.
        log.mark(&regions, &unsafe { Segment::new(other.as_mut_ptr(), 16) });
        assert!(bits.iter().all(|byte| *byte == 0), "no memory of the guest");
    }
}
