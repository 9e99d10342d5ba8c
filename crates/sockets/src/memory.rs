//! Files of memory that other processes map by their paths.

use crate::directory::{self, Directory};
use crate::{Error, Place, give_away};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, fstatfs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// `f_type` of the file systems whose files are memory (linux/magic.h).
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;

/// Opens the file at `place` for reading and writing, or makes an empty one. The file gets the owner and mode
/// of `place`, unless it existed and `keeps` is set. Processes that had it open before still have it.
///
/// # Errors
/// [`Error::NotMemory`]: it would be on a disk; [`Error::NotFile`]: something else is there; others as for a
/// socket.
pub fn open_memory(place: &Place, keeps: bool) -> Result<OwnedFd, Error> {
    let Directory { dir, name } = directory::find(&place.path, place.owner.map(|(uid, _)| uid))?;
    let failed = |source: Errno| Error::Os { path: place.path.clone(), source: source.into() };
    if ![TMPFS, HUGETLBFS].contains(&fstatfs(&dir).map_err(failed)?.f_type) {
        return Err(Error::NotMemory(place.path.parent().unwrap_or(&place.path).to_owned()));
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(&dir, &name, flags, Mode::RUSR | Mode::WUSR);
    let (opened, keeps) = match open(flags) {
        Err(Errno::NOENT) => (open(flags | OFlags::CREATE), false),
        opened => (opened, keeps),
    };
    let file = match opened {
        // The path has a link, a directory or a socket.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(Error::NotFile(place.path.clone())),
        other => other.map_err(failed)?,
    };
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Err(Error::NotFile(place.path.clone()));
    }
    if !keeps {
        give_away(&file, place.owner, place.mode).map_err(failed)?;
    }
    Ok(file)
}

/// Removes the file at `path`, if there is one. Processes that have it open or mapped still have its memory.
///
/// # Errors
/// [`Error::NotFile`], or the kernel's.
pub fn remove_memory(path: &Path) -> Result<(), Error> {
    let Directory { dir, name } = directory::find(path, None)?;
    let failed = |source: Errno| Error::Os { path: path.to_owned(), source: source.into() };
    match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(failed(e)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
            Err(Error::NotFile(path.to_owned()))
        }
        Ok(_) => rustix::fs::unlinkat(&dir, &name, AtFlags::empty()).map_err(failed),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn place(dir: &Path) -> Place {
        Place { path: dir.join("c1"), owner: None, mode: 0o640 }
    }

    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn a_file_is_made_once_and_keeps_its_contents() {
        let dir = in_memory();
        let place = place(dir.path());
        drop(open_memory(&place, true).unwrap());
        fs::write(&place.path, "precious").unwrap();
        fs::set_permissions(&place.path, fs::Permissions::from_mode(0o606)).unwrap();
        let of_file = || fs::metadata(&place.path).map(|file| (file.ino(), file.mode() & 0o7777)).unwrap();
        let before = of_file();
        drop(open_memory(&place, true).unwrap());
        assert_eq!(of_file(), before);
        let mut file = fs::File::from(open_memory(&place, false).unwrap());
        assert_eq!(of_file(), (before.0, 0o640));
        let mut text = String::new();
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert_eq!(text, "precious");
        remove_memory(&place.path).unwrap();
        remove_memory(&place.path).unwrap();
        assert!(!place.path.exists());
    }

    #[test]
    fn what_is_no_file_of_its_own_is_refused() {
        let dir = in_memory();
        let (place, other) = (place(dir.path()), dir.path().join("other"));
        let refused = |made: &dyn Fn()| {
            made();
            assert!(matches!(open_memory(&place, false), Err(Error::NotFile(path)) if path == place.path));
            let _ = fs::remove_file(&place.path);
            let _ = fs::remove_dir(&place.path);
        };
        fs::write(&other, "precious").unwrap();
        refused(&|| symlink(&other, &place.path).unwrap());
        refused(&|| fs::hard_link(&other, &place.path).unwrap());
        refused(&|| fs::create_dir(&place.path).unwrap());
        refused(&|| drop(std::os::unix::net::UnixListener::bind(&place.path).unwrap()));
        let fifo =
            || rustix::fs::mknodat(rustix::fs::CWD, &place.path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        refused(&fifo);
        fs::create_dir(&place.path).unwrap();
        assert!(matches!(remove_memory(&place.path), Err(Error::NotFile(_))));
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    #[test]
    fn a_disk_is_no_memory() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let said = open_memory(&place(dir.path()), false).unwrap_err();
        assert!(matches!(&said, Error::NotMemory(at) if at == dir.path()), "{said}");
        assert!(said.to_string().contains("mount -t tmpfs"), "{said}");
        assert!(!dir.path().join("c1").exists());
    }
}
