//! Flows that move onto the card under traffic, with a slow host: a flow's packets leave the card in order, and every
//! missing one was counted.

use super::world::{Flow, tables};
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

/// Number of inputs, and of outputs. Number 0 is the host's, number 1 is the wire.
const STREAMS: usize = 2;
/// Number of flows that send at the same time.
const FLOWS: usize = 12;
/// Clocks without a packet after which the card counts as hung.
const PATIENCE: u64 = 100_000;

/// A frame at the host: the clock at which the host is done with it, its ingress, its bytes.
type Waiting = (u64, VifId, Vec<u8>);

/// Progress of flows on their way onto the card.
enum Stage {
    Idle,
    /// This many marks are outstanding.
    Marked(usize),
    /// The host still has to finish this many frames.
    Host(usize),
    Released,
}

/// Counts of packets, and of batches of flows.
#[derive(Debug, Default)]
struct Counts {
    sent: u32,
    arrived: u32,
    punted: u32,
    batches: u32,
    /// Packets that left after later packets of their flow.
    overtaken: u32,
    kept: u32,
    full: u32,
}

struct World {
    tables: Tables,
    driver: Driver<SimCard>,
    rng: Rng,
    /// Whether flows' packets wait on the card for the flows' earlier packets at the host.
    holding: bool,
    /// The host's maximum delay, in clocks.
    delay: usize,
    flows: Vec<Flow>,
    next: u16,
    host: VecDeque<Waiting>,
    /// Frames that arrived for the host while flows were released.
    behind: Vec<(VifId, Vec<u8>)>,
    candidates: Vec<(VifId, Vec<u8>)>,
    stage: Stage,
    hold: Option<Hold>,
    keys: Vec<Key>,
    /// The lowest number that a flow's next packet may have.
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

    /// Makes a flow that nobody knows yet. If it is TCP, the host has seen its handshake.
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

    /// Sends the next packet of one of the flows, if the card accepts it.
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
            // The packet is a mark.
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

    /// Gives the host a frame. The host finishes frames later, in order.
    fn hand(&mut self, ingress: VifId, bytes: Vec<u8>) {
        self.counts.punted += 1;
        let due = self.sim().cycle() + self.rng.below(self.delay) as u64;
        let due = due.max(self.host.back().map_or(0, |(due, ..)| *due));
        self.host.push_back((due, ingress, bytes));
    }

    /// Decides about the host's first frame, and sends the result.
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

    /// Puts the flows of the frames that the host decided about onto the card, and sends marks after the earlier
    /// packets.
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

    /// Releases the flows' packets: the frames that the host had are on their way out.
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

/// The host takes so many clocks that a ring has too little room.
#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let counts = World::new(7, true, 4000).run(40_000, 40);
    assert_eq!(counts.overtaken, 0, "{counts:?}");
    assert!(counts.full > 50 && counts.arrived + counts.full == counts.sent, "{counts:?}");
}

/// Packets do overtake without holding, so the tests above can fail.
#[test]
fn without_holding_packets_overtake() {
    let counts = World::new(1, false, 700).run(20_000, 20);
    assert!(counts.overtaken > 20 && counts.arrived == counts.sent, "{counts:?}");
}
