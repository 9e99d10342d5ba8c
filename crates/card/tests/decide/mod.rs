//! The card, according to the lines that the driver writes, compared with `decide`: whatever it forwards or drops,
//! `decide` forwards or drops in the same way, with random tables that change, and random packets.

mod ovs;

use crate::host::talk::{self, Carrier};
use crate::host::{Host, port_of, tables, vif_at};
use card::Commands;
use card::compile::Attachment;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::registers::Punt;
use model::generate::{Packet, Rng, packet};
use model::{Change, Decision, FlowChange, Lookup, Tables, Verdict, Vif, VifKind};
use std::collections::BTreeMap;

/// Counts of the packets of host and card.
#[derive(Debug, Default)]
struct Counts {
    packets: usize,
    forwarded: usize,
    dropped: usize,
    tracked: usize,
    translated: usize,
    punted: BTreeMap<Punt, usize>,
    /// Packets that `decide` forwards to one port, without copies, meters or effects that only a host can have; and how
    /// many of them the card forwards when they come again.
    plain: usize,
    plain_forwarded: usize,
}

struct Bench {
    host: Host<Memory>,
    sent: Vec<Packet>,
    counts: Counts,
}

/// Attaches all interfaces except verbs devices and every seventh one.
fn attachment(vif: &Vif) -> Option<Attachment> {
    let egress = if vif.kind == VifKind::Wire { vif.id.0 as u8 } else { 0 };
    let here = vif.kind != VifKind::Rdma && !vif.id.0.is_multiple_of(7);
    here.then_some(Attachment { port: port_of(vif.id), egress })
}

fn blank() -> Host<Memory> {
    Host::new(Commands::open(Memory::new(Sizes::default())).unwrap(), attachment)
}

impl Carrier for Bench {
    fn tables(&self) -> &Tables {
        &self.host.tables
    }

    fn decide(&self, packet: &Packet) -> Option<Decision> {
        self.host.decide(packet)
    }

    /// Sends a packet to the card, and from there to the host; then sends it again.
    fn send(&mut self, packet: &Packet) {
        self.sent.push(packet.clone());
        let first = self.host.outcome(packet);
        self.check(packet, &first);
        if matches!(first, Outcome::Punt(_)) {
            self.host.hosted(packet);
        }
        let plain = self.decide(packet).is_some_and(|decision| self.is_plain(packet, &decision));
        let again = self.host.outcome(packet);
        self.check(packet, &again);
        self.counts.plain += usize::from(plain);
        self.counts.plain_forwarded += usize::from(plain && matches!(again, Outcome::Forward { .. }));
    }
}

impl Bench {
    /// Returns whether every card should handle a packet itself: it has one receiver, and needs nothing that only the
    /// host can do, such as VLANs of guests, and a DSCP.
    fn is_plain(&self, packet: &Packet, decision: &Decision) -> bool {
        let Verdict::Forward(forward) = &decision.verdict else { return false };
        let is_tagged = |id| self.host.tables.vif(id).is_some_and(Vif::is_tagged);
        let is_marked = self.host.tables.vif(packet.ingress).is_some_and(|vif| vif.dscp.is_some());
        let effects = &decision.effects;
        effects.meters.is_empty()
            && effects.mirror_in.is_empty()
            && effects.mirror_out.is_empty()
            && !is_marked
            && !is_tagged(packet.ingress)
            && !is_tagged(forward.port)
    }

    /// Compares the card's outcome with `decide`.
    fn check(&mut self, packet: &Packet, outcome: &Outcome) {
        self.counts.packets += 1;
        let told = || format!("{outcome:?}\nport {} {:02x?}", packet.ingress, packet.frame);
        let decision = match outcome {
            Outcome::Punt(punt) => {
                *self.counts.punted.entry(*punt).or_default() += 1;
                return;
            }
            _ => self.host.decide(packet).unwrap_or_else(|| panic!("malformed, and yet {}", told())),
        };
        self.check_effects(&decision, outcome, &told());
        let counts = &mut self.counts;
        match (outcome, &decision.verdict) {
            (Outcome::Drop(reason), Verdict::Drop(said)) => {
                counts.dropped += 1;
                assert_eq!(*reason, *said as u8, "{}", told());
            }
            (Outcome::Forward { forward, egress, index }, Verdict::Forward(said)) => {
                counts.forwarded += 1;
                counts.tracked += usize::from(index.is_some());
                counts.translated += usize::from(forward.nat != model::Nat::default());
                let wire = self.host.tables.vif(said.port).is_some_and(|vif| vif.kind == VifKind::Wire);
                assert_eq!(*egress, if wire { said.port.0 as u8 } else { 0 }, "{}", told());
                assert!(agrees(outcome, Some(&decision)), "{}\nbut {said:?}", told());
            }
            _ => panic!("{}\nbut {decision:?}", told()),
        }
    }

    /// Checks that a packet which the card handles has no effects in the host's tables: the host does not see it.
    fn check_effects(&self, decision: &Decision, outcome: &Outcome, told: &str) {
        let effects = &decision.effects;
        let none = effects.meters.is_empty()
            && effects.mirror_in.is_empty()
            && effects.mirror_out.is_empty()
            && effects.neighbour.is_none()
            && effects.fragment.is_none()
            && effects.solicit.is_none();
        assert!(none, "{effects:?} of {told}");
        if let Some(learn) = effects.learn {
            let known = self.host.tables.bridge(learn.vrf, learn.mac).map(|entry| entry.target);
            assert_eq!(known, Some(learn.at), "{told}");
        }
        match effects.flow {
            None => {}
            Some(FlowChange::Create { .. }) => panic!("a new connection of {told}"),
            Some(FlowChange::Update { connection, .. }) => {
                let known = self.host.tables.connection(&connection.original, 0).map(|(known, _)| known);
                assert_eq!(known, Some(connection), "{told}");
                assert!(matches!(outcome, Outcome::Forward { index: Some(_), .. }), "not tracked: {told}");
            }
        }
    }

    /// Applies a change, and checks the card's outcomes for the latest packets after each write: they must match
    /// `decide` before or after the change.
    fn apply_slowly(&mut self, change: Change) {
        let latest: Vec<_> = self.sent.iter().rev().take(15).cloned().collect();
        let decide =
            |host: &Host<Memory>| latest.iter().map(|packet| host.decide(packet)).collect::<Vec<_>>();
        let before = decide(&self.host);
        let mut memory = self.host.card().clone();
        self.host.card().record();
        self.host.apply(std::slice::from_ref(&change));
        let after = decide(&self.host);
        let writes = self.host.card().recorded();
        // A new trie has many lines, which are written before anything refers to it: only some of them are checked.
        let all = writes.len() < 400;
        for (number, write) in writes.iter().enumerate() {
            memory.replay(write);
            if !all && number % 500 != 0 {
                continue;
            }
            for ((packet, before), after) in latest.iter().zip(&before).zip(&after) {
                let outcome = outcome(&memory, port_of(packet.ingress), &packet.frame, packet.frame.len());
                let right = agrees(&outcome, before.as_ref()) || agrees(&outcome, after.as_ref());
                assert!(
                    right,
                    "after {number} writes of {change:?}: {outcome:?} of {packet:?}\n{before:?}\n{after:?}"
                );
            }
        }
    }

    /// Sends the latest packets again, to the card alone.
    fn check_again(&mut self) {
        let latest: Vec<_> = self.sent.iter().rev().take(100).cloned().collect();
        for packet in latest {
            let outcome = self.host.outcome(&packet);
            self.check(&packet, &outcome);
        }
    }

    /// Checks that a card which is set up anew does the same, except for flows, and for the reason why packets of a label
    /// are left to the host (docs/limits.md).
    fn check_anew(&mut self) {
        let host = &self.host;
        let mut anew = blank();
        anew.tables = host.tables.clone();
        for vif in host.tables.vifs() {
            anew.driver.attach(&host.tables, vif.id, attachment(vif)).unwrap();
        }
        anew.driver.apply(&host.tables, &host.changes).unwrap();
        for (vrf, mac) in &host.learned {
            anew.driver.learned(&host.tables, *vrf, *mac).unwrap();
        }
        for scope in &host.neighbours {
            anew.driver.neighbour(&host.tables, *scope).unwrap();
        }
        for packet in &self.sent {
            let wanted = anew.outcome(packet);
            let by_flow = matches!(wanted, Outcome::Punt(Punt::FlowMiss | Punt::FlowTcp));
            let found = self.host.outcome(packet);
            let by_label = matches!((&found, &wanted), (Outcome::Punt(Punt::UnknownLabel), Outcome::Punt(_)));
            if !by_flow && !by_label && !matches!(found, Outcome::Forward { index: Some(_), .. }) {
                assert_eq!(found, wanted, "{packet:?}");
            }
        }
    }
}

/// Returns whether the card agrees with `decide`, as far as packets that leave can show, or leaves the packet to the
/// host.
fn agrees(outcome: &Outcome, decision: Option<&Decision>) -> bool {
    match (outcome, decision.map(|decision| &decision.verdict)) {
        (Outcome::Punt(_), _) => true,
        (Outcome::Drop(reason), Some(Verdict::Drop(said))) => *reason == *said as u8,
        (Outcome::Forward { forward, .. }, Some(Verdict::Forward(said))) => {
            let port = vif_at(forward.port);
            model::Forward { port, ..forward.clone() } == *said
        }
        _ => false,
    }
}

/// Sets up a host with random tables, tame or not, and with known neighbours.
fn set_up(rng: &mut Rng, tame: bool) -> Bench {
    let mut host = blank();
    let tables = tables(rng, tame);
    host.set_up(rng, &tables);
    Bench { host, sent: Vec::new(), counts: Counts::default() }
}

/// Alternates packets and changes. Packets whose flows may be on the card are sent again after each change.
fn run(seed: u64, counts: Counts) -> Counts {
    let mut rng = Rng::new(seed);
    let mut bench = Bench { counts, ..set_up(&mut rng, seed % 2 == 1) };
    for round in 0..300 {
        if rng.percent(25) {
            talk::converse(&mut rng, &mut bench);
        } else {
            let packet = packet(&mut rng, &bench.host.tables);
            bench.send(&packet);
        }
        if round % 10 == 9 {
            let change = bench.host.change(&mut rng);
            bench.apply_slowly(change);
            bench.check_again();
        }
    }
    bench.check_anew();
    bench.counts
}

fn all(seeds: impl Iterator<Item = u64>, run: impl Fn(u64, Counts) -> Counts) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let before = std::mem::take(&mut counts);
        let run = std::panic::AssertUnwindSafe(|| run(seed, before));
        counts = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        });
    }
    println!("{counts:#?}");
    counts
}

/// Returns the number of random tables. The environment may ask for more than the default.
fn seeds() -> u64 {
    std::env::var("CARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(16)
}

#[test]
fn what_the_card_does_is_what_decide_says() {
    let counts = all(0..seeds(), run);
    assert!(counts.forwarded > 0 && counts.dropped > 0 && counts.tracked > 0, "{counts:?}");
}

#[test]
fn what_is_plain_stays_on_the_card() {
    // Few tables have floating addresses that conversations reach: more tables, and fewer packets of each.
    let counts = all(1000..1000 + 4 * seeds(), |seed, counts| {
        let mut rng = Rng::new(seed);
        let mut bench = Bench { counts, ..set_up(&mut rng, true) };
        for _ in 0..100 {
            talk::converse(&mut rng, &mut bench);
        }
        bench.counts
    });
    assert!(counts.translated > 0, "{counts:?}");
    assert!(counts.plain_forwarded * 100 >= counts.plain * 60, "{counts:?}");
}
