//! TCP connections, and protocols without ports, in the flow cache: what is cached, and what cached packets change.

use super::harness::Host;
use super::world::{neighbours, tables};
use crate::testing::Packet;
use mem::{Accepts, Csum, Gso, Offload};
use model::{Connection, DropReason, FlowState, VifId};

const A: VifId = VifId(1);
const B: VifId = VifId(2);

fn host() -> Host {
    Host::new(&tables(), &neighbours(), Accepts::default(), 700)
}

fn packet(text: &str) -> Packet {
    (model::text::parse(text).unwrap(), Offload::default())
}

/// Builds a segment from guest 1 to guest 2.
fn there(tcp: &str) -> Packet {
    packet(&format!(
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 {tcp}"
    ))
}

/// Builds a segment from guest 2 to guest 1.
fn back(tcp: &str) -> Packet {
    packet(&format!(
        "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 / ip4 10.1.1.2 > 10.1.1.1 / tcp 80 > 1000 {tcp}"
    ))
}

/// Sends a packet; returns whether it came out, and whether its cache entry forwarded it.
fn send(host: &mut Host, vif: VifId, packet: Packet) -> (bool, bool) {
    let hits = host.hits();
    let output = host.run(vif, [packet]);
    (output.values().map(Vec::len).sum::<usize>() == 1, host.hits() > hits)
}

fn handshake(host: &mut Host) {
    assert!(send(host, A, there("S seq 100 win 1000")).0);
    assert!(send(host, B, back("SA seq 500 ack 101 win 2000")).0);
    assert!(send(host, A, there("A seq 101 ack 501 win 1000")).0);
    assert!(send(host, B, back("A seq 501 ack 101 win 2000")).0);
}

fn connections(host: &Host) -> Vec<(FlowState, u32)> {
    let mut all = Vec::new();
    host.shared.flows().for_each(host.core.now.seconds, &mut |flow| {
        all.push((flow.state, flow.idle));
        true
    });
    all
}

fn connection(host: &Host) -> Connection {
    let mut key = None;
    host.shared.flows().for_each(0, &mut |flow| {
        key = Some(flow.key);
        true
    });
    host.shared.flows().get(&key.unwrap(), 0).unwrap().0
}

#[test]
fn cached_segments_move_the_window() {
    let mut host = host();
    handshake(&mut host);
    for n in 0..100 {
        let data = format!("A seq {} ack 501 win 1000 / payload 10", 101 + 10 * n);
        // The first packet did not show that packets of this length pass.
        assert_eq!(send(&mut host, A, there(&data)), (true, n > 0), "{n}");
        assert_eq!(
            send(&mut host, B, back(&format!("A seq 501 ack {} win 3000", 111 + 10 * n))),
            (true, true)
        );
    }
    assert_eq!(connection(&host).tcp.edges.map(|edge| edge.unwrap().end), [1101, 501]);
    assert_eq!(connection(&host).tcp.windows, [1000, 3000]);
    // Resets must lie in the window of the last acknowledgment.
    assert_eq!(send(&mut host, A, there("R seq 4102")), (false, false));
    assert_eq!(host.drops(), [(DropReason::TcpReset, 1)].into());
    assert_eq!(send(&mut host, A, there("R seq 4101")), (true, false));
    assert_eq!(connections(&host)[0].0, FlowState::Established);
    assert_eq!(send(&mut host, A, there("R seq 1101")), (true, false));
    assert_eq!(connections(&host)[0].0, FlowState::Closed);
}

#[test]
fn a_large_send_is_as_long_as_it_is() {
    let mut host = host();
    handshake(&mut host);
    let (mut frame, _) = there("A seq 101 ack 501 win 1000 / payload 60000");
    frame[50..52].fill(0);
    let gso = Gso { v6: false, size: 1400, hdr_len: 54, ecn: false };
    let offload = Offload { csum: Csum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
    for _ in 0..2 {
        host.run(A, [(frame.clone(), offload)]);
    }
    assert_eq!(connection(&host).tcp.edges[0].unwrap().end, 60_101);
    assert_eq!(send(&mut host, A, there("R seq 60101")), (true, false));
    assert_eq!(connections(&host)[0].0, FlowState::Closed);
}

#[test]
fn what_comes_from_elsewhere_passes_and_keeps_nothing_alive() {
    let mut host = host();
    handshake(&mut host);
    let before = connection(&host);
    for seconds in [1, 5, 20] {
        host.advance(seconds);
        for stray in ["A seq 900000 ack 501 win 9", "A seq 101 ack 900000 win 9 / payload 5", "R seq 200"] {
            assert_eq!(send(&mut host, A, there(stray)), (true, false), "{stray}");
        }
        host.settle();
    }
    assert_eq!(connection(&host), before);
    assert_eq!(connections(&host), [(FlowState::Established, 26)]);
    // The stream itself is not affected.
    assert!(send(&mut host, A, there("A seq 101 ack 501 win 1000 / payload 10")).0);
    assert_eq!(send(&mut host, A, there("A seq 111 ack 501 win 1000 / payload 10")), (true, true));
    host.settle();
    assert_eq!(connections(&host), [(FlowState::Established, 0)]);
}

#[test]
fn one_direction_alone_is_cached_until_the_other_comes() {
    let mut host = host();
    assert_eq!(send(&mut host, A, there("S seq 100 win 1000")), (true, false));
    assert_eq!(send(&mut host, A, there("A seq 101 ack 501 win 1000")), (true, false));
    for n in 0..5 {
        let data = format!("A seq {} ack 501 win 1000 / payload 10", 101 + 10 * n);
        assert_eq!(send(&mut host, A, there(&data)), (true, n > 0), "{n}");
    }
    assert_eq!(connections(&host)[0].0, FlowState::New);
    assert_eq!(send(&mut host, B, back("SA seq 500 ack 101 win 2000")), (true, false));
    // This packet establishes it; later ones find it established.
    assert_eq!(send(&mut host, A, there("A seq 151 ack 501 win 1000")), (true, false));
    assert_eq!(connections(&host)[0].0, FlowState::Established);
    assert_eq!(send(&mut host, A, there("A seq 151 ack 501 win 1000")), (true, true));
}

#[test]
fn a_refused_reset_leaves_a_connection_cached() {
    let mut host = host();
    handshake(&mut host);
    let data = |seq| there(&format!("A seq {seq} ack 501 win 1000 / payload 10"));
    assert!(send(&mut host, A, data(101)).0);
    // First a reset that the receiver refuses; then one that it should have accepted, but did not.
    for (reset, state) in [("R seq 600", FlowState::Established), ("R seq 501", FlowState::Closed)] {
        assert!(send(&mut host, B, back(reset)).0);
        assert_eq!(connections(&host)[0].0, state);
        assert_eq!(send(&mut host, A, data(111)), (true, true), "after {reset}");
    }
}

#[test]
fn a_connection_that_took_anothers_place_is_not_taken_for_it() {
    let mut host = host();
    handshake(&mut host);
    assert_eq!(send(&mut host, A, there("A seq 101 ack 501 win 1000")), (true, true));
    host.shared.flows().flush(0, &mut |_| true);
    assert_eq!(send(&mut host, A, there("S seq 9000 win 1000")), (true, false));
    let opened = connection(&host);
    // The entry belongs to the previous connection.
    assert!(!send(&mut host, A, there("A seq 101 ack 501 win 1000")).1);
    assert_eq!(connection(&host).original, opened.original);
    assert_eq!(connection(&host).tcp.edges[0].unwrap().end, 9001);
}

#[test]
fn protocols_without_ports_are_cached_by_their_addresses() {
    let mut host = host();
    for (protocol, bytes) in [
        (50, "0000000700000001"),
        (47, "2000080000000001"),
        (47, "0000880b00000001"),
        (112, "3101640100000000"),
    ] {
        let of = |from: u8, to: u8, v6: bool| {
            let addresses = if v6 {
                format!("ip6 fd00:1::{from} > fd00:1::{to}")
            } else {
                format!("ip4 10.1.1.{from} > 10.1.1.{to}")
            };
            let eth = format!("eth 02:00:00:00:00:0{from} > 02:00:00:00:00:0{to}");
            packet(&format!("{eth} / {addresses} proto {protocol} / hex {bytes} / payload 40"))
        };
        for v6 in [false, true] {
            send(&mut host, A, of(1, 2, v6));
            assert_eq!(send(&mut host, A, of(1, 2, v6)), (true, true), "protocol {protocol}");
            send(&mut host, B, of(2, 1, v6));
            assert_eq!(send(&mut host, B, of(2, 1, v6)), (true, true), "protocol {protocol}");
        }
    }
    assert!(connections(&host).iter().all(|(state, _)| *state == FlowState::Established));
    // ESP, GRE and VRRP, over both families.
    assert_eq!(connections(&host).len(), 6);
}
