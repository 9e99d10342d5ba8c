//! Snapshots: the last one that was written whole counts. They take turns in two places of the file.

use crate::header::{self, write_words};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Longest snapshot, bytes.
pub const MOST: usize = (32 << 20) - HEAD;
/// Bytes before a snapshot: its number, its length, and a checksum of number and content.
const HEAD: usize = 24;
/// Offset of the table of connections, behind both places for snapshots.
pub(crate) const END: u64 = header::LEN + 2 * (MOST + HEAD) as u64;

fn place(number: u64) -> u64 {
    header::LEN + (number % 2) * (MOST + HEAD) as u64
}

fn checksum(number: u64, bytes: &[u8]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize().into()
}

/// Writes the snapshot of this number. If only a part is written, the snapshot before it is still whole.
///
/// # Errors
/// The snapshot is too long; errors of the file.
pub(crate) fn write(file: &File, number: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > MOST {
        let text = format!("{} bytes are more than {MOST}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let at = place(number);
    file.write_all_at(bytes, at + HEAD as u64)?;
    write_words(file, at, &[number, bytes.len() as u64, checksum(number, bytes)])
}

/// Returns the last snapshot that was written whole, if there is one.
pub(crate) fn read(file: &File) -> io::Result<Option<Vec<u8>>> {
    let [a, b] = [read_from(file, 0)?, read_from(file, 1)?];
    Ok([a, b].into_iter().flatten().max_by_key(|(number, _)| *number).map(|(_, bytes)| bytes))
}

fn read_from(file: &File, turn: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let at = place(turn);
    let mut head = [0; HEAD];
    if file.metadata()?.len() < END {
        return Ok(None);
    }
    file.read_exact_at(&mut head, at)?;
    let (words, _) = head.as_chunks::<8>();
    let [number, len, sum] = [0, 1, 2].map(|i: usize| u64::from_le_bytes(words[i]));
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= MOST) else { return Ok(None) };
    if number == 0 || number % 2 != turn {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at + HEAD as u64)?;
    Ok((checksum(number, &bytes) == sum).then_some((number, bytes)))
}
