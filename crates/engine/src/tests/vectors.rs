//! The conformance vectors (`model/vectors`), on the engine.

use super::harness::Host;
use crate::meters::Meters;
use mem::{Accepts, Offload};
use model::vectors::{Expected, Packet, Step, load};
use model::{Change, NeighbourScope, VifId};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use tables::{MAX_SOLICITATIONS, Waiting};

#[test]
fn the_engine_reproduces_the_vectors() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/vectors");
    let mut packets = 0;
    let dirs = [dir.clone(), dir.join("ovs")].map(|dir| std::fs::read_dir(dir).unwrap());
    for entry in dirs.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "txt") {
            continue;
        }
        for case in load(&std::fs::read_to_string(&path).unwrap()).unwrap() {
            let mut host = Host::new(&[], &[], Accepts::default(), 100);
            let mut meters = Meters::default();
            for step in &case.steps {
                match step {
                    Step::Apply(changes) => {
                        host.shared.apply(changes).unwrap();
                        host.shared.apply_ovs(&case.flows());
                        for change in changes {
                            if let Change::PutMeter(id, config) = change {
                                meters.put(*id, *config);
                            }
                        }
                        host.core.meters = Arc::new(meters.clone());
                    }
                    Step::Learn(effects) => learn(&host, effects),
                    Step::GiveUp(scope, addr) => give_up(&mut host, *scope, *addr),
                    Step::Wait(seconds) => {
                        host.advance(*seconds);
                        host.shared.age(host.core.now.seconds);
                        host.shared.flows().expire(host.core.now.seconds, usize::MAX / 2);
                    }
                    Step::Packet(packet) => {
                        packets += 1;
                        check(&mut host, packet, &format!("{}: {}", path.display(), case.name));
                    }
                }
            }
        }
    }
    assert!(packets > 50, "{packets}");
}

fn learn(host: &Host, effects: &model::Effects) {
    let (snapshot, now) = (host.shared.snapshot(), host.core.now.seconds);
    if let Some(learn) = &effects.learn {
        host.shared.learn(&snapshot, learn, now);
    }
    if let Some(found) = &effects.neighbour {
        host.shared.neighbour(&snapshot, found, VifId(0), now);
    }
    if let Some(path) = &effects.path {
        host.shared.path(path, now);
    }
}

/// Has a neighbour asked until it counts as unreachable.
fn give_up(host: &mut Host, scope: NeighbourScope, addr: IpAddr) {
    let now = host.core.now.seconds;
    assert_eq!(host.shared.wait_for(scope, addr, VifId(0), now), Waiting::Solicit);
    for second in 1..=u32::from(MAX_SOLICITATIONS) {
        let _ = host.shared.pending_solicitations(now + second);
    }
    host.advance(MAX_SOLICITATIONS.into());
}

fn check(host: &mut Host, packet: &Packet, case: &str) {
    // A large send needs an offload request, which vectors do not have; and solicitations add packets.
    let asks = |e: &Expected| matches!(e, Expected::Words(words) if words.starts_with("hold") || words.starts_with("effect solicit"));
    if packet.gso_size.is_some() {
        return;
    }
    // A MAC moves at most once a second (`tables`); the model has no such limit.
    if packet
        .expected
        .iter()
        .any(|e| matches!(e, Expected::Words(words) if words.starts_with("effect learn")))
    {
        host.advance(1);
    }
    let before = host.drops();
    let output = host.run(packet.ingress, [(packet.frame.clone(), Offload::default())]);
    if packet.expected.iter().any(asks) {
        while host.core.hold.pop().is_some() {}
        return;
    }
    let mut wanted: Vec<_> =
        packet.expected.iter().filter(|e| !matches!(e, Expected::Words(_))).cloned().collect();
    let sent = output
        .into_iter()
        .flat_map(|(vif, frames)| frames.into_iter().map(move |(f, _)| Expected::Out(vif, f)));
    let mut seen: Vec<_> = sent.collect();
    for (reason, n) in host.drops() {
        let earlier = before.get(&reason).copied().unwrap_or(0);
        seen.extend((earlier..n).map(|_| Expected::Drop(reason)));
    }
    let order = |expected: &Expected| format!("{expected:?}");
    for one in wanted.iter_mut().chain(&mut seen) {
        if let Expected::Out(_, frame) = one {
            Host::unnumbered(frame);
        }
    }
    wanted.sort_by_key(order);
    seen.sort_by_key(order);
    assert_eq!(seen, wanted, "{case}, line {}", packet.line);
}
