//! The file in which journals of packed rings outlive the daemon: `RUN_DIR/rings`.
//!
//! It has a header and then slots, one for each ring that is or was packed. A slot names its port and ring, and has
//! room for the journal of the longest ring; memory is taken only for as much as the ring has. Nobody but the daemon's
//! own user may write the file, and everything in it is checked all the same when it is read.

use crate::ring::Journal;
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate, unlink};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sockets::{OwnFileError, open_own_file};
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Begins the file; the last digits are the version of all that follows.
const MAGIC: &[u8; 16] = b"viaduct rings 01";
/// Bytes of the header, and of a slot: whole pages wherever pages have up to 64 KiB.
const HEADER: u64 = 1 << 16;
const SLOT: u64 = 5 << 16;
/// Bytes of a slot before the journal: length of the name, number of the ring, the name.
const LABEL: usize = 512;
const NAME: usize = 8;
/// Most slots. A slot of a usual ring takes a page.
const MOST: u64 = 1 << 14;

/// The file with the journals of all packed rings.
#[derive(Debug)]
pub struct Journals {
    file: OwnedFd,
    /// The slots; they are read when the first ring asks.
    slots: Mutex<Option<Vec<Slot>>>,
}

/// The ring for which a slot is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    /// Name of the port; empty if the slot is used for no ring.
    port: String,
    ring: u16,
    in_use: bool,
}

impl Journals {
    /// Opens the file in a run-dir, or makes it. A file of a different version is made anew.
    ///
    /// # Errors
    /// [`OwnFileError`].
    pub fn open(run_dir: &Path) -> Result<Self, OwnFileError> {
        let path = run_dir.join("rings");
        let failed = |source| OwnFileError::Os { path: path.clone(), source };
        let journals = Self::open_any(&path)?;
        if journals.is_of_this_version().map_err(failed)? {
            return Ok(journals);
        }
        tracing::warn!(
            "{} is of another version and made anew: guests with packed rings must restart their interfaces, unless \
             this daemon replaces a running one",
            path.display()
        );
        // The daemon of that version may be there still, and have its memory here.
        unlink(&path).map_err(failed)?;
        Self::open_any(&path)
    }

    /// Opens the file at `path`, whatever its version. A new file gets its header.
    fn open_any(path: &Path) -> Result<Self, OwnFileError> {
        let failed = |source| OwnFileError::Os { path: path.to_owned(), source };
        let file = open_own_file(path)?;
        if fstat(&file).map_err(failed)?.st_size == 0 {
            ftruncate(&file, HEADER).map_err(failed)?;
            pwrite(&file, MAGIC, 0).map_err(failed)?;
        }
        Ok(Self { file, slots: Mutex::default() })
    }

    fn is_of_this_version(&self) -> Result<bool, Errno> {
        let mut magic = [0; MAGIC.len()];
        Ok(pread(&self.file, &mut magic, 0)? == MAGIC.len() && magic == *MAGIC)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rings for which the slots are used.
    fn read(&self) -> Result<Vec<Slot>, Errno> {
        let length = u64::try_from(fstat(&self.file)?.st_size).unwrap_or(0);
        let count = length.saturating_sub(HEADER).div_ceil(SLOT).min(MOST);
        (0..count)
            .map(|slot| {
                let mut label = [0; LABEL];
                pread(&self.file, &mut label, place(slot))?;
                Ok(Slot::of_label(&label).unwrap_or_default())
            })
            .collect()
    }

    /// Returns the journal of a port's ring of this size, as it was left; a new one if there was none.
    ///
    /// # Errors
    /// If the file has no room, or the name is too long.
    pub(crate) fn of(self: &Arc<Self>, port: &str, ring: usize, size: u16) -> io::Result<Journal> {
        let wanted = Slot { port: port.to_owned(), ring: ring as u16, in_use: true };
        let label = wanted.label().ok_or(Errno::NAMETOOLONG)?;
        let mut slots = self.lock();
        let slots = match &mut *slots {
            Some(slots) => slots,
            None => slots.insert(self.read()?),
        };
        let known = slots.iter().position(|slot| (&slot.port, slot.ring) == (&wanted.port, wanted.ring));
        let slot = match known {
            Some(slot) if slots[slot].in_use => return Err(Errno::BUSY.into()),
            Some(slot) => slot,
            None => {
                let slot = self.vacant(slots)?;
                self.name(slot as u64, &label, size)?;
                slot
            }
        };
        let mapped = Mapped::new(self.clone(), slot, LABEL + Journal::bytes(size))?;
        slots[slot] = wanted;
        let at = mapped.at.wrapping_add(LABEL);
        // SAFETY: mapped for writing as long as `mapped` lives; pages and the label's length are aligned.
        Ok(unsafe { Journal::over(at, size, Box::new(mapped)) })
    }

    /// Finds a slot for one more ring: a free or new one, or else the first whose ring is gone.
    fn vacant(&self, slots: &mut Vec<Slot>) -> Result<usize, Errno> {
        if let Some(free) = slots.iter().position(|slot| slot.port.is_empty()) {
            return Ok(free);
        }
        if (slots.len() as u64) < MOST {
            slots.push(Slot::default());
            return Ok(slots.len() - 1);
        }
        slots.iter().position(|slot| !slot.in_use).ok_or(Errno::NOSPC)
    }

    /// Gives a slot a label, and an empty journal.
    fn name(&self, slot: u64, label: &[u8; LABEL], size: u16) -> Result<(), Errno> {
        let empty = vec![0; Journal::bytes(size)];
        pwrite(&self.file, &[0; LABEL], place(slot))?;
        pwrite(&self.file, &empty, place(slot) + LABEL as u64)?;
        pwrite(&self.file, label, place(slot)).map(drop)
    }
}

fn place(slot: u64) -> u64 {
    HEADER + slot * SLOT
}

impl Slot {
    fn label(&self) -> Option<[u8; LABEL]> {
        let mut label = [0; LABEL];
        let name = self.port.as_bytes();
        label[..2].copy_from_slice(&(name.len() as u16).to_le_bytes());
        label[2..4].copy_from_slice(&self.ring.to_le_bytes());
        label.get_mut(NAME..NAME + name.len())?.copy_from_slice(name);
        Some(label)
    }

    fn of_label(label: &[u8; LABEL]) -> Option<Self> {
        let [length, ring] = [[label[0], label[1]], [label[2], label[3]]].map(u16::from_le_bytes);
        let name = label.get(NAME..NAME + usize::from(length))?;
        Some(Self { port: std::str::from_utf8(name).ok()?.to_owned(), ring, in_use: false })
    }
}

struct Mapped {
    journals: Arc<Journals>,
    slot: usize,
    at: *mut u8,
    len: usize,
}

// SAFETY: only an address, which is unmapped by whoever has it last.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(journals: Arc<Journals>, slot: usize, len: usize) -> Result<Self, Errno> {
        let place = place(slot as u64);
        // A page that can't be had when it is first written would end the daemon.
        match fallocate(&journals.file, FallocateFlags::empty(), place, len as u64) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a part of the file that is there.
        let at = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &journals.file, place) }?;
        Ok(Self { journals, slot, at: at.cast(), len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped; the journal that used it is gone.
        let _ = unsafe { munmap(self.at.cast::<c_void>(), self.len) };
        if let Some(slot) = self.journals.lock().as_mut().and_then(|slots| slots.get_mut(self.slot)) {
            slot.in_use = false;
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))] // Files.
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    /// A run-dir of one test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("journals-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn open(&self) -> Arc<Journals> {
            Arc::new(Journals::open(&self.0).unwrap())
        }

        fn file(&self) -> PathBuf {
            self.0.join("rings")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_ring_finds_its_own_journal_again() {
        let dir = Dir::new("again");
        let rings = [("vm1", 0, 256), ("vm1", 1, 256), ("vm2", 1, 32_768), ("vm2", 255, 1), ("vm3", 0, 7)];
        for round in 0..3 {
            let journals = dir.open();
            let held: Vec<_> = rings
                .iter()
                .rev()
                .enumerate()
                .map(|(number, &(port, ring, size))| {
                    let journal = journals.of(port, ring, size).unwrap();
                    let mark = 100 + number as u64;
                    let expected = if round == 0 { 0 } else { mark };
                    assert_eq!(journal.probe(Some(mark)), expected, "{port} {ring}");
                    journal
                })
                .collect();
            assert!(journals.of("vm1", 0, 256).is_err(), "two have it");
            drop(held);
            // Smaller and larger ones begin alike.
            for size in [1, 32_768] {
                assert_eq!(journals.of("vm1", 0, size).unwrap().probe(None), 104);
            }
        }
        assert!(dir.open().of(&"x".repeat(1000), 0, 1).is_err());
        let mode = fs::metadata(dir.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_others_may_write_or_chose_is_refused() {
        let dir = Dir::new("foreign");
        drop(dir.open());
        let refused = || Journals::open(&dir.0).unwrap_err().to_string();
        fs::set_permissions(dir.file(), fs::Permissions::from_mode(0o620)).unwrap();
        assert!(refused().contains("not a file of this user alone"));
        fs::set_permissions(dir.file(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(dir.file(), dir.0.join("other")).unwrap();
        assert!(refused().contains("not a file of this user alone"));
        fs::remove_file(dir.file()).unwrap();
        symlink(dir.0.join("other"), dir.file()).unwrap();
        assert!(refused().contains("symbolic link"), "{}", refused());
        fs::remove_file(dir.file()).unwrap();
        fs::create_dir(dir.file()).unwrap();
        assert!(refused().contains("directory"), "{}", refused());
    }

    /// `cargo bolero test -p virtio journals::tests::any_file_is_survived`
    #[test]
    fn any_file_is_survived() {
        let dir = Dir::new("any");
        type Scribbles = Vec<(u8, u16, u8)>;
        bolero::check!().with_type::<(Vec<u8>, Scribbles)>().for_each(|(head, scribbles)| {
            let mut bytes = vec![0; (HEADER + 2 * SLOT) as usize];
            bytes[..MAGIC.len()].copy_from_slice(MAGIC);
            for (at, offset, value) in scribbles {
                let at = [0, HEADER, HEADER, HEADER + SLOT][usize::from(*at) % 4] as usize;
                bytes[at + usize::from(*offset % 1024)] = *value;
            }
            let head = &head[..head.len().min(64)];
            bytes[..head.len()].copy_from_slice(head);
            fs::write(dir.file(), &bytes).unwrap();
            fs::set_permissions(dir.file(), fs::Permissions::from_mode(0o600)).unwrap();
            let journals = dir.open();
            let journal = journals.of("vm1", 0, 64).unwrap();
            journal.probe(Some(7));
            drop((journal, journals));
            assert_eq!(dir.open().of("vm1", 0, 64).unwrap().probe(None), 7);
        });
    }

    #[test]
    fn slots_are_taken_from_rings_that_are_gone_when_there_are_many() {
        let dir = Dir::new("many");
        let journals = dir.open();
        let kept = journals.of("kept", 0, 1).unwrap();
        kept.probe(Some(1));
        for vm in 0..MOST + 2 {
            drop(journals.of(&format!("vm{vm}"), 0, 1).unwrap());
        }
        assert_eq!(kept.probe(None), 1);
        assert_eq!(journals.lock().as_ref().unwrap().len() as u64, MOST);
    }
}
