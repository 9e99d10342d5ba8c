//! Sends packets of a workload through the card and holds what leaves against what is to leave.

use crate::load::{Chooser, Flows, Load, Updating, pipe_of};
use crate::shape::{Mark, read_mark};
use crate::world::World;
use card::Commands;
use card::registers::Table;
use card::sim::{Received, Sent, SimCard};
use card::step::{Step, together};
use std::collections::HashMap;

/// Clocks without a packet after which missing packets count as lost.
const PATIENCE: u64 = 20_000;
/// Number of changes of the tables that are made together, and clocks that they may take: 2000 per millisecond.
const BATCH: u32 = 2000;
pub const PACE: u64 = 250_000;
/// Packets that wait before an input; with updates, at least as many as leave while the card waits for a barrier.
const DEPTH: usize = 4;
const DEEP: usize = 3000;
/// One of so many packets is compared byte by byte. All are counted, and their order is checked.
const SAMPLE: u32 = 32;

/// The results of a measurement, by direction.
#[derive(Clone, Default)]
pub struct Measured {
    /// Packets per clock, and bytes of guests' frames per clock.
    pub rate: [f64; 2],
    pub bytes: [f64; 2],
    /// Beats per clock, counting only those that packets need at least.
    pub beats: [f64; 2],
    /// Clocks from each packet's arrival to its first beat out, sorted.
    pub latency: [Vec<u32>; 2],
    pub hits: Hits,
    pub updates: Updates,
    pub clocks: u64,
}

/// How packets spread over flows.
#[derive(Clone, Copy, Default)]
pub struct Hits {
    pub packets: u64,
    /// Number of flows; each direction counts as a flow.
    pub flows: usize,
    /// The fraction of all packets that belong to the flow with the most packets, and to the hundred such flows.
    pub most: f64,
    pub hundred: f64,
    /// Packets sent while others of their flow were before or on the card. They must not overtake these.
    pub followed: u64,
}

/// Counts of the host's updates during a measurement.
#[derive(Clone, Copy, Default)]
pub struct Updates {
    pub all: u32,
    /// Updates that moved an entry to its other bucket.
    pub moves: u32,
    pub lines: u32,
    pub barriers: u32,
    /// Registers read and written, if they are counted.
    pub reads: u32,
    pub writes: u32,
    /// Clocks that the updates took, if they were done in time.
    pub clocks: Option<u64>,
}

struct Run<'a> {
    card: &'a mut Commands<SimCard>,
    world: &'a mut World,
    load: Load,
    pipes: usize,
    chooser: Chooser,
    next: Vec<f64>,
    sent: HashMap<(usize, u32), u32>,
    seen: HashMap<(usize, u32), u32>,
    missing: i64,
    last: u64,
    from: u64,
    counts: [u64; 2],
    bytes: [u64; 2],
    beats: [u64; 2],
    measured: Measured,
}

/// Measures. Fails with a description of what is wrong with the card.
pub fn run(card: &mut Commands<SimCard>, world: &mut World, load: Load) -> Result<Measured, String> {
    let (pipes, start) = (card.card().pipes(), card.card().cycle());
    let chooser = Chooser::new(load, pipes, world);
    let mut run = Run {
        card,
        world,
        load,
        pipes,
        chooser,
        next: vec![start as f64; 2 * pipes],
        sent: HashMap::new(),
        seen: HashMap::new(),
        missing: 0,
        last: start,
        from: start + load.warm,
        counts: [0; 2],
        bytes: [0; 2],
        beats: [0; 2],
        measured: Measured::default(),
    };
    let end = run.from + load.clocks;
    let updated = load.updating != Updating::Nothing;
    let mut steps = if updated { run.changes() } else { Vec::new() }.into_iter();
    while run.card.card().cycle() < end {
        run.feed(if updated { DEEP } else { DEPTH });
        match steps.next() {
            Some(step) => run.write(step)?,
            None => run.card.card().tick(),
        }
        if updated && steps.len() == 0 {
            let clocks = run.now() - start;
            run.measured.updates.clocks.get_or_insert(clocks);
        }
        run.receive(end)?;
    }
    let clocks = end - run.from;
    while run.missing > 0 {
        run.card.card().tick();
        run.receive(end)?;
        if run.card.card().cycle() - run.last > PATIENCE {
            return Err(format!("{} packets are lost", run.missing));
        }
    }
    run.measured.rate = run.counts.map(|count| count as f64 / clocks as f64);
    run.measured.bytes = run.bytes.map(|bytes| bytes as f64 / clocks as f64);
    run.measured.beats = run.beats.map(|beats| beats as f64 / clocks as f64);
    run.hits();
    run.measured.clocks = clocks;
    run.measured.latency.iter_mut().for_each(|latency| latency.sort_unstable());
    Ok(run.measured)
}

impl Run<'_> {
    fn now(&mut self) -> u64 {
        self.card.card().cycle()
    }

    fn feed(&mut self, depth: usize) {
        for input in 0..2 * self.pipes {
            let direction = input / self.pipes;
            let idle = if direction == 0 { !self.load.down } else { !self.load.up };
            let alone = self.load.flows == Flows::One && input % self.pipes != 0;
            if idle || alone {
                continue;
            }
            match self.load.part {
                Some(part) => {
                    while self.next[input] <= self.now() as f64 {
                        self.send(input, direction);
                        self.next[input] += self.chooser.gap(part);
                    }
                }
                None => {
                    while self.card.card().backlog(input) < depth {
                        self.send(input, direction);
                    }
                }
            }
        }
    }

    fn send(&mut self, input: usize, direction: usize) {
        let pipe = input % self.pipes;
        let flow = self.chooser.flow(self.world, pipe, direction);
        let number = self.sent.entry((direction, flow)).or_default();
        let before = self.seen.get(&(direction, flow)).copied().unwrap_or_default();
        self.measured.hits.followed += u64::from(*number > before);
        let mark = Mark { number: *number, cycle: self.card.card().cycle() as u32 };
        *number += 1;
        let bytes = self.world.packet(flow, direction, self.load.sizes.of(flow, mark.number), mark);
        let port = self.world.port(flow, direction, pipe);
        self.card.card().send(input, Sent { port, direct: None, bytes });
        self.missing += 1;
    }

    fn hits(&mut self) {
        let mut counts: Vec<u64> = self.sent.values().map(|count| u64::from(*count)).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let hits = &mut self.measured.hits;
        (hits.packets, hits.flows) = (counts.iter().sum(), counts.len());
        let part = |first: usize| counts.iter().take(first).sum::<u64>() as f64 / hits.packets.max(1) as f64;
        (hits.most, hits.hundred) = (part(1), part(100));
    }

    /// Makes the changes of the tables, and returns their steps.
    fn changes(&mut self) -> Vec<Step> {
        let changes: Vec<_> = (0..BATCH).map(|number| self.world.update(number)).collect();
        self.measured.updates.all = BATCH;
        self.measured.updates.moves =
            changes.iter().filter(|steps| steps.contains(&Step::Barrier)).count() as u32;
        together(changes)
    }

    fn write(&mut self, step: Step) -> Result<(), String> {
        let done = match step {
            Step::Write { table, address, data } => {
                self.measured.updates.lines += 1;
                self.card.post(table, address, &data)
            }
            Step::Stash { number, lines } => {
                self.measured.updates.lines += 1;
                self.card.post(Table::Stash, number, lines.as_flattened())
            }
            Step::Barrier => {
                self.measured.updates.barriers += 1;
                self.card.barrier()
            }
        };
        done.map_err(|error| error.to_string())
    }

    fn receive(&mut self, end: u64) -> Result<(), String> {
        for output in 0..2 * self.pipes {
            while let Some(packet) = self.card.card().receive(output) {
                self.check(output, &packet)?;
                self.last = packet.cycles.1;
                self.missing -= 1;
                let by_wire = output >= self.pipes;
                // Packets between guests leave by a queue to the host, too.
                let (flow, mark) = read_mark(&packet.bytes, by_wire).ok_or("a packet too short")?;
                let direction = usize::from(direction_of(&packet.bytes, by_wire) == 1);
                if (self.from..end).contains(&packet.cycles.1) {
                    self.counts[direction] += 1;
                    let size = self.load.sizes.of(flow, mark.number);
                    self.bytes[direction] += size as u64;
                    self.beats[direction] += self.load.shape.beats(size) as u64;
                    if self.load.part.is_some() {
                        self.measured.latency[direction]
                            .push((packet.cycles.0 as u32).wrapping_sub(mark.cycle));
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, output: usize, packet: &Received) -> Result<(), String> {
        if let Some(punt) = packet.punt {
            let reason = card::registers::Punt::ALL.get(usize::from(punt.reason));
            return Err(format!("the card leaves a packet to the host: {reason:?}"));
        }
        let by_wire = output >= self.pipes;
        let (flow, mark) = read_mark(&packet.bytes, by_wire).ok_or("a packet too short")?;
        let direction = direction_of(&packet.bytes, by_wire);
        let seen = self.seen.entry((direction, flow)).or_default();
        if mark.number != *seen {
            return Err(format!("flow {flow}: packet {} came where {seen} was to come", mark.number));
        }
        *seen += 1;
        if mark.cycle.wrapping_add(flow) % SAMPLE != 0 {
            return Ok(());
        }
        let pipe = pipe_of(flow, self.pipes);
        let port = self.world.port(flow, direction, pipe);
        let size = self.load.sizes.of(flow, mark.number);
        let frame = self.world.packet(flow, direction, size, mark);
        let expected = self.world.expected(port, &frame).ok_or("the tables don't forward this flow")?;
        let left = (output as u8, packet.port, packet.bytes.clone());
        if left == expected { Ok(()) } else { Err(format!("left: {left:02x?}\nexpected: {expected:02x?}")) }
    }
}

/// Returns the direction of a packet that left, by its source address: guests have 172.16.0.0/16.
fn direction_of(frame: &[u8], by_wire: bool) -> usize {
    usize::from(!by_wire && frame.get(26) != Some(&172))
}

/// Opens a card and loads these tables.
pub fn open(world: &World, sim: SimCard) -> Result<Commands<SimCard>, String> {
    let mut card = Commands::open(sim).map_err(|error| error.to_string())?;
    world.load(&mut card).map_err(|error| error.to_string())?;
    Ok(card)
}
