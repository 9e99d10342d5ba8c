//! Four pipes that look up flows, the driver's shadow of the table, and the memories behind the ports.

use std::array::from_fn;
use std::collections::VecDeque;

use card::cuckoo::{Cuckoo, Entry};
use card::entries::FlowEntry;
use card::hash::Words;
use card::registers::{Flow4, Flow6};
use card::step::{Line, Step};
use rtl::FlowUnitSim;

use crate::channel::{Adversary, Channel, Master, Port, Random, Slave, Word};

pub const PIPES: usize = 4;
const TAGS: usize = 1024;
const BANKS: usize = 8;
const CHANNELS: usize = 2 * BANKS;
/// Binary logarithm of the number of buckets, as in the top module.
pub const BUCKET_BITS: u32 = 18;
const SECRET: Words = [
    0x0f1e_2d3c_4b5a_6978,
    0x8796_a5b4_c3d2_e1f0,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
    0x5555_aaaa_3333_cccc,
];

pub fn flow(random: &mut Random, v6: bool) -> FlowEntry {
    let addresses = [random.next(), random.next(), random.next(), random.next()];
    let ([sport, dport, vrf], protocol) = ([(); 3].map(|()| random.next() as u16), 17);
    let (vrf, path) = (vrf & 0xfff, (vrf >> 12) as u8 % 3);
    let index = random.next() as u32 >> 8;
    let nexthop = random.next() as u32 >> 12;
    let (action, generation) = (random.below(16) as u8, random.next() as u8);
    let wide = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
    if v6 {
        let (src, dst) = (wide(addresses[0], addresses[1]), wide(addresses[2], addresses[3]));
        let flow =
            Flow6 { src, dst, sport, dport, vrf, protocol, path, action, generation, ..Flow6::default() };
        FlowEntry::V6(Flow6 {
            index,
            nexthop,
            has_nexthop: random.chance(50),
            keep_ttl: random.chance(30),
            ..flow
        })
    } else {
        let [src, dst, new_src, new_dst] = addresses.map(|address| address as u32);
        let flow =
            Flow4 { src, dst, sport, dport, vrf, protocol, path, action, generation, ..Flow4::default() };
        let flow =
            Flow4 { index, nexthop, has_nexthop: random.chance(50), keep_ttl: random.chance(30), ..flow };
        FlowEntry::V4(Flow4 {
            nat_src: random.chance(30),
            nat_dst: random.chance(30),
            new_src,
            new_dst,
            ..flow
        })
    }
}

/// Returns the bits of `flow_result_t`, or 0 if there is no such flow.
pub fn result(flow: Option<&FlowEntry>) -> u128 {
    let common = |action: u8, generation: u8, index: u32, nexthop: u32, has_nexthop: bool, keep_ttl: bool| {
        // The host decides about packets with unknown actions.
        let action = if (3..8).contains(&action) { 0 } else { action };
        u128::from(keep_ttl) << 64
            | u128::from(has_nexthop) << 67
            | u128::from(nexthop) << 68
            | u128::from(index) << 88
            | u128::from(generation) << 112
            | u128::from(action) << 120
            | 1 << 124
    };
    match flow {
        None => 0,
        Some(FlowEntry::V6(f)) => {
            common(f.action, f.generation, f.index, f.nexthop, f.has_nexthop, f.keep_ttl)
        }
        Some(FlowEntry::V4(f)) => {
            common(f.action, f.generation, f.index, f.nexthop, f.has_nexthop, f.keep_ttl)
                | u128::from(f.new_dst)
                | u128::from(f.new_src) << 32
                | u128::from(f.nat_dst) << 65
                | u128::from(f.nat_src) << 66
        }
    }
}

/// A key, and the possible results of looking it up.
#[derive(Clone, Copy)]
pub struct Probe {
    pub key: Words,
    pub results: [u128; 2],
}

impl Probe {
    pub fn new(table: &Cuckoo<FlowEntry>, flow: &FlowEntry) -> Self {
        let key = flow.key();
        Self { key, results: [result(table.find(&key)); 2] }
    }
}

/// A memory into which tests can write without a port.
pub trait Store {
    fn poke(&mut self, addr: u64, data: &Word);
}

impl Store for Adversary {
    fn poke(&mut self, addr: u64, data: &Word) {
        self.words.insert(addr, *data);
    }
}

impl Store for hbm::Channel {
    fn poke(&mut self, addr: u64, data: &Word) {
        self.poke(addr, data);
    }
}

pub struct Bench<C> {
    top: FlowUnitSim,
    ports: Vec<Port<C>>,
    pub table: Cuckoo<FlowEntry>,
    offered: [Option<(u16, Probe)>; PIPES],
    asked: [Vec<Option<Probe>>; PIPES],
    free: [VecDeque<u16>; PIPES],
    pub steps: VecDeque<Step>,
    writing: bool,
    accepted: bool,
    pub asked_now: usize,
    pub answered: [u64; PIPES],
    pub hits: u64,
}

impl<C: Channel + Store> Bench<C> {
    pub fn new(channel: impl Fn(usize) -> C) -> Self {
        let mut top = FlowUnitSim::new();
        for (word, secret) in SECRET.into_iter().enumerate() {
            top.secret_mut().set(64 * word, 64, secret.into());
        }
        top.reset(4);
        let mut bench = Self {
            top,
            ports: (0..CHANNELS).map(|c| Port::new(channel(c))).collect(),
            table: Cuckoo::new(BUCKET_BITS, SECRET),
            offered: [None; PIPES],
            asked: from_fn(|_| vec![None; TAGS]),
            free: from_fn(|_| (0..TAGS as u16).collect()),
            steps: VecDeque::new(),
            writing: false,
            accepted: false,
            asked_now: 0,
            answered: [0; PIPES],
            hits: 0,
        };
        for _ in 0..TAGS + 10 {
            bench.clock(|_| None);
        }
        bench
    }

    /// Puts a flow into the table before the simulation runs.
    pub fn load(&mut self, flow: FlowEntry) {
        for step in self.table.insert(flow).expect("a table with room") {
            if let Step::Write { address, data, .. } = step {
                let (half, line, word) = place(address);
                let (bank, within) = card::sim::place(line, BANKS);
                let offset = u64::from(within) * 64 + u64::from(word) * 32;
                self.ports[half * BANKS + bank].channel.poke(offset, &data);
            }
        }
    }

    /// Advances by a clock. Each pipe that can accept a key gets the one that `next` has for it.
    pub fn clock(&mut self, mut next: impl FnMut(usize) -> Option<Probe>) {
        for pipe in 0..PIPES {
            if self.offered[pipe].is_none() && !self.free[pipe].is_empty() {
                self.offered[pipe] = next(pipe).and_then(|probe| Some((self.free[pipe].pop_front()?, probe)));
            }
        }
        self.write_stash();
        let write = self.next_write();
        let slaves: Vec<Slave> = self.ports.iter().map(Port::offer).collect();
        self.set(write.as_ref(), &slaves);
        self.sample(write.is_some());
        for (c, (port, slave)) in self.ports.iter_mut().zip(&slaves).enumerate() {
            port.clock(slave, &master(&self.top, c));
        }
        self.top.clock();
    }

    /// Writes the flow that the steps have reached, if any, to the stash of all pipes.
    fn write_stash(&mut self) {
        let Some(Step::Stash { number, lines }) = self.steps.front() else {
            self.top.set_stash_valid(false);
            return;
        };
        self.top.set_stash_valid(true);
        self.top.set_stash_number(*number as u8);
        self.top.stash_data_mut().set_bytes(0, lines.as_flattened());
        self.steps.pop_front();
    }

    /// Returns the write that the steps have reached: half of the table, line, half of the line, bytes.
    fn next_write(&mut self) -> Option<(usize, u32, u8, Line)> {
        match *self.steps.front()? {
            Step::Stash { .. } => None,
            Step::Barrier => {
                if self.asked_now == 0 {
                    self.steps.pop_front();
                }
                None
            }
            Step::Write { address, data, .. } => {
                let (half, line, word) = place(address);
                (!self.accepted).then_some((half, line, word, data))
            }
        }
    }

    pub fn asks(&self, key: &Words) -> bool {
        let offered = self.offered.iter().flatten().map(|(_, probe)| probe);
        self.asked.iter().flatten().flatten().chain(offered).any(|probe| probe.key == *key)
    }

    /// Returns whether no new keys should be looked up because a barrier waits.
    pub fn barrier(&self) -> bool {
        matches!(self.steps.front(), Some(Step::Barrier))
    }

    fn set(&mut self, write: Option<&(usize, u32, u8, Line)>, slaves: &[Slave]) {
        let top = &mut self.top;
        let mut valid = 0;
        for (pipe, (tag, probe)) in self.offered.iter().enumerate().filter_map(|(p, o)| Some((p, (*o)?))) {
            valid |= 1 << pipe;
            let tags = top.s_tag() & !(0x3ff << (10 * pipe)) | u64::from(tag) << (10 * pipe);
            top.set_s_tag(tags);
            for (word, key) in probe.key.into_iter().enumerate() {
                top.s_key_mut().set(320 * pipe + 64 * word, 64, key.into());
            }
        }
        top.set_s_valid(valid);
        top.set_wr_valid(write.map_or(0, |write| 1 << write.0));
        if let Some((half, line, word, data)) = write {
            top.set_wr_line(u64::from(*line) << (27 * half));
            top.set_wr_half(word << half);
            top.wr_data_mut().set_bytes(32 * half, data);
        }
        let mask =
            |of: fn(&Slave) -> bool| slaves.iter().enumerate().fold(0, |m, (c, s)| m | u16::from(of(s)) << c);
        top.set_arready(mask(|slave| slave.arready));
        top.set_awready(mask(|slave| slave.awready));
        top.set_wready(mask(|slave| slave.wready));
        top.set_bvalid(mask(|slave| slave.bvalid));
        top.set_rvalid(mask(|slave| slave.r.is_some()));
        top.set_rlast(mask(|slave| slave.r.is_some_and(|beat| beat.last)));
        for (c, beat) in slaves.iter().enumerate().filter_map(|(c, slave)| Some((c, slave.r?))) {
            top.rid_mut().set(6 * c, 6, beat.id.into());
            top.rdata_mut().set_bytes(32 * c, &beat.data);
        }
        top.eval();
    }

    fn sample(&mut self, wrote: bool) {
        let top = &self.top;
        for pipe in 0..PIPES {
            if top.s_ready() >> pipe & 1 == 1
                && let Some((tag, probe)) = self.offered[pipe].take()
            {
                assert!(self.asked[pipe][usize::from(tag)].replace(probe).is_none());
                self.asked_now += 1;
            }
            if top.m_valid() >> pipe & 1 == 1 {
                let tag = (top.m_tag() >> (10 * pipe)) as u16 & 0x3ff;
                let probe = self.asked[pipe][usize::from(tag)].take().expect("an answer to what was asked");
                let found = top.m_result().get(126 * pipe, 126);
                assert!(probe.results.contains(&found), "{found:#x}, not of {:x?}", probe.results);
                self.free[pipe].push_back(tag);
                self.asked_now -= 1;
                self.answered[pipe] += 1;
                self.hits += u64::from(found != 0);
            }
        }
        if top.wr_done() != 0 {
            assert!(std::mem::take(&mut self.writing));
            self.accepted = false;
            self.steps.pop_front();
        }
        if wrote && top.wr_ready() & top.wr_valid() != 0 {
            (self.writing, self.accepted) = (true, true);
        }
    }

    /// Waits for all answers and for the steps.
    pub fn drain(&mut self) {
        for _ in 0..50_000 {
            self.clock(|_| None);
            if self.asked_now == 0 && self.steps.is_empty() && self.offered.iter().all(Option::is_none) {
                return;
            }
        }
        panic!("{} look-ups and {} steps without an end", self.asked_now, self.steps.len());
    }
}

/// Returns the half of the table, the line in it, and the half of the line at an address of the table.
fn place(address: u32) -> (usize, u32, u8) {
    ((address >> 31) as usize, (address & 0x0fff_ffff) >> 1, (address & 1) as u8)
}

/// Returns the card's signals at a memory port.
fn master(top: &FlowUnitSim, c: usize) -> Master {
    let bit = |mask: u16| mask >> c & 1 == 1;
    let mut data = [0; 32];
    if bit(top.wvalid()) {
        top.wdata().copy_bytes(32 * c, &mut data);
    }
    Master {
        ar: bit(top.arvalid())
            .then(|| (top.arid().get(6 * c, 6) as u8, top.araddr().get(33 * c, 33) as u64, 2)),
        rready: bit(top.rready()),
        awaddr: bit(top.awvalid()).then(|| top.awaddr().get(33 * c, 33) as u64),
        wdata: bit(top.wvalid()).then_some(data),
        bready: bit(top.bready()),
    }
}
