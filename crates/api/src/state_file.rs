//! Files with a guest's state: a title line, then the parts, each after its length (protobuf varint).

use crate::v1::GuestState;
use prost::Message;
use std::io::{self, BufRead, Error, ErrorKind, Read, Write};

/// The first line.
const TITLE: &[u8] = b"viaduct guest state\n";
/// Longest part, bytes.
const LONGEST: u64 = 1 << 20;

/// Writes the title line.
///
/// # Errors
/// The writer's.
pub fn begin(to: &mut impl Write) -> io::Result<()> {
    to.write_all(TITLE)
}

/// Writes a part.
///
/// # Errors
/// The writer's.
pub fn write(to: &mut impl Write, part: &GuestState) -> io::Result<()> {
    to.write_all(&part.encode_length_delimited_to_vec())
}

/// Reads all parts.
///
/// # Errors
/// The reader's, and errors of the file: it is no such file, or was cut.
pub fn read(from: &mut impl BufRead) -> io::Result<Vec<GuestState>> {
    let mut title = Vec::new();
    from.take(TITLE.len() as u64).read_to_end(&mut title)?;
    if title != TITLE {
        return Err(Error::new(ErrorKind::InvalidData, "this is not what `viaduct guest export` writes"));
    }
    let mut parts = Vec::new();
    while !from.fill_buf()?.is_empty() {
        let len = length(from)?;
        let mut part = Vec::new();
        if from.take(len).read_to_end(&mut part)? as u64 != len {
            return Err(Error::new(ErrorKind::UnexpectedEof, "its end is missing"));
        }
        parts.push(GuestState::decode(&part[..]).map_err(|e| Error::new(ErrorKind::InvalidData, e))?);
    }
    Ok(parts)
}

/// Reads a varint (protobuf, "Base 128 Varints") of three bytes at most.
fn length(from: &mut impl Read) -> io::Result<u64> {
    let mut len = 0;
    for shift in [0, 7, 14] {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        len |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 && len <= LONGEST {
            return Ok(len);
        }
    }
    Err(Error::new(ErrorKind::InvalidData, "a part of it is too long"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::v1::GuestConnection;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_not() {
        let connections = vec![GuestConnection { bytes: 7, ..GuestConnection::default() }; 1000];
        let first = GuestState { version: 1, guest: "vm1".to_owned(), ..GuestState::default() };
        let parts = [first, GuestState { connections, ..GuestState::default() }];
        let mut file = Vec::new();
        begin(&mut file).unwrap();
        parts.iter().for_each(|part| write(&mut file, part).unwrap());
        assert_eq!(read(&mut &file[..]).unwrap(), parts);
        for len in [0, 1, TITLE.len() - 1, TITLE.len() + 1, file.len() - 1] {
            assert!(read(&mut &file[..len]).is_err(), "{len}");
        }
        let long = [TITLE, &[0xff, 0xff, 0xff, 0x7f]].concat();
        assert!(read(&mut &long[..]).unwrap_err().to_string().contains("too long"));
        assert_eq!(read(&mut &TITLE[..]).unwrap(), []);
    }
}
