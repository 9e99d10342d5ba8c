//! Checksums at the edges of one's complement, where 0 and ffff are the same number but not the same bytes.

use super::bench::{FULL, Job, run};
use model::generate::Rng;
use model::{
    Encap, EthernetRewrite, Forward, GATEWAY_MAC, Nat, PacketView, TunnelKind, VifId, rewrite, text,
};
use packet::{Mac, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const PACKETS: usize = 40_000;
const TO: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn address(rng: &mut Rng) -> Ipv4Addr {
    let words: [u32; 7] = [0, 0, 0xffff, 0xffff, 1, 0xfffe, rng.next_u64() as u32 & 0xffff];
    Ipv4Addr::from_bits(rng.one(&words) << 16 | rng.one(&words))
}

/// Makes a packet with any L4 checksum. The checksum of its IP header is right, because others are not forwarded.
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
    // The identification is chosen to give this checksum.
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
        ..Nat::default()
    };
    let ethernet = EthernetRewrite { dst: TO, src: GATEWAY_MAC, ethertype: 0x0800 };
    Forward {
        strip: 14,
        tos: rng.percent(50).then(|| rng.below(256) as u8),
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

/// Position of a tunnel's UDP checksum in a frame over IPv6.
const OUTER: std::ops::Range<usize> = 60..62;

fn address6(rng: &mut Rng) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())).into()
}

fn tunnel(rng: &mut Rng) -> Encap {
    let kind = rng.one(&[TunnelKind::MplsUdp, TunnelKind::Vxlan]);
    let mask = if kind == TunnelKind::Vxlan { 0xff_ffff } else { 0xf_ffff };
    Encap {
        kind,
        id: rng.next_u64() as u32 & mask,
        src: address6(rng),
        dst: address6(rng),
        src_mac: TO,
        dst_mac: GATEWAY_MAC,
        entropy: rng.next_u64() as u32,
        tos: rng.next_u64() as u8,
        dont_fragment: true,
    }
}

/// Makes an IPv6 packet, with or without extra headers in front of it.
fn frame6(rng: &mut Rng) -> Vec<u8> {
    let l4 = rng.one(&["udp 1 > 2", "tcp 1 > 2 A", "icmp echo 1 2"]);
    let (hops, tos, len) = (rng.one(&[0, 1, 2, 64, 255]), rng.below(256), rng.below(300));
    let ip = format!("ip6 fd00::1 > fd00::2 ttl {hops} tos {tos} / {l4} / payload {len}");
    text::parse(&format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {ip}")).unwrap()
}

/// Makes a bridged frame: an IP packet after tags or without tags, or only zeros.
fn frame2(rng: &mut Rng) -> Vec<u8> {
    let tags = rng.one(&["", " vlan 5", " vlan 5 vlan 6"]);
    let len = rng.below(300);
    let inner =
        rng.one(&["ip4 10.0.0.1 > 10.0.0.2 / udp 1 > 2 / ", "ip6 fd00::1 > fd00::2 / tcp 1 > 2 A / ", ""]);
    let text = format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02{tags} / {inner}payload {len}");
    if rng.percent(5) { vec![0; 14 + len] } else { text::parse(&text).unwrap() }
}

/// Makes a packet that enters a tunnel, and its forwarding.
fn tunnelled(rng: &mut Rng) -> (Vec<u8>, Forward) {
    let encap = Some(tunnel(rng));
    let vxlan = encap.is_some_and(|encap| encap.kind == TunnelKind::Vxlan);
    if vxlan && rng.percent(40) {
        return (frame2(rng), Forward { encap, ..Forward::unchanged(VifId(3)) });
    }
    let v4 = rng.percent(60);
    let frame = if v4 { frame(rng) } else { frame6(rng) };
    let routed = forward(rng);
    let mac = Mac(std::array::from_fn(|_| rng.next_u64() as u8));
    let ethertype = if v4 { 0x0800 } else { 0x86dd };
    let ethernet = vxlan.then_some(EthernetRewrite { dst: mac, src: GATEWAY_MAC, ethertype });
    let nat = if v4 { routed.nat } else { Nat::default() };
    (frame, Forward { encap, ethernet, nat, ..routed })
}

/// Returns the output, if the model forwards the frame this way.
fn leaves(frame: &[u8], forward: &Forward) -> Option<Vec<u8>> {
    let view = PacketView::parse(frame, frame.len() as u32, None).ok()?;
    rewrite::rewrite(forward, &view)
}

#[test]
fn udp_over_ipv6_has_the_models_checksum() {
    let mut rng = Rng::new(19);
    let mut jobs = Vec::new();
    for _ in 0..PACKETS {
        let (mut frame, forward) = tunnelled(&mut rng);
        let Some(out) = leaves(&frame, &forward) else { continue };
        // In some packets, changes the last word at an even offset so that the checksum becomes 0.
        let at = frame.len() & !1;
        if rng.percent(20) && out.len() > 150 {
            let (more, old) = (u16::from_be_bytes([out[60], out[61]]), &mut frame[at - 2..at]);
            let (sum, carry) = u16::from_be_bytes([old[0], old[1]]).overflowing_add(more);
            old.copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        }
        let view = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
        jobs.extend(Job::forward(&forward, &view));
    }
    assert!(jobs.len() > PACKETS / 4, "{} of {PACKETS} packets can be forwarded", jobs.len());
    let zeros =
        jobs.iter().filter_map(|job| job.expected.as_ref()).filter(|(_, out)| out[OUTER] == [0xff, 0xff]);
    assert!(zeros.count() > 500, "checksums that are 0 in one's complement");
    run(&jobs, FULL, 1);
}
