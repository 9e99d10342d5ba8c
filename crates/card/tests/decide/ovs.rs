//! Ports of an Open vSwitch: the card, according to the lines that the driver writes, compared with `decide`, with
//! random flows that overlap and change.

use super::{Memory, Outcome, blank, outcome};
use crate::host::{Host, ovs, port_of, vif_at};
use model::generate::{self, Packet, Rng};
use model::ovs::Change;
use model::{Decision, Forward, Verdict};

struct Bench {
    host: Host<Memory>,
    next: u64,
    sent: Vec<Packet>,
    /// Number of packets that the card forwarded.
    forwarded: usize,
    /// Number of changes that took entries off the card.
    ended: usize,
}

impl Bench {
    fn new(rng: &mut Rng) -> Self {
        let mut bench = Self { host: blank(), next: 0, sent: Vec::new(), forwarded: 0, ended: 0 };
        assert!(bench.host.apply(&ovs::ports(rng)));
        bench
    }

    /// Checks that the card does only what `decide` does.
    fn check(&mut self, packet: &Packet) -> Outcome {
        let outcome = self.host.outcome(packet);
        let decision = self.host.decide(packet);
        assert!(agrees(&outcome, decision.as_ref()), "{outcome:?} of {packet:?}\nbut {decision:?}");
        self.forwarded += usize::from(matches!(outcome, Outcome::Forward { .. }));
        outcome
    }

    fn send(&mut self, packet: &Packet) {
        self.sent.push(packet.clone());
        if matches!(self.check(packet), Outcome::Punt(_)) {
            self.host.hosted(packet);
            self.check(packet);
        }
    }

    /// Makes changes as the carrier does. Checks that the card agrees with `decide` before or after the changes, after
    /// each write, and in the end with `decide` after them.
    fn apply(&mut self, changes: &[Change]) {
        let latest: Vec<_> = self.sent.iter().rev().take(20).cloned().collect();
        let decide =
            |host: &Host<Memory>| latest.iter().map(|packet| host.decide(packet)).collect::<Vec<_>>();
        let before = decide(&self.host);
        let mut memory = self.host.card().clone();
        self.host.card().record();
        self.ended += usize::from(self.host.apply_ovs(changes) > 0);
        let after = decide(&self.host);
        for write in self.host.card().recorded() {
            memory.replay(&write);
            for ((packet, before), after) in latest.iter().zip(&before).zip(&after) {
                let outcome = outcome(&memory, port_of(packet.ingress), &packet.frame, packet.frame.len());
                let right = agrees(&outcome, before.as_ref()) || agrees(&outcome, after.as_ref());
                assert!(right, "amid {changes:?}: {outcome:?} of {packet:?}\n{before:?}\n{after:?}");
            }
        }
        self.check_again();
    }

    /// Sends the latest packets again, to the card alone.
    fn check_again(&mut self) {
        let latest: Vec<_> = self.sent.iter().rev().take(100).cloned().collect();
        for packet in latest {
            self.check(&packet);
        }
    }
}

/// Returns whether the card agrees with `decide`, or leaves the packet to the host.
fn agrees(outcome: &Outcome, decision: Option<&Decision>) -> bool {
    match (outcome, decision.map(|decision| &decision.verdict)) {
        (Outcome::Punt(_), _) => true,
        (Outcome::Forward { forward, index: Some(_), .. }, Some(Verdict::Outputs(outputs))) => {
            let port = vif_at(forward.port);
            let unchanged = Forward { port, ..forward.clone() } == Forward::unchanged(port);
            matches!(&**outputs, [output] if output.changes_nothing() && output.port == port) && unchanged
        }
        _ => false,
    }
}

#[test]
fn the_card_forwards_flows_of_an_open_vswitch_as_decide_does() {
    let (mut forwarded, mut ended, mut packets) = (0, 0, 0);
    for seed in 0..super::seeds() {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(&mut rng);
        for _ in 0..600 {
            match rng.below(20) {
                0..=5 => {
                    let count = 1 + rng.below(4);
                    let changes: Vec<_> = (0..count)
                        .map(|_| ovs::change(&mut rng, &bench.host.tables, &mut bench.next))
                        .collect();
                    bench.apply(&changes);
                }
                6 if rng.percent(10) => {
                    assert!(bench.host.apply(&ovs::ports(&mut rng)));
                    bench.check_again();
                }
                7 => bench.send(&generate::ovs_packet(&mut rng)),
                _ => bench.send(&ovs::near(&mut rng)),
            }
        }
        (forwarded, ended, packets) =
            (forwarded + bench.forwarded, ended + bench.ended, packets + bench.sent.len());
    }
    println!("{forwarded} of {packets} packets, and of their repetitions; {ended} changes ended entries");
    assert!(forwarded * 10 > packets && ended > 20, "{forwarded} of {packets}, {ended}");
}
