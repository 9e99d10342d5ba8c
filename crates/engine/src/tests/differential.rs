//! The engine against the model: what leaves is what `decide` and the reference rewrite say, from the first packet of
//! a flow on, cached or not, while the tables change.

use super::harness::{Host, Output};
use super::world::{Random, neighbours, some_change, some_packet, tables};
use mem::{Accepts, Offload};
use model::{Decision, DropReason, FlowChange, PacketView, Verdict, VifId};
use std::collections::BTreeMap;

const CASES: usize = if cfg!(debug_assertions) { 6_000 } else { 120_000 };

/// What is expected to come out, by port, and the drop that is counted.
struct Expected {
    frames: BTreeMap<VifId, Vec<Vec<u8>>>,
    dropped: Option<DropReason>,
    decision: Option<Decision>,
}

fn expected(host: &Host, vif: VifId, frame: &[u8]) -> Expected {
    let packet = match PacketView::parse(frame, frame.len() as u32, None) {
        Ok(packet) => packet,
        Err(error) => {
            return Expected { frames: BTreeMap::new(), dropped: Some(error.into()), decision: None };
        }
    };
    let decision = host.decide(vif, &packet);
    let mut frames: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (port, frame) in model::rewrite::emit(&decision, &packet) {
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
    output
        .into_iter()
        .map(|(vif, packets)| (vif, packets.into_iter().map(|(frame, _)| frame).collect()))
        .collect()
}

/// Sends a packet and compares.
fn check(host: &mut Host, vif: VifId, text: &str, frame: &[u8]) {
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
    let asks = decision.is_some_and(|d| {
        matches!(d.verdict, Verdict::Hold { .. }) || d.effects.solicit.is_some()
    });
    if asks {
        // Solicitations may go out beside what is expected, and who is asked too often is given up.
        while host.core.hold.pop().is_some() {}
        let lost = drops_after.contains_key(&DropReason::NoNeighbour);
        for (port, frames) in &expected.frames {
            assert!(lost || frames.iter().all(|f| output[port].contains(f)), "{vif} {text}");
        }
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

#[test]
fn engine_is_the_model() {
    let mut random = Random(1);
    let mut host = Host::new(&tables(), &neighbours(), Accepts::default(), 700);
    let mut recent: Vec<(VifId, String, Vec<u8>)> = Vec::new();
    for case in 0..CASES {
        let (vif, text) = some_packet(&mut random);
        let mut frame = model::text::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        if random.one_in(20) {
            let at = random.below(frame.len().min(100));
            frame[at] ^= 1 << random.below(8);
        }
        for _ in 0..1 + random.below(5) {
            check(&mut host, vif, &text, &frame);
        }
        match recent.len() {
            0..64 => recent.push((vif, text, frame)),
            n => recent[case % n] = (vif, text, frame),
        }
        if random.one_in(10) {
            let (vif, text, frame) = recent[random.below(recent.len())].clone();
            check(&mut host, vif, &text, &frame);
        }
        if random.one_in(50) {
            host.shared.apply(&some_change(&mut random)).unwrap();
            for (vif, text, frame) in recent.clone().iter().take(8) {
                check(&mut host, *vif, text, frame);
            }
        }
        if random.one_in(200) {
            host.advance([1, 1, 2, 11, 40][random.below(5)]);
            for neighbour in neighbours() {
                host.shared.neighbour(&host.shared.snapshot(), &neighbour, host.core.now.seconds);
            }
            host.shared.flows().expire(host.core.now.seconds, 1 << 16);
        }
    }
    let counters = host.core.cells.snapshot(0, None);
    assert!(counters.hits * 12 > counters.received.packets, "too few hits to mean anything: {counters:?}");
}
