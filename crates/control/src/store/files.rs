//! The store's two files in their directory: opened, locked, and copied when they are damaged.

use super::log::Medium;
use crate::run_dir_lock::same_file;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const FILES: [&str; 2] = ["store.0", "store.1"];

pub(super) struct Locked {
    pub(super) files: [File; 2],
    pub(super) lock: OwnedFd,
    /// Whether a different daemon uses the files.
    pub(super) by_other: bool,
}

/// A file that is not written while a different daemon has it.
pub(super) struct Waiting {
    pub(super) file: File,
    pub(super) waits: Arc<AtomicBool>,
}

impl Waiting {
    fn check(&self) -> std::io::Result<()> {
        match self.waits.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(std::io::Error::other("it is another daemon's until this one has taken over")),
        }
    }
}

impl Medium for Waiting {
    fn contents(&mut self) -> std::io::Result<Vec<u8>> {
        self.file.contents()
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> std::io::Result<()> {
        self.check()?;
        self.file.write_at(bytes, at)
    }

    fn truncate(&mut self, len: u64) -> std::io::Result<()> {
        self.check()?;
        self.file.truncate(len)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.file.sync()
    }

    fn reserve(&mut self, end: u64) -> std::io::Result<()> {
        self.check()?;
        self.file.reserve(end)
    }
}

/// Opens the store's files and locks them. Returns `None` if a different process has them, unless `other` is
/// its lock.
pub(super) fn open_files(dir: &Path, other: Option<OwnedFd>) -> std::io::Result<Option<Locked>> {
    // User data of guests may hold secrets.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let open = |name| options.open(dir.join(name));
    let files = [open(FILES[0])?, open(FILES[1])?];
    match flock(&files[0], FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Locked { lock: files[0].as_fd().try_clone_to_owned()?, files, by_other: false })),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let lock = same_file(other, &files[0])?;
            Ok(lock.map(|lock| Locked { files, lock, by_other: true }))
        }
        Err(e) => Err(e.into()),
    }
}

/// Copies the files that are not empty, one of which is damaged, to `*.damaged`.
pub(super) fn copy_files(dir: &Path) -> std::io::Result<()> {
    let is_filled = |name: &&&str| dir.join(name).metadata().is_ok_and(|file| file.len() > 0);
    for name in FILES.iter().filter(is_filled) {
        // A copy of earlier damage stays until the new copy is complete.
        let (new, copy) = (dir.join(format!("{name}.damaged.new")), dir.join(format!("{name}.damaged")));
        let copied = std::fs::copy(dir.join(name), &new)
            .and_then(|_| File::open(&new)?.sync_all())
            .and_then(|()| std::fs::rename(&new, copy));
        if copied.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        copied?;
    }
    Ok(())
}
