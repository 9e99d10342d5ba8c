//! A host with a simulated card: its tables, and what packets become.

use crate::both::Both;
use crate::talk;
use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Outcome, outcome};
use card::registers::Punt;
use card::sim::{Received, Sent};
use card::{Budgets, Commands};
use model::generate::{Packet, Rng, tables, warm_up};
use model::{
    Change, Decision, Effects, Forward, Lookup, PacketView, Tables, VifId, VifKind, decide, rewrite,
};
use std::collections::{BTreeMap, VecDeque};

const SECRET: [u64; 5] = [0x0123_4567_89ab_cdef, 2, 3, 0xfedc_ba98_7654_3210, 5];
/// Clocks without a packet after which the card is taken for hung.
const PATIENCE: u64 = 20_000;

/// What became of packets.
#[derive(Debug, Default)]
pub struct Counts {
    pub packets: usize,
    pub forwarded: usize,
    /// Of those, by a flow.
    pub tracked: usize,
    pub dropped: usize,
    pub punted: BTreeMap<Punt, usize>,
    pub clocks: u64,
    /// Those in which the host wrote to the card, too.
    pub all_clocks: u64,
}

/// What is to leave by an output: its port, why the host is to decide it, its bytes.
type Expected = (u16, Option<Punt>, Vec<u8>);

pub struct Host {
    pub tables: Tables,
    driver: Driver<Both>,
    /// Packets of this round.
    sent: Vec<Packet>,
    clock: u64,
}

fn port_of(id: VifId) -> u16 {
    id.0 + 100
}

impl Host {
    /// One without tables.
    pub fn empty() -> Self {
        let mut driver =
            Driver::new(Commands::open(Both::new()).unwrap().with_blank_memory(), SECRET).unwrap();
        driver.commands().set_budgets(Budgets::NONE);
        Self { tables: Tables::new(), driver, sent: Vec::new(), clock: 0 }
    }

    pub fn new(rng: &mut Rng, tame: bool) -> Self {
        let mut host = Self::empty();
        let changes = tables(rng);
        host.apply(&if tame { talk::tame(rng, changes) } else { changes });
        for packet in warm_up(rng, &host.tables) {
            host.host(&packet);
        }
        host
    }

    pub fn apply(&mut self, changes: &[Change]) {
        self.tables.apply(changes).unwrap();
        for change in changes {
            if let Change::PutVif(vif) = change
                && vif.kind != VifKind::Rdma
            {
                let egress = u8::from(vif.kind == VifKind::Wire);
                let at = Both::has(vif.id).then_some(Attachment { port: port_of(vif.id), egress });
                self.driver.attach(&self.tables, vif.id, at).unwrap();
            }
        }
        self.driver.apply(&self.tables, changes).unwrap();
    }

    #[allow(dead_code, reason = "not all tests look at the card itself")]
    pub const fn both(&mut self) -> &mut Both {
        self.driver.commands().card()
    }

    /// The host deals with a packet.
    fn host(&mut self, packet: &Packet) {
        let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, None) else { return };
        let decision = decide(&self.tables, &view, packet.ingress, 0);
        self.effects(&decision.effects);
        self.driver.decided(&self.tables, &view, packet.ingress, &decision).unwrap();
    }

    /// What a packet leaves behind.
    pub fn effects(&mut self, effects: &Effects) {
        let _ = self.tables.commit(effects, 0, 0);
        if let Some(learn) = effects.learn {
            self.driver.learned(&self.tables, learn.vrf, learn.mac).unwrap();
        }
        if let Some(found) = effects.neighbour {
            self.driver.neighbour(&self.tables, found.scope).unwrap();
        }
    }

    /// Gives the packets sent so far to both cards, in another order each time, and holds one against the other.
    pub fn rounds(&mut self, rng: &mut Rng, times: usize, counts: &mut Counts) {
        let packets = std::mem::take(&mut self.sent);
        for _ in 0..times {
            let order: Vec<_> = (0..packets.len()).map(|_| rng.one(&packets)).collect();
            self.round(&order, counts);
        }
    }

    fn round(&mut self, packets: &[Packet], counts: &mut Counts) {
        let mut expected: [[VecDeque<Expected>; 2]; 2] = Default::default();
        let mut count = 0;
        for packet in packets {
            let wire = self.tables.vif(packet.ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
            let input = usize::from(wire);
            let port = port_of(packet.ingress);
            counts.packets += 1;
            match outcome(&self.driver.commands().card().memory, port, &packet.frame, packet.frame.len()) {
                Outcome::Punt(punt) => {
                    *counts.punted.entry(punt).or_default() += 1;
                    expected[input][0].push_back((port, Some(punt), packet.frame.clone()));
                    count += 1;
                }
                Outcome::Drop(_) => counts.dropped += 1,
                Outcome::Forward { forward, egress, index } => {
                    counts.forwarded += 1;
                    counts.tracked += usize::from(index.is_some());
                    let left = (forward.port.0, None, rewritten(&forward, &packet.frame));
                    expected[input][usize::from(egress)].push_back(left);
                    count += 1;
                }
            }
            let sent = Sent { port, direct: None, bytes: packet.frame.clone() };
            self.driver.commands().card().sim.send(input, sent);
        }
        self.drain(&mut expected, count, counts);
    }

    fn drain(&mut self, expected: &mut [[VecDeque<Expected>; 2]; 2], mut count: usize, counts: &mut Counts) {
        let sim = &mut self.driver.commands().card().sim;
        let mut last = sim.cycle();
        let start = last;
        while count > 0 {
            sim.tick();
            for output in 0..2 {
                while let Some(received) = sim.receive(output) {
                    last = sim.cycle();
                    count -= 1;
                    check(expected, output, &received);
                }
            }
            assert!(sim.cycle() - last < PATIENCE, "{count} packets are missing: {:?}", front(expected));
        }
        for _ in 0..200 {
            sim.tick();
            assert!((0..2).all(|output| sim.receive(output).is_none()), "more than was sent");
        }
        counts.clocks += last - start;
        counts.all_clocks += last - std::mem::replace(&mut self.clock, last);
    }
}

impl talk::Carrier for Host {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn decide(&self, packet: &Packet) -> Option<Decision> {
        let view = PacketView::parse(&packet.frame, packet.frame.len() as u32, None).ok()?;
        Some(decide(&self.tables, &view, packet.ingress, 0))
    }

    /// A packet comes that the card doesn't know what to do with; it comes again in this round.
    fn send(&mut self, packet: &Packet) {
        if !packet.frame.is_empty() && Both::has(packet.ingress) {
            self.host(packet);
            self.sent.push(packet.clone());
        }
    }
}

fn front(expected: &[[VecDeque<Expected>; 2]; 2]) -> Vec<Option<&Expected>> {
    expected.iter().flatten().map(VecDeque::front).collect()
}

/// A packet that left must be the next one of a pipe by that output.
fn check(expected: &mut [[VecDeque<Expected>; 2]; 2], output: usize, received: &Received) {
    let punt = received.punt.map(|meta| *Punt::ALL.get(usize::from(meta.reason)).expect("a reason"));
    let left = (received.port, punt, received.bytes.clone());
    for pipe in &mut *expected {
        if pipe[output].front().is_some_and(|front| is_same(&left, front)) {
            pipe[output].pop_front();
            return;
        }
    }
    let fronts = [0, 1].map(|pipe| expected[pipe][output].front().map(told));
    panic!("left by {output}: {}\nexpected of the pipes: {fronts:#?}", told(&left));
}

/// Whether a packet left as expected. Where the card doesn't look further, it can't say what else is wrong.
fn is_same(left: &Expected, expected: &Expected) -> bool {
    const BLIND: [Punt; 3] = [Punt::Ipv6Extension, Punt::TunnelMalformed, Punt::LabelStack];
    let blind = expected.1.is_some() && left.1.is_some_and(|punt| BLIND.contains(&punt));
    left.0 == expected.0 && left.2 == expected.2 && (left.1 == expected.1 || blind)
}

fn told((port, punt, bytes): &Expected) -> String {
    format!("port {port}, {punt:?}, {} bytes: {:02x?}", bytes.len(), &bytes[..bytes.len().min(140)])
}

fn rewritten(forward: &Forward, frame: &[u8]) -> Vec<u8> {
    let view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
    rewrite::rewrite(forward, &view).unwrap()
}
