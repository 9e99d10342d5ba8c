//! A simulated card and its host, in lock-step with the card's pipe in Rust: the fate of each packet.

use super::both::{Both, PIPES, STREAMS};
use super::ledger::{DROPPED, FLOW, Ledger, PUNTED, RECEIVED, SENT};
use crate::host::talk::Carrier;
use crate::host::{Host, Known, port_of};
use card::Commands;
use card::compile::Attachment;
use card::expect::{Outcome, dropped_flow, outcome};
use card::registers::{Punt, PuntMeta, Table};
use card::sim::{Received, Sent};
use model::generate::{Packet, Rng};
use model::vectors::{Case, Step, load};
use model::{Decision, Forward, Lookup, PacketView, Tables, TunnelKind, Vif, VifId, VifKind, rewrite};
use std::collections::{BTreeMap, VecDeque};

/// Clocks without a packet after which the card counts as hung.
pub const PATIENCE: u64 = 20_000;

/// How often a command is polled before the card counts as hung.
const POLLS: u32 = 5000;

#[derive(Debug, Default)]
pub struct Counts {
    pub packets: usize,
    pub forwarded: usize,
    /// Packets forwarded by a flow.
    pub tracked: usize,
    /// Packets forwarded through a UDP tunnel over IPv6, with a checksum.
    pub checksummed: usize,
    pub dropped: BTreeMap<u8, usize>,
    pub punted: BTreeMap<Punt, usize>,
    pub direct: usize,
    /// Number of clocks in which packets were under way, and of all clocks.
    pub clocks: u64,
    pub all_clocks: u64,
}

impl Counts {
    /// Returns the percentage of packets that were forwarded or dropped.
    pub fn served(&self) -> usize {
        100 * (self.forwarded + self.dropped.values().sum::<usize>()) / self.packets.max(1)
    }
}

/// The form in which a packet must leave.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    port: u16,
    punt: Option<Punt>,
    bytes: Vec<u8>,
}

/// A packet, its expected fate (the output by which it leaves, or the reason why it is dropped), and its flow's
/// counter.
#[derive(Clone)]
pub struct Prepared {
    input: usize,
    sent: Sent,
    fate: Result<(usize, Left), u8>,
    index: Option<u32>,
    checksummed: bool,
}

impl Prepared {
    /// Returns the pipe and the port by which the packet comes in.
    pub const fn place(&self) -> (usize, u16) {
        (self.input, self.sent.port)
    }

    /// Returns whether the card itself decides the packet.
    pub fn is_served(&self) -> bool {
        self.fate.as_ref().map_or(true, |(_, left)| left.punt.is_none())
    }

    /// Returns the counter of the packet's flow.
    pub const fn index(&self) -> Option<u32> {
        self.index
    }

    /// Returns the reason why the packet goes to the host, if it does.
    pub fn punt(&self) -> Option<Punt> {
        self.fate.as_ref().ok().and_then(|(_, left)| left.punt)
    }

    /// Returns whether the packet leaves with an outer checksum over its payload.
    pub const fn is_checksummed(&self) -> bool {
        self.checksummed
    }

    /// Returns the reason why the packet is dropped, if it is.
    pub fn drop(&self) -> Option<u8> {
        self.fate.as_ref().err().copied()
    }
}

/// A host, and the card and its model in lock-step.
pub struct Lockstep {
    pub host: Host<Both>,
    pub counts: Counts,
    pub ledger: Ledger,
    /// The expected number of memory's error responses since reset; `None` stands for any number.
    pub errors: Option<u32>,
    sent: Vec<Packet>,
    /// Packets that must leave, by output: first those that each pipe decides, then those that it passes for the host.
    expected: [[VecDeque<Left>; STREAMS]; 2 * STREAMS],
    missing: usize,
    /// Number of packets that each pipe punted.
    punts: [u32; STREAMS],
    clock: u64,
}

/// Returns the pipe of an interface's packets, which has the number of the output to the interface.
pub fn input_of(id: VifId, wire: bool) -> usize {
    usize::from(id.0).rem_euclid(PIPES) + if wire { PIPES } else { 0 }
}

fn attachment(vif: &Vif) -> Option<Attachment> {
    let egress = input_of(vif.id, vif.kind == VifKind::Wire) as u8;
    (vif.kind != VifKind::Rdma).then_some(Attachment { port: port_of(vif.id), egress })
}

impl Carrier for Lockstep {
    fn tables(&self) -> &Tables {
        &self.host.tables
    }

    fn decide(&self, packet: &Packet) -> Option<Decision> {
        self.host.decide(packet)
    }

    /// Lets the host handle a packet. It comes again in the next rounds.
    fn send(&mut self, packet: &Packet) {
        if !packet.frame.is_empty() {
            self.host.hosted(packet);
            self.sent.push(packet.clone());
        }
    }
}

impl Lockstep {
    pub fn new() -> Self {
        Self {
            host: Host::new(open(Both::new()), attachment),
            counts: Counts::default(),
            ledger: Ledger::default(),
            errors: Some(0),
            sent: Vec::new(),
            expected: Default::default(),
            missing: 0,
            punts: [0; STREAMS],
            clock: 0,
        }
    }

    /// Makes one with the tables of the text's first case, after the host has learned everything that these need.
    pub fn of(text: &str) -> (Self, Case) {
        let mut bench = Self::new();
        let case = load(text).unwrap().remove(0);
        for step in &case.steps {
            match step {
                Step::Apply(changes) => assert!(bench.host.apply(changes)),
                Step::Learn(effects) => bench.host.effects(effects, 0),
                Step::GiveUp(scope, addr) => bench.host.tables.give_up(*scope, *addr),
                Step::Wait(_) | Step::Packet(_) => {}
            }
        }
        (bench, case)
    }

    /// Resets the card, and starts again without tables. The counters go on.
    pub fn renewed(self) -> Self {
        let (both, chip) = self.host.driver.into_commands().into_card().reset();
        let mut commands = open(both);
        for (table, address) in chip {
            commands.write(table, address, &[0; 64]).unwrap();
        }
        let (host, errors) = (Host::new(commands, attachment), Some(0));
        Self { host, errors, punts: [0; STREAMS], sent: Vec::new(), ..self }
    }

    pub fn line<const N: usize>(&mut self, table: Table, address: u32) -> [u8; N] {
        self.host.card().memory().line(table, address)
    }

    /// Computes the expected fate of a packet.
    pub fn prepare(&mut self, packet: &Packet) -> Prepared {
        let wire = self.host.tables.vif(packet.ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
        self.prepare_frame(input_of(packet.ingress, wire), port_of(packet.ingress), &packet.frame)
    }

    /// Computes the expected fate of any frame that comes in by a port.
    pub fn prepare_frame(&mut self, input: usize, port: u16, frame: &[u8]) -> Prepared {
        let memory = self.host.card().memory();
        let outcome = outcome(memory, port, frame, frame.len());
        let checksummed = has_checksum(&outcome);
        let (fate, index) = match outcome {
            Outcome::Punt(punt) => {
                (Ok((input.rem_euclid(PIPES), Left { port, punt: Some(punt), bytes: frame.to_vec() })), None)
            }
            Outcome::Drop(reason) => (Err(reason), dropped_flow(memory, port, frame, frame.len())),
            Outcome::Forward { forward, egress, index } => {
                let left = Left { port: forward.port.0, punt: None, bytes: rewritten(&forward, frame) };
                (Ok((usize::from(egress), left)), index)
            }
        };
        Prepared { input, sent: Sent { port, direct: None, bytes: frame.to_vec() }, fate, index, checksummed }
    }

    pub fn take_sent(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.sent)
    }

    /// Takes the packets sent so far, with their expected fates.
    pub fn prepared(&mut self) -> Vec<Prepared> {
        self.take_sent().iter().map(|packet| self.prepare(packet)).collect()
    }

    pub fn feed(&mut self, packet: &Prepared) {
        let (port, len) = (u32::from(packet.sent.port), packet.sent.bytes.len());
        self.counts.packets += 1;
        self.ledger.packet(RECEIVED, port, len);
        match &packet.fate {
            Err(reason) => {
                *self.counts.dropped.entry(*reason).or_default() += 1;
                self.ledger.packet(DROPPED, u32::from(*reason), len);
            }
            Ok((output, left)) => {
                if left.punt.is_none() {
                    self.counts.forwarded += 1;
                    self.counts.tracked += usize::from(packet.index.is_some());
                    self.counts.checksummed += usize::from(packet.checksummed);
                    self.ledger.packet(SENT, left.port.into(), left.bytes.len());
                }
                self.expected[packet.input][*output].push_back(left.clone());
                self.missing += 1;
            }
        }
        if let Some(index) = packet.index {
            self.ledger.packet(FLOW, index, len);
        }
        self.host.card().send(packet.input, packet.sent.clone());
    }

    /// Queues a packet that the host decided, to be passed by a pipe.
    pub fn feed_direct(&mut self, input: usize, port: u16, egress: u8, bytes: &[u8]) {
        let meta = PuntMeta { port, size: bytes.len() as u16, egress, ..PuntMeta::default() };
        let left = Left { port, punt: None, bytes: bytes.to_vec() };
        self.expected[STREAMS + input][usize::from(egress)].push_back(left);
        self.missing += 1;
        self.counts.direct += 1;
        self.host.card().send(input, Sent { port: 0, direct: Some(meta), bytes: bytes.to_vec() });
    }

    /// Gives `count` packets to both cards: mostly those that the card decides itself.
    pub fn round(&mut self, rng: &mut Rng, packets: &[Prepared], count: usize) {
        let (served, others): (Vec<_>, Vec<_>) = packets.iter().partition(|packet| packet.is_served());
        for _ in 0..count {
            let some =
                if others.is_empty() || !served.is_empty() && rng.percent(80) { &served } else { &others };
            self.feed(some[rng.below(some.len())]);
        }
        self.drain();
    }

    /// Waits until all packets have left that must, and checks that no others have, and that the counters are right.
    pub fn drain(&mut self) {
        let start = self.host.card().sim().cycle();
        let mut last = start;
        // The last packets may be dropped: then they go in, and none comes out.
        let mut backlog = self.backlog();
        while self.missing > 0 || backlog > 0 {
            self.host.card().tick();
            let now = self.host.card().sim().cycle();
            let before = std::mem::replace(&mut backlog, self.backlog());
            if self.collect() || backlog < before {
                last = now;
            }
            assert!(now - last < PATIENCE, "{} packets are missing: {}", self.missing, self.fronts());
        }
        // After this, all packets that must be dropped have been.
        self.host.driver.commands().barrier().unwrap();
        self.ledger.check(self.host.driver.commands());
        assert!(!self.collect(), "more than was sent");
        if let Some(errors) = self.errors {
            assert_eq!(self.host.driver.commands().memory_errors().count, errors);
        }
        let now = self.host.card().sim().cycle();
        self.counts.clocks += last - start;
        self.counts.all_clocks += now - std::mem::replace(&mut self.clock, now);
    }

    /// Returns the number of packets that have not entered.
    fn backlog(&mut self) -> usize {
        let sim = self.host.card().sim();
        (0..STREAMS).map(|input| sim.backlog(input)).sum()
    }

    /// Takes the packets that have left. Returns whether there were any.
    fn collect(&mut self) -> bool {
        let before = self.missing;
        for output in 0..STREAMS {
            while let Some(received) = self.host.card().receive(output) {
                self.check(output, received);
            }
        }
        before != self.missing
    }

    /// Checks that a packet which left is the next one of a pipe for that output.
    fn check(&mut self, output: usize, received: Received) {
        let punt = received.punt.map(|meta| self.punted(output, &meta, &received));
        let left = Left { port: received.port, punt, bytes: received.bytes };
        for pipe in &mut self.expected {
            if pipe[output].front().is_some_and(|front| is_same(&left, front)) {
                pipe[output].pop_front();
                self.missing -= 1;
                if let Some(punt) = left.punt {
                    *self.counts.punted.entry(punt).or_default() += 1;
                    self.ledger.packet(PUNTED, punt as u32, left.bytes.len());
                }
                return;
            }
        }
        panic!("left by {output}: {}\nexpected of the pipes: {}", told(&left), self.fronts());
    }

    /// Describes the packets that each pipe must send next.
    fn fronts(&self) -> String {
        let fronts =
            self.expected.each_ref().map(|pipe| pipe.each_ref().map(|output| output.front().map(told)));
        format!("{fronts:#?}")
    }

    /// Checks the metadata of a punted packet, which counts the earlier ones. Returns the reason.
    pub fn punted(&mut self, output: usize, meta: &PuntMeta, received: &Received) -> Punt {
        assert_eq!((meta.port, usize::from(meta.size)), (received.port, received.bytes.len()), "{meta:?}");
        let count = &mut self.punts[output + if meta.from_tunnel { PIPES } else { 0 }];
        assert_eq!(meta.count, *count, "{meta:?}");
        *count += 1;
        *Punt::ALL.get(usize::from(meta.reason)).expect("a reason")
    }
}

fn open(both: Both) -> Commands<Both> {
    Commands::open(both).unwrap().with_blank_memory().with_polls(POLLS)
}

/// Returns whether a packet left as expected.
fn is_same(left: &Left, expected: &Left) -> bool {
    let reason = match (left.punt, expected.punt) {
        (Some(left), Some(expected)) => is_same_reason(left, expected),
        (left, expected) => left == expected,
    };
    left.port == expected.port && left.bytes == expected.bytes && reason
}

/// Returns whether two reasons count as the same. If the card stops parsing early, it can't know later errors. It does
/// not see errors inside ARP at all, so it may find errors around it.
fn is_same_reason(left: Punt, expected: Punt) -> bool {
    const BLIND: [Punt; 4] =
        [Punt::Ipv6Extension, Punt::TunnelMalformed, Punt::LabelStack, Punt::HeaderTooLong];
    const AROUND: [Punt; 4] = [Punt::NotForUs, Punt::UnknownRemote, Punt::UnknownVni, Punt::NoVrf];
    left == expected || BLIND.contains(&left) || expected == Punt::Neighbour && AROUND.contains(&left)
}

fn told(left: &Left) -> String {
    let shown = &left.bytes[..left.bytes.len().min(140)];
    format!("port {}, {:?}, {} bytes: {shown:02x?}", left.port, left.punt, left.bytes.len())
}

/// Returns whether the packet that leaves has an outer checksum over its payload.
fn has_checksum(outcome: &Outcome) -> bool {
    let Outcome::Forward { forward, .. } = outcome else { return false };
    forward.encap.is_some_and(|encap| encap.dst.is_ipv6() && encap.kind != TunnelKind::MplsGre)
}

pub fn rewritten(forward: &Forward, frame: &[u8]) -> Vec<u8> {
    let view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
    rewrite::rewrite(forward, &view).unwrap()
}
