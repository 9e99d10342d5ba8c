//! What the card does, by the lines that the driver writes, against `decide`: whatever it forwards or drops is forwarded or
//! dropped by `decide` in the same way, with random tables that change, and random packets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod talk;

use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::registers::Punt;
use card::{CardError, Commands};
use model::generate::{self, Packet, Rng, packet, tables, warm_up};
use model::{
    Change, Decision, FlowChange, Lookup, NeighbourScope, PacketView, Tables, Verdict, VifId, VifKind, Vrf,
    decide,
};
use packet::Mac;
use std::collections::BTreeMap;

const SECRET: [u64; 5] = [0x0123_4567_89ab_cdef, 2, 3, 0xfedc_ba98_7654_3210, 5];

/// What the host and the card did, counted.
#[derive(Debug, Default)]
struct Counts {
    packets: usize,
    forwarded: usize,
    dropped: usize,
    tracked: usize,
    translated: usize,
    punted: BTreeMap<Punt, usize>,
    /// Packets that `decide` forwards to one port without copies, meters or parts that only hosts see; and those of them that the card
    /// forwards when they come again.
    plain: usize,
    plain_forwarded: usize,
}

/// A host with a card.
struct Host {
    tables: Tables,
    driver: Driver<Memory>,
    /// All changes so far.
    changes: Vec<Change>,
    learned: Vec<(Vrf, Mac)>,
    neighbours: Vec<NeighbourScope>,
    sent: Vec<Packet>,
}

fn port_of(id: VifId) -> u16 {
    id.0 + 100
}

fn driver(sizes: Sizes) -> Result<Driver<Memory>, CardError> {
    Driver::new(Commands::open(Memory::new(sizes))?, SECRET)
}

impl Host {
    fn new() -> Self {
        Self {
            tables: Tables::new(),
            driver: driver(Sizes::default()).unwrap(),
            changes: Vec::new(),
            learned: Vec::new(),
            neighbours: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Applies changes where the tables take them, and attaches what can be.
    fn apply(&mut self, changes: &[Change]) {
        if self.tables.apply(changes).is_err() {
            return;
        }
        for change in changes {
            if let Change::PutVif(vif) = change
                && vif.kind != VifKind::Rdma
                && vif.id.0 % 7 != 0
            {
                let egress = if vif.kind == VifKind::Wire { vif.id.0 as u8 } else { 0 };
                let at = Attachment { port: port_of(vif.id), egress };
                self.driver.attach(&self.tables, vif.id, Some(at)).unwrap();
            }
        }
        self.driver.apply(&self.tables, changes).unwrap();
        self.changes.extend_from_slice(changes);
    }

    /// What the card does with a packet.
    fn card(&mut self, packet: &Packet) -> Outcome {
        let memory = &*self.driver.commands().card();
        outcome(memory, port_of(packet.ingress), &packet.frame, packet.frame.len())
    }

    fn decide(&self, packet: &Packet) -> Option<Decision> {
        let view = PacketView::parse(&packet.frame, packet.frame.len() as u32, None).ok()?;
        Some(decide(&self.tables, &view, packet.ingress, 0))
    }

    /// The host deals with a packet.
    fn host(&mut self, packet: &Packet) {
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, None) else { return };
        let decision = decide(&self.tables, &view, packet.ingress, 0);
        let effects = &decision.effects;
        let _ = self.tables.commit(effects, packet.frame.len(), 0);
        if let Some(learn) = effects.learn {
            self.learned.push((learn.vrf, learn.mac));
            self.driver.learned(&self.tables, learn.vrf, learn.mac).unwrap();
        }
        if let Some(found) = effects.neighbour {
            self.neighbours.push(found.scope);
            self.driver.neighbour(&self.tables, found.scope).unwrap();
        }
        self.driver.decided(&self.tables, &view, packet.ingress, &decision).unwrap();
    }

    /// Sends a packet: to the card, and from there to the host; then once more.
    fn send(&mut self, packet: &Packet, counts: &mut Counts) {
        self.sent.push(packet.clone());
        let first = self.card(packet);
        self.check(packet, &first, counts);
        if matches!(first, Outcome::Punt(_)) {
            self.host(packet);
        }
        let plain = self.decide(packet).is_some_and(|decision| is_plain(&decision));
        let again = self.card(packet);
        self.check(packet, &again, counts);
        counts.plain += usize::from(plain);
        counts.plain_forwarded += usize::from(plain && matches!(again, Outcome::Forward { .. }));
    }

    /// Holds what the card does against `decide`.
    fn check(&self, packet: &Packet, outcome: &Outcome, counts: &mut Counts) {
        counts.packets += 1;
        let told = || format!("{outcome:?}\nport {} {:02x?}", packet.ingress, packet.frame);
        let decision = match outcome {
            Outcome::Punt(punt) => {
                *counts.punted.entry(*punt).or_default() += 1;
                return;
            }
            _ => self.decide(packet).unwrap_or_else(|| panic!("malformed, and yet {}", told())),
        };
        self.check_effects(&decision, outcome, &told());
        match (outcome, &decision.verdict) {
            (Outcome::Drop(reason), Verdict::Drop(said)) => {
                counts.dropped += 1;
                assert_eq!(*reason, *said as u8, "{}", told());
            }
            (Outcome::Forward { forward, egress, index }, Verdict::Forward(said)) => {
                counts.forwarded += 1;
                counts.tracked += usize::from(index.is_some());
                counts.translated += usize::from(forward.nat != model::Nat::default());
                let wire = self.tables.vif(said.port).is_some_and(|vif| vif.kind == VifKind::Wire);
                assert_eq!(*egress, if wire { said.port.0 as u8 } else { 0 }, "{}", told());
                assert!(agrees(outcome, Some(&decision)), "{}\nbut {said:?}", told());
            }
            _ => panic!("{}\nbut {decision:?}", told()),
        }
    }

    /// The host sees nothing of the packet: so there must be nothing that changes by it.
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
            let known = self.tables.bridge(learn.vrf, learn.mac).map(|entry| entry.target);
            assert_eq!(known, Some(learn.at), "{told}");
        }
        match effects.flow {
            None => {}
            Some(FlowChange::Create { .. }) => panic!("a new connection of {told}"),
            Some(FlowChange::Update { connection, .. }) => {
                let known = self.tables.connection(&connection.original, 0).map(|(known, _)| known);
                assert_eq!(known, Some(connection), "{told}");
                assert!(matches!(outcome, Outcome::Forward { index: Some(_), .. }), "not tracked: {told}");
            }
        }
    }

    /// Applies a change, and looks what the card does with the latest packets after each single write on the way: what
    /// `decide` said before, or what it says after.
    fn apply_slowly(&mut self, change: Change) {
        let latest: Vec<_> = self.sent.iter().rev().take(15).cloned().collect();
        let decide = |host: &Self| latest.iter().map(|packet| host.decide(packet)).collect::<Vec<_>>();
        let before = decide(self);
        let mut memory = self.driver.commands().card().clone();
        self.driver.commands().card().record();
        self.apply(std::slice::from_ref(&change));
        let after = decide(self);
        let writes = self.driver.commands().card().recorded();
        // Of a new trie, whose lines are written before anything leads there, not all of them.
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
    fn check_again(&mut self, counts: &mut Counts) {
        let latest: Vec<_> = self.sent.iter().rev().take(100).cloned().collect();
        for packet in latest {
            let outcome = self.card(&packet);
            self.check(&packet, &outcome, counts);
        }
    }

    /// A card that is set up anew does the same, but for what flows tell it.
    fn check_anew(&mut self) {
        let mut anew = driver(Sizes::default()).unwrap();
        for vif in self.tables.vifs() {
            if vif.kind != VifKind::Rdma && vif.id.0 % 7 != 0 {
                let egress = if vif.kind == VifKind::Wire { vif.id.0 as u8 } else { 0 };
                let at = Attachment { port: port_of(vif.id), egress };
                anew.attach(&self.tables, vif.id, Some(at)).unwrap();
            }
        }
        anew.apply(&self.tables, &self.changes).unwrap();
        for (vrf, mac) in &self.learned {
            anew.learned(&self.tables, *vrf, *mac).unwrap();
        }
        for scope in &self.neighbours {
            anew.neighbour(&self.tables, *scope).unwrap();
        }
        for packet in self.sent.clone() {
            let packet = &packet;
            let memory = &*anew.commands().card();
            let wanted = outcome(memory, port_of(packet.ingress), &packet.frame, packet.frame.len());
            let by_flow = matches!(wanted, Outcome::Punt(Punt::FlowMiss | Punt::FlowTcp));
            let found = self.card(packet);
            if !by_flow && !matches!(found, Outcome::Forward { index: Some(_), .. }) {
                assert_eq!(found, wanted, "{packet:?}");
            }
        }
    }
}

/// Whether the card does what `decide` says, as far as packets that leave tell, or leaves it to the host.
fn agrees(outcome: &Outcome, decision: Option<&Decision>) -> bool {
    match (outcome, decision.map(|decision| &decision.verdict)) {
        (Outcome::Punt(_), _) => true,
        (Outcome::Drop(reason), Some(Verdict::Drop(said))) => *reason == *said as u8,
        (Outcome::Forward { forward, .. }, Some(Verdict::Forward(said))) => {
            let port = VifId(forward.port.0 - 100);
            model::Forward { port, ..forward.clone() } == *said
        }
        _ => false,
    }
}

/// What any card should do by itself: one delivery, nothing that only the host can.
fn is_plain(decision: &Decision) -> bool {
    let effects = &decision.effects;
    matches!(decision.verdict, Verdict::Forward(_))
        && effects.meters.is_empty()
        && effects.mirror_in.is_empty()
        && effects.mirror_out.is_empty()
}

/// A change to tables that are there: one of what other tables would be made of, or the removal of one.
fn change(rng: &mut Rng, host: &Host) -> Change {
    let known = rng.one(&host.changes);
    match known {
        Change::PutRoute { vrf, prefix, .. } if rng.percent(40) => Change::DelRoute { vrf, prefix },
        Change::PutMac { vrf, mac, .. } if rng.percent(40) => Change::DelMac { vrf, mac },
        Change::PutMpls { label, .. } if rng.percent(40) => Change::DelMpls { label },
        Change::PutVxlan { vni, .. } if rng.percent(40) => Change::DelVxlan { vni },
        Change::PutFloating(f) if rng.percent(40) => {
            Change::DelFloating { outside_vrf: f.outside_vrf, outside: f.outside }
        }
        Change::PutRule(rule) if rng.percent(40) => Change::DelRule { vrf: rule.vrf, id: rule.id },
        _ => {
            let others = generate::tables(rng);
            rng.one(&others)
        }
    }
}

/// A host with random tables, made tame or not, and with neighbours that are known.
fn set_up(rng: &mut Rng, tame: bool) -> Host {
    let mut host = Host::new();
    let changes = tables(rng);
    host.apply(&if tame { talk::tame(rng, changes) } else { changes });
    for packet in warm_up(rng, &host.tables) {
        host.host(&packet);
    }
    host
}

/// Packets and changes by turns; whose flows may be on the card, are sent again after each.
fn run(seed: u64, counts: &mut Counts) {
    let mut rng = Rng::new(seed);
    let mut host = set_up(&mut rng, seed % 2 == 1);
    for round in 0..300 {
        if rng.percent(25) {
            talk::converse(&mut rng, &mut host, counts);
        } else {
            host.send(&packet(&mut rng, &host.tables), counts);
        }
        if round % 10 == 9 {
            let change = change(&mut rng, &host);
            host.apply_slowly(change);
            host.check_again(counts);
        }
    }
    host.check_anew();
}

fn all(seeds: impl Iterator<Item = u64>, run: impl Fn(u64, &mut Counts)) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| run(seed, &mut counts));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{counts:#?}");
    counts
}

/// How many random tables: more by the environment.
fn seeds() -> u64 {
    std::env::var("CARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8)
}

#[test]
fn what_the_card_does_is_what_decide_says() {
    let counts = all(0..seeds(), run);
    assert!(counts.forwarded > 0 && counts.dropped > 0 && counts.tracked > 0, "{counts:?}");
}

#[test]
fn what_is_plain_stays_on_the_card() {
    let counts = all(1000..1000 + seeds(), |seed, counts| {
        let mut rng = Rng::new(seed);
        let mut host = set_up(&mut rng, true);
        for _ in 0..300 {
            talk::converse(&mut rng, &mut host, counts);
        }
    });
    assert!(counts.translated > 0, "{counts:?}");
    assert!(counts.plain_forwarded * 100 >= counts.plain * 60, "{counts:?}");
}
