//! What the daemon's process takes, for metrics under the names that Prometheus' client libraries use.
//!
//! The files are opened before the sandbox forbids it, and read anew at each scrape.

use procfs_core::FromRead;
use procfs_core::process::Stat;
use rustix::fs::{Dir, FileExt, Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Room for /proc/self/stat: 52 numbers and a short name (proc(5)).
const STAT: usize = 2048;

/// The daemon's own process.
#[derive(Debug)]
pub struct Process {
    stat: File,
    descriptors: Mutex<Dir>,
    /// Of CPU time, a second.
    ticks: f64,
    /// Bytes of a page.
    page: u64,
    /// When it was started, Unix time: noted once, so that it is the same at each scrape.
    started: Duration,
}

/// What it takes at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Time on CPUs, of all its threads, seconds.
    pub(crate) cpu: f64,
    /// Memory it has in RAM, bytes.
    pub(crate) resident: u64,
    /// Its address space, bytes.
    pub(crate) virtual_: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
    /// File descriptors that may be open at once. `None`: any number.
    pub(crate) most_descriptors: Option<u64>,
    /// When it was started, Unix time.
    pub(crate) started: Duration,
}

impl Process {
    /// Opens the files. Another process of the same files (a fork) is not the one they tell of.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = Dir::new(open("/proc/self/fd", flags, Mode::empty())?)?;
        Ok(Self {
            stat: File::open("/proc/self/stat")?,
            descriptors: Mutex::new(descriptors),
            ticks: rustix::param::clock_ticks_per_second() as f64,
            page: rustix::param::page_size() as u64,
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        })
    }

    pub(crate) fn usage(&self) -> io::Result<Usage> {
        let mut text = [0; STAT];
        let length = self.stat.read_at(&mut text, 0)?;
        let stat = Stat::from_read(&text[..length]).map_err(io::Error::other)?;
        let ticks = stat.utime.saturating_add(stat.stime);
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.rewind();
        // "." and ".."
        let descriptors = descriptors.by_ref().count().saturating_sub(2);
        Ok(Usage {
            cpu: ticks as f64 / self.ticks,
            resident: stat.rss.saturating_mul(self.page),
            virtual_: stat.vsize,
            threads: u64::try_from(stat.num_threads).unwrap_or_default(),
            descriptors: descriptors as u64,
            most_descriptors: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            started: self.started,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    // Other tests open and close files and allocate meanwhile.
    #[test]
    fn what_is_opened_and_allocated_is_seen() {
        let process = Process::open().unwrap();
        let files: Vec<_> = (0..500).map(|_| File::open("/dev/null").unwrap()).collect();
        let memory = std::hint::black_box(vec![1_u8; 256 << 20]);
        let usage = process.usage().unwrap();
        assert!((500..100_000).contains(&usage.descriptors), "{usage:?}");
        assert!(
            (256 << 20..64 << 30).contains(&usage.resident) && usage.virtual_ >= usage.resident,
            "{usage:?}"
        );
        assert!(usage.threads >= 1 && usage.cpu > 0.0, "{usage:?}");
        assert_eq!(usage.started, process.usage().unwrap().started, "another value would be a restart");
        drop((files, memory));
    }
}
