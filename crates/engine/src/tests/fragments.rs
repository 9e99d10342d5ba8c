//! Tunnel packets in fragments: those that come, and those that are sent.

use super::harness::{Host, Output};
use super::world::{WIRE, neighbours, tables};
use mem::{Accepts, Csum, Gso, Offload};
use model::generate::Rng;
use model::{Change, DropReason, VifId};
use packet::{Pieces, checksum};

const IP: usize = 14;

/// Makes a host that may fragment tunnel packets, with a wire of this MTU.
fn host(mtu: u16) -> Host {
    let mut changes = tables();
    for change in &mut changes {
        match change {
            Change::SetHost(host) => host.tunnel_fragments = true,
            Change::PutVif(vif) if vif.id == WIRE => vif.mtu = mtu,
            _ => {}
        }
    }
    Host::new(&changes, &neighbours(), Accepts::default(), 700)
}

fn frames(output: Output) -> Vec<(VifId, Vec<u8>)> {
    let all = output.into_iter().flat_map(|(vif, packets)| packets.into_iter().map(move |(p, _)| (vif, p)));
    all.collect()
}

fn receive(host: &mut Host, frame: &[u8]) -> Vec<(VifId, Vec<u8>)> {
    frames(host.run(WIRE, [(frame.to_vec(), Offload::default())]))
}

/// Cuts an untagged IPv4 frame into fragments.
fn cut(frame: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let pieces = Pieces::new(&frame[IP..], frame.len() - IP, mtu).unwrap();
    let piece = |piece: packet::Piece| {
        let mut fragment = frame[..IP + 20].to_vec();
        piece.write_header(&mut fragment[IP..]);
        let at = IP + 20 + piece.at;
        fragment.extend_from_slice(&frame[at..at + piece.len]);
        fragment
    };
    pieces.map(piece).collect()
}

fn tunnel_packet(rng: &mut Rng) -> Vec<u8> {
    let inner = format!("ip4 10.9.0.7 > 10.1.1.2 / udp {} > 53 / payload {}", rng.below(9), rng.below(1400));
    let outer = rng.one(&["udp 50000 > 6635 nosum / mpls 17", "udp 50000 > 6635 / mpls 17", "gre / mpls 17"]);
    let vxlan = "udp 50000 > 4789 nosum / vxlan 5001 / eth 02:00:00:00:00:33 > 02:00:00:00:00:02";
    let (remote, outer) = if rng.percent(30) { (3, vxlan) } else { (2, outer) };
    let id = rng.below(1 << 16);
    let text = format!(
        "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.{remote} > 192.0.2.1 id {id} / {outer} / {inner}"
    );
    model::text::parse(&text).unwrap()
}

#[test]
fn a_tunnel_packet_in_fragments_does_what_it_does_whole() {
    let mut rng = Rng::new(1);
    let (mut whole, mut pieces) = (host(1600), host(1600));
    let mut seen = 0;
    for _ in 0..500 {
        let packet = tunnel_packet(&mut rng);
        let mut fragments = cut(&packet, 68 + rng.below(1400));
        let turn = rng.below(fragments.len());
        fragments.rotate_left(turn);
        let last = fragments.pop().unwrap();
        for fragment in &fragments {
            assert_eq!(receive(&mut pieces, fragment), []);
        }
        let (expected, observed) = (receive(&mut whole, &packet), receive(&mut pieces, &last));
        assert_eq!(observed, expected);
        seen += expected.len();
        assert!(pieces.core.reassemblies.is_empty());
    }
    assert!(seen == 500 && pieces.drops().is_empty(), "{seen} {:?}", pieces.drops());
}

#[test]
fn fragments_without_the_others_are_dropped_by_name() {
    let mut host = host(1600);
    let packet = tunnel_packet(&mut Rng::new(3));
    let fragments = cut(&packet, 96);
    receive(&mut host, &fragments[0]);
    receive(&mut host, &fragments[1]);
    host.advance(2);
    host.core.give_up_fragments();
    assert_eq!(host.drops(), [(DropReason::ReassemblyTimeout, 2)].into());
    // A remote that nobody names.
    let mut stranger = fragments[0].clone();
    stranger[IP + 15] = 66;
    stranger[IP + 10..IP + 12].fill(0);
    let sum = checksum::sum(&stranger[IP..IP + 20]).finish();
    stranger[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    receive(&mut host, &stranger);
    assert_eq!(host.drops()[&DropReason::OuterFragment], 1);
    assert!(host.core.reassemblies.is_empty());
}

fn sent(host: &mut Host, text: &str, offload: Offload) -> Vec<Vec<u8>> {
    let frame = model::text::parse(&format!("eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / {text}")).unwrap();
    let all = frames(host.run(VifId(1), [(frame, offload)]));
    assert!(all.iter().all(|(port, frame)| *port == WIRE && frame[IP + 6] & 0x40 == 0), "{all:?}");
    all.into_iter().map(|(_, frame)| frame).collect()
}

fn id(frame: &[u8]) -> u16 {
    assert_eq!(checksum::sum(&frame[IP..IP + 20]).finish(), 0);
    u16::from_be_bytes([frame[IP + 4], frame[IP + 5]])
}

#[test]
fn a_tunnel_packet_leaves_in_fragments_that_have_its_number() {
    let (mut narrow, mut wide) = (host(700), host(1600));
    for (way, fragments) in [("10.9.0.7", 3), ("10.9.1.7", 3)] {
        let text = format!("ip4 10.1.1.1 > {way} id 5 / udp 1000 > 53 / payload 1400");
        let mut numbers = Vec::new();
        for _ in 0..3 {
            let pieces = sent(&mut narrow, &text, Offload::default());
            assert_eq!(pieces.len(), fragments);
            assert!(pieces.iter().all(|piece| piece.len() <= IP + 700 && id(piece) == id(&pieces[0])));
            numbers.push(id(&pieces[0]));
            let [whole] = &sent(&mut wide, &text, Offload::default())[..] else { panic!("in one packet") };
            let mut whole = whole.clone();
            Host::unnumbered(&mut whole);
            let mut expected = cut(&whole, 700);
            let mut pieces = pieces;
            pieces.iter_mut().chain(&mut expected).for_each(|piece| Host::unnumbered(piece));
            assert_eq!(pieces, expected);
        }
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
    }
    assert!(narrow.drops().is_empty());
}

#[test]
fn each_packet_that_may_be_fragmented_has_a_number_of_its_own() {
    let mut host = host(1600);
    let mut seen = std::collections::BTreeSet::new();
    let mut count = 0;
    let mut note = |all: Vec<Vec<u8>>| {
        count += all.len();
        seen.extend(all.iter().map(|frame| id(frame)));
    };
    for way in ["10.9.0.7", "10.9.1.7", "10.9.2.7"] {
        for _ in 0..5 {
            note(sent(&mut host, &format!("ip4 10.1.1.1 > {way} / udp 1000 > 53"), Offload::default()));
        }
        let gso = Gso { v6: false, size: 1000, hdr_len: 54, ecn: false };
        let offload = Offload { csum: Csum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
        for _ in 0..2 {
            let text = format!("ip4 10.1.1.1 > {way} df / tcp 1000 > 80 A / payload 9500");
            note(sent(&mut host, &text, offload));
        }
        note(sent(
            &mut host,
            &format!("ip4 10.1.1.1 > {way} / udp 1000 > 53 / payload 99"),
            Offload::default(),
        ));
    }
    assert!(host.hits() > 5, "cached or not");
    assert_eq!((seen.len(), count), (count, 3 * (5 + 20 + 1)));
}
