//! Fuzz target over whole frames. `cargo test` replays `__fuzz__/*/corpus` and a few random inputs;
//! `cargo bolero test frames -p packet` goes on from there.
#![cfg(not(miri))]

use crate::common::exercise::exercise;

#[test]
fn frames() {
    bolero::check!().for_each(|bytes: &[u8]| {
        exercise(bytes, 0, bytes.len());
        exercise(&bytes[..bytes.len() / 2], 0, bytes.len());
        reassemble(bytes);
    });
}

/// Takes the halves for fragments of a packet.
fn reassemble(bytes: &[u8]) {
    let mut packet = packet::Reassembly::default();
    for part in bytes.chunks(bytes.len().div_ceil(2).max(1)) {
        let Ok(headers) = packet::Headers::ethernet(part, 0, part.len()) else { continue };
        let fit = packet.add(part, &headers);
        let whole = packet.finish();
        if fit == packet::Fit::Whole
            && let Some(whole) = whole
        {
            assert_eq!(whole.len(), packet.head().len() + packet.bytes());
        }
    }
}

/// `cargo bolero test roce -p packet`.
#[test]
fn roce() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut out = [0; 4096];
        if let Ok(datagram) = packet::roce::parse(bytes)
            && let Ok(len) = packet::roce::write(&datagram, &mut out)
        {
            assert_eq!(packet::roce::parse(&out[..len]), Ok(datagram));
        }
        let _ = packet::roce::has_right_icrc(bytes);
    });
}

/// `cargo bolero test connection_manager -p packet`. A message that was read is written with the same bytes,
/// except for bits without a meaning.
#[test]
fn connection_manager() {
    use packet::roce::cm;
    let check = |bytes: &[u8]| {
        if let Ok(mad) = cm::parse(bytes) {
            assert_eq!(cm::parse(&cm::write(&mad)), Ok(mad));
        }
    };
    bolero::check!().for_each(|bytes: &[u8]| {
        check(bytes);
        // Puts a right header in front, which hardly comes about by chance: there are few attributes.
        let Some((attribute, body)) = bytes.split_first() else { return };
        let mut mad = [0; cm::MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 | attribute & 0xf;
        mad[24..].iter_mut().zip(body).for_each(|(to, from)| *to = *from);
        check(&mad);
    });
}
