//! Reads the frames of pcap (draft-ietf-opsawg-pcap) and pcapng files.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Frames that came in, or whose direction is not in the file.
    pub inbound: Vec<Vec<u8>>,
    /// Number of other frames, which left by their interface.
    pub outbound: usize,
}

/// Reads the frames of a capture file; `None` if it is neither pcap nor pcapng, or damaged.
pub fn frames(file: &[u8]) -> Option<Frames> {
    match file.get(..4)? {
        [0xa1, 0xb2, 0xc3 | 0x3c, 0xd4 | 0x4d] => pcap(file, u32::from_be_bytes),
        [0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1] => pcap(file, u32::from_le_bytes),
        [0x0a, 0x0d, 0x0d, 0x0a] => match file.get(8..12)? {
            [0x1a, 0x2b, 0x3c, 0x4d] => pcapng(file, u32::from_be_bytes),
            _ => pcapng(file, u32::from_le_bytes),
        },
        _ => None,
    }
}

type Read32 = fn([u8; 4]) -> u32;

fn number(bytes: &[u8], at: usize, read: Read32) -> Option<usize> {
    Some(read(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

fn pcap(file: &[u8], read: Read32) -> Option<Frames> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let (mut frames, mut at) = (Vec::new(), HEADER);
    while at < file.len() {
        let length = number(file, at + 8, read)?;
        let data = at + RECORD;
        frames.push(file.get(data..data.checked_add(length)?)?.to_vec());
        at = data + length;
    }
    Some(Frames { inbound: frames, outbound: 0 })
}

fn pcapng(file: &[u8], read: Read32) -> Option<Frames> {
    let (mut frames, mut at) = (Frames::default(), 0);
    while at < file.len() {
        let (kind, length) = (number(file, at, read)?, number(file, at + 4, read)?);
        let block = file.get(at..at.checked_add(length.max(12))?)?;
        // 6: enhanced packet block; 3: simple packet block.
        match kind {
            6 => {
                let end = 28 + number(block, 20, read)?;
                let frame = block.get(28..end)?;
                match is_outbound(block, end.next_multiple_of(4), read) {
                    true => frames.outbound += 1,
                    false => frames.inbound.push(frame.to_vec()),
                }
            }
            3 => {
                let end = (12 + number(block, 8, read)?).min(length.saturating_sub(4));
                frames.inbound.push(block.get(12..end)?.to_vec());
            }
            _ => {}
        }
        at += length.max(12);
    }
    Some(frames)
}

/// Is true if the options of an enhanced packet block, from `at` on, say that the packet left by its
/// interface.
fn is_outbound(block: &[u8], mut at: usize, read: Read32) -> bool {
    const FLAGS: u16 = 2;
    const DIRECTION: usize = 3;
    const OUTBOUND: usize = 2;
    while let Some([a, b, c, d]) = block.get(at..).and_then(<[u8]>::first_chunk) {
        // Two copies make a number of four bytes whose halves are equal in either byte order.
        let half = |bytes: [u8; 2]| read([bytes, bytes].as_flattened().try_into().unwrap_or_default()) as u16;
        let (code, length) = (half([*a, *b]), usize::from(half([*c, *d])));
        match code {
            0 => return false,
            FLAGS => return number(block, at + 4, read).is_some_and(|flags| flags & DIRECTION == OUTBOUND),
            _ => at += 4 + length.next_multiple_of(4),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{Frames, frames};

    fn inbound(frames: &[&[u8]]) -> Option<Frames> {
        Some(Frames { inbound: frames.iter().map(|frame| frame.to_vec()).collect(), outbound: 0 })
    }

    #[test]
    fn pcap_of_either_byte_order() {
        let header = |magic: [u8; 4]| [&magic[..], &[0; 20]].concat();
        let little =
            [header([0xd4, 0xc3, 0xb2, 0xa1]), [&[0; 8][..], &[2, 0, 0, 0, 9, 0, 0, 0, 7, 8]].concat()];
        assert_eq!(frames(&little.concat()), inbound(&[&[7, 8]]));
        let big = [header([0xa1, 0xb2, 0xc3, 0xd4]), [&[0; 8][..], &[0, 0, 0, 1, 0, 0, 0, 9, 7]].concat()];
        assert_eq!(frames(&big.concat()), inbound(&[&[7]]));
    }

    #[test]
    fn a_block_shorter_than_its_own_header_is_damage() {
        for length in 0..16_u32 {
            let file = [&[0x0a, 0x0d, 0x0d, 0x0a, 12, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 3, 0, 0, 0][..]];
            let file = [&file.concat(), &length.to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
            assert_eq!(frames(&file), None, "{length}");
        }
    }

    #[test]
    fn pcapng_of_either_byte_order_says_what_left() {
        fn file(of: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2], flags: u32) -> Vec<u8> {
            let section = [of(0x0a0d_0d0a), of(28), of(0x1a2b_3c4d), [0; 4], [0xff; 4], [0xff; 4], of(28)];
            let packet = [of(6), of(60), [0; 4], [0; 4], [0; 4], of(2), of(2), [7, 8, 0, 0]];
            let comment = [[half(1), half(3)].concat(), vec![b'a', b'b', b'c', 0]].concat();
            let option = [[half(2), half(4)].concat(), of(flags).to_vec()].concat();
            let end = [[0; 4], of(60)];
            [section.concat(), packet.concat(), comment, option, vec![0; 4], end.concat()].concat()
        }
        for flags in 0..8 {
            let little = file(u32::to_le_bytes, u16::to_le_bytes, flags);
            let big = file(u32::to_be_bytes, u16::to_be_bytes, flags);
            let wanted = match flags & 3 {
                2 => Some(Frames { inbound: Vec::new(), outbound: 1 }),
                _ => inbound(&[&[7, 8]]),
            };
            assert_eq!([frames(&little), frames(&big)], [wanted.clone(), wanted], "{flags}");
        }
    }

    #[test]
    fn damage_is_no_panic() {
        assert_eq!(frames(b""), None);
        assert_eq!(frames(b"hello world"), None);
        let cut = [&[0xd4, 0xc3, 0xb2, 0xa1][..], &[0; 20], &[0; 8], &[0xff; 8]].concat();
        assert_eq!(frames(&cut), None);
        assert_eq!(frames(&[&[0x0a, 0x0d, 0x0d, 0x0a][..], &[0xff; 40]].concat()), None);
        let short = [
            &[0x0a, 0x0d, 0x0d, 0x0a][..],
            &[12, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 12, 0, 0, 0, 0xff, 0, 0, 0],
        ];
        assert_eq!(frames(&short.concat()), None);
    }
}
