//! The entropy hash.

use model::entropy_of;
use model::generate::Rng;
use packet::{Ethernet, Fragment, Headers, Ip, L3, L4, Mac, proto};
use rtl::Entropy;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADERS: usize = 20_000;
/// Cycles from the header to the hash.
const LATENCY: usize = 2;

fn address(rng: &mut Rng, v4: bool) -> IpAddr {
    let (high, low) = (rng.next_u64(), rng.next_u64());
    if v4 {
        return Ipv4Addr::from_bits(low as u32).into();
    }
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
}

fn ip(rng: &mut Rng) -> Ip {
    let v4 = rng.percent(50);
    let whole = Fragment::Whole;
    Ip {
        at: 14,
        header_len: 20,
        len: 60,
        src: address(rng, v4),
        dst: address(rng, v4),
        protocol: rng.next_u64() as u8,
        ttl: 64,
        tos: 0,
        fragment: rng.one(&[whole, whole, Fragment::First { id: 1 }, Fragment::Later { id: 1 }]),
        dont_fragment: true,
    }
}

fn headers(rng: &mut Rng) -> Headers {
    let mac = |rng: &mut Rng| Mac(std::array::from_fn(|_| rng.next_u64() as u8));
    let eth =
        Ethernet { dst: mac(rng), src: mac(rng), ethertype: rng.next_u64() as u16, ..Ethernet::default() };
    let (src, dst) = (rng.next_u64() as u16, rng.next_u64() as u16);
    let dst = rng.one(&[dst, proto::PORT_ROCE]);
    let l4 = rng.one(&[
        L4::Other,
        L4::Tcp { src, dst, flags: 0, header_len: 20, seq: 0, ack: 0, window: 0, scale: None },
        L4::Udp { src, dst },
        L4::Sctp { src, dst },
        L4::Icmp { kind: 8, code: 0, id: src },
    ]);
    if rng.percent(20) {
        return Headers { eth: Some(eth), ..Headers::default() };
    }
    Headers { eth: Some(eth), l3: L3::Ip(ip(rng)), l4, ..Headers::default() }
}

fn set(sim: &mut Entropy, headers: &Headers) {
    let number = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let mac = |mac: Mac| mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let ip = headers.ip();
    sim.set_ip(ip.is_some());
    if let Some(ip) = ip {
        sim.set_v6(ip.src.is_ipv6());
        sim.set_fragment(ip.fragment != Fragment::Whole);
        sim.src_mut().set(0, 128, number(ip.src));
        sim.dst_mut().set(0, 128, number(ip.dst));
        sim.set_protocol(ip.protocol);
    }
    sim.set_l4(match headers.l4 {
        L4::Udp { .. } => 2,
        L4::Tcp { .. } => 1,
        _ => 0,
    });
    let (sport, dport) = headers.ports();
    sim.set_sport(sport);
    sim.set_dport(dport);
    if let Some(eth) = &headers.eth {
        sim.set_mac_src(mac(eth.src));
        sim.set_mac_dst(mac(eth.dst));
        sim.set_ethertype(eth.ethertype);
    }
}

#[test]
fn the_hash_is_the_models() {
    let mut rng = Rng::new(3);
    let mut sim = Entropy::new();
    let mut expected = Vec::new();
    for _ in 0..HEADERS {
        let headers = headers(&mut rng);
        set(&mut sim, &headers);
        // Without a step, the hash keeps its state.
        let step = rng.percent(80);
        sim.set_step(step);
        let before = sim.hash();
        sim.clock();
        if !step {
            assert_eq!(sim.hash(), before);
            continue;
        }
        expected.push(entropy_of(&headers));
        if let Some(index) = expected.len().checked_sub(LATENCY) {
            assert_eq!(sim.hash(), expected[index], "header {index}");
        }
    }
}
