//! Messages of resolvers, which are passed on as they are: only what must be looked at is read.

/// Length of a header.
pub(super) const HEADER: usize = 12;
/// Longest name, bytes (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 255;
/// The type of EDNS's record, whose TTL is none (RFC 6891, 6.1.3).
const OPT: u16 = 41;
/// Most records of a message that are looked at.
const MOST_RECORDS: usize = 256;

/// Returns a number of two bytes.
pub(super) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns where the name at a place ends.
fn behind_name(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            // A pointer to the rest.
            len if len >= 0xc0 => return Some(at + 2),
            len if len < 0x40 => at += 1 + usize::from(len),
            _ => return None,
        }
        if at - from > LONGEST_NAME {
            return None;
        }
    }
}

/// Returns the only question of a message: name, type and class.
pub(super) fn question(bytes: &[u8]) -> Option<&[u8]> {
    let end = behind_name(bytes, HEADER)? + 4;
    bytes.get(HEADER..end).filter(|_| short(bytes, 4) == Some(1))
}

/// Returns whether two questions are the same: names are, whatever the case of their letters.
pub(super) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let parts = |question: &[u8]| question.split_last_chunk::<4>().map(|(name, kind)| (name.to_vec(), *kind));
    match (parts(one), parts(other)) {
        (Some((name, kind)), Some((other, as_other))) => {
            name.eq_ignore_ascii_case(&other) && kind == as_other
        }
        _ => false,
    }
}

/// Returns the places and values of all TTLs; `None` if the message can't be read to its end.
pub(super) fn ttls(bytes: &[u8]) -> Option<Vec<(usize, u32)>> {
    let mut at = HEADER + question(bytes)?.len();
    let records =
        [6, 8, 10].into_iter().map(|at| short(bytes, at).map(usize::from)).sum::<Option<usize>>()?;
    if records > MOST_RECORDS {
        return None;
    }
    let mut all = Vec::new();
    for _ in 0..records {
        at = behind_name(bytes, at)?;
        let ttl = u32::from_be_bytes(*bytes.get(at + 4..)?.first_chunk()?);
        if short(bytes, at)? != OPT {
            all.push((at + 4, ttl));
        }
        at += 10 + usize::from(short(bytes, at + 8)?);
    }
    (at <= bytes.len()).then_some(all)
}
