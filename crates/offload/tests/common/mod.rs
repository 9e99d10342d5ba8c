//! A host with two guests and a wire, and a card in memory that carries packets through the card's pipe in Rust.
#![allow(dead_code, reason = "each test uses a part")]

use card::Card;
use card::buffers::Buffers;
use card::expect::{Holding, Memory, Outcome, Sizes, Windows, held, outcome};
use card::hold::{GROUPS, Hold, RING};
use card::registers::{self, PuntMeta};
use engine::testing::{Packet, TestPort};
use engine::{Engine, EngineConfig};
use executor::Executor;
use ipnet::IpNet;
use mem::{Accepts, Offload};
use model::{
    Change, Host, NeighbourFound, NeighbourScope, Network, Nexthop, NexthopId, PacketView, Tunnel, Vif,
    VifId, VifKind, Vrf, WireAttributes,
};
use offload::{CardExecutor, Carry, Incoming, Outgoing};
use packet::{Mac, TunnelKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Makes a test for every kind of card.
#[allow(unused_macros, reason = "not all tests use it")]
macro_rules! by_cards {
    ($($test:ident),*) => {
        mod soft {
            use $crate::common::{SoftCard, World};
            $(#[test] fn $test() { super::$test(World::new(SoftCard::new)); })*
        }
        #[cfg(feature = "card-sim")]
        mod sim {
            use $crate::common::World;
            use card::sim::SimCard;
            $(#[test] fn $test() { super::$test(World::new(|| SimCard::new(hbm::Timing::hbm2()))); })*
        }
    };
}

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const ONE: VifId = VifId(1);
pub const TWO: VifId = VifId(2);
pub const WIRE: VifId = VifId(10);

/// The card of a test: simulated, or a [`SoftCard`]. It stops for good when `stopped` is set.
pub struct Stopping<C> {
    card: C,
    stopped: Arc<AtomicBool>,
}

impl<C: Card> Card for Stopping<C> {
    fn read32(&mut self, offset: u32) -> u32 {
        if self.stopped.load(Ordering::Relaxed) { u32::MAX } else { self.card.read32(offset) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        if !self.stopped.load(Ordering::Relaxed) {
            self.card.write32(offset, value);
        }
    }
}

impl<C: Carry> Carry for Stopping<C> {
    fn pipes(&self) -> usize {
        self.card.pipes()
    }

    fn send(&mut self, input: usize, packet: Incoming) {
        self.card.send(input, packet);
    }

    fn backlog(&self, input: usize) -> usize {
        self.card.backlog(input)
    }

    fn receive(&mut self, output: usize) -> Option<Outgoing> {
        self.card.receive(output)
    }

    fn buffers(&mut self) -> &mut Buffers {
        self.card.buffers()
    }

    fn tick(&mut self) {
        if !self.stopped.load(Ordering::Relaxed) {
            self.card.tick();
        }
    }

    fn clocks(&self) -> u64 {
        self.card.clocks()
    }
}

/// Clocks that a packet spends in a [`SoftCard`].
const LATENCY: u64 = 40;

/// A packet on its way to an output, or a release.
enum Way {
    Out(Outgoing, Option<Hold>),
    Release(Hold),
}

/// A card as a program: the model of the card's memory decides the packets.
pub struct SoftCard {
    memory: Memory,
    windows: Windows,
    /// A guest's budget of punted packets, if set; the host's settings then have no effect.
    budget: Option<u32>,
    inputs: [VecDeque<Incoming>; 2],
    inside: VecDeque<(u64, usize, Way)>,
    holding: [Holding<Outgoing>; 2],
    outputs: [VecDeque<Outgoing>; 2],
    buffers: Buffers,
    clocks: u64,
}

impl SoftCard {
    pub fn new() -> Self {
        Self::with_ring(RING)
    }

    /// Makes a card whose hold groups have room for this many beats.
    pub fn with_ring(beats: usize) -> Self {
        Self {
            memory: Memory::new(Sizes::default()),
            windows: Windows::default(),
            budget: None,
            inputs: Default::default(),
            inside: VecDeque::new(),
            holding: [(); 2].map(|()| Holding::new(beats, 2)),
            outputs: Default::default(),
            buffers: Buffers::default(),
            clocks: 0,
        }
    }

    /// Makes a card with counters for this many flows.
    pub fn with_counters(flows: u32) -> Self {
        Self { memory: Memory::new(Sizes { flow_counters: flows, ..Sizes::default() }), ..Self::new() }
    }

    /// Makes a card that lets guests send only this many packets to the host per window.
    pub fn with_budget(budget: u32) -> Self {
        Self { budget: Some(budget), ..Self::new() }
    }

    /// Makes a card that can't read the second way of its flow table.
    pub fn without_second_way() -> Self {
        let mut card = Self::new();
        let bucket = |number: u32| 1 << 31 | number << 1;
        (0..1 << Sizes::default().flow_buckets)
            .for_each(|number| card.memory.fail(registers::Table::Flow, bucket(number), true));
        card
    }

    fn pass(&mut self, input: usize, packet: Incoming) {
        let Incoming { port, direct, mut bytes } = packet;
        let due = self.clocks + LATENCY;
        if let Some(meta) = direct {
            let mark = bytes.is_empty().then_some(meta);
            let out = Way::Out(Outgoing { port: meta.port, punt: mark, bytes }, None);
            let way = Hold::of_release(&meta).map_or(out, Way::Release);
            return self.inside.push_back((due, meta.egress.into(), way));
        }
        let hold = held(&self.memory, port, &bytes, bytes.len());
        let outcome = outcome(&self.memory, port, &bytes, bytes.len());
        let outcome = self.windows.limit(&self.memory, port, input == 1, self.clocks, outcome);
        let (output, out) = match outcome {
            Outcome::Drop(reason) => {
                self.buffers.give_back(bytes);
                return self.memory.count_drop(reason);
            }
            Outcome::Punt(reason) => {
                let meta = PuntMeta { reason: reason as u8, port, ..PuntMeta::default() };
                (0, Outgoing { port, punt: Some(meta), bytes })
            }
            Outcome::Forward { forward, egress, index } => {
                if let Some(index) = index {
                    self.memory.count_flow(index, 1, bytes.len() as u64);
                }
                let view = PacketView::parse(&bytes, bytes.len() as u32, None).unwrap();
                let out = model::rewrite::rewrite(&forward, &view).unwrap();
                bytes.clear();
                bytes.extend_from_slice(&out);
                (usize::from(egress), Outgoing { port: forward.port.0, punt: None, bytes })
            }
        };
        self.inside.push_back((due, output, Way::Out(out, hold)));
    }

    fn leave(&mut self, output: usize, way: Way) {
        let holding = &mut self.holding[output];
        match way {
            Way::Release(hold) => self.outputs[output].extend(holding.release(hold)),
            Way::Out(packet, hold) => {
                let beats = packet.bytes.len().div_ceil(64) + usize::from(packet.punt.is_some());
                self.outputs[output].extend(holding.pass(hold, beats, packet));
            }
        }
    }
}

impl Card for SoftCard {
    fn read32(&mut self, offset: u32) -> u32 {
        match offset {
            _ if offset == registers::identity::PIPES => 0x0101,
            _ if offset == 0x2000 + registers::engine::RELEASED => {
                self.holding[0].turns() | self.holding[1].turns() << GROUPS
            }
            _ if offset == 0x2000 + registers::engine::HOLD_FULL => {
                self.holding.iter().map(|holding| holding.full).sum()
            }
            _ => self.memory.read32(offset),
        }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let budget = self.budget.filter(|_| offset == 0x2000 + registers::engine::GUEST_BUDGET);
        self.memory.write32(offset, budget.unwrap_or(value));
    }
}

impl Carry for SoftCard {
    fn pipes(&self) -> usize {
        1
    }

    fn send(&mut self, input: usize, packet: Incoming) {
        self.inputs[input].push_back(packet);
    }

    fn backlog(&self, input: usize) -> usize {
        self.inputs[input].len()
    }

    fn receive(&mut self, output: usize) -> Option<Outgoing> {
        self.outputs[output].pop_front()
    }

    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn tick(&mut self) {
        self.clocks += 1;
        for input in 0..2 {
            if let Some(packet) = self.inputs[input].pop_front() {
                self.pass(input, packet);
            }
        }
        while self.inside.front().is_some_and(|(due, ..)| *due <= self.clocks) {
            let (_, output, way) = self.inside.pop_front().unwrap();
            self.leave(output, way);
        }
    }

    fn clocks(&self) -> u64 {
        self.clocks
    }
}

/// A host with its executor, two guests and a wire.
pub struct World {
    pub engine: Arc<Engine>,
    pub card: Arc<CardExecutor>,
    pub one: TestPort,
    pub two: TestPort,
    pub wire: TestPort,
    pub stopped: Arc<AtomicBool>,
}

impl World {
    pub fn new<C: Carry + 'static>(open: impl FnOnce() -> C + Send + 'static) -> Self {
        let engine = Engine::new(&EngineConfig {
            cache_entries: 1 << 12,
            announces: false,
            ..EngineConfig::default()
        })
        .unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let shared = stopped.clone();
        let card = move || Stopping { card: open(), stopped: shared };
        let card = CardExecutor::start("card-test", engine.clone(), card).unwrap();
        card.apply(&tables()).unwrap();
        let port = || TestPort::new(Accepts::default(), 100);
        let (one, two, wire) = (port(), port(), port());
        for (vif, port) in [(ONE, &one), (TWO, &two), (WIRE, &wire)] {
            card.attach(vif, port.open()).unwrap();
        }
        let found = NeighbourFound {
            scope: NeighbourScope::Wire(WIRE),
            addr: "192.0.2.9".parse().unwrap(),
            mac: Mac([2, 0xbb, 0, 0, 0, 9]),
        };
        engine.learn_neighbour(&found, WIRE);
        Self { engine, card, one, two, wire, stopped }
    }

    /// Returns the numbers of packets that the card forwarded and punted, once it has processed all: it counts a packet
    /// a moment after the packet leaves.
    pub fn carried(&self) -> (u64, u64) {
        let mut carried = (0, 0);
        until(|| {
            let card = self.card.status().card.unwrap();
            carried = (card.forwarded, card.punted.iter().map(|(_, count)| count).sum::<u64>());
            carried.0 + carried.1 + card.dropped + card.lost == card.received
        });
        carried
    }
}

/// Returns the packets of this flow's connection, the packets of its replies, and whether some are missing.
pub fn counted(world: &World, flow: u16) -> Option<(u64, u64, bool)> {
    let mut found = None;
    world.card.flows(&mut |info| {
        if info.key.src.port == flow {
            found = Some((info.forward.packets, info.reply.packets, info.approximate));
        }
        true
    });
    found
}

pub fn until(mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn vif(id: VifId, kind: VifKind) -> Vif {
    let guest = kind != VifKind::Wire;
    Vif {
        vrf: guest.then_some(Vrf(1)),
        mac: Some(Mac([2, 0, 0, 0, 0, id.0 as u8])),
        addresses: if guest { vec![format!("10.1.1.{id}").parse().unwrap()] } else { Vec::new() },
        policy: guest,
        ..Vif::new(id, &format!("vif{id}"), kind)
    }
}

/// Returns tables with two guests of a network, and a route to another host by MPLS over UDP.
pub fn tables() -> Vec<Change> {
    let underlay = WireAttributes { addresses: vec![net("192.0.2.1/24")], ..WireAttributes::default() };
    let wire = Vif { mtu: 1600, wire: Some(underlay), ..vif(WIRE, VifKind::Wire) };
    let network = Network {
        gateways: vec![net("10.1.1.254/24")],
        vni: Some(100),
        members: vec![ONE, TWO],
        ..Network::new(Vrf(1), "blue")
    };
    let tunnel =
        Tunnel { kind: TunnelKind::MplsUdp, remote: "192.0.2.9".parse().unwrap(), id: 77, mac: None };
    let guest = |id: VifId| Nexthop::Encap { vif: id, mac: Mac([2, 0, 0, 0, 0, id.0 as u8]) };
    let host = |id: VifId| net(&format!("10.1.1.{id}/32"));
    let mut changes = vec![
        Change::SetHost(Host { tunnel_source: vec!["192.0.2.1".parse().unwrap()], ..Host::default() }),
        Change::PutNetwork(network),
        Change::PutVif(vif(ONE, VifKind::Tap)),
        Change::PutVif(vif(TWO, VifKind::Tap)),
        Change::PutVif(wire),
        Change::PutNexthop(NexthopId(9), Nexthop::Tunnel(tunnel)),
        Change::PutRoute { vrf: Vrf(1), prefix: net("10.2.0.0/16"), nexthop: NexthopId(9) },
    ];
    for id in [ONE, TWO] {
        let nexthop = NexthopId(id.0.into());
        changes.push(Change::PutNexthop(nexthop, guest(id)));
        changes.push(Change::PutRoute { vrf: Vrf(1), prefix: host(id), nexthop });
        changes.push(Change::PutMpls { label: 40 + u32::from(id.0), nexthop });
    }
    changes
}

pub fn frame(text: &str) -> Packet {
    (model::text::parse(text).unwrap(), Offload::default())
}

/// Makes a bridged UDP packet from one guest to the other, with its number at its end.
pub fn numbered(from: VifId, to: VifId, flow: u16, number: u32) -> Packet {
    let mut packet = frame(&format!(
        "eth 02:00:00:00:00:0{from} > 02:00:00:00:00:0{to} / ip4 10.1.1.{from} > 10.1.1.{to} \
         / udp {flow} > {flow} nosum / payload 40"
    ));
    let at = packet.0.len() - 4;
    packet.0[at..].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Returns the flow and the number of a packet.
pub fn number_of(frame: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes([frame[34], frame[35]]);
    (flow, u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap()))
}
