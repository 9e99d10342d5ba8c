//! The first page of a file: whose it is, and whether it is in force.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the header.
pub(crate) const LEN: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"viaduct\n");
/// Of this crate's part of a file; that of the records comes from their owner.
const VERSION: u64 = 1;
/// Words that are checked together.
const CHECKED: usize = 6;
/// The word of the generation, and its complement after it.
pub(crate) const GENERATION: u64 = 8 * (CHECKED as u64 + 1);

/// Why a file is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has another header.
    #[error("it is not what a viaductd writes")]
    Foreign,
    /// Another version wrote it.
    #[error("another version of viaductd wrote it")]
    Version,
    /// It is from before the machine started.
    #[error("it is from before the machine started last")]
    Boot,
}

/// What the owner of a file says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Version of the records and snapshots.
    pub format: u32,
    /// Of the machine's start (`/proc/sys/kernel/random/boot_id`).
    pub boot: u128,
    /// Bytes of the table.
    pub table: u64,
}

impl Header {
    fn words(self) -> [u64; CHECKED + 1] {
        let mut words = [
            MAGIC,
            VERSION << 32 | u64::from(self.format),
            self.boot as u64,
            (self.boot >> 64) as u64,
            self.table,
            0,
            0,
        ];
        words[CHECKED] = checksum(&words[..CHECKED]);
        words
    }

    /// Writes it; the file is not in force.
    pub fn write(self, file: &File) -> io::Result<()> {
        write_words(file, 0, &self.words())
    }

    /// Reads the header of a file and its generation; `None` if it is not in force. `wanted` tells the format and the
    /// machine's start.
    pub fn read(file: &File, wanted: Self) -> io::Result<Option<InForce>> {
        if file.metadata()?.len() < LEN {
            return Ok(None);
        }
        let mut bytes = [0; 8 * (CHECKED + 3)];
        file.read_exact_at(&mut bytes, 0)?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let words: [u64; CHECKED + 3] = std::array::from_fn(word);
        let [generation, complement] = [words[CHECKED + 1], words[CHECKED + 2]];
        if generation == 0 || complement != !generation {
            return Ok(None);
        }
        let [_, version, low, high, table, ..] = words;
        let found = Self { format: version as u32, boot: u128::from(high) << 64 | u128::from(low), table };
        let header = if words[0] != MAGIC || words[CHECKED] != checksum(&words[..CHECKED]) {
            Err(Refused::Foreign)
        } else if (version >> 32, found.format) != (VERSION, wanted.format) {
            Err(Refused::Version)
        } else if found.boot != wanted.boot {
            Err(Refused::Boot)
        } else {
            Ok(found)
        };
        Ok(Some(InForce { generation, header }))
    }
}

/// A file in force.
#[derive(Debug)]
pub(crate) struct InForce {
    /// The latest counts, whoever wrote it.
    pub generation: u64,
    /// Its header, or why it is not taken.
    pub header: Result<Header, Refused>,
}

/// Puts a file in force. A part of this is as if it had not begun.
pub(crate) fn put_in_force(file: &File, generation: u64) -> io::Result<()> {
    write_words(file, GENERATION, &[generation, !generation])
}

/// Takes a file out of force.
pub(crate) fn retire(file: &File) -> io::Result<()> {
    write_words(file, GENERATION, &[0])
}

pub(crate) fn write_words(file: &File, at: u64, words: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, at)
}

fn checksum(words: &[u64]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    words.iter().for_each(|word| hasher.update(&word.to_le_bytes()));
    hasher.finalize().into()
}
