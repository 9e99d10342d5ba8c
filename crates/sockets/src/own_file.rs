//! Files in which this user notes something for its next process.

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum OwnFileError {
    /// Another user could read or write it.
    #[error("{} is not a file of this user alone: remove it", .0.display())]
    Foreign(PathBuf),
    #[error("{}: {source}", path.display())]
    Os { path: PathBuf, source: Errno },
}

/// Opens a file for reading and writing, or makes an empty one.
///
/// # Errors
/// [`OwnFileError`].
pub fn open_own_file(path: &Path) -> Result<OwnedFd, OwnFileError> {
    let failed = |source| OwnFileError::Os { path: path.to_owned(), source };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_file || !is_ours || stat.st_mode & 0o077 != 0 || stat.st_nlink != 1 {
        return Err(OwnFileError::Foreign(path.to_owned()));
    }
    Ok(file)
}
