//! Flows that come and go by the card's driver, whose registers are as far away as behind PCIe, while packets pass.

#[path = "../../tests/hold/world.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod host;

use crate::run::{Measured, Updates};
use card::compile::Attachment;
use card::driver::Driver;
use card::sim::{Received, Sent, SimCard};
use card::{Card, Commands};
use host::{Flow, ONE, TWO, WIRE, tables};
use model::{Effects, FlowChange, FlowKey, PacketView, Tables, VifId, decide};
use std::collections::{HashMap, VecDeque};

/// How long a register access takes the host, in clocks of 4 ns. A write is posted: writes to uncached memory leave a
/// CPU 50 to 300 ns apart. A read is a round trip: 850 ns were measured with an FPGA on PCIe 3.0; others report 2 us.
const WRITE: u64 = 25;
const READ: u64 = 250;
/// Packets that wait before an input: more than leave while the driver changes a flow.
const DEEP: usize = 2500;
/// Flows whose packets pass meanwhile, half of them in each direction.
const PASSING: u16 = 32;
/// The number of the first flow that comes, how many come, and how many stay before the oldest goes.
const FIRST: u16 = 1000;
const COMING: u16 = 40;
const STAYING: usize = 10;
/// Payload of a frame of 64 bytes.
const PAYLOAD: usize = 22;
/// Clocks without a packet after which missing packets count as lost.
const PATIENCE: u64 = 20_000;

/// The card behind a simulated PCIe.
struct Pcie {
    card: SimCard,
    /// Whether accesses take as long as over PCIe.
    far: bool,
    writes: u32,
    reads: u32,
}

impl Pcie {
    /// Makes an access after `before` of `clocks` clocks; if the card is not far, at once.
    fn access<T>(&mut self, before: u64, clocks: u64, access: impl FnOnce(&mut SimCard) -> T) -> T {
        let end = self.card.cycle() + if self.far { clocks } else { 0 };
        for _ in 0..if self.far { before } else { 0 } {
            self.card.tick();
        }
        let value = access(&mut self.card);
        while self.card.cycle() < end {
            self.card.tick();
        }
        value
    }
}

impl Card for Pcie {
    fn read32(&mut self, offset: u32) -> u32 {
        self.reads += u32::from(self.far);
        self.access(READ / 2, READ, |card| card.read32(offset))
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.writes += u32::from(self.far);
        self.access(0, WRITE, |card| card.write32(offset, value));
    }
}

struct Driven {
    tables: Tables,
    driver: Driver<Pcie>,
    flows: Vec<Flow>,
    next: usize,
    expected: HashMap<u16, u32>,
    missing: u64,
    last: u64,
    /// The interval in which packets count, in clocks.
    from: u64,
    to: u64,
    counts: [u64; 2],
}

/// Measures. Fails with a description of what is wrong with the card.
pub fn run(card: SimCard) -> Result<Measured, String> {
    let mut driven = Driven::new(card)?;
    driven.feed();
    driven.from = driven.now();
    driven.driver.commands().card().far = true;
    let mut on_card: VecDeque<FlowKey> = VecDeque::new();
    let mut all = 0;
    for number in FIRST..FIRST + COMING {
        on_card.push_back(driven.put(Flow::new(2 + number % 2 + number * 4, u32::MAX))?);
        all += 1;
        if on_card.len() > STAYING
            && let Some(connection) = on_card.pop_front()
        {
            driven.feed();
            driven.driver.forgotten(&connection).map_err(|error| error.to_string())?;
            all += 1;
        }
        if (0..2).any(|input| driven.sim().backlog(input) == 0) {
            return Err("the card ran out of packets meanwhile".to_owned());
        }
        driven.receive()?;
    }
    let clocks = driven.now() - driven.from;
    driven.to = driven.now();
    driven.driver.commands().card().far = false;
    while driven.missing > 0 {
        driven.sim().tick();
        driven.receive()?;
        if driven.now() - driven.last > PATIENCE {
            return Err(format!("{} packets are lost", driven.missing));
        }
    }
    let rate = driven.counts.map(|count| count as f64 / clocks as f64);
    let pcie = driven.driver.commands().card();
    let (reads, writes) = (pcie.reads, pcie.writes);
    let updates = Updates { all, clocks: Some(clocks), reads, writes, ..Updates::default() };
    Ok(Measured { rate, bytes: rate.map(|rate| 64.0 * rate), updates, clocks, ..Measured::default() })
}

impl Driven {
    fn new(card: SimCard) -> Result<Self, String> {
        let pcie = Pcie { card, far: false, writes: 0, reads: 0 };
        let set_up = || -> Result<_, card::CardError> {
            let commands = Commands::open(pcie)?.with_blank_memory();
            let mut driver = Driver::new(commands, [5; 5])?;
            let mut all = Tables::new();
            let (changes, neighbour) = tables();
            all.apply(&changes).expect("tables that fit each other");
            let effects = Effects { neighbour: Some(neighbour), ..Effects::default() };
            all.commit(&effects, 0, 0).expect("a neighbour");
            for (vif, egress) in [(ONE, 0), (TWO, 0), (WIRE, 1)] {
                driver.attach(&all, vif, Some(Attachment { port: vif.0, egress }))?;
            }
            driver.apply(&all, &changes)?;
            driver.neighbour(&all, neighbour.scope)?;
            Ok((all, driver))
        };
        let (tables, driver) = set_up().map_err(|error| error.to_string())?;
        let mut driven = Self {
            tables,
            driver,
            flows: Vec::new(),
            next: 0,
            expected: HashMap::new(),
            missing: 0,
            last: 0,
            from: u64::MAX,
            to: u64::MAX,
            counts: [0; 2],
        };
        // No packets pass before all flows are there: `feed` needs flows of both directions.
        let passing = || (0..PASSING).map(|number| Flow::new(2 + number % 2 + number / 2 * 4, u32::MAX));
        for flow in passing() {
            driven.put(flow)?;
        }
        driven.flows = passing().collect();
        Ok(driven)
    }

    fn sim(&mut self) -> &mut SimCard {
        &mut self.driver.commands().card().card
    }

    fn now(&mut self) -> u64 {
        self.sim().cycle()
    }

    /// Decides about a flow's first packet, as the host does, and has the driver put the flow onto the card.
    fn put(&mut self, mut flow: Flow) -> Result<FlowKey, String> {
        self.feed();
        let (port, frame, _) = flow.packet(PAYLOAD);
        let view = PacketView::parse(&frame, frame.len() as u32, None).expect("a frame");
        let decision = decide(&self.tables, &view, VifId(port), 0);
        self.tables.commit(&decision.effects, frame.len(), 0).expect("room for a connection");
        let on_card = self.driver.decided(&self.tables, &view, VifId(port), &decision);
        on_card.map_err(|error| error.to_string())?.ok_or("the flow isn't put onto the card")?;
        match decision.effects.flow {
            Some(FlowChange::Create { connection, .. }) => Ok(connection.original),
            _ => Err("the packet makes no connection".to_owned()),
        }
    }

    /// Queues packets of each flow in turn, until enough wait before both inputs.
    fn feed(&mut self) {
        while !self.flows.is_empty() && (0..2).any(|input| self.sim().backlog(input) < DEEP) {
            self.next = (self.next + 1) % self.flows.len();
            let flow = &mut self.flows[self.next];
            let (input, (port, bytes, _)) = (flow.input(), flow.packet(PAYLOAD));
            self.sim().send(input, Sent { port, direct: None, bytes });
            self.missing += 1;
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        for output in 0..2 {
            while let Some(packet) = self.sim().receive(output) {
                self.check(&packet)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, packet: &Received) -> Result<(), String> {
        if let Some(punt) = packet.punt {
            return Err(format!("the card leaves a packet to the host: {punt:?}"));
        }
        let (flow, number) = Flow::told(&packet.bytes);
        let expected = self.expected.entry(flow).or_default();
        if number != *expected {
            return Err(format!("flow {flow}: packet {number} came where {expected} was to come"));
        }
        *expected += 1;
        self.missing -= 1;
        self.last = packet.cycles.1;
        if (self.from..self.to).contains(&packet.cycles.1) {
            self.counts[usize::from(flow % 4 == 3)] += 1;
        }
        Ok(())
    }
}
