//! The simulated card: the engine's SystemVerilog, translated by Verilator, with a timing model of HBM at its ports.
//!
//! Everything moves only in [`SimCard::tick`], one clock of 4 ns; reading and writing registers takes ticks too.

mod memory;
mod stream;

pub use memory::place;
pub use stream::{Received, Sent};

use crate::Card;
use crate::buffers::Buffers;
use crate::registers::Table;
use crate::step::Line;
use hbm::Timing;
use memory::Channels;
use rtl::EngineSim;
use stream::{Input, Output};

/// Clocks of a register access after which the card counts as hung. Registers answer in about ten.
const PATIENCE: u32 = 1000;

pub struct SimCard {
    engine: EngineSim,
    channels: Channels,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    /// Buffers of packets that went in, to be used for packets that come out.
    buffers: Buffers,
    /// Which inputs offer beats, one bit each.
    offers: u32,
    /// Which outputs accept beats, one bit each.
    takes: u32,
    timing: Timing,
    cycle: u64,
}

impl SimCard {
    /// Makes a card with one pipe in each direction, out of reset, with empty memory.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self::of(EngineSim::new(), timing)
    }

    /// Makes a card with two pipes in each direction, out of reset, with empty memory.
    #[cfg(feature = "card-sim-2x2")]
    #[must_use]
    pub fn new_2x2(timing: Timing) -> Self {
        Self::of(EngineSim::engine_sim_2x2(), timing)
    }

    fn of(mut engine: EngineSim, timing: Timing) -> Self {
        let streams = engine.m_beats().words().len() / stream::WORDS;
        engine.reset(4);
        Self {
            channels: Channels::new(&engine, timing),
            engine,
            inputs: (0..streams).map(|_| Input::default()).collect(),
            outputs: (0..streams).map(|_| Output::default()).collect(),
            buffers: Buffers::default(),
            offers: u32::MAX,
            takes: u32::MAX,
            timing,
            cycle: 0,
        }
    }

    /// Resets the engine and empties the memory. The tables on chip and the counters stay as they are, because a reset
    /// does not reach RAM contents.
    pub fn reset(&mut self) {
        self.inputs.fill_with(Input::default);
        self.outputs.fill_with(Output::default);
        self.engine.set_s_valid(0);
        self.engine.reset(4);
        self.channels = Channels::new(&self.engine, self.timing);
        (self.offers, self.takes) = (u32::MAX, u32::MAX);
    }

    /// Stores a line of a table in memory at once, bypassing the engine. Allowed only before the first packet since
    /// reset: later, the engine's caches may have the line.
    pub fn load(&mut self, table: Table, address: u32, line: &Line) {
        let (channel, at) = self.place(table, address);
        self.channels.all()[channel].poke(at, line);
    }

    /// Sets whether memory answers reads and writes of a line of a table with an error.
    pub fn fail(&mut self, table: Table, address: u32, fails: bool) {
        let (channel, at) = self.place(table, address);
        self.channels.all()[channel].fail(at, fails);
    }

    /// Returns the channel of a table's line in memory, and its address there. A nexthop has two halves; returns the
    /// place of the first.
    fn place(&self, table: Table, address: u32) -> (usize, u64) {
        let pipes = self.pipes();
        let (way, bridge, route, hop) = (4 * pipes, 2 * pipes, 4 * pipes, 2 * pipes);
        let (first, banks, number, bytes, at) = match table {
            Table::Flow => {
                let number = (address & 0x7fff_ffff) >> 1;
                ((address >> 31) as usize * way, way, number, 64, 32 * u64::from(address & 1))
            }
            Table::Bridge => (2 * way, bridge, address, 32, 0),
            Table::Nexthop => (2 * way + bridge + route, hop, address, 64, 0),
            _ => (2 * way + bridge, route, address, 32, 0),
        };
        let (bank, within) = place(number, banks);
        (first + bank, bytes * u64::from(within) + at)
    }

    /// Returns the number of pipes of each direction.
    #[must_use]
    pub fn pipes(&self) -> usize {
        self.inputs.len() / 2
    }

    /// Returns the number of clocks since reset.
    #[must_use]
    pub const fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Queues a packet for an input: first pipes from guests, then those from wires.
    pub fn send(&mut self, input: usize, packet: Sent) {
        self.inputs[input].push(packet);
    }

    /// Returns the number of packets queued for an input that have not entered completely.
    #[must_use]
    pub fn backlog(&self, input: usize) -> usize {
        self.inputs[input].backlog()
    }

    /// Returns the next complete packet from an output: first the queues to the host, then the wires.
    pub fn receive(&mut self, output: usize) -> Option<Received> {
        self.outputs[output].pop()
    }

    /// Returns the buffers for packets to send. Received packets may be returned to them.
    pub const fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Sets which inputs offer beats, one bit each. A beat that is already offered stays.
    pub const fn set_offering(&mut self, inputs: u32) {
        self.offers = inputs;
    }

    /// Sets which outputs accept beats, one bit each.
    pub const fn set_taking(&mut self, outputs: u32) {
        self.takes = outputs;
    }

    /// Returns the memory channels, to inspect or to stall them.
    pub fn memory(&mut self) -> &mut [hbm::Channel] {
        self.channels.all()
    }

    pub fn tick(&mut self) {
        let engine = &mut self.engine;
        for (index, input) in self.inputs.iter_mut().enumerate() {
            input.offer(engine, index, self.offers >> index & 1 != 0);
        }
        engine.set_m_ready((self.takes & ((1 << self.outputs.len()) - 1)) as _);
        self.channels.drive(engine);
        engine.eval();
        let ready = u32::from(engine.s_ready());
        for (index, input) in self.inputs.iter_mut().enumerate() {
            input.advance(ready >> index & 1 != 0, &mut self.buffers);
        }
        let sent = u32::from(engine.m_valid()) & self.takes;
        for (index, output) in self.outputs.iter_mut().enumerate() {
            if sent >> index & 1 != 0 {
                output.take(engine, index, self.cycle, &mut self.buffers);
            }
        }
        self.channels.take(engine);
        engine.clock();
        self.cycle += 1;
    }

    /// Ticks until `done` returns true. Returns false if that takes longer than a register access can.
    fn until(&mut self, done: impl Fn(&EngineSim) -> bool) -> bool {
        for _ in 0..PATIENCE {
            self.tick();
            if done(&self.engine) {
                return true;
            }
        }
        false
    }
}

impl Card for SimCard {
    fn read32(&mut self, offset: u32) -> u32 {
        self.engine.set_axil_araddr(offset);
        self.engine.set_axil_arvalid(true);
        self.engine.set_axil_rready(true);
        let asked = self.until(EngineSim::axil_arready);
        self.tick();
        self.engine.set_axil_arvalid(false);
        let answered = asked && self.until(EngineSim::axil_rvalid);
        let value = self.engine.axil_rdata();
        self.tick();
        self.engine.set_axil_rready(false);
        // Reads like a missing card on PCIe.
        if answered { value } else { u32::MAX }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.engine.set_axil_awaddr(offset);
        self.engine.set_axil_wdata(value);
        self.engine.set_axil_awvalid(true);
        self.engine.set_axil_wvalid(true);
        self.engine.set_axil_bready(true);
        self.until(EngineSim::axil_awready);
        self.tick();
        self.engine.set_axil_awvalid(false);
        self.engine.set_axil_wvalid(false);
        self.until(|engine| !engine.axil_bvalid());
        self.engine.set_axil_bready(false);
    }
}
