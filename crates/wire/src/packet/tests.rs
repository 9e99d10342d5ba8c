//! Joining datagrams and splitting them.

use super::datagram::MAX_HEADERS;
use super::join::Plan;
use super::split::Split;
use mem::vnet::{self, VNET_HEADER_SHORT};
use mem::{Csum, Offload, Segment};
use packet::checksum::{pseudo_header, sum};
use packet::{Mac, build, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MTU: usize = 9000;
const FAMILIES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))];

/// Makes a tunnel packet from `addr` to itself: Ethernet, IP, UDP with this identification and checksum, payload.
fn datagram(addr: IpAddr, id: u16, checksum: impl Fn(u32) -> u16, payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 62];
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let len = (proto::UDP_LEN + payload) as u16;
    let ethertype = if addr.is_ipv4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
    let ip = build::ethernet(&mut frame, dst, src, ethertype).unwrap();
    let udp = ip
        + match addr {
            IpAddr::V4(addr) => {
                let len = proto::IPV4_LEN as u16 + len;
                let (src, dst, protocol, dont_fragment) = (addr, addr, proto::UDP, true);
                build::ipv4(
                    &mut frame[ip..],
                    &build::Ipv4 { src, dst, protocol, ttl: 64, tos: 0, id, dont_fragment, len },
                )
            }
            IpAddr::V6(addr) => {
                let (src, dst, next_header, flow_label) = (addr, addr, proto::UDP, 7);
                let (hop_limit, traffic_class, payload_len) = (64, 0, len);
                build::ipv6(
                    &mut frame[ip..],
                    &build::Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len },
                )
            }
        }
        .unwrap();
    let end =
        udp + build::udp(&mut frame[udp..], 50_000, proto::PORT_MPLS, len, checksum(len.into())).unwrap();
    frame.truncate(end);
    frame.extend((0..payload).map(|i| (i * 7 + payload) as u8));
    frame
}

/// Makes a tunnel packet as the engine sends it.
fn plain(addr: IpAddr, payload: usize) -> Vec<u8> {
    datagram(addr, 0, |_| 0, payload)
}

fn segment(bytes: &mut [u8]) -> Segment {
    // SAFETY: the caller keeps the bytes for as long as it uses the segment.
    unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len() as u32) }
}

/// Returns the messages that are sent for frames with these offloads: for each message the number of its frames, its
/// vnet header and its frame.
fn sent(frames: &[Vec<u8>], offload: Offload) -> Vec<(usize, [u8; VNET_HEADER_SHORT], Vec<u8>)> {
    let header = &vnet::build(&offload)[..VNET_HEADER_SHORT];
    let mut messages: Vec<Vec<u8>> = frames.iter().map(|frame| [header, frame].concat()).collect();
    let segments: Vec<Segment> = messages.iter_mut().map(|message| segment(message)).collect();
    let mut plan = Plan::new();
    let planned = plan.make(&segments, proto::ETHERNET_LEN + MTU);
    let gathered: Vec<Vec<u8>> = planned
        .iter()
        .map(|message| {
            // SAFETY: the plan has as many vectors as it states.
            let vectors =
                unsafe { std::slice::from_raw_parts(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
            let bytes = |vector: &libc::iovec| {
                // SAFETY: they point to the plan's headers and to the frames above.
                unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len) }.to_vec()
            };
            vectors.iter().flat_map(bytes).collect()
        })
        .collect();
    let counts = (0..gathered.len()).map(|i| plan.frames_of(i..i + 1));
    let parted = gathered.iter().map(|message| message.split_first_chunk().unwrap());
    counts.zip(parted).map(|(count, (header, frame))| (count, *header, frame.to_vec())).collect()
}

fn counts(frames: &[Vec<u8>]) -> Vec<usize> {
    sent(frames, Offload::default()).iter().map(|(count, ..)| *count).collect()
}

fn split(frame: &[u8], size: usize) -> Option<Vec<(Vec<u8>, Offload)>> {
    let mut memory = frame.to_vec();
    let mut split = Split::new(segment(&mut memory), size)?;
    let mut head = [0; MAX_HEADERS];
    let mut datagrams = Vec::new();
    while !split.is_done() {
        let (segments, offload) = split.next(segment(&mut head));
        let mut bytes = vec![0; segments[0].len() + segments[1].len()];
        assert_eq!(mem::gather(&segments, 0, &mut bytes), bytes.len());
        datagrams.push((bytes, offload));
    }
    Some(datagrams)
}

#[test]
fn what_was_joined_comes_apart() {
    for addr in FAMILIES {
        let lengths = [1000, 1000, 1000, 7];
        let messages = sent(&lengths.map(|len| plain(addr, len)), Offload::default());
        let [(4, header, frame)] = &messages[..] else { panic!("{} messages", messages.len()) };
        assert_eq!(vnet::datagrams(header), Some(1000));
        let datagrams = split(frame, 1000).unwrap();
        assert_eq!(datagrams.len(), lengths.len());
        for (id, ((bytes, offload), len)) in datagrams.into_iter().zip(lengths).enumerate() {
            let partial = |len| pseudo_header(addr, addr, proto::UDP, len).fold();
            assert_eq!(bytes, datagram(addr, id as u16, partial, len));
            let start = (bytes.len() - len - proto::UDP_LEN) as u16;
            assert_eq!(offload, Offload { csum: Csum::Partial { start, offset: 6 }, gso: None });
        }
    }
}

#[test]
fn frames_stay_as_they_are_where_there_is_nothing_to_join() {
    for addr in FAMILIES {
        let frames = [100, 200, 300].map(|len| plain(addr, len));
        for ((count, header, frame), expected) in sent(&frames, Offload::default()).iter().zip(&frames) {
            assert_eq!((*count, *header, frame), (1, [0; VNET_HEADER_SHORT], expected));
        }
    }
}

#[test]
fn a_shorter_datagram_is_the_last_one() {
    for addr in FAMILIES {
        assert_eq!(counts(&[16, 10, 10, 10, 12, 12, 3, 3].map(|len| plain(addr, len))), [2, 2, 3, 1]);
    }
}

#[test]
fn a_joined_frame_is_shorter_than_64_kib() {
    for addr in FAMILIES {
        let frames = vec![plain(addr, 4096); 32];
        assert_eq!(counts(&frames), [15, 15, 2]);
        let messages = sent(&frames, Offload::default());
        assert!(messages.iter().all(|(_, _, frame)| frame.len() < 1 << 16));
    }
}

#[test]
fn what_differs_is_not_joined() {
    for addr in FAMILIES {
        let plain = plain(addr, 100);
        let udp = plain.len() - 108;
        // MAC addresses, TOS or flow label, TTL, IP addresses, ports.
        let fields = if addr.is_ipv4() {
            [0, 6, 15, 22, 26, 30, udp, udp + 3]
        } else {
            [0, 6, 17, 21, 22, 38, udp, udp + 3]
        };
        for field in fields {
            let mut other = plain.clone();
            other[field] ^= 1;
            if addr.is_ipv4() {
                other[24..26].fill(0);
                let checksum = sum(&other[14..34]).finish();
                other[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            assert_eq!(counts(&[plain.clone(), other]), [1, 1], "field at {field}");
        }
    }
}

#[test]
fn what_is_not_a_finished_packet_of_a_tunnel_is_not_joined() {
    for addr in FAMILIES {
        let pair = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = plain(addr, 100);
            change(&mut frame);
            [frame.clone(), frame]
        };
        let udp = plain(addr, 0).len() - proto::UDP_LEN;
        assert_eq!(counts(&pair(&|_| ())), [2]);
        assert_eq!(counts(&pair(&|frame| frame.push(0))), [1, 1], "padding");
        assert_eq!(counts(&pair(&|frame| frame[udp + 3] ^= 1)), [1, 1], "another port");
        assert_eq!(counts(&pair(&|frame| frame[udp + 5] -= 1)), [1, 1], "another UDP length");
        assert_eq!(counts(&pair(&|frame| frame.truncate(30))), [1, 1], "half of a header");
        let partial = Offload { csum: Csum::Partial { start: udp as u16, offset: 6 }, gso: None };
        assert_eq!(sent(&pair(&|_| ()), partial).len(), 2, "unfinished");
        assert_eq!(counts(&[plain(addr, MTU), plain(addr, MTU)]), [1, 1], "longer than the MTU");
    }
    let summed = datagram(FAMILIES[0], 0, |_| 0x1234, 100);
    assert_eq!(counts(&[summed.clone(), summed]), [1, 1], "a checksum of its own");
    assert_eq!(counts(&[plain(FAMILIES[0], 0), plain(FAMILIES[0], 0)]), [1, 1], "no payload");
}

#[test]
fn tags_stay_with_each_datagram() {
    for addr in FAMILIES {
        let mut whole = plain(addr, 2500);
        let tag = [0x81, 0, 0, 7];
        whole.splice(12..12, tag);
        let datagrams = split(&whole, 1000).unwrap();
        assert_eq!(datagrams.len(), 3);
        for (bytes, offload) in datagrams {
            assert_eq!(bytes[12..16], tag);
            let headers = packet::Headers::ethernet(&bytes, 0, bytes.len()).unwrap();
            assert_eq!(offload.csum, Csum::Partial { start: headers.l4_at, offset: 6 });
        }
    }
}

#[test]
fn what_is_malformed_is_not_split() {
    let whole = plain(FAMILIES[0], 3000);
    assert_eq!(split(&whole, 1000).unwrap().len(), 3);
    assert_eq!(split(&whole, 4000).unwrap().len(), 1);
    assert!(split(&whole, 0).is_none(), "no size");
    assert!(split(&whole[..2000], 1000).is_none(), "longer than what is there");
    assert!(split(&whole[..40], 1000).is_none(), "half of a header");
    assert!(split(&plain(FAMILIES[0], 0), 1000).is_none(), "no payload");
    for (at, what) in [(12, "not IP"), (23, "not UDP"), (24, "a wrong checksum"), (38, "another UDP length")]
    {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        assert!(split(&bad, 1000).is_none(), "{what}");
    }
}
