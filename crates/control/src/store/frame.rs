//! Records in a file: one per line, behind its length and checksum, so that a damaged byte is noticed and
//! costs one record at most.

/// Bytes before a record: its length and its CRC-32 in eight hexadecimal digits each, a space behind both.
const HEAD: usize = 18;

/// Appends a record, which has no line break.
pub(super) fn put(out: &mut Vec<u8>, record: &str) {
    let sum = crc32fast::hash(record.as_bytes());
    out.extend_from_slice(format!("{:08x} {sum:08x} {record}\n", record.len()).as_bytes());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Record(&'a str),
    /// Bytes that are not a record.
    Damaged {
        /// Offset in the file, bytes.
        at: usize,
        len: usize,
    },
}

/// Splits a file into frames, in its order. After damage, it goes on with the next line that is a record.
pub(super) fn frames(bytes: &[u8]) -> Vec<Frame<'_>> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some(record) = first(rest) {
            frames.push(Frame::Record(record));
            at += HEAD + record.len() + 1;
            continue;
        }
        let skipped = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        match frames.last_mut() {
            Some(Frame::Damaged { len, .. }) => *len += skipped,
            _ => frames.push(Frame::Damaged { at, len: skipped }),
        }
        at += skipped;
    }
    frames
}

fn first(bytes: &[u8]) -> Option<&str> {
    let head = std::str::from_utf8(bytes.get(..HEAD)?).ok()?;
    let number = |text: Option<&str>| u32::from_str_radix(text?, 16).ok();
    let (len, sum) = (number(head.get(..8))?, number(head.get(9..17))?);
    let record = bytes.get(HEAD..HEAD.checked_add(len as usize)?)?;
    (crc32fast::hash(record) == sum).then(|| std::str::from_utf8(record).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|record| put(&mut out, record));
        out
    }

    #[test]
    fn a_damaged_byte_costs_one_record_and_is_told() {
        let records = ["{\"a\":1}", "{}", "{\"long\":\"0123456789\"}"];
        let good = file(&records);
        assert_eq!(frames(&good), records.map(Frame::Record));
        for at in 0..good.len() {
            for flip in [1, 0x80, b'\n' ^ good[at]] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let found = frames(&bad);
                let whole: Vec<_> = found.iter().filter(|frame| matches!(frame, Frame::Record(_))).collect();
                let damaged = found.len() - whole.len();
                // A damaged separator costs nothing: the record is still whole.
                assert!(whole.len() == 3 || (whole.len() == 2 && damaged == 1), "byte {at}: {found:?}");
                assert!(whole.iter().all(|frame| records.map(Frame::Record).contains(frame)), "byte {at}");
            }
        }
    }

    #[test]
    fn what_was_being_written_is_no_record() {
        let good = file(&["{}", "{\"a\":1}"]);
        for len in 0..good.len() - 1 {
            let found = frames(&good[..len]);
            let whole = found.iter().filter(|frame| matches!(frame, Frame::Record(_))).count();
            assert_eq!(whole, usize::from(len >= 20), "{len} bytes");
        }
        assert_eq!(frames(&good[..good.len() - 1]).len(), 2, "all but its line break");
    }
}
