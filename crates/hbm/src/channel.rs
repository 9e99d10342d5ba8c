//! The port: the card's view of the memory, clock by clock.

use std::collections::{BTreeSet, VecDeque};

use crate::device::Device;
use crate::memory::Memory;
use crate::queue::{Queue, Request};
use crate::schedule::Schedule;
use crate::timing::{BANKS, Timing};
use crate::trace::{Command, Kind};

const LINE: u64 = 64; // bytes; neighbouring lines are in different banks
const RESPONSES: usize = 64; // most requests of each direction whose responses wait for the card

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Number of requests of each direction among which the controller chooses: 1 to 64.
    pub window: usize,
    /// Whether the controller serves one request after the other, whatever their IDs: the next activate waits for the
    /// last column command. Otherwise it serves only requests of one ID in order (it activates their rows ahead).
    pub in_order: bool,
    /// Most requests that one activate serves. 1 means closed-page; more means first-ready, first-come-first-served.
    pub row_hits: u8,
    /// How long a direction keeps the data bus while the other one waits, in tCK; at least 2 tRC. An estimate.
    pub turn: u32,
    /// Latency that AXI, clock crossings and the controller's pipeline add to each request, ns: half on the way in and
    /// half on the way out. An estimate: 60-80; Shuhai's idle latencies on the U280 leave 91-94 (see `docs/hbm.md`).
    pub latency_ns: u32,
    /// The port's clock period, ps: 4000 for 250 MHz. A clock moves 32 bytes per direction.
    pub clock_ps: u32,
    /// Size of the channel, bytes: 256 MiB of 8 GiB in 32 channels.
    pub bytes: u64,
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            window: 32,
            in_order: false,
            row_hits: 1,
            turn: 128,
            latency_ns: 72,
            clock_ps: 4000,
            bytes: 256 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    pub id: u8,
    /// 32 bytes, the lowest address first.
    pub data: [u8; 32],
    /// Whether this is the last beat of its read.
    pub last: bool,
    /// Whether RRESP is SLVERR; `data` then means nothing.
    pub error: bool,
}

/// The reason why the port refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Busy,
    /// The burst does not have one or two beats within one aligned line of 64 bytes of the channel.
    Burst {
        /// The address of the first byte.
        addr: u64,
        beats: usize,
    },
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy => write!(f, "port not ready: ask can_read() or can_write() in each clock"),
            Self::Burst { addr, beats } => write!(
                f,
                "{beats} beats at {addr:#x}: ask for one or two, 32-byte aligned, in one 64-byte line of the channel"
            ),
        }
    }
}

impl std::error::Error for Refused {}

struct Response {
    ready_ps: u64,
    id: u8,
    beats: u8,
    sent: u8,
    data: [[u8; 32]; 2],
    errors: [bool; 2],
}

/// One pseudo channel. In each card clock: read the outputs, pass on requests and accept responses, then
/// [`Self::tick`].
pub struct Channel {
    time_ps: u64,
    wake_ps: u64, // the time before which nothing happens
    stalled: u32,
    taken: bool, // a read in this clock
    writing: u8, // clocks for which the write data channel is taken
    beat: Option<Beat>,
    written: Option<(u8, bool)>,
    /// Addresses, in steps of 32 bytes, at which requests are answered with an error.
    failing: BTreeSet<u64>,
    latency_ps: [u64; 2],
    r: VecDeque<Response>,
    b: VecDeque<(u64, u8, bool)>,
    trace: Option<Vec<Command>>,
    pub(crate) controller: Controller,
    pub(crate) schedule: Schedule,
    pub(crate) device: Device,
    pub(crate) reads: Queue,
    pub(crate) writes: Queue,
    pub(crate) memory: Memory,
}

impl Channel {
    /// Makes an empty channel, whose memory is zero.
    pub fn new(timing: Timing, controller: Controller) -> Self {
        let latency = u64::from(controller.latency_ns) * 1000;
        let way_in = latency / 2;
        let incoming = (way_in / u64::from(controller.clock_ps.max(1))) as usize + 2;
        let queue = || Queue::new(controller.window, controller.in_order, incoming);
        Self {
            time_ps: 0,
            wake_ps: 0,
            stalled: 0,
            taken: false,
            writing: 0,
            beat: None,
            written: None,
            failing: BTreeSet::new(),
            latency_ps: [way_in, latency - way_in],
            r: VecDeque::with_capacity(RESPONSES),
            b: VecDeque::with_capacity(RESPONSES),
            trace: None,
            controller,
            schedule: Schedule::new(timing.refresh),
            device: Device::new(timing),
            reads: queue(),
            writes: queue(),
            memory: Memory::new(controller.bytes),
        }
    }

    /// Returns ARREADY: whether a read is accepted in this clock.
    pub fn can_read(&self) -> bool {
        self.stalled == 0 && !self.taken && self.reads.has_room()
    }

    /// Accepts a read of one or two beats of 32 bytes.
    pub fn read(&mut self, id: u8, addr: u64, beats: u8) -> Result<(), Refused> {
        let request = self.request(id, addr, beats.into())?;
        if !self.can_read() {
            return Err(Refused::Busy);
        }
        self.taken = true;
        self.reads.push(request);
        self.wake(request.arrives);
        Ok(())
    }

    /// Returns AWREADY and WREADY: whether a write is accepted in this clock.
    pub fn can_write(&self) -> bool {
        self.stalled == 0 && self.writing == 0 && self.writes.has_room()
    }

    /// Accepts a write of one or two beats, all bytes of which are written. It occupies the write data channel for one
    /// clock per beat. A read sees each beat whole, old or new; after the response, all are new.
    pub fn write(&mut self, id: u8, addr: u64, data: &[[u8; 32]]) -> Result<(), Refused> {
        let mut request = self.request(id, addr, data.len())?;
        if !self.can_write() {
            return Err(Refused::Busy);
        }
        request.data[..data.len()].copy_from_slice(data);
        self.writing = request.beats;
        self.writes.push(request);
        self.wake(request.arrives);
        Ok(())
    }

    /// Returns RVALID and the beat. It stays until accepted.
    pub fn r(&self) -> Option<&Beat> {
        self.beat.as_ref()
    }

    /// Sets RREADY, in a clock in which [`Self::r`] shows a beat. The next beat comes with the next clock.
    pub fn accept_r(&mut self) {
        let Some(beat) = self.beat.take() else { return };
        if beat.last {
            self.reopen(self.r.len());
            self.r.pop_front();
        }
    }

    /// Returns BVALID, and the ID of a write that reads now see. It stays until accepted.
    pub fn b(&self) -> Option<u8> {
        self.written.map(|(id, _)| id)
    }

    /// Returns whether BRESP of that response is SLVERR.
    pub fn b_error(&self) -> bool {
        self.written.is_some_and(|(_, error)| error)
    }

    /// Sets BREADY, in a clock in which [`Self::b`] shows a response. The next response comes with the next clock.
    pub fn accept_b(&mut self) {
        if self.written.take().is_some() {
            self.reopen(self.b.len());
            self.b.pop_front();
        }
    }

    pub fn tick(&mut self) {
        self.time_ps += u64::from(self.controller.clock_ps);
        self.stalled = self.stalled.saturating_sub(1);
        self.taken = false;
        self.writing = self.writing.saturating_sub(1);
        let tck = u64::from(self.device.timing.tck_ps);
        while self.wake_ps < self.time_ps {
            self.wake_ps = self.step(self.wake_ps / tck).saturating_mul(tck);
        }
        if self.stalled == 0 {
            self.offer();
        }
    }

    /// Stalls the port for the next `clocks`: it accepts and offers nothing new. A response that it already offers
    /// stays.
    pub fn stall(&mut self, clocks: u32) {
        self.stalled = clocks;
    }

    /// Returns the number of accepted requests whose responses have not all been accepted.
    pub fn outstanding(&self) -> u64 {
        self.reads.outstanding() + self.writes.outstanding() + (self.r.len() + self.b.len()) as u64
    }

    /// Returns the bytes stored at an address, bypassing the port: for loading tables and for tests. Rounds the address
    /// down to 32 bytes.
    pub fn peek(&self, addr: u64) -> [u8; 32] {
        self.memory.read(addr & !31)
    }

    /// Stores bytes at an address, bypassing the port. They are visible at once. Stores nothing past the channel's end.
    /// Rounds the address down to 32 bytes.
    pub fn poke(&mut self, addr: u64, data: &[u8; 32]) {
        self.memory.write(addr & !31, data);
    }

    /// Sets whether requests for the 32 bytes at an address are answered with SLVERR. Rounds the address down to 32
    /// bytes.
    pub fn fail(&mut self, addr: u64, fails: bool) {
        if fails {
            self.failing.insert(addr & !31)
        } else {
            self.failing.remove(&(addr & !31))
        };
    }

    /// Starts to record the commands, for [`Self::take_trace`].
    pub fn record(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Takes the commands recorded since the last call, oldest first.
    pub fn take_trace(&mut self) -> Vec<Command> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn request(&self, id: u8, addr: u64, beats: usize) -> Result<Request, Refused> {
        let bytes = 32 * beats as u64;
        let in_line = addr.is_multiple_of(32) && addr % LINE + bytes <= LINE;
        if !(1..=2).contains(&beats) || !in_line || addr.saturating_add(bytes) > self.controller.bytes {
            return Err(Refused::Burst { addr, beats });
        }
        // Neighbouring lines go to different bank groups, then banks; a row holds neighbouring lines of one bank.
        let line = addr / LINE;
        let row = line / BANKS as u64 / (u64::from(self.device.timing.row_bytes) / LINE).max(1);
        let arrives = (self.time_ps + self.latency_ps[0]).div_ceil(u64::from(self.device.timing.tck_ps));
        let (bank, row) = ((line % BANKS as u64) as u8, row as u32);
        Ok(Request { id, bank, row, addr, beats: beats as u8, arrives, ..Request::default() })
    }

    fn wake(&mut self, at: u64) {
        self.wake_ps = self.wake_ps.min(at.saturating_mul(self.device.timing.tck_ps.into()));
    }

    /// Returns whether no request of this direction may be served before a response has left.
    pub(crate) fn is_clogged(&self, writing: bool) -> bool {
        RESPONSES == if writing { self.b.len() } else { self.r.len() }
    }

    /// Notes that a response has left a queue of `len`.
    fn reopen(&mut self, len: usize) {
        if len == RESPONSES {
            self.wake(self.time_ps.div_ceil(self.device.timing.tck_ps.into()));
        }
    }

    /// Queues the response to a request served at `now`.
    pub(crate) fn respond(&mut self, now: u64, writing: bool, request: &Request) {
        let timing = &self.device.timing;
        let column = if writing { timing.cwl } else { timing.cl };
        let data_end = (now + u64::from(column + timing.burst)) * u64::from(timing.tck_ps);
        let ready_ps = data_end + self.latency_ps[1];
        let &Request { id, addr, beats, data, .. } = request;
        let errors = [0, 1].map(|beat| beat < u64::from(beats) && self.failing.contains(&(addr + 32 * beat)));
        if writing {
            self.b.push_back((ready_ps, id, errors.contains(&true)));
        } else {
            self.r.push_back(Response { ready_ps, id, beats, sent: 0, data, errors });
        }
    }

    fn offer(&mut self) {
        if self.beat.is_none()
            && let Some(first) = self.r.front_mut()
            && first.ready_ps <= self.time_ps
        {
            let beat = first.sent as usize % 2;
            let (data, error) = (first.data[beat], first.errors[beat]);
            first.sent += 1;
            self.beat = Some(Beat { id: first.id, data, last: first.sent == first.beats, error });
        }
        if self.written.is_none()
            && let Some(&(ready_ps, id, error)) = self.b.front()
            && ready_ps <= self.time_ps
        {
            self.written = Some((id, error));
        }
    }

    pub(crate) fn note(&mut self, at: u64, kind: Kind) {
        if let Some(trace) = &mut self.trace {
            trace.push(Command { at, kind });
        }
    }
}
