//! OpenNIC's shell, as its box sees it: packets in beats with exact `tkeep`, two clocks, AXI4-Lite, and the reset.

use super::memory::Channels;
use card::Card;
use card::registers::PuntMeta;
use card::sim::{Received, Sent};
use model::generate::Rng;
use rtl::OpennicBox;
use std::collections::VecDeque;

const BEAT: usize = 64;
/// Output number in a packet from the host which says that the guest at `port` sent it.
const TO_PIPE: u8 = 15;
/// The engine's number of the MAC port, as in `crates/rtl/build/tops.rs`.
pub const WIRE: u16 = 101;
/// Clocks after which the box counts as hung.
const PATIENCE: usize = 2000;

#[derive(Default)]
struct Input {
    queue: VecDeque<Vec<u8>>,
    done: usize,
    offered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Beat {
    data: Vec<u8>,
    keep: u64,
    last: bool,
    size: u16,
    to: (u16, u16),
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    begun: u64,
    size: Option<u16>,
    /// The beat that was not taken in the previous clock.
    waits: Option<Beat>,
    done: VecDeque<Received>,
}

pub struct Shell {
    top: OpennicBox,
    memory: Channels,
    inputs: [Input; 2],
    outputs: [Output; 2],
    rng: Rng,
    cycle: u64,
    slow: bool,
    /// Percent of the clocks in which an input has no new beat, and an output takes none.
    pub stall: usize,
}

impl Shell {
    /// Makes a box out of its first reset.
    pub fn new() -> Self {
        let top = OpennicBox::new();
        let mut shell = Self {
            memory: Channels::new(&top),
            top,
            inputs: Default::default(),
            outputs: Default::default(),
            rng: Rng::new(1),
            cycle: 0,
            slow: false,
            stall: 0,
        };
        shell.top.set_mod_rstn(true);
        for _ in 0..300 {
            shell.tick();
        }
        assert!(!shell.is_reset_done(), "the shell asks for the first reset");
        shell.reset(true);
        shell
    }

    pub const fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Takes a packet in the form that the engine takes, and adds the metadata that the box expects in front.
    pub fn send(&mut self, input: usize, packet: Sent) {
        if input == 1 {
            assert_eq!(packet.port, WIRE);
            return self.send_raw(1, packet.bytes);
        }
        let guest = PuntMeta { port: packet.port, egress: TO_PIPE, ..PuntMeta::default() };
        let meta = packet.direct.unwrap_or(guest);
        self.send_raw(0, [&meta.encode()[..], &packet.bytes].concat());
    }

    pub fn send_raw(&mut self, input: usize, bytes: Vec<u8>) {
        self.inputs[input].queue.push_back(bytes);
    }

    pub fn receive(&mut self, output: usize) -> Option<Received> {
        self.outputs[output].done.pop_front()
    }

    /// Waits for the next packet of an output.
    pub fn wait(&mut self, output: usize) -> Received {
        for _ in 0..PATIENCE {
            self.tick();
            if let Some(received) = self.receive(output) {
                return received;
            }
        }
        panic!("nothing came out of {output}");
    }

    /// Waits for the next packet of an output, which must have this many bytes.
    pub fn wait_for(&mut self, output: usize, size: usize) -> Received {
        let received = self.wait(output);
        assert_eq!(
            received.bytes.len(),
            size,
            "a packet from before the reset, or a part of it: {received:?}"
        );
        received
    }

    /// Advances by a clock of 250 MHz. Every other one is an edge of the slow clock, too.
    pub fn tick(&mut self) {
        for index in 0..2 {
            self.offer(index);
        }
        let takes = [0, 1].map(|_| !self.rng.percent(self.stall));
        self.top.set_m_axis_qdma_c2h_tready(takes[0]);
        self.top.set_m_axis_adap_tx_250mhz_tready(takes[1]);
        self.memory.drive(&mut self.top);
        self.top.eval();
        let ready = [self.top.s_axis_qdma_h2c_tready(), self.top.s_axis_adap_rx_250mhz_tready()];
        for (input, ready) in self.inputs.iter_mut().zip(ready) {
            input.advance(ready);
        }
        for (index, takes) in takes.into_iter().enumerate() {
            let beat = self.beat(index);
            self.outputs[index].see(beat, takes, index == 0, self.cycle);
        }
        self.memory.take(&self.top);
        self.slow = !self.slow;
        self.top.set_axis_aclk(true);
        self.top.set_axil_aclk(self.slow);
        self.top.eval();
        self.top.set_axis_aclk(false);
        self.top.eval();
        self.cycle += 1;
    }

    fn offer(&mut self, index: usize) {
        let input = &mut self.inputs[index];
        if input.offered {
            return;
        }
        let packet = input.queue.front().filter(|_| !self.rng.percent(self.stall));
        input.offered = packet.is_some();
        let mut beat = [0xdd; BEAT];
        let (mut keep, mut last, mut size) = (0, false, 0);
        if let Some(packet) = packet {
            let rest = &packet[input.done..];
            let count = rest.len().min(BEAT);
            beat[..count].copy_from_slice(&rest[..count]);
            (keep, last, size) = (mask(count), rest.len() <= BEAT, packet.len() as u16);
        }
        let top = &mut self.top;
        if index == 0 {
            top.set_s_axis_qdma_h2c_tvalid(input.offered);
            top.s_axis_qdma_h2c_tdata_mut().set_bytes(0, &beat);
            top.set_s_axis_qdma_h2c_tkeep(keep);
            top.set_s_axis_qdma_h2c_tlast(last);
            top.set_s_axis_qdma_h2c_tuser_size(size);
            top.set_s_axis_qdma_h2c_tuser_src(1);
        } else {
            top.set_s_axis_adap_rx_250mhz_tvalid(input.offered);
            top.s_axis_adap_rx_250mhz_tdata_mut().set_bytes(0, &beat);
            top.set_s_axis_adap_rx_250mhz_tkeep(keep);
            top.set_s_axis_adap_rx_250mhz_tlast(last);
            top.set_s_axis_adap_rx_250mhz_tuser_size(size);
            top.set_s_axis_adap_rx_250mhz_tuser_src(1 << 6);
        }
    }

    fn beat(&self, output: usize) -> Option<Beat> {
        let top = &self.top;
        let mut data = vec![0; BEAT];
        if output == 0 {
            top.m_axis_qdma_c2h_tdata().copy_bytes(0, &mut data);
            let to = (top.m_axis_qdma_c2h_tuser_src(), top.m_axis_qdma_c2h_tuser_dst());
            let (keep, last) = (top.m_axis_qdma_c2h_tkeep(), top.m_axis_qdma_c2h_tlast());
            let beat = Beat { data, keep, last, size: top.m_axis_qdma_c2h_tuser_size(), to };
            return top.m_axis_qdma_c2h_tvalid().then_some(beat);
        }
        top.m_axis_adap_tx_250mhz_tdata().copy_bytes(0, &mut data);
        let to = (top.m_axis_adap_tx_250mhz_tuser_src(), top.m_axis_adap_tx_250mhz_tuser_dst());
        let (keep, last) = (top.m_axis_adap_tx_250mhz_tkeep(), top.m_axis_adap_tx_250mhz_tlast());
        let beat = Beat { data, keep, last, size: top.m_axis_adap_tx_250mhz_tuser_size(), to };
        top.m_axis_adap_tx_250mhz_tvalid().then_some(beat)
    }

    // ---- The shell's slow clock

    /// Advances by a slow clock. Returns the result of `look` just before its edge.
    fn slow_tick<T>(&mut self, look: impl Fn(&OpennicBox) -> T) -> T {
        while self.slow {
            self.tick();
        }
        self.top.eval();
        let seen = look(&self.top);
        self.tick();
        seen
    }

    fn until(&mut self, look: impl Fn(&OpennicBox) -> bool) {
        let done = (0..PATIENCE).any(|_| self.slow_tick(&look));
        assert!(done, "AXI4-Lite hangs");
    }

    /// Makes the shell's reset handshake, which completes if memory is ready.
    pub fn reset(&mut self, memory_ready: bool) {
        self.top.set_memory_ready(memory_ready);
        self.top.set_mod_rstn(false);
        self.slow_tick(|_| ());
        self.top.set_mod_rstn(true);
        for _ in 0..300 {
            self.slow_tick(|_| ());
        }
        // A packet on its way out is cut.
        self.outputs = Default::default();
    }

    pub fn memory_ready(&mut self) {
        self.top.set_memory_ready(true);
        for _ in 0..10 {
            self.slow_tick(|_| ());
        }
    }

    pub fn is_reset_done(&self) -> bool {
        self.top.mod_rst_done()
    }

    /// Waits until all packets have come out, and discards those that came out whole.
    pub fn forget(&mut self) {
        for _ in 0..PATIENCE {
            self.tick();
        }
        for output in &mut self.outputs {
            output.done.clear();
        }
    }
}

impl Input {
    fn advance(&mut self, ready: bool) {
        if !(ready && self.offered) {
            return;
        }
        self.offered = false;
        self.done += BEAT;
        if self.queue.front().is_some_and(|packet| self.done >= packet.len()) {
            self.queue.pop_front();
            self.done = 0;
        }
    }
}

impl Output {
    fn see(&mut self, beat: Option<Beat>, takes: bool, host: bool, cycle: u64) {
        if self.waits.is_some() {
            assert_eq!(self.waits, beat, "what waits stays as it is");
        }
        self.waits = beat.clone().filter(|_| !takes);
        let Some(beat) = beat.filter(|_| takes) else { return };
        assert_eq!(beat.to, (0, if host { 1 } else { 1 << 6 }));
        assert_eq!(*self.size.get_or_insert(beat.size), beat.size, "the same in all beats");
        if self.bytes.is_empty() {
            self.begun = cycle;
        }
        let count = (usize::from(beat.size) - self.bytes.len()).min(BEAT);
        assert_eq!(beat.keep, mask(count));
        self.bytes.extend_from_slice(&beat.data[..count]);
        assert_eq!(beat.last, self.bytes.len() == usize::from(beat.size));
        if beat.last {
            let bytes = std::mem::take(&mut self.bytes);
            self.size = None;
            self.done.push_back(received(bytes, host, (self.begun, cycle)));
        }
    }
}

/// Converts a packet of the box. A packet to the host has a beat of metadata in front.
fn received(mut bytes: Vec<u8>, host: bool, cycles: (u64, u64)) -> Received {
    if !host {
        return Received { port: WIRE, punt: None, bytes, cycles };
    }
    let meta = PuntMeta::decode(&bytes[..BEAT].try_into().expect("a beat"));
    bytes.drain(..BEAT);
    assert_eq!(usize::from(meta.size), bytes.len());
    Received { port: meta.port, punt: Some(meta).filter(|meta| meta.reason != 0), bytes, cycles }
}

fn mask(count: usize) -> u64 {
    if count == BEAT { u64::MAX } else { (1 << count) - 1 }
}

impl Card for Shell {
    fn read32(&mut self, offset: u32) -> u32 {
        self.top.set_s_axil_araddr(0x10_0000 | offset);
        self.top.set_s_axil_arvalid(true);
        self.until(OpennicBox::s_axil_arready);
        self.top.set_s_axil_arvalid(false);
        self.top.set_s_axil_rready(true);
        self.until(OpennicBox::s_axil_rvalid);
        let value = self.top.s_axil_rdata();
        self.top.set_s_axil_rready(false);
        value
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.top.set_s_axil_awaddr(0x10_0000 | offset);
        self.top.set_s_axil_wdata(value);
        self.top.set_s_axil_awvalid(true);
        self.top.set_s_axil_wvalid(true);
        self.until(OpennicBox::s_axil_awready);
        self.top.set_s_axil_awvalid(false);
        self.top.set_s_axil_wvalid(false);
        self.top.set_s_axil_bready(true);
        self.until(OpennicBox::s_axil_bvalid);
        self.top.set_s_axil_bready(false);
    }
}
