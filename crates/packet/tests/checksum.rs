//! The Internet checksum against a naive one.

use crate::common;
use packet::checksum::{self, Delta, Sum};
use packet::proto;
use proptest::prelude::*;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 512 },
        failure_persistence: None,
        ..Default::default()
    }
}

/// Sums word by word, as RFC 1071, section 1, says.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn the_example_of_rfc_1071() {
    let sum = checksum::sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!((sum.fold(), sum.finish()), (0xddf2, !0xddf2));
}

#[test]
fn the_example_of_rfc_1624() {
    // Section 4: equation 3 gives 0x0000, where RFC 1141's gave 0xffff.
    assert_eq!(checksum::update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn long_runs_of_ones_do_not_overflow() {
    let (len, pieces) = if cfg!(miri) { (1 << 10, 4) } else { (1 << 20, 1 << 10) };
    let bytes = vec![0xff; len];
    assert_eq!(checksum::sum(&bytes).fold(), 0xffff);
    let mut sum = Sum::default();
    for _ in 0..pieces {
        sum.add(&bytes[..1021]);
    }
    assert_eq!(sum.fold(), 0xffff);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn equals_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(checksum::sum(&bytes).fold(), naive(&bytes));
        let mut copy = vec![0; bytes.len()];
        let mut copied = Sum::default();
        copied.copy(&mut copy, &bytes);
        prop_assert_eq!(copied.fold(), naive(&bytes));
        prop_assert_eq!(copy, bytes);
    }

    #[test]
    fn pieces_make_the_whole(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8),
    ) {
        let whole = pieces.concat();
        let (mut added, mut copied) = (Sum::default(), Sum::default());
        let mut copy = vec![0; whole.len()];
        let mut at = 0;
        for piece in &pieces {
            added.add(piece);
            copied.copy(&mut copy[at..at + piece.len()], piece);
            at += piece.len();
        }
        prop_assert_eq!(added.fold(), naive(&whole));
        prop_assert_eq!(copied.fold(), naive(&whole));
        prop_assert_eq!(copy, whole);
    }

    #[test]
    fn incremental_update_equals_recomputation(
        mut bytes in prop::collection::vec(any::<u8>(), 40..200),
        new in any::<[u8; 16]>(),
        place in 0_usize..11,
    ) {
        // Only a sum over nothing but zeros has two checksums, so not all bytes may be zero.
        bytes[39] |= 1;
        let before = checksum::sum(&bytes).finish();
        let at = 2 * place;
        let mut old = [0; 16];
        old.copy_from_slice(&bytes[at..at + 16]);
        bytes[at..at + 16].copy_from_slice(&new);
        let mut delta = Delta::default();
        delta.replace_bytes16(old, new);
        prop_assert_eq!(delta.apply(before), checksum::sum(&bytes).finish());

        let mut delta = Delta::default();
        let (words_old, words_new) = (old.as_chunks::<4>().0, new.as_chunks::<4>().0);
        for (old, new) in words_old.iter().zip(words_new) {
            delta.replace_u32(u32::from_be_bytes(*old), u32::from_be_bytes(*new));
        }
        prop_assert_eq!(delta.apply(before), checksum::sum(&bytes).finish());
        prop_assert_eq!(delta.apply_partial(!before), checksum::sum(&bytes).fold());

        let (halves_old, halves_new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
        let mut step = before;
        for (old, new) in halves_old.iter().zip(halves_new) {
            step = checksum::update_u16(step, u16::from_be_bytes(*old), u16::from_be_bytes(*new));
        }
        prop_assert_eq!(step, checksum::sum(&bytes).finish());
    }
}

#[test]
fn pseudo_headers_have_addresses_length_and_protocol() {
    let v4 = common::hex("0a010101 0a010102 00 11 0123");
    assert_eq!(checksum::pseudo_header(common::A4, common::B4, proto::UDP, 0x123).fold(), naive(&v4));
    let v6 =
        common::hex("fd000001000000000000000000000001 fd000001000000000000000000000002 00012345 00000006");
    assert_eq!(checksum::pseudo_header(common::A6, common::B6, proto::TCP, 0x1_2345).fold(), naive(&v6));
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    let (a, b) = (common::A4, common::B4);
    let mut datagram = common::udp(a, b, 1, 2, &[0, 0]);
    let checksum = [datagram[6], datagram[7]];
    datagram[6..8].fill(0);
    datagram[8..].copy_from_slice(&checksum);
    assert_eq!(checksum::l4(a, b, proto::UDP, &datagram), 0xffff);
}
