//! Reads the frames of pcap (draft-ietf-opsawg-pcap) and pcapng files.

/// The frames of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Frames that came in, or whose direction is not in the file.
    pub inbound: Vec<Vec<u8>>,
    /// Number of other frames, which left by their interface.
    pub outbound: usize,
    /// Number of frames of which the capture kept only the first bytes. Zeros stand for the others.
    pub cut: usize,
    /// Whether the file ends inside a packet, which is left out.
    pub ends_early: bool,
}

/// The reason why the packets of a file can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it is neither pcap nor pcapng, or damaged")]
    Format,
    #[error(
        "its packets have no Ethernet headers: they are of link type {0}{name}; capture at one device (`tcpdump -i DEVICE`, \
         `viaduct capture -w`)",
        name = name_of(.0)
    )]
    LinkType(u16),
    #[error(
        "the capture kept only the first {0} bytes of a packet, too few to find its headers; capture with a greater \
         snap length (`tcpdump -s 0`)"
    )]
    Cut(usize),
}

const ETHERNET: u16 = 1;

/// Fewest bytes of a packet by which it can be explained: the headers of TCP over IPv4, with some options.
const LEAST: usize = 64;

/// Longest packet, as the daemon takes it.
const LONGEST: usize = 256 * 1024;

/// Names the link types that are met most often.
const fn name_of(link_type: &u16) -> &'static str {
    match *link_type {
        0 | 108 => " (loopback)",
        12 | 101 | 228 | 229 => " (IP alone)",
        105 | 127 => " (wireless LAN)",
        113 | 276 => " (Linux \"cooked\", as `tcpdump -i any` writes)",
        _ => "",
    }
}

/// Reads the frames of a capture file. A file may end inside a packet: whoever writes it may not have finished.
///
/// # Errors
/// [`Unreadable`].
pub fn frames(file: &[u8]) -> Result<Frames, Unreadable> {
    match file.get(..4) {
        Some([0xa1, 0xb2, 0xc3 | 0x3c, 0xd4 | 0x4d]) => pcap(file, u32::from_be_bytes),
        Some([0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1]) => pcap(file, u32::from_le_bytes),
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => match file.get(8..12) {
            Some([0x1a, 0x2b, 0x3c, 0x4d]) => pcapng(file, u32::from_be_bytes),
            Some([0x4d, 0x3c, 0x2b, 0x1a]) => pcapng(file, u32::from_le_bytes),
            _ => Err(Unreadable::Format),
        },
        _ => Err(Unreadable::Format),
    }
}

type Read32 = fn([u8; 4]) -> u32;

fn number(bytes: &[u8], at: usize, read: Read32) -> Option<usize> {
    Some(read(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

/// Reads a number of two bytes: two copies make one of four bytes whose halves are equal in either byte order.
fn half(bytes: &[u8], at: usize, read: Read32) -> Option<u16> {
    let bytes: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(read([bytes, bytes].as_flattened().try_into().ok()?) as u16)
}

impl Frames {
    /// Adds a frame of which `data` was kept, and which had `length` bytes.
    fn add(&mut self, link_type: u16, data: &[u8], length: usize) -> Result<(), Unreadable> {
        if link_type != ETHERNET {
            return Err(Unreadable::LinkType(link_type));
        }
        let mut frame = data.to_vec();
        if length > data.len() {
            if data.len() < LEAST {
                return Err(Unreadable::Cut(data.len()));
            }
            self.cut += 1;
            frame.resize(length.min(LONGEST), 0);
        }
        self.inbound.push(frame);
        Ok(())
    }
}

fn pcap(file: &[u8], read: Read32) -> Result<Frames, Unreadable> {
    const LINK_TYPE: usize = 20;
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    // The upper bits say other things.
    let link_type = number(file, LINK_TYPE, read).ok_or(Unreadable::Format)? as u16;
    let (mut frames, mut at) = (Frames::default(), HEADER);
    while at < file.len() {
        let lengths = number(file, at + 8, read).zip(number(file, at + 12, read));
        let data = at + RECORD;
        let whole =
            lengths.and_then(|(kept, length)| Some((file.get(data..data.checked_add(kept)?)?, length)));
        let Some((kept, length)) = whole else {
            frames.ends_early = true;
            break;
        };
        frames.add(link_type, kept, length)?;
        at = data + kept.len();
    }
    Ok(frames)
}

fn pcapng(file: &[u8], read: Read32) -> Result<Frames, Unreadable> {
    const LEAST_BLOCK: usize = 12;
    let (mut frames, mut at, mut link_types) = (Frames::default(), 0, Vec::new());
    while at < file.len() {
        let header = number(file, at, read).zip(number(file, at + 4, read));
        if header.is_some_and(|(_, length)| length < LEAST_BLOCK) {
            return Err(Unreadable::Format);
        }
        let block = header.and_then(|(kind, length)| Some((kind, file.get(at..at.checked_add(length)?)?)));
        let Some((kind, block)) = block else {
            frames.ends_early = true;
            break;
        };
        if kind == 0x0a0d_0d0a {
            link_types.clear();
        }
        pcapng_block(&mut frames, &mut link_types, (kind, block), read).ok_or(Unreadable::Format)??;
        at += block.len();
    }
    Ok(frames)
}

/// Reads a block; `None` if it is damaged.
fn pcapng_block(
    frames: &mut Frames,
    link_types: &mut Vec<u16>,
    (kind, block): (usize, &[u8]),
    read: Read32,
) -> Option<Result<(), Unreadable>> {
    const INTERFACE: usize = 1;
    const SIMPLE_PACKET: usize = 3;
    const PACKET: usize = 6;
    match kind {
        INTERFACE => link_types.push(half(block, 8, read)?),
        PACKET => {
            let link_type = *link_types.get(number(block, 8, read)?)?;
            let end = 28 + number(block, 20, read)?;
            let kept = block.get(28..end)?;
            if is_outbound(block, end.next_multiple_of(4), read) {
                frames.outbound += 1;
            } else {
                return Some(frames.add(link_type, kept, number(block, 24, read)?));
            }
        }
        SIMPLE_PACKET => {
            let length = number(block, 8, read)?;
            let end = (12 + length).min(block.len().saturating_sub(4));
            return Some(frames.add(*link_types.first()?, block.get(12..end)?, length));
        }
        _ => {}
    }
    Some(Ok(()))
}

/// Is true if the options of an enhanced packet block, from `at` on, say that the packet left by its
/// interface.
fn is_outbound(block: &[u8], mut at: usize, read: Read32) -> bool {
    const FLAGS: u16 = 2;
    const DIRECTION: usize = 3;
    const OUTBOUND: usize = 2;
    while let Some([a, b, c, d]) = block.get(at..).and_then(<[u8]>::first_chunk) {
        let number_of = |bytes: [u8; 2]| half(&bytes, 0, read).unwrap_or_default();
        let (code, length) = (number_of([*a, *b]), usize::from(number_of([*c, *d])));
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
    use super::{Frames, Unreadable, frames};

    fn inbound(frames: &[&[u8]]) -> Frames {
        Frames { inbound: frames.iter().map(|frame| frame.to_vec()).collect(), ..Frames::default() }
    }

    /// Makes a pcap file with this link type and these records: length of the packet, and the bytes kept of it.
    fn pcap(of: fn(u32) -> [u8; 4], link_type: u32, records: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = [&of(0xa1b2_c3d4)[..], &[0; 16], &of(link_type)].concat();
        for (length, kept) in records {
            file.extend([[0; 4], [0; 4], of(kept.len() as u32), of(*length)].concat());
            file.extend(*kept);
        }
        file
    }

    /// Makes a pcapng file with an interface of this link type and one packet with these flags.
    fn pcapng(of: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2], link_type: u16, flags: u32) -> Vec<u8> {
        let section =
            [of(0x0a0d_0d0a), of(28), of(0x1a2b_3c4d), [0; 4], [0xff; 4], [0xff; 4], of(28)].concat();
        let interface = [&of(1)[..], &of(20), &half(link_type), &[0; 6], &of(20)].concat();
        let packet = [of(6), of(60), [0; 4], [0; 4], [0; 4], of(2), of(2), [7, 8, 0, 0]].concat();
        let comment = [&half(1)[..], &half(3), b"abc\0"].concat();
        let option = [&half(2)[..], &half(4), &of(flags)].concat();
        [section, interface, packet, comment, option, vec![0; 8], of(60).to_vec()].concat()
    }

    #[test]
    fn pcap_of_either_byte_order() {
        for of in [u32::to_le_bytes, u32::to_be_bytes] {
            assert_eq!(frames(&pcap(of, 1, &[(2, &[7, 8]), (1, &[9])])), Ok(inbound(&[&[7, 8], &[9]])));
        }
    }

    #[test]
    fn pcapng_of_either_byte_order_says_what_left() {
        for flags in 0..8 {
            let little = pcapng(u32::to_le_bytes, u16::to_le_bytes, 1, flags);
            let big = pcapng(u32::to_be_bytes, u16::to_be_bytes, 1, flags);
            let wanted = match flags & 3 {
                2 => Frames { outbound: 1, ..Frames::default() },
                _ => inbound(&[&[7, 8]]),
            };
            assert_eq!([frames(&little), frames(&big)], [Ok(wanted.clone()), Ok(wanted)], "{flags}");
        }
    }

    #[test]
    fn packets_without_an_ethernet_header_are_refused_with_the_reason() {
        for link_type in [0, 101, 105, 113, 276] {
            let refused = Err(Unreadable::LinkType(link_type));
            assert_eq!(frames(&pcap(u32::to_le_bytes, link_type.into(), &[(2, &[7, 8])])), refused);
            assert_eq!(frames(&pcapng(u32::to_be_bytes, u16::to_be_bytes, link_type, 0)), refused);
        }
        let said = Unreadable::LinkType(276).to_string();
        assert!(said.contains("link type 276 (Linux") && said.contains("-i DEVICE"), "{said}");
    }

    #[test]
    fn a_file_that_ends_inside_a_packet_has_those_before() {
        let whole = pcap(u32::to_le_bytes, 1, &[(2, &[7, 8]), (2, &[9, 9])]);
        for end in whole.len() - 17..whole.len() {
            let cut = Frames { ends_early: true, ..inbound(&[&[7, 8]]) };
            assert_eq!(frames(&whole[..end]), Ok(cut), "{end}");
        }
        let whole = pcapng(u32::to_le_bytes, u16::to_le_bytes, 1, 0);
        for end in whole.len() - 59..whole.len() {
            assert_eq!(frames(&whole[..end]), Ok(Frames { ends_early: true, ..Frames::default() }), "{end}");
        }
    }

    #[test]
    fn zeros_stand_for_what_a_capture_did_not_keep() {
        let kept = [5; 64];
        let whole = [&kept[..], &[0; 36]].concat();
        let got = frames(&pcap(u32::to_le_bytes, 1, &[(100, &kept)]));
        assert_eq!(got, Ok(Frames { cut: 1, ..inbound(&[&whole]) }));
        let got = frames(&pcap(u32::to_le_bytes, 1, &[(100, &kept[..63])]));
        assert_eq!(got, Err(Unreadable::Cut(63)));
        let longest = frames(&pcap(u32::to_le_bytes, 1, &[(u32::MAX, &kept)])).unwrap();
        assert_eq!(longest.inbound[0].len(), 256 * 1024);
    }

    #[test]
    fn damage_is_no_panic() {
        let section = [&[0x0a, 0x0d, 0x0d, 0x0a, 12, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a][..]].concat();
        for length in 0..12_u32 {
            let block = [&[3, 0, 0, 0][..], &length.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
            assert_eq!(frames(&[&section[..], &block].concat()), Err(Unreadable::Format), "{length}");
        }
        for bad in [&b""[..], b"hello world", &[0xd4, 0xc3, 0xb2, 0xa1], &[0x0a, 0x0d, 0x0d, 0x0a, 0xff]] {
            assert_eq!(frames(bad), Err(Unreadable::Format), "{bad:?}");
        }
        let without_interface = [&section[..], &[6, 0, 0, 0, 32, 0, 0, 0], &[0; 24]].concat();
        assert_eq!(frames(&without_interface), Err(Unreadable::Format));
    }
}
