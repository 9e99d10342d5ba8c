//! Completion queues: rings of completions that the device writes and the library reads.

use crate::Memory;
use crate::point::{Point, point};
use crate::sync::{AtomicU32, Ordering, fence, reads, writes};
use std::ptr::NonNull;

/// The completed operation (`ibv_wc_opcode`).
pub mod opcode {
    #![allow(missing_docs)] // the standard's names
    use crate::work::opcode as asked;

    pub const RECV: u8 = 1 << 7;
    pub const RECV_RDMA_WITH_IMM: u8 = RECV + 1;

    /// Returns the opcode for a request of this `ibv_wr_opcode`.
    #[must_use]
    pub const fn of(request: u8) -> u8 {
        match request {
            asked::RDMA_WRITE | asked::RDMA_WRITE_WITH_IMM => 1,
            asked::RDMA_READ => 2,
            asked::ATOMIC_CMP_AND_SWP => 3,
            asked::ATOMIC_FETCH_AND_ADD => 4,
            asked::BIND_MW => 5,
            asked::LOCAL_INV => 6,
            _ => 0,
        }
    }
}

/// Further properties of a completion (`ibv_wc_flags`).
pub mod flags {
    #![allow(missing_docs)] // the standard's names
    pub const GRH: u16 = 1 << 0;
    pub const WITH_IMM: u16 = 1 << 1;
    pub const WITH_INV: u16 = 1 << 3;
    /// Not a flag of `libibverbs`: set if a datagram came over IPv4, and not if it came over IPv6.
    pub const BY_IPV4: u16 = 1 << 11;
}

/// The header before the completions. Each side writes to its own cache lines.
#[repr(C, align(64))]
struct Header {
    /// Number of completions that the library has taken.
    head: AtomicU32,
    _library: [u32; 15],
    /// The condition for notifying the completion channel ([`Arm`]). The library sets it; whoever completes clears it.
    armed: AtomicU32,
    _shared: [u32; 15],
    /// Number of places that were reserved, by the device and by peers that share memory.
    tail: AtomicU32,
    _device: [u32; 15],
}

/// A message in its completion, in the machine's byte order.
pub type Message = [u64; 5];
/// A message in its completion, if its receive is from a shared queue.
pub type ShortMessage = [u64; 3];

/// Largest number of a message's bytes that fit into its completion.
pub const INLINE: usize = size_of::<Message>();
/// Largest number of a message's bytes that fit into its completion, if its receive is from a shared queue.
pub const INLINE_SHARED: usize = size_of::<ShortMessage>();

/// A completion. Numbers are those of `libibverbs`: `ibv_wc_status`, `ibv_wc_opcode`, `ibv_wc_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // `ibv_wc`'s names
pub struct Completion {
    pub opcode: u8,
    pub status: u8,
    pub flags: u16,
    pub qpn: u32,
    pub byte_len: u32,
    /// Immediate data in wire order, or the key that became invalid.
    pub immediate: u32,
    pub source_qpn: u32,
    /// Unused for a message that is [`Placement::Here`]: the identifier is in the receive.
    pub id: u64,
    /// Nanoseconds of the monotonic clock; 0 if the clock was not read.
    pub timestamp: u64,
    /// The number of a send ([`WorkRequest::number`](crate::WorkRequest::number)).
    pub number: u32,
    pub placement: Placement,
}

/// The place of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The message is in the memory of its receive, which has been returned.
    #[default]
    Done,
    /// The message is in the memory of its receive, the oldest of its queue. The library must return the receive.
    There,
    /// The message is in the completion. The library must copy it into the memory of the queue's oldest receive, and
    /// return that receive.
    Here(Message),
    /// The message is in the completion. The library must copy it to this address, in the memory of a receive of a
    /// shared queue, which has been returned.
    At(u64, ShortMessage),
    /// The message is in the [`MessageRing`](crate::MessageRing) of the queue pair, at this position. The library must
    /// handle it like [`Self::Here`].
    MessageRing(u32),
    /// The message is at this position of the message ring, for this address. The library must handle it like [`Self::At`].
    MessageRingAt(u64, u32),
}

/// A completion with its number, counted from 1 since the start. The completion is complete once the number is right.
#[repr(C, align(64))]
struct Entry {
    number: AtomicU32,
    opcode: u8,
    status: u8,
    flags: u16,
    qpn: u32,
    byte_len: u32,
    immediate: u32,
    source_qpn: u32,
    /// Identifier and timestamp, or the message.
    body: Message,
}

/// The bits of [`Placement`] in an entry's flags.
const PLACEMENT: u16 = 7 << 13;
const THERE: u16 = 1 << 13;
const HERE: u16 = 2 << 13;
const AT: u16 = 3 << 13;
const MESSAGE_RING: u16 = 4 << 13;
const MESSAGE_RING_AT: u16 = 5 << 13;
/// A bit in an entry's flags: the channel is notified of this completion even if it waits for solicited ones.
const SOLICITED: u16 = 1 << 12;

/// Number of completions after the current one that are searched for one that somebody waits for: as many as others
/// may add meanwhile.
const BEHIND: u32 = 64;

/// Number of attempts to reserve a place while others reserve theirs.
const ATTEMPTS: u32 = 1 << 16;

/// The status of an entry that nobody sees, because nobody wants it any more or its writer died. `ibv_wc_status` has no
/// such number.
pub const FORGOTTEN: u8 = 0xff;

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Header>() == 192);

impl Entry {
    /// Returns an entry without its number.
    #[inline]
    fn of(completion: &Completion) -> Self {
        let Completion { opcode, status, flags, qpn, byte_len, immediate, source_qpn, .. } = *completion;
        let Completion { id, timestamp, number, .. } = *completion;
        let (mark, body) = match completion.placement {
            Placement::Done => (0, [id, timestamp, number.into(), 0, 0]),
            Placement::There => (THERE, [id, timestamp, 0, 0, 0]),
            Placement::Here(message) => (HERE, message),
            Placement::At(address, [a, b, c]) => (AT, [id, address, a, b, c]),
            Placement::MessageRing(position) => (MESSAGE_RING, [id, 0, position.into(), 0, 0]),
            Placement::MessageRingAt(address, position) => {
                (MESSAGE_RING_AT, [id, address, position.into(), 0, 0])
            }
        };
        let flags = flags & !(PLACEMENT | SOLICITED) | mark;
        Self { number: AtomicU32::new(0), opcode, status, flags, qpn, byte_len, immediate, source_qpn, body }
    }

    #[inline]
    fn completion(&self) -> Completion {
        let Self { opcode, status, flags, qpn, byte_len, immediate, source_qpn, body, number: _ } = *self;
        let [id, second, third, fourth, fifth] = body;
        let (id, timestamp, placement) = match flags & PLACEMENT {
            THERE => (id, second, Placement::There),
            HERE => (0, 0, Placement::Here(body)),
            AT => (id, 0, Placement::At(second, [third, fourth, fifth])),
            MESSAGE_RING => (0, 0, Placement::MessageRing(third as u32)),
            MESSAGE_RING_AT => (id, 0, Placement::MessageRingAt(second, third as u32)),
            _ => (id, second, Placement::Done),
        };
        let number = if placement == Placement::Done { third as u32 } else { 0 };
        let flags = flags & !(PLACEMENT | SOLICITED);
        Completion {
            opcode,
            status,
            flags,
            qpn,
            byte_len,
            immediate,
            source_qpn,
            id,
            timestamp,
            number,
            placement,
        }
    }
}

/// The condition for notifying a completion channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Notify of the next completion.
    Any = 2,
    /// Notify of the next completion that is solicited or an error.
    Solicited = 1,
}

/// There are more completions than the queue has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overran")]
pub struct Overrun;

/// Returns the bytes of memory for a queue of this many completions.
#[must_use]
pub const fn bytes(entries: u32) -> usize {
    size_of::<Header>() + entries as usize * size_of::<Entry>()
}

#[derive(Debug)]
struct Ring {
    memory: Memory,
    /// A power of two.
    entries: u32,
}

impl Ring {
    fn new(memory: Memory, entries: u32) -> Self {
        assert!(entries.is_power_of_two() && memory.len() >= bytes(entries), "no completion queue");
        Self { memory, entries }
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: at the start of memory that `self` keeps mapped, which is longer than that; it consists of atomics.
        unsafe { self.memory.at::<Header>(0).as_ref() }
    }

    #[inline]
    fn entry(&self, index: u32) -> NonNull<Entry> {
        let at = (index & (self.entries - 1)) as usize;
        self.memory.at(size_of::<Header>() + at * size_of::<Entry>())
    }

    #[inline]
    fn number(&self, index: u32) -> &AtomicU32 {
        // SAFETY: within the mapping (`entry`); it is an atomic.
        unsafe { &(*self.entry(index).as_ptr()).number }
    }

    #[inline]
    fn read(&self, index: u32) -> Completion {
        let entry = self.entry(index);
        reads(self.number(index));
        // SAFETY: within the mapping; any bytes are a valid entry. An application that overwrote it harms only itself.
        unsafe { entry.read_volatile() }.completion()
    }
}

/// The state of a place in a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Free,
    /// The place was reserved, but is not filled.
    Empty,
    /// The place was filled; the completion may have been taken since.
    Filled,
}

/// A process's note about a place in a completion queue, in case the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The process is about to reserve the place, and others may be too.
    Tries(u32),
    /// The process has reserved the place, and is about to fill it.
    Has(u32),
}

/// The end of a completion queue that adds completions: the device's, or that of peers that share memory.
#[derive(Debug)]
pub struct CompletionSink {
    ring: Ring,
    /// The library's head when it was last read. It is read again if there seems to be no room.
    taken: std::sync::atomic::AtomicU32,
}

impl CompletionSink {
    /// Creates the end for a queue of this many completions, a power of two, in memory of [`bytes`] for that number.
    ///
    /// # Panics
    /// If the number is no power of two, or the memory is too short.
    #[must_use]
    pub fn new(memory: Memory, entries: u32) -> Self {
        Self { ring: Ring::new(memory, entries), taken: std::sync::atomic::AtomicU32::new(0) }
    }

    /// Is true if there is room for a completion with this index.
    #[inline]
    fn has_room(&self, index: u32) -> bool {
        let fits = |taken: u32| index.wrapping_sub(taken) < self.ring.entries;
        // Acquire here and Release below, for two reasons: another thread may have read the head for us; and the
        // library has read the place before we write to it.
        if fits(self.taken.load(Ordering::Acquire)) {
            return true;
        }
        let head = self.ring.header().head.load(Ordering::Acquire);
        self.taken.store(head, Ordering::Release);
        fits(head)
    }

    /// Counts the completions that were not taken yet. Limits the library's count to possible values.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        let header = self.ring.header();
        let head = header.head.load(Ordering::Acquire);
        header.tail.load(Ordering::Relaxed).wrapping_sub(head).min(self.ring.entries)
    }

    /// Disarms the completion channel, which the caller then notifies on behalf of a process that died. That
    /// process may have been about to do so, whether it had disarmed the channel or not, and whether its
    /// completion is still here or was taken meanwhile.
    pub fn disarm(&self) {
        self.ring.header().armed.swap(0, Ordering::AcqRel);
    }

    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        !self.has_room(self.ring.header().tail.load(Ordering::Relaxed))
    }

    /// Reserves a place for a completion, if there is one. Calls `note` before each attempt.
    #[inline]
    fn reserve(&self, note: impl Fn(u32)) -> Result<u32, Overrun> {
        let header = self.ring.header();
        let mut tail = header.tail.load(Ordering::Relaxed);
        // Others finish at once. An application that writes there all the time harms only itself.
        for _ in 0..ATTEMPTS {
            if !self.has_room(tail) {
                return Err(Overrun);
            }
            note(tail);
            point(Point::PlaceNoted);
            let next = tail.wrapping_add(1);
            // Release: whoever sees that the place is reserved sees the note.
            match header.tail.compare_exchange_weak(tail, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    point(Point::PlaceReserved);
                    return Ok(tail);
                }
                Err(other) => tail = other,
            }
        }
        Err(Overrun)
    }

    /// Adds a completion. Returns whether the completion channel must be notified.
    ///
    /// # Errors
    /// If there is no room.
    #[inline]
    pub fn push(&self, completion: &Completion, solicited: bool) -> Result<bool, Overrun> {
        self.push_noting(completion, solicited, |_| ())
    }

    /// Adds a completion like [`Self::push`], if nobody else adds any and only the program shares the queue. If the
    /// queue has no channel, this does not wait for cache lines that were written before.
    ///
    /// # Errors
    /// If there is no room.
    #[inline]
    pub fn push_alone(
        &mut self,
        completion: &Completion,
        solicited: bool,
        has_channel: bool,
    ) -> Result<bool, Overrun> {
        let tail = &self.ring.header().tail;
        let at = tail.load(Ordering::Relaxed);
        if !self.has_room(at) {
            return Err(Overrun);
        }
        tail.store(at.wrapping_add(1), Ordering::Release);
        point(Point::PlaceReserved);
        self.write(at, completion, solicited);
        Ok(has_channel && self.tells(at, solicited))
    }

    /// Adds a completion like [`Self::push`], for a process that may die in the middle. Calls `note` before each
    /// attempt to reserve a place, and before it fills the reserved one.
    ///
    /// # Errors
    /// If there is no room.
    #[inline]
    pub fn push_noting(
        &self,
        completion: &Completion,
        solicited: bool,
        note: impl Fn(Hold),
    ) -> Result<bool, Overrun> {
        let at = self.reserve(|place| note(Hold::Tries(place)))?;
        note(Hold::Has(at));
        point(Point::PlaceHeld);
        Ok(self.fill(at, completion, solicited))
    }

    /// Fills a place that was reserved, by us or by somebody who died. Returns whether the completion channel must be
    /// notified.
    #[inline]
    pub fn fill(&self, at: u32, completion: &Completion, solicited: bool) -> bool {
        self.write(at, completion, solicited);
        self.tells(at, solicited)
    }

    #[inline]
    fn write(&self, at: u32, completion: &Completion, solicited: bool) {
        let entry = self.ring.entry(at);
        let written = Entry::of(completion);
        let flags = if solicited { written.flags | SOLICITED } else { written.flags };
        writes(self.ring.number(at));
        // SAFETY: within the mapping, everything except the number. The library reads it only once the number is
        // right, which it is not yet, and nobody else was given this place.
        unsafe {
            let place = entry.as_ptr();
            (&raw mut (*place).opcode).write_volatile(written.opcode);
            (&raw mut (*place).status).write_volatile(written.status);
            (&raw mut (*place).flags).write_volatile(flags);
            (&raw mut (*place).qpn).write_volatile(written.qpn);
            (&raw mut (*place).byte_len).write_volatile(written.byte_len);
            (&raw mut (*place).immediate).write_volatile(written.immediate);
            (&raw mut (*place).source_qpn).write_volatile(written.source_qpn);
            (&raw mut (*place).body).write_volatile(written.body);
        }
        point(Point::EntryWritten);
        // Release: whoever sees the number sees the rest, and the message that was copied to the program's memory
        // before. Not by an exchange, which would release the cache line to pollers too early.
        self.ring.number(at).store(at.wrapping_add(1), Ordering::Release);
    }

    /// Disarms the completion channel after a place was filled, if the completion is one that it waits for. Returns
    /// whether the channel must be notified.
    #[inline]
    fn tells(&self, at: u32, solicited: bool) -> bool {
        // Pairs with `CompletionQueue::arm`.
        fence();
        point(Point::EntryPublished);
        let armed = &self.ring.header().armed;
        let tells = match armed.load(Ordering::Acquire) {
            wanted if wanted == Arm::Any as u32 => true,
            // A solicited completion after this one could not be seen before this one was filled.
            wanted if wanted == Arm::Solicited as u32 => solicited || self.is_solicited_behind(at),
            _ => false,
        };
        let tells = tells && armed.swap(0, Ordering::Relaxed) != 0;
        if tells {
            point(Point::Disarmed);
        }
        tells
    }

    /// Is true if a solicited completion was hidden only by the one at this place.
    #[cold]
    fn is_solicited_behind(&self, at: u32) -> bool {
        for index in (1..=BEHIND).map(|step| at.wrapping_add(step)) {
            if self.ring.number(index).load(Ordering::Acquire) != index.wrapping_add(1) {
                return false;
            }
            // SAFETY: within the mapping; any bytes are flags.
            if unsafe { (&raw const (*self.ring.entry(index).as_ptr()).flags).read_volatile() } & SOLICITED
                != 0
            {
                return true;
            }
        }
        // After so many, a needless notification is better than none.
        true
    }

    /// Returns the state of a place that somebody noted.
    #[must_use]
    pub fn look(&self, at: u32) -> Place {
        let tail = self.ring.header().tail.load(Ordering::Acquire);
        if tail.wrapping_sub(at).cast_signed() <= 0 {
            return Place::Free;
        }
        match self.ring.number(at).load(Ordering::Acquire).wrapping_sub(at.wrapping_add(1)).cast_signed() {
            // If the completion was taken, the place may hold a later one by now.
            0.. => Place::Filled,
            _ => Place::Empty,
        }
    }

    /// Moves the completions that were not taken to another queue, which continues this one. Returns false if that
    /// queue has no room for them.
    #[must_use]
    pub fn move_to(&self, other: &Self) -> bool {
        let waiting = self.waiting();
        if waiting > other.ring.entries {
            return false;
        }
        let first = self.ring.header().tail.load(Ordering::Relaxed).wrapping_sub(waiting);
        let header = other.ring.header();
        header.tail.store(first, Ordering::Relaxed);
        header.head.store(first, Ordering::Relaxed);
        for index in 0..waiting {
            let _ = other.push(&self.ring.read(first.wrapping_add(index)), false);
        }
        header.armed.store(self.ring.header().armed.load(Ordering::Relaxed), Ordering::Relaxed);
        true
    }
}

#[derive(Debug)]
pub struct CompletionQueue {
    ring: Ring,
    head: u32,
}

impl CompletionQueue {
    /// Creates the end for a queue of this many completions, a power of two, in memory of [`bytes`] for that number.
    ///
    /// # Panics
    /// If the number is no power of two, or the memory is too short.
    #[must_use]
    pub fn new(memory: Memory, entries: u32) -> Self {
        let ring = Ring::new(memory, entries);
        let head = ring.header().head.load(Ordering::Relaxed);
        Self { ring, head }
    }

    /// Is true if the completion with this index is there.
    #[inline]
    fn is_there(&self, index: u32) -> bool {
        self.ring.number(index).load(Ordering::Acquire) == index.wrapping_add(1)
    }

    /// Drops completions of a queue pair that was destroyed or reset.
    pub fn forget(&mut self, qpn: u32) {
        let mut index = self.head;
        while index.wrapping_sub(self.head) < self.ring.entries && self.is_there(index) {
            let entry = self.ring.entry(index).as_ptr();
            // SAFETY: within the mapping; its writer has finished with it.
            unsafe {
                if (&raw const (*entry).qpn).read_volatile() == qpn {
                    (&raw mut (*entry).status).write_volatile(FORGOTTEN);
                }
            }
            index = index.wrapping_add(1);
        }
    }

    /// Takes a completion, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        loop {
            let completion = self.next()?;
            if completion.status != FORGOTTEN {
                return Some(completion);
            }
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Completion> {
        if !self.is_there(self.head) {
            return None;
        }
        let next = self.head.wrapping_add(1);
        let completion = self.ring.read(self.head);
        self.head = next;
        // Release: the completion was read before another one is written there.
        self.ring.header().head.store(next, Ordering::Release);
        point(Point::EntryPolled);
        Some(completion)
    }

    /// Requests notification of the completion channel.
    pub fn arm(&self, arm: Arm) {
        let armed = &self.ring.header().armed;
        // A request for any completion prevails over one for less.
        armed.fetch_max(arm as u32, Ordering::AcqRel);
        // The caller must then check for completions once more: whoever adds a completion that this check misses sees
        // this request (`fill`).
        fence();
        point(Point::Armed);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
