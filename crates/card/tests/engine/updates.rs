//! Tables that change while packets are under way: each packet is treated by the old or the new ones, or is punted.

use super::both::STREAMS;
use super::ledger::{DROPPED, FLOW, PUNTED, REASONS, RECEIVED, SENT};
use super::lockstep::{Lockstep, PATIENCE, Prepared, input_of, rewritten};
use super::weather::Weather;
use crate::host::{port_of, tables, talk, vif_at};
use card::sim::{Received, Sent};
use ipnet::IpNet;
use model::generate::{Packet, Rng};
use model::{Change, Lookup, Verdict, VifKind};

/// Number of packets around a change.
const LOAD: usize = 400;
/// Clocks without an outgoing packet after which none is left after the place where a barrier waits for packets.
const EXIT: u32 = 1000;
/// Number of packets after a change.
const AFTER: usize = 60;

/// A packet under way: its input, and the number of the packet in the pool of which it is a copy.
struct Flight {
    input: usize,
    of: usize,
    frame: Vec<u8>,
    /// Whether it came after the change was complete.
    late: bool,
    left: bool,
}

/// The decisions of `decide` about each packet.
type Verdicts = Vec<Option<Verdict>>;

struct Load {
    bench: Lockstep,
    pool: Vec<Packet>,
    flights: Vec<Flight>,
    /// For each pipe and output, the latest packet that left.
    latest: [[Option<usize>; STREAMS]; STREAMS],
    forwarded: usize,
    /// Number of changes made while packets waited to come in.
    loaded: usize,
}

/// Returns the number of random tables. The environment may ask for more than the default.
fn seeds() -> u64 {
    std::env::var("CARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// Returns whether a route is so wide that its change takes longer than the load.
fn is_wide(change: &Change) -> bool {
    let prefix = match change {
        Change::PutRoute { prefix, .. } | Change::DelRoute { prefix, .. } => prefix,
        _ => return false,
    };
    matches!(prefix, IpNet::V4(v4) if v4.prefix_len() < 12)
}

impl Load {
    fn new() -> Self {
        Self {
            bench: Lockstep::new(),
            pool: Vec::new(),
            flights: Vec::new(),
            latest: Default::default(),
            forwarded: 0,
            loaded: 0,
        }
    }

    /// Sends a packet. Puts its number into its payload, which leaves with it.
    fn feed(&mut self, rng: &mut Rng, late: bool) {
        let of = rng.below(self.pool.len());
        let packet = &self.pool[of];
        let mut frame = packet.frame.clone();
        let at = frame.len() - 8;
        frame[at..].copy_from_slice(&self.flights.len().to_be_bytes());
        let wire = self.bench.host.tables.vif(packet.ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
        let (input, port) = (input_of(packet.ingress, wire), port_of(packet.ingress));
        self.bench.ledger.packet(RECEIVED, port.into(), frame.len());
        self.bench.host.card().send(input, Sent { port, direct: None, bytes: frame.clone() });
        self.flights.push(Flight { input, of, frame, late, left: false });
    }

    fn verdicts(&self) -> Verdicts {
        let decide = |packet| self.bench.host.decide(packet).map(|decision| decision.verdict);
        self.pool.iter().map(decide).collect()
    }

    fn change(&mut self, rng: &mut Rng) {
        self.flights.clear();
        self.latest = Default::default();
        let before = self.verdicts();
        (0..LOAD).for_each(|_| self.feed(rng, false));
        for _ in 0..rng.below(300) {
            self.bench.host.card().tick();
        }
        if rng.percent(30) {
            let packet = rng.one(&self.pool);
            self.bench.host.hosted(&packet);
        } else {
            let change =
                std::iter::repeat_with(|| self.bench.host.change(rng)).find(|change| !is_wide(change));
            self.bench.host.apply(&change.into_iter().collect::<Vec<_>>());
        }
        let after = self.verdicts();
        self.loaded += usize::from(self.backlog() > 0);
        (0..AFTER).for_each(|_| self.feed(rng, true));
        self.drain(&before, &after);
    }

    /// Checks that, without changes, the card does exactly what its tables say: nothing old remains.
    fn settle(&mut self, rng: &mut Rng) {
        let packets: Vec<_> = self.pool.iter().map(|packet| self.bench.prepare(packet)).collect();
        let flows = packets.iter().filter_map(Prepared::index);
        self.bench.ledger.adopt(self.bench.host.driver.commands(), FLOW, flows);
        (0..150).for_each(|_| self.bench.feed(&packets[rng.below(packets.len())]));
        self.bench.drain();
    }

    /// Returns the number of packets that wait to come in.
    fn backlog(&mut self) -> usize {
        let sim = self.bench.host.card().sim();
        (0..STREAMS).map(|input| sim.backlog(input)).sum()
    }

    /// Waits until nothing is under way, and checks everything that left.
    fn drain(&mut self, before: &Verdicts, after: &Verdicts) {
        let start = self.bench.host.card().sim().cycle();
        while self.backlog() > 0 {
            let card = self.bench.host.card();
            card.tick();
            assert!(card.sim().cycle() - start < PATIENCE, "packets don't come in any more");
        }
        self.bench.host.driver.commands().barrier().unwrap();
        let mut quiet = 0;
        while quiet < EXIT {
            self.bench.host.card().tick();
            quiet += 1;
            for output in 0..STREAMS {
                while let Some(received) = self.bench.host.card().receive(output) {
                    self.check(output, &received, before, after);
                    quiet = 0;
                }
            }
        }
        let mut dropped = self.bench.ledger.sum(DROPPED);
        for flight in self.flights.iter().filter(|flight| !flight.left) {
            let drops = |verdicts: &Verdicts| matches!(verdicts[flight.of], Some(Verdict::Drop(_)));
            assert!(drops(after) || !flight.late && drops(before), "lost: {:?}", self.pool[flight.of]);
            dropped += 1;
        }
        let (ledger, commands) = (&mut self.bench.ledger, self.bench.host.driver.commands());
        ledger.adopt(commands, DROPPED, 0..REASONS);
        assert_eq!(ledger.sum(DROPPED), dropped);
        ledger.check(commands);
        assert_eq!(self.bench.host.driver.commands().memory_errors().count, 0);
    }

    /// Checks that a packet left in the order of its pipe, and as `decide` says before or after the change, or to the
    /// host.
    fn check(&mut self, output: usize, received: &Received, before: &Verdicts, after: &Verdicts) {
        let number = usize::from_be_bytes(*received.bytes.last_chunk().unwrap());
        let flight = &mut self.flights[number];
        assert!(!std::mem::replace(&mut flight.left, true), "{number} came twice");
        let latest = &mut self.latest[flight.input][output];
        assert!(latest.replace(number).is_none_or(|latest| latest < number), "{number} was overtaken");
        if let Some(meta) = received.punt {
            self.bench.punted(output, &meta, received);
            let came = port_of(self.pool[flight.of].ingress);
            assert_eq!((received.port, &received.bytes), (came, &flight.frame));
            return self.bench.ledger.packet(PUNTED, meta.reason.into(), received.bytes.len());
        }
        self.forwarded += 1;
        self.bench.ledger.packet(SENT, received.port.into(), received.bytes.len());
        let agrees = |verdicts: &Verdicts| match &verdicts[flight.of] {
            Some(Verdict::Forward(forward)) => {
                forward.port == vif_at(model::VifId(received.port))
                    && rewritten(forward, &flight.frame) == received.bytes
            }
            _ => false,
        };
        assert!(
            agrees(after) || !flight.late && agrees(before),
            "{:?}, late: {}\nbecame {received:?}\nbefore {:?}\nafter {:?}",
            self.pool[flight.of],
            flight.late,
            before[flight.of],
            after[flight.of]
        );
    }
}

#[test]
fn under_load_tables_change_at_once() {
    let (mut load, mut changes) = (Load::new(), 0);
    for seed in 200..200 + seeds() {
        let mut rng = Rng::new(seed);
        load.bench = load.bench.renewed();
        if seed % 3 == 1 {
            load.bench.host.driver.leave_chip();
        }
        let mut tables = tables(&mut rng, true);
        tables.retain(|change| !is_wide(change));
        load.bench.host.set_up(&mut rng, &tables);
        (0..60).for_each(|_| talk::converse(&mut rng, &mut load.bench));
        load.pool = load.bench.take_sent();
        load.bench.host.card().weather =
            if seed % 2 == 0 { Weather::calm() } else { Weather::new(seed, 90, 85, 20) };
        for _ in 0..30 {
            println!("seed {seed}, change {changes}");
            load.change(&mut rng);
            changes += 1;
            if changes % 3 == 0 {
                load.settle(&mut rng);
            }
        }
    }
    println!("{} forwarded, {} of {changes} changes in time", load.forwarded, load.loaded);
    assert!(load.forwarded > 1000 && load.loaded * 2 > changes);
}
