//! Rings under any sequence of moves, of drivers and of the device, against models that count.
//!
//! Nothing is reset between bursts. The device may write the used ring or used descriptors, and its own event suppression;
//! every other byte, within the mapping and around it, must be as the driver left it.

mod chains;

use super::mock::{GPA, Ram, USER};
use super::*;
use chains::{Buffers, Reader};
use std::collections::VecDeque;

/// Bytes around the ring's memory that nobody may touch.
const CANARY: usize = 256;
/// Bytes of the ring's memory.
const LEN: usize = 1024;

const DESC: u64 = 0;
const DRIVER: u64 = 256;
const DEVICE: u64 = 320;
/// Buffers, of 8 bytes for each descriptor.
const BUFFERS: u64 = 512;

const NEXT: u16 = 1;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Slots of a ring at most.
const MOST: u16 = 16;

#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
enum Move {
    // The driver's.
    /// The available index is so many after what was used (split).
    Avail(u16),
    /// An entry of the available ring (split).
    Entry(u8, u16),
    /// Flags and id or next of a descriptor.
    Desc(u8, u16, u16),
    /// Address and length of a descriptor.
    Buffer(u8, u32, u32),
    // The device's.
    Look,
    Take,
    TakeSingle,
    /// Puts back so many chains.
    Rewind(u8),
    /// Completes the oldest chain, so many bytes written.
    Complete(u8),
    Publish,
    WantKicks(bool),
}

#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
struct Form {
    packed: bool,
    event_idx: bool,
    in_order: bool,
    /// Whether the device writes buffers.
    write: bool,
}

/// A chain as it is to be taken.
#[derive(Debug)]
struct Known {
    id: u16,
    slots: u64,
    buffers: Buffers,
    /// Whether it is one buffer.
    single: bool,
}

/// Says what was played where a test fails.
struct Told<'a>(&'a [Move], Form, u16);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?} of {} slots: {:?}", self.1, self.2, self.0);
        }
    }
}

/// A ring, its memory, and what both are to be.
struct World {
    _backing: Vec<u128>,
    whole: Ram,
    ram: Ram,
    /// All of the memory as it must be, but for the device's event suppression.
    expected: Vec<u8>,
    form: Form,
    size: u16,
    ring: Ring,
    memory: Memory,
    segments: Vec<Segment>,
    /// Chains taken, with the slots that each has; completed ones are gone.
    flight: VecDeque<(Chain, u64)>,
    /// Completed and not published: id, slots, written.
    done: Vec<(u16, u64, u32)>,
    // Since the start: chains of a split ring, slots of a packed one.
    published: u64,
    taken: u64,
    /// What the driver had made available when the device looked last (split).
    offered: u64,
    /// Heads read ahead of being taken (split): what the driver makes of their entries later does not count.
    heads: VecDeque<u16>,
}

impl World {
    fn new(form: Form, size: u16) -> Self {
        let mut backing = vec![0u128; (LEN + 2 * CANARY) / 16];
        let base: *mut u8 = backing.as_mut_ptr().cast();
        let whole = Ram::at(base, LEN + 2 * CANARY);
        let ram = Ram::at(base.wrapping_add(CANARY), LEN);
        // SAFETY: the world keeps what its segments lie in.
        let memory = unsafe { Memory::new(ram.regions(), true) }.unwrap();
        let ring = device(ram, form, size);
        let mut world = Self {
            _backing: backing,
            whole,
            ram,
            expected: Vec::new(),
            form,
            size,
            ring,
            memory,
            segments: Vec::with_capacity(MAX_CHAIN),
            flight: VecDeque::new(),
            done: Vec::new(),
            published: 0,
            taken: 0,
            offered: 0,
            heads: VecDeque::new(),
        };
        world.start();
        world
    }

    /// From the start, with a descriptor for each buffer and every entry of the available ring naming one.
    fn start(&mut self) {
        self.whole.write(0, &[0xc5; LEN + 2 * CANARY]);
        self.ram.write(0, &[0; BUFFERS as usize]);
        for slot in 0..u64::from(self.size) {
            self.ram.write(DESC + 16 * slot, &(GPA + BUFFERS + 8 * slot).to_le_bytes());
            self.ram.write(DESC + 16 * slot + 8, &8u32.to_le_bytes());
            if !self.form.packed {
                self.ram.write(DRIVER + 4 + 2 * slot, &(slot as u16).to_le_bytes());
            }
        }
        self.expected = self.whole.read(0, LEN + 2 * CANARY);
        self.ring = device(self.ram, self.form, self.size);
        self.flight.clear();
        self.done.clear();
        self.heads.clear();
        (self.published, self.taken, self.offered) = (0, 0, 0);
    }

    fn expect(&mut self, offset: u64, bytes: &[u8]) {
        let at = CANARY + offset as usize;
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The driver writes.
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.ram.write(offset, bytes);
        self.expect(offset, bytes);
    }

    fn read16(&self, offset: u64) -> u16 {
        let at = CANARY + offset as usize;
        u16::from_le_bytes([self.expected[at], self.expected[at + 1]])
    }

    /// Makes a move; false where the device would disable the driver now.
    fn make(&mut self, this: Move) -> bool {
        let size = self.size;
        let slot = |i: u8| u64::from(u16::from(i) % size);
        match this {
            Move::Avail(ahead) if !self.form.packed => {
                let index = (self.published as u16).wrapping_add(ahead);
                self.write(DRIVER + 2, &index.to_le_bytes());
            }
            Move::Entry(i, head) if !self.form.packed => {
                self.write(DRIVER + 4 + 2 * slot(i), &head.to_le_bytes());
            }
            Move::Avail(_) | Move::Entry(..) => {}
            Move::Desc(i, flags, id) => {
                let fields = if self.form.packed { [id, flags] } else { [flags, id] };
                self.write(DESC + 16 * slot(i) + 12, fields.map(u16::to_le_bytes).as_flattened());
            }
            Move::Buffer(i, addr, len) => {
                self.write(DESC + 16 * slot(i), &(GPA - 16 + u64::from(addr)).to_le_bytes());
                self.write(DESC + 16 * slot(i) + 8, &len.to_le_bytes());
            }
            Move::Look => return self.look(),
            Move::Take => return self.take(false),
            Move::TakeSingle => return self.take(true),
            Move::Rewind(count) => self.rewind(count.into()),
            Move::Complete(written) => self.complete(written.into()),
            Move::Publish => self.publish(),
            Move::WantKicks(want) => self.want_kicks(want),
        }
        true
    }

    fn look(&mut self) -> bool {
        let looked = dispatch!(&mut self.ring, r => r.look());
        if self.form.packed {
            assert_eq!(looked, Ok(()));
            return true;
        }
        let ahead = self.read16(DRIVER + 2).wrapping_sub(self.published as u16);
        let available = self.published + u64::from(ahead);
        match looked {
            Ok(()) => {
                assert!(ahead <= self.size, "more available than the ring has");
                assert!(available >= self.taken, "less available than was taken");
                self.offered = available;
                true
            }
            Err(fault) => {
                assert_eq!(fault, Fault::IndexJump);
                assert!(available < self.offered || ahead > self.size, "an honest driver is refused");
                false
            }
        }
    }

    fn access(&self) -> Access {
        if self.form.write { Access::Write } else { Access::Read }
    }

    fn take(&mut self, single: bool) -> bool {
        let access = self.access();
        let Self { ring, memory, segments, ram, .. } = self;
        memory.work.grant_poll();
        segments.clear();
        let taken = dispatch!(ring, r => match single {
            true => Ok(r.take_single(access, memory).map(|(chain, segment)| {
                segments.push(segment);
                chain
            })),
            false => r.take(access, memory, segments),
        });
        let places: Vec<_> = segments.iter().map(|s| (ram.offset(s.as_ptr()), s.len())).collect();
        let known = if self.form.packed { self.packed_chain() } else { self.split_chain() };
        match (taken, known) {
            (Ok(Some(chain)), Ok(Some(known))) => {
                assert!(!single || known.single);
                assert_eq!((chain.id, chain.ok), (known.id, known.buffers.is_some()));
                assert_eq!(places, known.buffers.unwrap_or_default());
                self.heads.pop_front();
                self.taken += known.slots;
                assert!(self.taken - self.published <= self.size.into(), "more in flight than there can be");
                self.flight.push_back((chain, known.slots));
                true
            }
            (Ok(None), Ok(None)) => true,
            // What is not one buffer is left for the next attempt, and so is every fault.
            (Ok(None), Ok(Some(known))) if single && !known.single => true,
            (Ok(None), Err(_)) if single => true,
            (Err(fault), Err(why)) if fault == why => false,
            (taken, known) => panic!("took {taken:?}, not {known:?}"),
        }
    }

    fn reader(&self) -> Reader<'_> {
        let bytes = &self.expected[CANARY..CANARY + LEN];
        Reader { bytes, packed: self.form.packed, size: self.size, access: self.access() }
    }

    /// What is to be taken next from a split ring.
    fn split_chain(&mut self) -> Result<Option<Known>, Fault> {
        if self.heads.is_empty() {
            let entry = |place: u64| self.read16(DRIVER + 4 + 2 * (place % u64::from(self.size)));
            let heads: VecDeque<u16> = (self.taken..self.offered).map(entry).collect();
            if heads.iter().any(|head| *head >= self.size) {
                return Err(Fault::HeadOutside);
            }
            self.heads = heads;
        }
        Ok(self.heads.front().map(|&id| {
            let (reader, head) = (self.reader(), u64::from(id));
            Known { id, slots: 1, buffers: reader.split(id), single: reader.single(head).is_some() }
        }))
    }

    /// The same of a packed ring.
    fn packed_chain(&self) -> Result<Option<Known>, Fault> {
        let (size, mut slots) = (u64::from(self.size), 0);
        let at = |place: u64| DESC + 16 * (place % size);
        let lap = (self.taken / size).is_multiple_of(2);
        let flags = self.read16(at(self.taken) + 14);
        if (flags & AVAIL != 0) != lap || (flags & USED != 0) == lap {
            return Ok(None);
        }
        while self.taken + slots < self.published + size {
            let place = at(self.taken + slots);
            slots += 1;
            if self.read16(place + 14) & NEXT == 0 {
                let (id, reader) = (self.read16(place + 12), self.reader());
                let buffers = reader.packed(self.taken, slots);
                let single = reader.single(self.taken).is_some();
                return Ok(Some(Known { id, slots, buffers, single }));
            }
        }
        Err(Fault::EndlessChain)
    }

    fn rewind(&mut self, count: usize) {
        let kept = self.flight.len() - count.min(self.flight.len());
        let back: Vec<_> = self.flight.drain(kept..).collect();
        let chains: Vec<Chain> = back.iter().map(|b| b.0).collect();
        dispatch!(&mut self.ring, r => r.rewind(&chains));
        self.heads.clear();
        self.taken -= back.iter().map(|b| b.1).sum::<u64>();
    }

    fn complete(&mut self, written: u32) {
        let Some((chain, slots)) = self.flight.pop_front() else { return };
        self.done.push((chain.id, slots, written));
        dispatch!(&mut self.ring, r => r.complete(chain, written));
    }

    fn publish(&mut self) {
        dispatch!(&mut self.ring, r => r.publish());
        let mut done = std::mem::take(&mut self.done);
        let size = u64::from(self.size);
        if self.form.packed && self.form.in_order {
            // One descriptor stands for those before it of which nothing was written.
            done =
                done.into_iter().fold(Vec::new(), |mut all: Vec<(u16, u64, u32)>, (id, slots, written)| {
                    match all.last_mut() {
                        Some(last) if last.2 == 0 && written == 0 => *last = (id, last.1 + slots, 0),
                        _ => all.push((id, slots, written)),
                    }
                    all
                });
        }
        for (id, slots, written) in done {
            let place = self.published % size;
            let len = written.to_le_bytes();
            if self.form.packed {
                let lap = if (self.published / size).is_multiple_of(2) { AVAIL | USED } else { 0 };
                let flags = lap | if written > 0 { 2 } else { 0 };
                self.expect(DESC + 16 * place + 8, &len);
                self.expect(DESC + 16 * place + 12, [id, flags].map(u16::to_le_bytes).as_flattened());
            } else {
                self.expect(DEVICE + 4 + 8 * place, &u32::from(id).to_le_bytes());
                self.expect(DEVICE + 8 + 8 * place, &len);
            }
            self.published += slots;
        }
        if !self.form.packed {
            self.expect(DEVICE + 2, &(self.published as u16).to_le_bytes());
        }
    }

    /// The device's event suppression is its own business, but where it lies is not.
    fn want_kicks(&mut self, want: bool) {
        dispatch!(&mut self.ring, r => r.want_kicks(want));
        let own = match (self.form.packed, self.form.event_idx) {
            (true, _) => DEVICE..DEVICE + 4,
            (false, true) => DEVICE + 4 + 8 * u64::from(self.size)..DEVICE + 6 + 8 * u64::from(self.size),
            (false, false) => DEVICE..DEVICE + 2,
        };
        let now = self.ram.read(own.start, (own.end - own.start) as usize);
        self.expect(own.start, &now);
    }

    fn check(&self) {
        assert!(self.published <= self.taken);
        assert_eq!(self.whole.read(0, self.expected.len()), self.expected, "memory is not as it must be");
    }

    /// Makes `moves` from the start; false where the driver was disabled.
    fn play(&mut self, moves: &[Move]) -> bool {
        let _told = Told(moves, self.form, self.size);
        self.start();
        let served = moves.iter().all(|m| self.make(*m));
        self.check();
        served
    }
}

fn device(ram: Ram, form: Form, size: u16) -> Ring {
    let regions = ram.regions();
    let at = Addresses { desc: USER + DESC, driver: USER + DRIVER, device: USER + DEVICE };
    let layout = Layout::resolve(&regions, &at, size.into(), form.packed, form.event_idx).unwrap();
    // SAFETY: the memory lives as long as the world.
    unsafe {
        match form.packed {
            true => Ring::Packed(Packed::new(layout, form.event_idx, form.in_order, 0x8000)),
            false => Ring::Split(Split::new(layout, form.event_idx, 0)),
        }
    }
}

/// Plays every sequence of up to `depth` of `all` steps, each of some moves, but what follows on a fault; how many there were.
fn play_all(world: &mut World, all: &[Vec<Move>], so_far: &mut Vec<Move>, depth: usize) -> usize {
    let mut played = 0;
    for step in all {
        let before = so_far.len();
        so_far.extend(step);
        played += 1;
        if world.play(so_far) && depth > 1 {
            played += play_all(world, all, so_far, depth - 1);
        }
        so_far.truncate(before);
    }
    played
}

/// The device's steps.
fn device_steps(size: u16) -> Vec<Vec<Move>> {
    let all = |this| vec![this; size.into()];
    let end = [all(Move::Complete(3)), vec![Move::Publish]].concat();
    vec![
        vec![Move::Look, Move::Take],
        vec![Move::Take],
        vec![Move::TakeSingle, Move::TakeSingle],
        vec![Move::Rewind(1)],
        vec![Move::Complete(0), Move::Publish],
        end.clone(),
        [vec![Move::Look, Move::TakeSingle], end.clone()].concat(),
        [vec![Move::Look], all(Move::Take), end].concat(),
    ]
}

fn every_sequence(form: Form, sizes: [(u16, usize); 3], driver_steps: impl Fn(u16) -> Vec<Move>) {
    for (size, depth) in sizes.into_iter().filter(|(size, _)| !cfg!(miri) || *size == 2) {
        let mut steps = device_steps(size);
        steps.extend(driver_steps(size).into_iter().map(|this| vec![this]));
        let depth = if cfg!(miri) { 2 } else { depth };
        let played = play_all(&mut World::new(form, size), &steps, &mut Vec::new(), depth);
        assert!(cfg!(miri) || played > 10_000, "{played}");
    }
}

#[test]
fn every_sequence_of_moves_on_small_split_rings() {
    let form = Form { packed: false, event_idx: true, in_order: false, write: false };
    // From one less than was used to one more than there can be.
    let indexes = |size| (0..=size + 2).map(|ahead: u16| Move::Avail(ahead.wrapping_sub(1))).collect();
    every_sequence(form, [(1, 5), (2, 5), (4, 4)], indexes);
}

#[test]
fn every_sequence_of_moves_on_small_packed_rings() {
    let descriptors = |size| {
        let flags = [AVAIL, USED, AVAIL | NEXT, USED | NEXT];
        let slot = |slot| flags.map(|flags| Move::Desc(slot, flags, 7 * u16::from(slot)));
        (0..size as u8).flat_map(slot).collect()
    };
    for in_order in [false, true] {
        every_sequence(
            Form { packed: true, event_idx: true, in_order, write: false },
            [(1, 5), (2, 4), (4, 4)],
            descriptors,
        );
    }
}

/// A driver and its device, burst after burst, each with whatever the driver did before.
#[test]
fn bursts_without_end() {
    let iterations = if cfg!(miri) { 5 } else { 2000 };
    bolero::check!().with_iterations(iterations).with_type::<(Form, u8, Vec<Move>)>().for_each(
        |(form, size, moves)| {
            let size = match form.packed {
                true => 1 + u16::from(*size) % MOST,
                false => 1 << (size % 5),
            };
            World::new(*form, size).play(&moves.iter().map(|m| likely(*m, *form, size)).collect::<Vec<_>>());
        },
    );
}

/// The move, with values that get somewhere.
fn likely(this: Move, form: Form, size: u16) -> Move {
    let flags_of = |word: u16| match word % 8 {
        // Mostly one buffer of the right kind.
        0 => word >> 3 & 7,
        1 => NEXT | if form.write { 2 } else { 0 },
        2 => 4,
        _ if form.write => 2,
        _ => 0,
    };
    match this {
        Move::Avail(ahead) if ahead % 16 != 0 => Move::Avail(ahead % (size + 1)),
        Move::Entry(i, head) if head % 16 != 0 => Move::Entry(i, head % size),
        Move::Desc(i, flags, id) if form.packed => {
            // Available in either lap, or used, or something else.
            let state = [AVAIL, USED, AVAIL, USED, AVAIL, USED, AVAIL | USED, 0][usize::from(flags >> 8) % 8];
            Move::Desc(i, state | flags_of(flags & 0xff), id)
        }
        Move::Desc(i, flags, next) => Move::Desc(i, flags_of(flags), next % (size + 1)),
        // A buffer, or a table at the start of memory: in the ring itself.
        Move::Buffer(i, addr, len) if len % 4 == 0 => {
            Move::Buffer(i, 16 + 16 * (addr % 64), if len % 8 == 0 { len % 80 } else { len % 5 * 16 })
        }
        Move::Buffer(i, addr, len) => Move::Buffer(i, addr % (LEN as u32 + 32), len % 64),
        other => other,
    }
}
