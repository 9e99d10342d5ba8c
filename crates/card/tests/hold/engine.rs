//! Flows that go onto the card under traffic, behind a slow host: what of a flow leaves the card leaves in its order,
//! and what is missing was counted.

use crate::world::{Flow, tables};
use card::compile::Attachment;
use card::driver::Driver;
use card::frame::Key;
use card::hold::Hold;
use card::registers::PuntMeta;
use card::sim::{Received, Sent, SimCard};
use card::{Budgets, Commands};
use model::generate::Rng;
use model::{Effects, PacketView, Tables, Verdict, VifId, decide, rewrite};
use std::collections::{BTreeMap, VecDeque};

/// Inputs and outputs; queue 0 is the host's, and wire 1.
const STREAMS: usize = 2;
/// Flows that send at a time.
const FLOWS: usize = 12;
/// Clocks without a packet after which the card is taken for hung.
const PATIENCE: u64 = 100_000;

/// A frame that the host has: when it is done with it, where it came in by, its bytes.
type Waiting = (u64, VifId, Vec<u8>);

/// How far flows are that go onto the card.
enum Stage {
    Idle,
    /// So many marks are under way.
    Marked(usize),
    /// So many frames have to be done with.
    Host(usize),
    Released,
}

/// What there was.
#[derive(Debug, Default)]
struct Counts {
    sent: u32,
    arrived: u32,
    punted: u32,
    batches: u32,
    /// Packets that came behind later ones of their flow.
    overtaken: u32,
    kept: u32,
    full: u32,
}

struct World {
    tables: Tables,
    driver: Driver<SimCard>,
    rng: Rng,
    /// Flows' packets wait for those that the host has.
    holding: bool,
    /// Clocks that the host takes, at most.
    delay: usize,
    flows: Vec<Flow>,
    next: u16,
    host: VecDeque<Waiting>,
    /// What came for the host while flows were released.
    behind: Vec<(VifId, Vec<u8>)>,
    candidates: Vec<(VifId, Vec<u8>)>,
    stage: Stage,
    hold: Option<Hold>,
    keys: Vec<Key>,
    /// The number that a flow's next packet has at least.
    expected: BTreeMap<u16, u32>,
    counts: Counts,
}

impl World {
    fn new(seed: u64, holding: bool, delay: usize) -> Self {
        let card = SimCard::new(hbm::Timing::hbm2());
        let mut driver = Driver::new(Commands::open(card).unwrap().with_blank_memory(), [5; 5]).unwrap();
        driver.commands().set_budgets(Budgets::NONE);
        let mut world = Self {
            tables: Tables::new(),
            driver,
            rng: Rng::new(seed),
            holding,
            delay,
            flows: Vec::new(),
            next: 0,
            host: VecDeque::new(),
            behind: Vec::new(),
            candidates: Vec::new(),
            stage: Stage::Idle,
            hold: None,
            keys: Vec::new(),
            expected: BTreeMap::new(),
            counts: Counts::default(),
        };
        let (changes, neighbour) = tables();
        world.tables.apply(&changes).unwrap();
        let effects = Effects { neighbour: Some(neighbour), ..Effects::default() };
        world.tables.commit(&effects, 0, 0).unwrap();
        for (vif, egress) in [(1, 0), (2, 0), (10, 1)] {
            let at = Attachment { port: vif, egress };
            world.driver.attach(&world.tables, VifId(vif), Some(at)).unwrap();
        }
        world.driver.apply(&world.tables, &changes).unwrap();
        world.driver.neighbour(&world.tables, neighbour.scope).unwrap();
        world.flows = (0..FLOWS).map(|_| world.flow()).collect();
        world
    }

    /// A flow that nobody knows yet, but for the handshake of one of TCP.
    fn flow(&mut self) -> Flow {
        let flow = Flow::new(self.next, 20 + self.rng.below(400) as u32);
        self.next += 1;
        for (ingress, frame) in flow.handshake() {
            let view = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
            let decision = decide(&self.tables, &view, ingress, 0);
            self.tables.commit(&decision.effects, 0, 0).unwrap();
        }
        flow
    }

    fn sim(&mut self) -> &mut SimCard {
        self.driver.commands().card()
    }

    fn run(mut self, clocks: u64, load: usize) -> Counts {
        for clock in 0..clocks {
            if self.rng.below(100) < load {
                self.send();
            }
            self.clock(clock % 64 == 0);
        }
        let mut last = self.sim().cycle();
        while self.counts.arrived + self.driver.commands().held().1 < self.counts.sent {
            let before = self.counts.arrived;
            for clock in 0..64 {
                self.clock(clock == 0);
            }
            let now = self.sim().cycle();
            if self.counts.arrived != before {
                last = now;
            }
            assert!(now - last < PATIENCE, "packets are missing: {:?}", self.counts);
        }
        (self.counts.kept, self.counts.full) = self.driver.commands().held();
        println!("{:?}", self.counts);
        self.counts
    }

    /// The next packet of one of the flows, where the card takes it.
    fn send(&mut self) {
        let which = self.rng.below(FLOWS);
        let payload = 8 + self.rng.below(300);
        let input = self.flows[which].input();
        if self.sim().backlog(input) > 2 {
            return;
        }
        let (port, bytes, last) = self.flows[which].packet(payload);
        self.sim().send(input, Sent { port, direct: None, bytes });
        self.counts.sent += 1;
        if last {
            self.flows[which] = self.flow();
        }
    }

    fn clock(&mut self, now_and_then: bool) {
        self.sim().tick();
        for output in (0..STREAMS).rev() {
            while let Some(received) = self.sim().receive(output) {
                self.take(received);
            }
        }
        let now = self.sim().cycle();
        while self.host.front().is_some_and(|(due, ..)| *due <= now) {
            self.decide_front();
        }
        match self.stage {
            Stage::Idle if now_and_then && self.candidates.len() > 20 => self.install(),
            Stage::Host(0) => self.release(),
            Stage::Released if now_and_then => self.end(),
            _ => {}
        }
    }

    fn take(&mut self, received: Received) {
        match (received.punt, &mut self.stage) {
            // A mark.
            (Some(PuntMeta { reason: 0, .. }), Stage::Marked(left)) => {
                *left -= 1;
                if *left == 0 {
                    self.stage = Stage::Host(self.host.len());
                }
            }
            (Some(_), Stage::Released) => self.behind.push((VifId(received.port), received.bytes)),
            (Some(_), _) => self.hand(VifId(received.port), received.bytes),
            (None, _) => {
                let (flow, number) = Flow::told(&received.bytes);
                let expected = self.expected.entry(flow).or_default();
                self.counts.overtaken += u32::from(number < *expected);
                *expected = number + 1;
                self.counts.arrived += 1;
            }
        }
    }

    /// Gives the host a frame; it is done with it later, in order.
    fn hand(&mut self, ingress: VifId, bytes: Vec<u8>) {
        self.counts.punted += 1;
        let due = self.sim().cycle() + self.rng.below(self.delay) as u64;
        let due = due.max(self.host.back().map_or(0, |(due, ..)| *due));
        self.host.push_back((due, ingress, bytes));
    }

    /// The host decides about a frame, and sends it as it is to be.
    fn decide_front(&mut self) {
        let (_, ingress, bytes) = self.host.pop_front().unwrap();
        let view = PacketView::parse(&bytes, bytes.len() as u32, None).unwrap();
        let decision = decide(&self.tables, &view, ingress, 0);
        self.tables.commit(&decision.effects, bytes.len(), 0).unwrap();
        let Verdict::Forward(forward) = &decision.verdict else { panic!("{:?}", decision.verdict) };
        let frame = rewrite::rewrite(forward, &view).unwrap();
        let egress = u8::from(forward.port.0 == 10);
        let meta = PuntMeta { port: forward.port.0, size: frame.len() as u16, egress, ..PuntMeta::default() };
        self.sim().send(egress.into(), Sent { port: 0, direct: Some(meta), bytes: frame });
        self.candidates.push((ingress, bytes));
        if let Stage::Host(left) = &mut self.stage {
            *left = left.saturating_sub(1);
        }
    }

    /// Puts the flows of what the host decided onto the card; what came before is marked.
    fn install(&mut self) {
        self.hold = Some(self.driver.begin_hold().expect("one at a time"));
        let hold = self.hold.filter(|_| self.holding);
        for (ingress, bytes) in std::mem::take(&mut self.candidates) {
            let view = PacketView::parse(&bytes, bytes.len() as u32, None).unwrap();
            let decision = decide(&self.tables, &view, ingress, 0);
            self.keys
                .extend(self.driver.decided_behind(hold, &self.tables, &view, ingress, &decision).unwrap());
        }
        self.driver.commands().barrier().unwrap();
        for input in 0..STREAMS {
            let mark = Sent { port: 0, direct: Some(PuntMeta::default()), bytes: Vec::new() };
            self.sim().send(input, mark);
        }
        self.stage = Stage::Marked(STREAMS);
        self.counts.batches += 1;
    }

    /// What the host had is on its way out: the flows' packets behind it.
    fn release(&mut self) {
        let hold = self.hold.expect("flows are held");
        for (input, output) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let direct = Some(hold.release(output));
            self.sim().send(input, Sent { port: 0, direct, bytes: Vec::new() });
        }
        self.stage = Stage::Released;
    }

    fn end(&mut self) {
        let hold = self.hold.expect("flows are held");
        if !self.driver.is_released(hold) {
            return;
        }
        self.driver.end_hold(hold, &std::mem::take(&mut self.keys)).unwrap();
        self.stage = Stage::Idle;
        for (ingress, bytes) in std::mem::take(&mut self.behind) {
            self.hand(ingress, bytes);
        }
    }
}

#[test]
fn nothing_overtakes_and_nothing_is_lost() {
    for seed in 0..3 {
        let counts = World::new(seed, true, 700).run(40_000, 20);
        assert_eq!((counts.overtaken, counts.full), (0, 0), "{counts:?}");
        assert!(counts.batches > 15 && counts.kept > 50, "{counts:?}");
        assert!(counts.arrived > counts.punted + 3000, "flows go by the card: {counts:?}");
    }
}

/// The clocks that the host takes are more than a ring has room for.
#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let counts = World::new(7, true, 4000).run(40_000, 40);
    assert_eq!(counts.overtaken, 0, "{counts:?}");
    assert!(counts.full > 50 && counts.arrived + counts.full == counts.sent, "{counts:?}");
}

/// Or else the tests above could not fail.
#[test]
fn without_holding_packets_overtake() {
    let counts = World::new(1, false, 700).run(20_000, 20);
    assert!(counts.overtaken > 20 && counts.arrived == counts.sent, "{counts:?}");
}
