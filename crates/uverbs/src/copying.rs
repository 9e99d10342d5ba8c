//! Jobs for a program whose memory the device can't reach: to copy between the memory of a region that can't move to a
//! window and the pages that stand for it there. A thread of the program, the copier, does them one after the other.

use crate::Memory;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A job for the copier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyJob {
    /// Counts up by one with each job.
    pub number: u32,
    /// The key of the region.
    pub key: u32,
    /// The memory in the program.
    pub address: u64,
    pub work: CopyWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWork {
    /// Copies this many bytes from the program's memory to the pages that stand for it.
    Fetch(u64),
    /// Copies this many bytes from these pages to the program's memory.
    Store(u64),
    /// Adds to a word of the program's memory.
    FetchAdd(u64),
    /// Replaces a word of the program's memory if it has a value.
    CompareSwap { compare: u64, swap: u64 },
}

impl CopyJob {
    /// Bytes of a job on its socket.
    pub const BYTES: usize = 40;

    /// Returns the job in the machine's byte order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, one, other) = match self.work {
            CopyWork::Fetch(len) => (0, len, 0),
            CopyWork::Store(len) => (1, len, 0),
            CopyWork::FetchAdd(add) => (2, add, 0),
            CopyWork::CompareSwap { compare, swap } => (3, compare, swap),
        };
        let head = u64::from(self.number) | u64::from(self.key) << 32;
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([head, kind, self.address, one, other]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the job; `None` if there is no such job.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut words = [0; Self::BYTES / 8];
        for (word, place) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*place);
        }
        let [head, kind, address, one, other] = words;
        let work = match kind {
            0 => CopyWork::Fetch(one),
            1 => CopyWork::Store(one),
            2 => CopyWork::FetchAdd(one),
            3 => CopyWork::CompareSwap { compare: one, swap: other },
            _ => return None,
        };
        Some(Self { number: head as u32, key: (head >> 32) as u32, address, work })
    }
}

/// The place where the copier reports the last job that it has done.
#[repr(C, align(64))]
struct Last {
    number: AtomicU32,
    /// Whether the job failed: the program has no such memory.
    failed: AtomicU32,
    /// The word before an atomic operation.
    value: AtomicU64,
}

/// Memory in which the copier reports what it has done. Both ends use this type.
#[derive(Debug)]
pub struct CopyReport {
    memory: Memory,
}

impl CopyReport {
    /// Bytes of memory that a report needs.
    pub const BYTES: usize = size_of::<Last>();

    /// Returns the report in memory of [`Self::BYTES`], zeroed at first.
    ///
    /// # Panics
    /// If the memory is shorter.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        assert!(memory.len() >= Self::BYTES, "no room for a report");
        Self { memory }
    }

    fn last(&self) -> &Last {
        // SAFETY: at the start of memory that `self` keeps mapped; it consists of atomics.
        unsafe { self.memory.at::<Last>(0).as_ref() }
    }

    /// Reports, for the copier, a job as done, with the word before an atomic operation; `None` if it failed.
    pub fn put(&self, number: u32, value: Option<u64>) {
        let last = self.last();
        last.value.store(value.unwrap_or_default(), Ordering::Relaxed);
        last.failed.store(value.is_none().into(), Ordering::Relaxed);
        // Release: whoever sees the number sees what was copied.
        last.number.store(number, Ordering::Release);
    }

    /// Returns, for the device, how the job with this number ended; `None` if it has not.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Option<u64>> {
        let last = self.last();
        let is_done = last.number.load(Ordering::Acquire) == number;
        is_done
            .then(|| (last.failed.load(Ordering::Relaxed) == 0).then(|| last.value.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn jobs_arrive_as_they_were_sent() {
        let works = [
            CopyWork::Fetch(1 << 40),
            CopyWork::Store(7),
            CopyWork::FetchAdd(u64::MAX),
            CopyWork::CompareSwap { compare: 5, swap: 6 },
        ];
        for work in works {
            let job = CopyJob { number: u32::MAX, key: 0x8123_4567, address: u64::MAX - 3, work };
            assert_eq!(CopyJob::from_bytes(&job.to_bytes()), Some(job));
        }
        assert_eq!(CopyJob::from_bytes(&[9; CopyJob::BYTES]), None);
    }

    #[test]
    fn a_report_is_of_one_job() {
        let (memory, file) = Memory::create("report", CopyReport::BYTES).unwrap();
        let (device, copier) =
            (CopyReport::new(memory), CopyReport::new(Memory::open(file, CopyReport::BYTES).unwrap()));
        assert_eq!(device.get(1), None);
        copier.put(1, Some(8));
        assert_eq!((device.get(1), device.get(2)), (Some(Some(8)), None));
        copier.put(2, None);
        assert_eq!((device.get(1), device.get(2)), (None, Some(None)));
    }
}
