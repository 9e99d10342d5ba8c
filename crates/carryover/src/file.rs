//! The two files, and their owners.

use crate::header::{self, Header, InForce, Refused};
use crate::slots;
use crate::table::{Table, reserve};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, fstatvfs, seek};
use rustix::io::Errno;
use sockets::open_own_file;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{Ordering, fence};

/// Names in the run-dir.
const NAMES: [&str; 2] = ["carryover.0", "carryover.1"];
const TMPFS: u64 = 0x0102_1994;
const CHUNK: usize = 1 << 16;

/// The files that a daemon finds and gets.
pub struct Opened {
    /// The file for this daemon.
    pub own: Own,
    /// The file of the daemon before, if it can be read.
    pub former: Option<Former>,
    /// The reason why an existing file is not taken.
    pub refused: Option<Refused>,
}

pub struct Own {
    file: File,
    /// The file of the daemon before. It will be the next daemon's.
    other: File,
    header: Header,
    generation: u64,
    /// Number of the last snapshot.
    written: Mutex<u64>,
}

pub struct Former {
    file: File,
    header: Header,
}

/// Opens the files of a run-dir. Only one daemon may do this at a time. `table` is the number of bytes that
/// its table may take, `format` the version of its records and snapshots.
///
/// # Errors
/// The system's, or that a file there is not this user's alone.
pub fn open(run_dir: &Path, table: u64, format: u32) -> io::Result<Opened> {
    open_since(run_dir, Header { format, boot: boot()?, table })
}

/// Identifies the machine's last start.
fn boot() -> io::Result<u128> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    u128::from_str_radix(&id.trim().replace('-', ""), 16).map_err(io::Error::other)
}

fn open_since(run_dir: &Path, mut header: Header) -> io::Result<Opened> {
    let paths = NAMES.map(|name| run_dir.join(name));
    let open_file = |path| open_own_file(path).map(File::from).map_err(io::Error::other);
    let (first, second) = (open_file(&paths[0])?, open_file(&paths[1])?);
    let (a, b) = (Header::read(&first, header)?, Header::read(&second, header)?);
    let generation = |found: &Option<InForce>| found.as_ref().map_or(0, |found| found.generation);
    let last = generation(&a).max(generation(&b));
    let (other, found, path) =
        if generation(&b) > generation(&a) { (second, b, &paths[0]) } else { (first, a, &paths[1]) };
    // A daemon that did not get to take over may still map this file. So a new file takes its place: the old
    // one must not get shorter under the mapping.
    fs::remove_file(path)?;
    let file = open_file(path)?;
    if !has_room(&file, header.table)? {
        header.table = 0;
    }
    file.set_len(slots::END + header.table)?;
    header.write(&file)?;
    let (former, refused) = match found.map(|found| found.header) {
        Some(Ok(header)) => (Some(Former { file: other.try_clone()?, header }), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let own = Own { file, other, header, generation: last.saturating_add(1), written: Mutex::new(0) };
    Ok(Opened { own, former, refused })
}

/// Returns whether the file system has room for a table, and can reserve it.
fn has_room(file: &File, table: u64) -> io::Result<bool> {
    let of = fstatvfs(file)?;
    let free = of.f_bavail.saturating_mul(of.f_frsize);
    let has_room = free >= table;
    if let Err(error) = reserve(file, 0) {
        tracing::warn!(%error, "the run-dir reserves no memory: connections will not be known after a restart");
        return Ok(false);
    }
    if !has_room {
        tracing::warn!(
            free,
            needed = table,
            "the run-dir has too little room for the connections (bytes): they will not be known after a restart"
        );
    } else if fstatfs(file)?.f_type as u64 != TMPFS {
        tracing::warn!(
            "the run-dir is not in memory (tmpfs): connections are written to a disk, which may delay packets"
        );
    }
    Ok(has_room)
}

impl Own {
    /// Returns the memory of the table, if there is room for one. Call it once.
    ///
    /// # Errors
    /// The system's.
    pub fn table(&self) -> io::Result<Option<Table>> {
        (self.header.table > 0).then(|| Table::map(&self.file, self.header.table)).transpose()
    }

    /// Writes a snapshot, of at most [`slots::MOST`] bytes, in place of the last one.
    ///
    /// # Errors
    /// It is too long, or the file system has no room. The last one is then still whole.
    pub fn write(&self, snapshot: &[u8]) -> io::Result<()> {
        let mut last = self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        slots::write(&self.file, *last + 1, snapshot)?;
        *last += 1;
        Ok(())
    }

    /// Puts this file in force: from now on the next daemon reads it, in place of the file of the daemon
    /// before.
    ///
    /// # Errors
    /// The file system's.
    pub fn succeed(&self) -> io::Result<()> {
        header::put_in_force(&self.file, self.generation)?;
        header::retire(&self.other)?;
        // A daemon that still maps the file then finds zeros there.
        let len = self.other.metadata()?.len().saturating_sub(header::LEN);
        if len > 0 {
            let _ = fallocate(
                &self.other,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                header::LEN,
                len,
            );
        }
        Ok(())
    }
}

impl Former {
    /// Returns the last snapshot.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn snapshot(&self) -> io::Result<Option<Vec<u8>>> {
        slots::read(&self.file)
    }

    /// Returns the first offset from `at` on that lies in a page which somebody wrote, as far as the file
    /// system tells.
    fn written_from(&self, at: u64) -> io::Result<Option<u64>> {
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Calls `each` for the records of the table, of `N` words, that are not all zero, with their numbers,
    /// which ascend. The daemon that wrote them may still be there, if it writes no more.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn records<const N: usize>(&self, each: &mut dyn FnMut(usize, &[u64; N])) -> io::Result<()> {
        self.read_records(1, each)
    }

    /// Does the same as [`Self::records`] while the daemon still writes. Takes only records that two readings
    /// show alike: all words of such a record were read after the first ones were there.
    ///
    /// # Errors
    /// As for [`Self::records`].
    pub fn records_so_far<const N: usize>(&self, each: &mut dyn FnMut(usize, &[u64; N])) -> io::Result<()> {
        self.read_records(2, each)
    }

    /// Reads each part of the table `times` times. Calls `each` for records that all readings show alike.
    fn read_records<const N: usize>(
        &self,
        times: usize,
        each: &mut dyn FnMut(usize, &[u64; N]),
    ) -> io::Result<()> {
        let end = self.file.metadata()?.len().min(slots::END + self.header.table);
        let size = 8 * N;
        let mut readings = vec![vec![0; CHUNK / size * size]; times];
        let mut at = slots::END;
        while let Some(next) = self.written_from(at)?.filter(|next| *next < end) {
            at = next - (next - slots::END) % size as u64;
            // Skips pages that nobody wrote: connections take few pages of a large table.
            let hole = seek(&self.file, SeekFrom::Hole(next)).unwrap_or(end).min(end);
            let want = (hole - at).next_multiple_of(size as u64).min(end - at) as usize;
            let want = want.min(CHUNK) / size * size;
            if want == 0 {
                return Ok(());
            }
            for reading in &mut readings {
                self.file.read_exact_at(&mut reading[..want], at)?;
                // On any processor, the next reading happens later.
                fence(Ordering::SeqCst);
            }
            let first = (at - slots::END) as usize / size;
            for (number, part) in (0..want / size).map(|i| (first + i, i * size..(i + 1) * size)) {
                let [record, others @ ..] = &readings[..] else { break };
                let (words, _) = record[part.clone()].as_chunks::<8>();
                let words: [u64; N] = std::array::from_fn(|i| u64::from_ne_bytes(words[i]));
                let is_same = others.iter().all(|other| other[part.clone()] == record[part.clone()]);
                if is_same && words.iter().any(|word| *word != 0) {
                    each(number, &words);
                }
            }
            at += want as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
