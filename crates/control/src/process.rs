//! Resources that the daemon's process uses, for metrics under the names of Prometheus' client libraries.
//!
//! The files are opened before the sandbox forbids that, and are read anew at each scrape.

use procfs_core::FromRead;
use procfs_core::process::Stat;
use rustix::fs::{Dir, FileExt, Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Buffer size for /proc/self/stat: 52 numbers and a short name (proc(5)).
const STAT: usize = 2048;

#[derive(Debug)]
pub struct Process {
    stat: File,
    descriptors: Mutex<Dir>,
    /// Clock ticks per second, in which the kernel counts CPU time.
    ticks: f64,
    /// Bytes of a page.
    page: u64,
    /// Start of the process, Unix time. It is noted once, so it is the same at each scrape.
    started: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// CPU time of all threads, seconds.
    pub(crate) cpu: f64,
    /// Memory in RAM, bytes.
    pub(crate) resident: u64,
    /// Size of the address space, bytes.
    pub(crate) virtual_: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
    /// Limit on open file descriptors. `None`: unlimited.
    pub(crate) most_descriptors: Option<u64>,
    /// Start of the process, Unix time.
    pub(crate) started: Duration,
}

impl Process {
    /// Opens the files. They describe the process that opened them, also when a fork reads them.
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
        // The directory also has "." and "..".
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

    // Margins, because other tests open and close files and allocate meanwhile.
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
