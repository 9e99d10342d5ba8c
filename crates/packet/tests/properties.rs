//! Hostile bytes: nothing panics, and nothing reads or leads outside of the packet.

use crate::common::exercise::exercise;
use crate::common::{ethernet, icmp, ip, samples, tcp, udp};
use packet::{Headers, L4, proto};
use proptest::prelude::*;
use std::net::IpAddr;

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 4 } else { 2048 };
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_leads_outside_of_arbitrary_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in prop_oneof![0_usize..220, any::<usize>()],
        len in prop_oneof![0_usize..220, any::<usize>()],
    ) {
        exercise(&bytes, at, len);
    }

    #[test]
    fn nothing_leads_outside_of_packets_with_changed_bytes(
        sample in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let samples = samples();
        let mut bytes = sample.get(&samples).clone();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let len = bytes.len();
        let at_hand = if whole { len } else { cut.index(len) };
        exercise(&bytes[..at_hand], 0, len);
    }

    #[test]
    fn what_is_built_is_parsed(
        v6 in any::<bool>(),
        bits in any::<[u128; 2]>(),
        kind in 0_usize..3,
        tags in prop::collection::vec(any::<u16>(), 0..3),
        payload in prop::collection::vec(any::<u8>(), 0..100),
        padding in 0_usize..20,
    ) {
        let address = |bits: u128| -> IpAddr {
            if v6 {
                (bits >> 8 | 0xfd << 120).to_be_bytes().into()
            } else {
                (bits as u32 >> 8 | 10 << 24).to_be_bytes().into()
            }
        };
        let [src, dst] = bits.map(address);
        let (protocol, segment, l4) = match kind {
            0 => {
                let (seq, ack, window, scale) = (1, 2, 0xffff, None);
                let l4 = L4::Tcp { src: 1000, dst: 80, flags: 0x1b, header_len: 24, seq, ack, window, scale };
                (proto::TCP, tcp(src, dst, 0x1b, &[1; 4], &payload), l4)
            }
            1 => (proto::UDP, udp(src, dst, 7, 9, &payload), L4::Udp { src: 7, dst: 9 }),
            _ => {
                let kind = if v6 { 200 } else { 13 };
                let protocol = if v6 { proto::ICMPV6 } else { proto::ICMP };
                let body = [&[1, 2, 3, 4], &payload[..]].concat();
                (protocol, icmp(src, dst, kind, 5, &body), L4::Icmp { kind, code: 5, id: 0 })
            }
        };
        let ethertype = if v6 { proto::ETHERTYPE_IPV6 } else { proto::ETHERTYPE_IPV4 };
        let mut bytes = ethernet(&tags, ethertype);
        let l3_at = bytes.len();
        bytes.extend(ip(src, dst, protocol, &segment));
        let ip_len = bytes.len() - l3_at;
        bytes.resize(bytes.len() + padding, 0xee);

        let headers = Headers::ethernet(&bytes, 0, bytes.len()).unwrap();
        let eth = headers.eth.as_ref().unwrap();
        let seen: Vec<_> = eth.tags.iter().map(|tag| (tag.service, tag.tci)).collect();
        let written: Vec<_> = tags.iter().map(|tci| (false, *tci)).collect();
        prop_assert_eq!((eth.ethertype, seen), (ethertype, written));
        let ip = headers.ip().unwrap();
        prop_assert_eq!((ip.src, ip.dst, ip.protocol), (src, dst, protocol));
        prop_assert_eq!((usize::from(ip.at), ip.len as usize), (l3_at, ip_len));
        prop_assert_eq!(headers.l4, l4);
        prop_assert_eq!(packet::checksum::verify_l4(&bytes, &headers), packet::checksum::L4Check::Right);
    }
}
