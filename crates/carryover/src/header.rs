//! The first page of a file. It says which version and which start of the machine the file is from, and
//! whether it is in force.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the header.
pub(crate) const LEN: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"viaduct\n");
/// Version of this crate's part of a file. The owner of the records gives a version for them.
const VERSION: u64 = 1;
/// Number of words under the checksum.
const CHECKED: usize = 6;
/// Offset of the generation. Its complement follows it.
pub(crate) const GENERATION: u64 = 8 * (CHECKED as u64 + 1);

/// The reason why a file is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("it is not what a viaductd writes")]
    Foreign,
    #[error("another version of viaductd wrote it")]
    Version,
    #[error("it is from before the machine started last")]
    Boot,
}

/// The properties of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Version of the records and snapshots.
    pub format: u32,
    /// Identifier of the machine's start (`/proc/sys/kernel/random/boot_id`).
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

    /// Writes the header. The file is not in force yet.
    pub fn write(self, file: &File) -> io::Result<()> {
        write_words(file, 0, &self.words())
    }

    /// Reads the header of a file and its generation. Returns `None` if the file is not in force. `wanted`
    /// has the expected format and start of the machine.
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
    /// The generation. The file with the higher one counts, whoever wrote it.
    pub generation: u64,
    /// The file's header, or the reason why the file is not taken.
    pub header: Result<Header, Refused>,
}

/// Puts a file in force. If only a part of this is written, the file is not in force.
pub(crate) fn put_in_force(file: &File, generation: u64) -> io::Result<()> {
    write_words(file, GENERATION, &[generation, !generation])
}

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
