//! Tests of rings with any sequence of moves of a driver and of the device. A model counts what each move must do, and
//! each test compares the ring with it.
//!
//! Nothing is reset between bursts. The device may write the used ring (or, in a packed ring, used descriptors) and its
//! own event suppression area. Every other byte, in the ring's memory and around it, must be as the driver left it.

mod chains;
mod sequences;

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

#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
enum Move {
    // Moves of the driver.
    /// Sets the available index to this number after the used index (split).
    Avail(u16),
    /// Sets an entry of the available ring: its number, the head (split).
    Entry(u8, u16),
    /// Sets a descriptor's flags, and its id (packed) or next (split).
    Desc(u8, u16, u16),
    /// Sets a descriptor's address and length.
    Buffer(u8, u32, u32),
    /// Says when it wants to be notified: the event index or descriptor position, and flags.
    Event(u16, u16),
    // Moves of the device.
    /// Reads what is available.
    Look,
    /// Reads the heads of available chains ahead.
    ReadAhead,
    /// Takes a chain.
    Take,
    /// Takes a chain of a single buffer.
    TakeSingle,
    /// Puts back this number of chains, the newest ones.
    Rewind(u8),
    /// Completes the oldest chain, with this number of bytes written.
    Complete(u8),
    /// Makes completed chains visible to the driver.
    Publish,
    /// Asks the driver for kicks, or for none.
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

/// The chain that the model expects the device to take.
#[derive(Debug)]
struct Known {
    id: u16,
    slots: u64,
    buffers: Buffers,
    single: bool,
}

/// Prints the moves if the test panics.
struct Told<'a>(&'a [Move], Form, u16);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?} of {} slots: {:?}", self.1, self.2, self.0);
        }
    }
}

/// A ring, its memory, and the model of both.
struct World {
    _backing: Vec<u128>,
    whole: Ram,
    ram: Ram,
    /// The content that all of the memory must have.
    expected: Vec<u8>,
    form: Form,
    size: u16,
    ring: Ring,
    memory: Memory,
    segments: Vec<Segment>,
    /// Chains that are taken and not completed, with the number of slots of each.
    flight: VecDeque<(Chain, u64)>,
    /// Chains that are completed and not published: id, slots, bytes written.
    done: Vec<(u16, u64, u32)>,
    // Counted since the start, in chains for a split ring and in slots for a packed one.
    published: u64,
    taken: u64,
    /// Number of chains that were available when the device looked last (split).
    offered: u64,
    /// Heads that the device has read and not taken yet (split). Later changes of their entries must have no effect.
    heads: VecDeque<u16>,
}

impl World {
    fn new(form: Form, size: u16) -> Self {
        let mut backing = vec![0u128; (LEN + 2 * CANARY) / 16];
        let base: *mut u8 = backing.as_mut_ptr().cast();
        let whole = Ram::at(base, LEN + 2 * CANARY);
        let ram = Ram::at(base.wrapping_add(CANARY), LEN);
        // SAFETY: the world keeps what its segments lie in.
        let memory = unsafe { Memory::new(ram.regions(), true, None) }.unwrap();
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

    /// Begins anew. Each descriptor has a buffer, and each entry of the available ring names a descriptor.
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

    /// Writes to memory as the driver.
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.ram.write(offset, bytes);
        self.expect(offset, bytes);
    }

    fn read16(&self, offset: u64) -> u16 {
        let at = CANARY + offset as usize;
        u16::from_le_bytes([self.expected[at], self.expected[at + 1]])
    }

    /// Makes a move. Returns false if the device disables the driver for it.
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
            Move::Event(position, flags) => {
                let (event, flags) = (position.to_le_bytes(), flags.to_le_bytes());
                match (self.form.packed, self.form.event_idx) {
                    (true, _) => self.write(DRIVER, &[event, flags].concat()),
                    (false, true) => self.write(DRIVER + 4 + 2 * u64::from(size), &event),
                    (false, false) => self.write(DRIVER, &flags),
                }
            }
            Move::Look => return self.look(),
            Move::ReadAhead => self.read_ahead(),
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

    fn read_ahead(&mut self) {
        dispatch!(&mut self.ring, r => r.read_ahead());
        if !self.form.packed {
            self.read_heads();
        }
    }

    /// Reads heads of a split ring as far as they name descriptors.
    fn read_heads(&mut self) {
        for place in self.taken + self.heads.len() as u64..self.offered {
            let head = self.read16(DRIVER + 4 + 2 * (place % u64::from(self.size)));
            if head >= self.size {
                return;
            }
            self.heads.push_back(head);
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
            // Both ways to take one.
            true if self.taken.is_multiple_of(2) => {
                let mut taken = None;
                r.take_singles(access, memory, 1, |chain, segment| {
                    segments.push(segment);
                    taken.replace(chain).is_some()
                });
                Ok(taken)
            }
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
            // `take_single` leaves longer chains, and faults, to `take`.
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

    /// Returns the chain that the device must take next from a split ring.
    fn split_chain(&mut self) -> Result<Option<Known>, Fault> {
        if self.heads.is_empty() {
            self.read_heads();
            if self.heads.is_empty() && self.taken < self.offered {
                return Err(Fault::HeadOutside);
            }
        }
        Ok(self.heads.front().map(|&id| {
            let (reader, head) = (self.reader(), u64::from(id));
            Known { id, slots: 1, buffers: reader.split(id), single: reader.single(head).is_some() }
        }))
    }

    /// Returns the chain that the device must take next from a packed ring.
    fn packed_chain(&self) -> Result<Option<Known>, Fault> {
        let (size, mut slots) = (u64::from(self.size), 0);
        let at = |place: u64| DESC + 16 * (place % size);
        if !self.packed_is_available() {
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

    fn packed_is_available(&self) -> bool {
        let lap = self.lap(self.taken);
        let flags = self.read16(DESC + 16 * (self.taken % u64::from(self.size)) + 14);
        (flags & AVAIL != 0) == lap && (flags & USED != 0) != lap
    }

    /// Returns the wrap counter at a position that is counted since the start.
    fn lap(&self, place: u64) -> bool {
        (place / u64::from(self.size)).is_multiple_of(2)
    }

    /// Returns a position with its wrap counter, as it is written in a packed ring.
    fn encoded(&self, place: u64) -> u16 {
        (place % u64::from(self.size)) as u16 | u16::from(self.lap(place)) << 15
    }

    /// Returns whether the driver asked for a notification of the chains used from position `old` on (VIRTIO
    /// 1.2, 2.7.7 and 2.8.10). `None` if what it wrote is not valid.
    fn notification(&self, old: u64) -> Option<bool> {
        let (first, flags) = (self.read16(DRIVER), self.read16(DRIVER + 2));
        let used = |at: fn(&Self, u64) -> u16, event| {
            Some((old..self.published).any(|place| at(self, place) == event))
        };
        match (self.form.packed, self.form.event_idx) {
            _ if old == self.published => Some(false),
            (false, false) => Some(first & 1 == 0),
            (false, true) => {
                used(|_, place| place as u16, self.read16(DRIVER + 4 + 2 * u64::from(self.size)))
            }
            (true, true) if flags & 3 == 2 => {
                used(Self::encoded, first).filter(|_| first & 0x7fff < self.size)
            }
            (true, _) => Some(flags & 3 != 1),
        }
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
        let notify = dispatch!(&mut self.ring, r => r.publish());
        let (old, mut done) = (self.published, std::mem::take(&mut self.done));
        let size = u64::from(self.size);
        if self.form.packed && self.form.in_order {
            // Chains in which nothing was written share one used descriptor, that of the last one.
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
        assert!(self.notification(old).is_none_or(|asked| asked == notify), "{notify} from {old}");
    }

    fn want_kicks(&mut self, want: bool) {
        dispatch!(&mut self.ring, r => r.want_kicks(want));
        let avail_event = DEVICE + 4 + 8 * u64::from(self.size);
        match (self.form.packed, self.form.event_idx, want) {
            (false, false, _) => self.expect(DEVICE, &u16::from(!want).to_le_bytes()),
            (false, true, true) => self.expect(avail_event, &(self.taken as u16).to_le_bytes()),
            (false, true, false) => {}
            (true, true, true) => {
                let next = self.encoded(self.taken);
                self.expect(DEVICE, [next, 2].map(u16::to_le_bytes).as_flattened());
            }
            (true, ..) => self.expect(DEVICE + 2, &u16::from(!want).to_le_bytes()),
        }
    }

    fn check(&self) {
        assert!(self.published <= self.taken);
        assert_eq!(self.whole.read(0, self.expected.len()), self.expected, "memory is not as it must be");
        let (base, pending, more) = dispatch!(&self.ring, r => (r.base(), r.pending(), r.known()));
        let offered = if self.form.packed { self.taken } else { self.offered };
        assert_eq!(more as u64, offered - self.taken);
        let known = match self.form.packed {
            true => u32::from(self.encoded(self.taken)) | u32::from(self.encoded(self.published)) << 16,
            false => u32::from(self.taken as u16),
        };
        assert_eq!(base, known);
        let more = match self.form.packed {
            true => self.packed_is_available(),
            false => self.read16(DRIVER + 2) != self.taken as u16,
        };
        assert_eq!(pending, more);
    }

    /// Begins anew and makes `moves`. Returns false if the device disabled the driver.
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
            true => Ring::Packed(Packed::new(
                layout,
                form.event_idx,
                form.in_order,
                0x8000,
                Journal::mortal(size),
            )),
            false => Ring::Split(Split::new(layout, form.event_idx, 0)),
        }
    }
}
