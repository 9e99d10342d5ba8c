//! The lock that allows only one daemon per run-dir.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The right to use a run-dir, until dropped or the process ends.
pub(crate) struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Takes it; `None` where another process has it.
    pub(crate) fn take(run_dir: &Path) -> std::io::Result<Option<Self>> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(run_dir.join("viaductd.lock"), flags, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
