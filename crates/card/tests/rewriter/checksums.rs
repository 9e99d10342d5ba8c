//! Checksums at the edges of one's complement, where 0 and ffff are the same number but not the same bytes.

use crate::bench::{FULL, Job, run};
use model::generate::Rng;
use model::{EthernetRewrite, Forward, GATEWAY_MAC, Nat, PacketView, VifId, text};
use packet::{Mac, checksum};
use std::net::{IpAddr, Ipv4Addr};

const PACKETS: usize = 40_000;
const TO: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn address(rng: &mut Rng) -> Ipv4Addr {
    let words: [u32; 7] = [0, 0, 0xffff, 0xffff, 1, 0xfffe, rng.next_u64() as u32 & 0xffff];
    Ipv4Addr::from_bits(rng.one(&words) << 16 | rng.one(&words))
}

/// A packet whose L4 checksum is anything; that of its IP header is right, since no other is forwarded.
fn frame(rng: &mut Rng) -> Vec<u8> {
    let l4 = ["udp 1 > 2", "tcp 1 > 2 A", "icmp echo 1 2", "sctp 1 > 2", ""];
    let layer = rng.one(&l4);
    let layer = if layer.is_empty() { String::new() } else { format!(" / {layer}") };
    let (ttl, tos) = (rng.one(&[0, 1, 2, 64, 255]), rng.below(256));
    let text = format!(
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.0.0.1 > 10.0.0.2 ttl {ttl} tos {tos}{layer} / payload 30"
    );
    let mut frame = text::parse(&text).unwrap();
    frame[26..30].copy_from_slice(&address(rng).octets());
    frame[30..34].copy_from_slice(&address(rng).octets());
    // The identification makes the checksum what it is.
    let any = rng.next_u64() as u16;
    let id = rng.one(&[0, 0xffff, any]);
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::sum(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let at = match frame[23] {
        6 => 34 + 16,
        17 => 34 + 6,
        _ => return frame,
    };
    let l4: u16 = rng.one(&[0, 0, 0xffff, 1, 0xfffe, !any]);
    frame[at..at + 2].copy_from_slice(&l4.to_be_bytes());
    frame
}

fn forward(rng: &mut Rng) -> Forward {
    let nat = Nat {
        src: rng.percent(60).then(|| IpAddr::V4(address(rng))),
        dst: rng.percent(60).then(|| IpAddr::V4(address(rng))),
    };
    let ethernet = EthernetRewrite { dst: TO, src: GATEWAY_MAC, ethertype: 0x0800 };
    Forward {
        strip: 14,
        ecn: rng.percent(50).then(|| rng.below(4) as u8),
        ttl_decrement: rng.below(2) as u8,
        nat,
        ethernet: Some(ethernet),
        ..Forward::unchanged(VifId(3))
    }
}

#[test]
fn any_checksum_is_updated_as_the_model_does() {
    let mut rng = Rng::new(7);
    let mut jobs = Vec::new();
    for _ in 0..PACKETS {
        let frame = frame(&mut rng);
        let Ok(view) = PacketView::parse(&frame, frame.len() as u32, None) else { continue };
        jobs.extend(Job::forward(&forward(&mut rng), &view));
    }
    assert!(jobs.len() > PACKETS / 4, "{} of {PACKETS} packets can be forwarded", jobs.len());
    let zeros = jobs.iter().filter_map(|job| job.expected.as_ref()).filter(|(_, frame)| {
        frame[23] == 17 && frame[40..42] == [0xff, 0xff]
            || frame[24..26] == [0xff, 0xff]
            || frame[24..26] == [0, 0]
    });
    assert!(zeros.count() > 500, "checksums that are 0 in one's complement");
    run(&jobs, FULL, 1);
}
