//! Reading the frames of pcap (draft-ietf-opsawg-pcap) and pcapng files.

/// The frames of a capture file; `None`: it is neither pcap nor pcapng, or damaged.
pub fn frames(file: &[u8]) -> Option<Vec<Vec<u8>>> {
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

fn pcap(file: &[u8], read: Read32) -> Option<Vec<Vec<u8>>> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let (mut frames, mut at) = (Vec::new(), HEADER);
    while at < file.len() {
        let length = number(file, at + 8, read)?;
        let data = at + RECORD;
        frames.push(file.get(data..data.checked_add(length)?)?.to_vec());
        at = data + length;
    }
    Some(frames)
}

fn pcapng(file: &[u8], read: Read32) -> Option<Vec<Vec<u8>>> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < file.len() {
        let (kind, length) = (number(file, at, read)?, number(file, at + 4, read)?);
        let block = file.get(at..at.checked_add(length.max(12))?)?;
        // Enhanced packet block, simple packet block.
        match kind {
            6 => frames.push(block.get(28..28 + number(block, 20, read)?)?.to_vec()),
            3 => frames.push(block.get(12..(12 + number(block, 8, read)?).min(length - 4))?.to_vec()),
            _ => {}
        }
        at += length.max(12);
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::frames;

    #[test]
    fn pcap_of_either_byte_order() {
        let header = |magic: [u8; 4]| [&magic[..], &[0; 20]].concat();
        let little =
            [header([0xd4, 0xc3, 0xb2, 0xa1]), [&[0; 8][..], &[2, 0, 0, 0, 9, 0, 0, 0, 7, 8]].concat()];
        assert_eq!(frames(&little.concat()), Some(vec![vec![7, 8]]));
        let big = [header([0xa1, 0xb2, 0xc3, 0xd4]), [&[0; 8][..], &[0, 0, 0, 1, 0, 0, 0, 9, 7]].concat()];
        assert_eq!(frames(&big.concat()), Some(vec![vec![7]]));
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
