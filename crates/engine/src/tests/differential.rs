//! The engine, compared with the model: what leaves is the result of `decide` and the reference rewrite, from the
//! first packet of a flow on, cached or not, while the tables change.

use super::harness::{Host, Output};
use super::world::{WIRE, neighbours, some_change, some_packet, tables};
use mem::{Accepts, Offload};
use model::generate::{self, Rng};
use model::{Decision, DropReason, FlowChange, PacketView, Verdict, VifId};
use std::collections::BTreeMap;

/// Packets drawn from the test world, each sent about three times.
const CASES: usize = if cfg!(debug_assertions) { 25_000 } else { 60_000 };
/// Generated tables, and packets for each of them, each sent twice on average.
const WORLDS: u64 = if cfg!(debug_assertions) { 60 } else { 300 };
const PACKETS: usize = 300;

/// The expected output, by port, and the drop that is counted.
struct Expected {
    frames: BTreeMap<VifId, Vec<Vec<u8>>>,
    dropped: Option<DropReason>,
    decision: Option<Decision>,
}

fn expected(host: &Host, vif: VifId, frame: &[u8]) -> Expected {
    let packet = match host.arrived(vif, frame) {
        Ok(packet) => packet,
        Err(error) => {
            return Expected { frames: BTreeMap::new(), dropped: Some(error.into()), decision: None };
        }
    };
    let decision = host.decide(vif, &packet);
    let mut frames: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (port, mut frame) in host.emit(&decision, &packet) {
        Host::unnumbered(&mut frame);
        frames.entry(port).or_default().push(frame);
    }
    let dropped = match &decision.verdict {
        Verdict::Drop(reason) => Some(*reason),
        Verdict::Reply(reply) => reply.dropped,
        _ => None,
    };
    Expected { frames, dropped, decision: Some(decision) }
}

fn plain(output: Output) -> BTreeMap<VifId, Vec<Vec<u8>>> {
    let unnumbered = |(mut frame, _): (Vec<u8>, Offload)| {
        Host::unnumbered(&mut frame);
        frame
    };
    output.into_iter().map(|(vif, packets)| (vif, packets.into_iter().map(unnumbered).collect())).collect()
}

pub(super) fn check(host: &mut Host, vif: VifId, text: &str, frame: &[u8]) {
    // Fragments that came before do not count.
    host.core.reassemblies = Default::default();
    let expected = expected(host, vif, frame);
    let (drops, hits) = (host.drops(), host.hits());
    let output = plain(host.run(vif, [(frame.to_vec(), Offload::default())]));
    let mut drops_after = host.drops();
    for (reason, n) in drops {
        *drops_after.get_mut(&reason).unwrap() -= n;
    }
    drops_after.retain(|_, n| *n > 0);
    let hit = host.hits() > hits;

    let decision = expected.decision.as_ref();
    let asks =
        decision.is_some_and(|d| matches!(d.verdict, Verdict::Hold { .. }) || d.effects.solicit.is_some());
    if asks {
        // Solicitations may be sent besides the expected packets, and a neighbour that is asked too often is given up.
        while host.core.hold.pop().is_some() {}
        let lost = drops_after.contains_key(&DropReason::NoNeighbour);
        for (port, frames) in &expected.frames {
            assert!(lost || frames.iter().all(|f| output[port].contains(f)), "{vif} {text}");
        }
        return;
    }
    let meters = decision.map(|d| &d.effects.meters[..]).unwrap_or_default();
    if let Some((_, reason)) = meters.iter().find(|(_, reason)| drops_after.contains_key(reason)) {
        assert_eq!((&drops_after[reason], output.len()), (&1, 0), "{vif} {text}");
        return;
    }
    let wanted: BTreeMap<_, _> = expected.dropped.into_iter().map(|reason| (reason, 1)).collect();
    assert_eq!(drops_after, wanted, "{vif} hit {hit} {text}\n{decision:#?}");
    assert_eq!(output, expected.frames, "{vif} hit {hit} {text}\n{decision:#?}");
    if hit && let Some(FlowChange::Update { connection, .. }) = decision.and_then(|d| d.effects.flow) {
        let now = host.core.now.seconds;
        let known = host.shared.flows().get(&connection.original, now).map(|(known, ..)| known);
        assert_eq!(known, Some(connection), "a cached packet moved its connection: {text}");
    }
    if hit {
        let created = matches!(decision.and_then(|d| d.effects.flow), Some(FlowChange::Create { .. }));
        assert!(!created, "a cached packet would have made a connection: {text}");
    }
}

/// A flow of one of the test world's packets, with its surroundings: repeated, mutated, and sent again after others.
#[test]
fn engine_is_the_model() {
    let mut rng = Rng::new(1);
    let mut host = Host::new(&tables(), &neighbours(), Accepts::default(), 700);
    let mut recent: Vec<(VifId, String, Vec<u8>)> = Vec::new();
    for case in 0..CASES {
        let (vif, text) = some_packet(&mut rng);
        let mut frame = model::text::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        if rng.percent(5) {
            let at = rng.below(frame.len().min(100));
            frame[at] ^= 1 << rng.below(8);
        }
        for _ in 0..1 + rng.below(5) {
            check(&mut host, vif, &text, &frame);
        }
        match recent.len() {
            0..64 => recent.push((vif, text, frame)),
            n => recent[case % n] = (vif, text, frame),
        }
        if rng.percent(10) {
            let (vif, text, frame) = rng.one(&recent);
            check(&mut host, vif, &text, &frame);
        }
        if rng.percent(2) {
            host.shared.apply(&some_change(&mut rng)).unwrap();
            for (vif, text, frame) in recent.clone().iter().take(8) {
                check(&mut host, *vif, text, frame);
            }
        }
        if case % 200 == 0 {
            host.advance(rng.one(&[1, 1, 2, 11, 40]));
            for neighbour in neighbours() {
                host.shared.neighbour(&host.shared.snapshot(), &neighbour, WIRE, host.core.now.seconds);
            }
            host.shared.flows().expire(host.core.now.seconds, 1 << 16);
        }
    }
    let counters = host.core.cells.snapshot(0, None);
    assert!(counters.hits * 14 > counters.received.packets, "too few hits to mean anything: {counters:?}");
}

/// Returns whether a packet has one destination, so that the cache applies.
fn forwards(host: &Host, packet: &generate::Packet) -> bool {
    PacketView::parse(&packet.frame, packet.frame.len() as u32, None)
        .is_ok_and(|view| matches!(host.decide(packet.ingress, &view).verdict, Verdict::Forward(_)))
}

/// The engine equals the model with generated tables, too.
#[test]
fn engine_is_the_model_with_any_tables() {
    let mut hits = 0;
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let changes = generate::tables(&mut rng);
        let mut naive = model::Tables::new();
        naive.apply(&changes).unwrap();
        let mut host = Host::new(&changes, &[], Accepts::default(), 100);
        for packet in generate::warm_up(&mut rng, &naive) {
            check(&mut host, packet.ingress, &format!("seed {seed}, warm up"), &packet.frame);
        }
        for n in 0..PACKETS {
            let packet = generate::packet(&mut rng, &naive);
            let repeat = if forwards(&host, &packet) { 6 } else { 1 + rng.below(2) };
            for _ in 0..repeat {
                check(&mut host, packet.ingress, &format!("seed {seed}, packet {n}"), &packet.frame);
            }
            if rng.percent(5) {
                let other = generate::tables(&mut rng);
                let change = rng.one(&other);
                let changed = naive.apply(std::slice::from_ref(&change)).is_ok();
                assert_eq!(host.shared.apply(&[change]).is_ok(), changed, "seed {seed}");
            }
            if rng.percent(3) {
                host.advance(rng.one(&[1, 2, 11]));
            }
        }
        hits += host.hits();
    }
    assert!(hits > WORLDS * 20, "too few hits to mean anything: {hits}");
}
