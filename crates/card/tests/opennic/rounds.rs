//! Packets through the box and, in Rust, through the card's pipe: compares the results, in the order of each pipe.

use super::shell::Shell;
use crate::host::pair::Pair;
use crate::host::talk::Carrier;
use crate::host::{Host, port_of, tables};
use card::Commands;
use card::compile::Attachment;
use card::expect::Outcome;
use card::registers::Punt;
use card::sim::{Received, Sent};
use model::generate::{Packet, Rng};
use model::{Decision, Forward, Lookup, PacketView, Tables, Vif, VifId, VifKind, rewrite};
use std::collections::{BTreeMap, VecDeque};

const PATIENCE: u64 = 20_000;

#[derive(Debug, Default)]
pub struct Counts {
    pub packets: usize,
    pub forwarded: usize,
    pub dropped: usize,
    pub punted: BTreeMap<Punt, usize>,
}

impl Counts {
    pub fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.forwarded += other.forwarded;
        self.dropped += other.dropped;
        for (punt, count) in other.punted {
            *self.punted.entry(punt).or_default() += count;
        }
    }
}

/// A packet that should leave by an output: its port, the reason if the host has to decide about it, its bytes.
type Left = (u16, Option<Punt>, Vec<u8>);
/// Packets by the pipe that took them, and by output.
type Expected = [[VecDeque<Left>; 2]; 2];

pub struct Rounds {
    pub host: Host<Pair<Shell>>,
    pub counts: Counts,
    sent: Vec<Packet>,
}

/// Returns whether an interface is attached to the card: the box's one MAC port is the first wire.
fn is_there(vif: VifId) -> bool {
    vif != VifId(2)
}

fn attachment(vif: &Vif) -> Option<Attachment> {
    let there = vif.kind != VifKind::Rdma && is_there(vif.id);
    there.then(|| Attachment { port: port_of(vif.id), egress: u8::from(vif.kind == VifKind::Wire) })
}

impl Rounds {
    /// Makes a host with random tables.
    pub fn new(rng: &mut Rng) -> Self {
        let mut rounds = Self::empty();
        let changes = tables(rng, true);
        rounds.host.set_up(rng, &changes);
        rounds
    }

    pub fn empty() -> Self {
        let commands = Commands::open(Pair::of(Shell::new())).unwrap().with_blank_memory();
        Self { host: Host::new(commands, attachment), counts: Counts::default(), sent: Vec::new() }
    }

    /// Gives the packets sent so far to both cards, in a different order each time, and compares the results.
    pub fn rounds(&mut self, rng: &mut Rng, times: usize) {
        let packets = std::mem::take(&mut self.sent);
        for _ in 0..times {
            let order: Vec<_> = (0..packets.len()).map(|_| rng.one(&packets)).collect();
            self.round(&order);
        }
    }

    fn round(&mut self, packets: &[Packet]) {
        let mut expected = Expected::default();
        for packet in packets {
            let wire = self.host.tables.vif(packet.ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
            let (input, port) = (usize::from(wire), port_of(packet.ingress));
            self.counts.packets += 1;
            match self.host.outcome(packet) {
                Outcome::Punt(punt) => {
                    *self.counts.punted.entry(punt).or_default() += 1;
                    expected[input][0].push_back((port, Some(punt), packet.frame.clone()));
                }
                Outcome::Drop(_) => self.counts.dropped += 1,
                Outcome::Forward { forward, egress, .. } => {
                    self.counts.forwarded += 1;
                    let left = (forward.port.0, None, rewritten(&forward, &packet.frame));
                    expected[input][usize::from(egress)].push_back(left);
                }
            }
            self.host.card().sim.send(input, Sent { port, direct: None, bytes: packet.frame.clone() });
        }
        self.drain(&mut expected);
    }

    fn drain(&mut self, expected: &mut Expected) {
        let sim = &mut self.host.card().sim;
        let mut last = sim.cycle();
        while expected.iter().flatten().any(|left| !left.is_empty()) {
            sim.tick();
            for output in 0..2 {
                while let Some(received) = sim.receive(output) {
                    last = sim.cycle();
                    check(expected, output, &received);
                }
            }
            assert!(sim.cycle() - last < PATIENCE, "packets are missing: {expected:?}");
        }
        for _ in 0..200 {
            sim.tick();
            assert!((0..2).all(|output| sim.receive(output).is_none()), "more than was sent");
        }
    }
}

impl Carrier for Rounds {
    fn tables(&self) -> &Tables {
        &self.host.tables
    }

    fn decide(&self, packet: &Packet) -> Option<Decision> {
        self.host.decide(packet)
    }

    /// Lets the host handle a packet first, as if its flow were new to the card. The coming rounds send it again.
    fn send(&mut self, packet: &Packet) {
        if !packet.frame.is_empty() && is_there(packet.ingress) {
            self.host.hosted(packet);
            self.sent.push(packet.clone());
        }
    }
}

/// Checks that a packet which left is a pipe's next one at that output.
fn check(expected: &mut Expected, output: usize, received: &Received) {
    let punt = received.punt.map(|meta| *Punt::ALL.get(usize::from(meta.reason)).expect("a reason"));
    let left = (received.port, punt, received.bytes.clone());
    for pipe in &mut *expected {
        if pipe[output].front().is_some_and(|front| is_same(&left, front)) {
            pipe[output].pop_front();
            return;
        }
    }
    let fronts = [0, 1].map(|pipe| expected[pipe][output].front());
    panic!("left by {output}: {left:02x?}\nexpected of the pipes: {fronts:02x?}");
}

/// Returns whether a packet left as expected. If the card stops parsing early, it can't report later errors.
fn is_same(left: &Left, expected: &Left) -> bool {
    const BLIND: [Punt; 3] = [Punt::Ipv6Extension, Punt::TunnelMalformed, Punt::LabelStack];
    let blind = expected.1.is_some() && left.1.is_some_and(|punt| BLIND.contains(&punt));
    left.0 == expected.0 && left.2 == expected.2 && (left.1 == expected.1 || blind)
}

fn rewritten(forward: &Forward, frame: &[u8]) -> Vec<u8> {
    let view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
    rewrite::rewrite(forward, &view).unwrap()
}
