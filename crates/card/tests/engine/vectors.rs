//! The conformance vectors, through the card.

use super::lockstep::{Lockstep, rewritten};
use crate::host::vif_at;
use card::expect::Outcome;
use model::vectors::{Case, Expected, Packet, Step, load};
use model::{DropReason, Forward, Verdict};
use std::path::PathBuf;

#[test]
fn the_card_does_what_the_vectors_say_or_leaves_it_to_the_host() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/vectors");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    files.sort();
    let mut bench = Lockstep::new();
    let mut in_memory = false;
    for file in files {
        for case in load(&std::fs::read_to_string(&file).unwrap()).unwrap() {
            println!("{}: {}", file.display(), case.name);
            bench = bench.renewed();
            if in_memory {
                bench.host.driver.leave_chip();
            }
            in_memory = !in_memory;
            run(&case, &mut bench);
        }
    }
    println!("{:#?}", bench.counts);
    assert!(bench.counts.forwarded >= 190 && bench.counts.tracked >= 50, "{:?}", bench.counts);
    assert!(bench.counts.checksummed >= 2, "{:?}", bench.counts);
}

/// Runs a case. The card gets each packet twice: first before, and then after the host has seen it.
fn run(case: &Case, bench: &mut Lockstep) {
    for step in &case.steps {
        match step {
            Step::Apply(changes) => assert!(bench.host.apply(changes)),
            Step::Learn(effects) => bench.host.effects(effects, 0),
            Step::GiveUp(scope, addr) => bench.host.tables.give_up(*scope, *addr),
            Step::Wait(seconds) => bench.host.wait(*seconds),
            // The card offers guests no segmentation.
            Step::Packet(packet) if packet.gso_size.is_some() => {}
            // The card passes on a packet's head before it can have summed the whole packet.
            Step::Packet(packet) if packet.expected == [Expected::Drop(DropReason::OuterChecksumWrong)] => {}
            Step::Packet(packet) => {
                let came = model::generate::Packet {
                    ingress: packet.ingress,
                    frame: packet.frame.clone(),
                    gso_size: None,
                };
                let first = bench.host.outcome(&came);
                check_expected(&first, packet);
                pass(bench, &came);
                bench.host.hosted(&came);
                check_decided(bench, &came);
                pass(bench, &came);
            }
        }
    }
}

/// Checks that the card's own outcome matches the vector.
fn check_expected(outcome: &Outcome, packet: &Packet) {
    let leaves: Vec<_> =
        packet.expected.iter().filter(|one| matches!(one, Expected::Out(..) | Expected::Drop(_))).collect();
    let said = match outcome {
        Outcome::Punt(_) => return,
        Outcome::Drop(reason) => Expected::Drop(DropReason::ALL[usize::from(*reason)]),
        Outcome::Forward { forward, .. } => {
            Expected::Out(vif_at(forward.port), rewritten(forward, &packet.frame))
        }
    };
    assert_eq!(leaves, [&said], "line {}", packet.line);
}

/// Checks that the outcome after the host has seen the packet matches the decision of `decide` about such a packet.
fn check_decided(bench: &mut Lockstep, packet: &model::generate::Packet) {
    let verdict = bench.host.decide(packet).map(|decision| decision.verdict);
    match (bench.host.outcome(packet), verdict) {
        (Outcome::Punt(_), _) => {}
        (Outcome::Drop(reason), Some(Verdict::Drop(said))) => assert_eq!(reason, said as u8),
        (Outcome::Forward { forward, .. }, Some(Verdict::Forward(said))) => {
            assert_eq!(Forward { port: vif_at(forward.port), ..forward }, said);
        }
        (outcome, verdict) => panic!("{outcome:?}, and not {verdict:?}"),
    }
}

fn pass(bench: &mut Lockstep, packet: &model::generate::Packet) {
    let prepared = bench.prepare(packet);
    bench.feed(&prepared);
    bench.drain();
}
