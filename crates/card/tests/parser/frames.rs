//! Frames: those of the conformance vectors, random ones from guests and wires, and variants of all of them with
//! errors.

use model::Tables;
use model::generate::{self, Rng};
use model::vectors::{Step, load};
use packet::{Headers, L3, TunnelKind, checksum, proto};
use std::path::Path;

/// Returns the frames of the conformance vectors.
pub fn of_vectors() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/vectors");
    let paths = std::fs::read_dir(directory).expect("the vectors").map(|entry| entry.expect("a file").path());
    let texts = paths
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .map(|path| std::fs::read_to_string(path).expect("a text"));
    let cases = texts.flat_map(|text| load(&text).expect("cases"));
    let steps = cases.flat_map(|case| case.steps);
    steps
        .filter_map(|step| match step {
            Step::Packet(packet) => Some(packet.frame),
            _ => None,
        })
        .filter(|frame| !frame.is_empty())
        .collect()
}

/// Makes random frames from guests and wires.
pub fn generated(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let mut tables = Tables::new();
        tables.apply(&generate::tables(rng)).expect("tables that fit together");
        frames.extend(generate::warm_up(rng, &tables).into_iter().map(|packet| packet.frame));
        frames.extend((0..300).map(|_| generate::packet(rng, &tables).frame));
        frames.retain(|frame| !frame.is_empty());
    }
    frames
}

/// Makes every tunnel with every tenant's packet, over both families, from `model` text.
pub fn tunnels() -> Vec<Vec<u8>> {
    let ethernet = "eth 02:00:00:00:00:05 > 02:00:00:00:00:06";
    let l4 = ["udp 7 > 9 / payload 20", "tcp 7 > 9 PA / payload 20", "sctp 7 > 9 / payload 16", "payload 0"];
    let mut inner = vec![
        format!("{ethernet} / payload 46"),
        format!("{ethernet} / arp request 10.1.1.1 at 02:00:00:00:00:05 for 10.1.1.2"),
    ];
    for tos in 0..4 {
        for l4 in l4.iter().chain(&["icmp echo 5 1 / payload 8", "icmp 3 1"]) {
            inner.push(format!("ip4 10.1.1.1 > 10.1.1.2 tos {tos} / {l4}"));
        }
        for l4 in l4.iter().chain(&["icmp6 echo 5 1 / payload 8", "ns 2001:db8::9 at 02:00:00:00:00:05"]) {
            inner.push(format!("ip6 2001:db8::1 > 2001:db8::2 ttl 255 tos {tos} / {l4}"));
        }
    }
    let mut all = Vec::new();
    for inner in inner {
        for tos in 0..4 {
            for outer in [
                format!("ip4 192.0.2.1 > 192.0.2.2 tos {tos}"),
                format!("ip6 2001:db8:1::1 > 2001:db8:1::2 tos {tos}"),
            ] {
                let outer = format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {outer}");
                if !inner.starts_with("eth") {
                    all.push(format!("{ethernet} / {inner}"));
                    all.push(format!("{outer} / udp 50000 > 6635 / mpls 100 / {inner}"));
                    all.push(format!("{outer} / gre / mpls 100 / {inner}"));
                    all.push(format!("{outer} / gre / mpls 0 more / mpls 100 / {inner}"));
                    all.push(format!("{outer} / udp 50000 > 4789 / vxlan 5000 / {ethernet} / {inner}"));
                    all.push(format!(
                        "{outer} / udp 50000 > 4789 / vxlan 5000 / {ethernet} vlan 7 / {inner}"
                    ));
                } else {
                    all.push(format!("{outer} / udp 50000 > 4789 / vxlan 5000 / {inner}"));
                }
            }
        }
    }
    all.iter().map(|text| model::text::parse(text).expect("a frame")).collect()
}

/// Makes edge cases that random frames seldom reach. Each is there many times, because the bytes after a frame's end
/// differ each time.
pub fn edges() -> Vec<Vec<u8>> {
    let outer = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 192.0.2.1 > 192.0.2.2";
    let texts = [
        // The last bytes that a datagram can have, and one byte more.
        format!("{outer} id 1 frag 65528 proto 17 / payload 7"),
        format!("{outer} id 1 frag 65528 proto 17 / payload 8"),
        // Nothing after the label.
        format!("{outer} / udp 50000 > 6635 / mpls 100"),
        format!("{outer} / gre / mpls 100"),
        format!("{outer} / gre / mpls 100 / hex 45"),
    ];
    let frames = texts.map(|text| model::text::parse(&text).expect("a frame"));
    frames.iter().cycle().take(50 * frames.len()).cloned().collect()
}

#[derive(Default)]
struct Places {
    ethernet: Vec<usize>,
    ip: Vec<usize>,
    l4: Vec<usize>,
    encapsulation: Option<usize>,
}

impl Places {
    fn of(frame: &[u8]) -> Self {
        let mut places = Self::default();
        let Ok(outer) = Headers::ethernet(frame, 0, frame.len()) else { return places };
        places.note(&outer);
        let Ok(Some(tunnel)) = packet::tunnel(frame, &outer, frame.len()) else { return places };
        places.encapsulation = Some(usize::from(outer.l4_at));
        let inner = match tunnel.kind {
            TunnelKind::Vxlan => Headers::ethernet(frame, tunnel.inner_at, tunnel.inner_end),
            _ => Headers::network(frame, tunnel.inner_at, tunnel.inner_end),
        };
        if let Ok(inner) = inner {
            places.note(&inner);
        }
        places
    }

    fn note(&mut self, headers: &Headers) {
        if headers.eth.is_some() {
            self.ethernet.push(headers.at.into());
        }
        if let L3::Ip(ip) = headers.l3 {
            self.ip.push(ip.at.into());
            self.l4.push(usize::from(ip.at + ip.header_len));
        }
    }
}

/// Makes a frame longer, or gives it errors.
pub fn spoilt(rng: &mut Rng, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if rng.percent(25) {
        insert(rng, &mut frame);
    }
    let places = Places::of(&frame);
    for _ in 0..rng.below(3) {
        field(rng, &mut frame, &places);
    }
    if rng.percent(75) {
        places.ip.iter().for_each(|at| correct(&mut frame, *at));
    }
    match rng.below(12) {
        0 => {
            for _ in 0..=rng.below(3) {
                let at = rng.below(frame.len().min(140));
                frame[at] ^= 1 << rng.below(8);
            }
        }
        1 => frame.truncate(1 + rng.below(frame.len().min(150))),
        2 => frame.truncate(1 + rng.below(frame.len())),
        3 => frame.extend((0..rng.below(80)).map(|k| k as u8)),
        _ => {}
    }
    frame
}

/// Inserts VLAN tags after the MACs, or options after an IPv4 header, and adjusts the lengths before them.
fn insert(rng: &mut Rng, frame: &mut Vec<u8>) {
    let places = Places::of(frame);
    let tags = rng.percent(50);
    let (at, bytes) = match (places.ethernet.as_slice(), places.ip.as_slice()) {
        (ethernet @ [_, ..], _) if tags => {
            let tag = rng.one(&[[0x81, 0, 0, 7], [0x88, 0xa8, 0x20, 9], [0x81, 0, 0, 0]]);
            (rng.one(ethernet) + 12, tag.repeat(1 + rng.below(3)))
        }
        (_, ip @ [_, ..]) if !tags => {
            let at = rng.one(ip);
            let room = 15usize.saturating_sub(usize::from(frame[at] & 0xf));
            let words = 1 + rng.below(room.min(10));
            if frame[at] >> 4 != 4 || words > room {
                return;
            }
            frame[at] += words as u8;
            add(frame, at + 2, 4 * words);
            (at + 20, vec![1; 4 * words])
        }
        _ => return,
    };
    for (ip, l4) in places.ip.iter().zip(&places.l4).filter(|(_, l4)| **l4 < at) {
        let (length, protocol) = if frame[*ip] >> 4 == 4 { (2, 9) } else { (4, 6) };
        add(frame, ip + length, bytes.len());
        if frame[ip + protocol] == proto::UDP {
            add(frame, l4 + 4, bytes.len());
        }
    }
    frame.splice(at..at, bytes);
    places.ip.iter().filter(|ip| **ip < at).for_each(|ip| correct(frame, *ip));
}

fn add(frame: &mut [u8], at: usize, count: usize) {
    let number = u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_add(count as u16);
    frame[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// Corrects an IPv4 header's checksum.
fn correct(frame: &mut [u8], at: usize) {
    let end = at + 4 * usize::from(frame[at] & 0xf);
    if frame[at] >> 4 != 4 || end < at + 20 || end > frame.len() {
        return;
    }
    frame[at + 10..at + 12].fill(0);
    let sum = !checksum::sum(&frame[at..end]).fold();
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Changes the value of a field that decides something.
fn field(rng: &mut Rng, frame: &mut [u8], places: &Places) {
    let random = rng.next_u64() as u8;
    let few = rng.below(24) as u8;
    let mut put = |at: usize, value: u8| frame.get_mut(at).into_iter().for_each(|byte| *byte = value);
    let protocol = rng.one(&[0, 1, 6, 17, 43, 44, 47, 50, 51, 58, 60, 132, 253]);
    if rng.percent(10)
        && let [.., ethernet] = places.ethernet[..]
    {
        let kind = rng.one(&[[8, 0], [8, 6], [0x86, 0xdd], [0x81, 0], [0x88, 0x47]]);
        return kind.into_iter().enumerate().for_each(|(k, byte)| put(ethernet + 12 + k, byte));
    }
    if rng.percent(40)
        && let Some(at) = places.encapsulation
    {
        let k = rng.below(20);
        let value =
            if k >= 8 { rng.one(&[0, 1, few, random, 0x08, 0x41, 0x64]) } else { rng.one(&[0, few, random]) };
        return put(at + k, value);
    }
    if places.ip.is_empty() {
        return;
    }
    let which = rng.below(places.ip.len());
    let (at, l4) = (places.ip[which], places.l4[which]);
    match rng.below(12) {
        0 => put(at, rng.one(&[0x44, 0x45, 0x46, 0x4f, 0x60, 0x65, 0x55, random])),
        1 => put(at + 1, rng.one(&[0, 1, 2, 3, 0x30, 0x20, random])),
        2 => put(at + 2, rng.one(&[0, 0, 1, random])),
        3 => put(at + 3, rng.one(&[few, 20, 28, 40, 60, random])),
        4 => put(at + 4, rng.one(&[0, random])),
        5 => put(at + 5, rng.one(&[0, few, 20, random])),
        6 => put(at + 6, rng.one(&[0x40, 0x20, 0x3f, 0, protocol, random])),
        7 => put(at + 7, rng.one(&[0, 1, 2, random])),
        8 => put(at + 9, protocol),
        9 => {
            let source = rng.one(&[[127, 0, 0, 1], [255; 4], [224, 0, 0, 5], [239, 1, 1, 1], [0; 4]]);
            source.into_iter().enumerate().for_each(|(k, byte)| put(at + 12 + k, byte));
        }
        10 if random & 1 == 0 => {
            let localhost = rng.percent(50);
            (8..24).for_each(|k| put(at + k, if localhost { u8::from(k == 23) } else { 0xff }));
        }
        10 => put(l4, rng.one(&[0, 8, 3, 128, 129, 132, 133, 134, 135, 136, 137, 138])),
        _ => put(
            l4 + rng.one(&[0, 1, 2, 3, 4, 5, 12, 12, 13]),
            rng.one(&[0, 0x40, 0x50, 0x60, 0xf0, few, random]),
        ),
    }
}
