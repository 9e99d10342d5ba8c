//! The lock that allows only one daemon per run-dir.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long we wait for a daemon that is ending, whose memory takes a while to be freed.
const ENDING: Duration = Duration::from_secs(2);

/// How often we look whether it has ended.
const AGAIN: Duration = Duration::from_millis(20);

/// The right to use a run-dir, until it is dropped or the process ends.
pub(crate) struct Lock {
    file: OwnedFd,
}

impl Lock {
    /// Takes the lock. Returns `None` if a different process has it, unless `other` is that process's lock:
    /// then both share the lock, which lasts until both have dropped it.
    pub(crate) fn take_from(run_dir: &Path, other: Option<OwnedFd>) -> std::io::Result<Option<Self>> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(run_dir.join("viaductd.lock"), flags, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK) => Ok(same_file(other, &file)?.map(|file| Self { file })),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the lock when no daemon hands over its own. If a daemon that is ending still has the lock, waits
    /// for it.
    pub(crate) fn take(run_dir: &Path) -> std::io::Result<Option<Self>> {
        when_free(|| Self::take_from(run_dir, None))
    }

    /// Duplicates the lock for a second process, which then also has it.
    pub(crate) fn share(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }
}

/// Tries `take` until it returns something, or for `ENDING`. `take` returns `None` while a different process
/// has the lock.
pub(crate) fn when_free<T>(take: impl Fn() -> std::io::Result<Option<T>>) -> std::io::Result<Option<T>> {
    let end = Instant::now() + ENDING;
    let mut has_told = false;
    loop {
        match take()? {
            None if Instant::now() < end => {
                if !std::mem::replace(&mut has_told, true) {
                    tracing::info!("waiting for the end of the daemon before this one");
                }
                std::thread::sleep(AGAIN);
            }
            taken => return Ok(taken),
        }
    }
}

/// Returns `lock` if it is a lock of this file.
pub(crate) fn same_file(lock: Option<OwnedFd>, file: impl AsFd) -> std::io::Result<Option<OwnedFd>> {
    let Some(lock) = lock else { return Ok(None) };
    let (a, b) = (fstat(&lock)?, fstat(file)?);
    Ok(((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)).then_some(lock))
}
