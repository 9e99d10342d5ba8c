//! Two sides in memory, and a wire between them.
#![allow(dead_code)] // not every test needs all of it

use packet::roce::{self, Atomic, Bth, Datagram, Deth, Opcode, Operation, Reth, RnrTimer, Service, Syndrome};
use rdma::{
    Access, AtomicOperation, Attributes, Completion, Fault, LocalVerbs, Mtu, Payload, QueuePair, SendRequest,
    ShortMessage, Verbs,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Keys of the regions that each side lets the other access, all at the same address.
pub const WRITABLE: u32 = 7;
pub const READ_ONLY: u32 = 8;
pub const ATOMICS: u32 = 9;
pub const ADDRESS: u64 = 0x7fff_0000_1000;
pub const SIZE: usize = 16 << 10;

/// The address handle of the other side.
pub const PEER: u32 = 3;

const PACKETS_AT_A_TIME: usize = 16;

pub fn attributes(first_psn: u32) -> Attributes {
    Attributes {
        reliable: true,
        mtu: Mtu::Bytes256,
        partition: 0xffff,
        destination: 17,
        send_psn: first_psn,
        receive_psn: first_psn,
        timeout: 10,
        retries: 7,
        rnr_retries: 7,
        rnr_timer: RnrTimer::new(12),
        reads: 4,
        peer_reads: 4,
    }
}

/// A side's memory, without the buffers of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub writable: Vec<u8>,
    pub read_only: Vec<u8>,
    pub counter: u64,
    /// Whether another thread uses the memory.
    pub is_busy: bool,
    /// The bytes in receives, by their identifier.
    pub received: BTreeMap<u64, Vec<u8>>,
    /// The bytes that requests read, by their identifier.
    pub local: BTreeMap<u64, Vec<u8>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            writable: vec![0; SIZE],
            read_only: (0..SIZE).map(|i| (i * 31 / 8) as u8).collect(),
            counter: 5,
            is_busy: false,
            received: BTreeMap::new(),
            local: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Surroundings {
    pub memory: Memory,
    /// Buffers of requests, by their identifier.
    pub local: BTreeMap<u64, Vec<u8>>,
    pub completions: Vec<Completion>,
    pub shares_receives: bool,
    pub receives: VecDeque<(u64, usize)>,
    current: (u64, usize),
    out: VecDeque<Vec<u8>>,
    /// The other side, while it accepts short messages.
    nearby: Option<Box<Side>>,
    /// The lengths that the packets of the last short message would have.
    passed: Option<(usize, Option<usize>)>,
}

impl Surroundings {
    /// Takes the last packet that was sent.
    pub fn sent(&mut self) -> Option<Vec<u8>> {
        self.out.pop_back()
    }

    pub fn all_sent(&mut self) -> VecDeque<Vec<u8>> {
        std::mem::take(&mut self.out)
    }

    pub fn post_receive(&mut self, id: u64, len: u32) {
        self.receives.push_back((id, len as usize));
    }

    fn part(&mut self, rkey: u32, address: u64, len: usize, access: Access) -> Result<&mut [u8], Fault> {
        let region = match (rkey, access) {
            (WRITABLE, Access::Write) => &mut self.memory.writable,
            (READ_ONLY, Access::Read) => &mut self.memory.read_only,
            _ => return Err(Fault::Protection),
        };
        let start = usize::try_from(address.checked_sub(ADDRESS).ok_or(Fault::Protection)?).unwrap();
        region.get_mut(start..).and_then(|rest| rest.get_mut(..len)).ok_or(Fault::Protection)
    }
}

impl Verbs for Surroundings {
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let buffer = self.local.get_mut(&request.id).ok_or(Fault::Protection)?;
        buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn take_receive(&mut self) -> Option<u64> {
        self.current = self.receives.pop_front()?;
        self.memory.received.insert(self.current.0, Vec::new());
        Some(self.current.0)
    }

    fn take_flushed(&mut self) -> Option<u64> {
        self.take_receive()
    }

    fn shares_receives(&self) -> bool {
        self.shares_receives
    }

    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let (id, room) = self.current;
        let end = offset as usize + bytes.len();
        if end > room {
            return Err(Fault::Length);
        }
        let into = self.memory.received.get_mut(&id).unwrap();
        into.resize(end, 0);
        into[offset as usize..].copy_from_slice(bytes);
        Ok(())
    }

    fn check(&mut self, rkey: u32, address: u64, len: u32, access: Access) -> Result<(), Fault> {
        if (rkey, access) == (ATOMICS, Access::Atomic) {
            return if address == ADDRESS { Ok(()) } else { Err(Fault::Protection) };
        }
        self.part(rkey, address, len as usize, access).map(|_| ())
    }

    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], _: bool) -> Result<(), Fault> {
        self.part(rkey, address, bytes.len(), Access::Write)?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, address: u64, operation: AtomicOperation) -> Result<u64, Fault> {
        self.check(rkey, address, 8, Access::Atomic)?;
        if self.memory.is_busy {
            return Err(Fault::Busy);
        }
        let original = self.memory.counter;
        self.memory.counter = match operation {
            AtomicOperation::FetchAdd(add) => original.wrapping_add(add),
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
        };
        Ok(original)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn complete(&mut self, completion: Completion) {
        // A WRITE with immediate does not fill its receive.
        if completion.received.is_some_and(|received| received.by == rdma::Arrival::WriteWithImmediate) {
            self.memory.received.remove(&completion.id);
        }
        self.completions.push(completion);
    }

    fn send(&mut self, to: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault> {
        assert!(to.is_none_or(|address| address == PEER));
        let payload = match payload {
            Payload::None => Vec::new(),
            Payload::Message { request, offset, len } => {
                let buffer = self.local.get(&request.id).ok_or(Fault::Protection)?;
                buffer[offset as usize..][..len as usize].to_vec()
            }
            Payload::Region { rkey, address, len } => {
                self.part(rkey, address, len as usize, Access::Read)?.to_vec()
            }
        };
        let mut bytes = vec![0; 8192];
        let packet = Datagram { payload: &payload, ..*packet };
        let len = roce::write(&packet, &mut bytes).expect("a packet with its headers");
        bytes.truncate(len);
        self.out.push_back(bytes);
        Ok(())
    }
}

impl LocalVerbs for Surroundings {
    fn pass(&mut self, request: &SendRequest, message: &ShortMessage, bytes: &mut [u8]) -> bool {
        if !message.is_read() {
            let Some(buffer) = self.local.get(&request.id) else { return false };
            bytes.copy_from_slice(&buffer[..bytes.len()]);
        }
        self.nearby.as_mut().is_some_and(|side| side.qp.serve(message, bytes, &mut side.verbs))
    }

    fn count_passed(&mut self, message: &ShortMessage, len: usize) {
        self.passed = Some(message.packets(len));
    }

    fn try_write(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> bool {
        self.write(rkey, address, bytes, true).is_ok()
    }

    fn try_read(&mut self, rkey: u32, address: u64, out: &mut [u8]) -> bool {
        let part = self.part(rkey, address, out.len(), Access::Read);
        part.map(|part| out.copy_from_slice(part)).is_ok()
    }
}

#[derive(Debug)]
pub struct Side {
    pub qp: QueuePair,
    pub verbs: Surroundings,
}

impl Side {
    fn new(attributes: Attributes) -> Self {
        let mut qp = QueuePair::new(attributes);
        qp.ready_to_send(attributes);
        Self { qp, verbs: Surroundings::default() }
    }

    pub fn post(&mut self, request: SendRequest) {
        self.qp.post_send(request, &mut self.verbs);
    }

    pub fn receive(&mut self, packet: &[u8], now: Duration) {
        if let Ok(packet) = roce::parse(packet) {
            self.qp.receive(&packet, now, &mut self.verbs);
        }
    }
}

/// A wire, with the chances of its errors in percent.
#[derive(Default)]
pub struct Wire {
    pub loss: u32,
    pub doubled: u32,
    pub reordered: u32,
    pub lost: u32,
    random: u64,
}

impl Wire {
    fn chance(&mut self, percent: u32) -> bool {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % 100 < u64::from(percent)
    }

    /// Returns the packets that arrive, of those sent.
    fn carry(&mut self, packets: VecDeque<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut out: Vec<Vec<u8>> = Vec::new();
        for packet in packets {
            if self.chance(self.loss) {
                self.lost += 1;
                continue;
            }
            if self.chance(self.doubled) {
                out.push(packet.clone());
            }
            let at = if self.chance(self.reordered) { out.len().saturating_sub(1) } else { out.len() };
            out.insert(at, packet);
        }
        out
    }
}

pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub wire: Wire,
    pub now: Duration,
}

impl Pair {
    pub fn new(attributes: Attributes, seed: u64) -> Self {
        let wire = Wire { random: seed | 1, ..Wire::default() };
        Self { wire, ..Self::of(attributes, attributes) }
    }

    pub fn of(ours: Attributes, theirs: Attributes) -> Self {
        let (a, b) = (Side::new(ours), Side::new(theirs));
        Self { a, b, wire: Wire::default(), now: Duration::ZERO }
    }

    /// Posts a request of A. If it is short, B executes it at once: returns the lengths that its packets would have.
    pub fn post_short(&mut self, request: SendRequest) -> Option<(usize, Option<usize>)> {
        let b = std::mem::replace(&mut self.b, Side::new(attributes(0)));
        self.a.verbs.nearby = Some(Box::new(b));
        let is_passed = self.a.qp.pass(&request, &mut self.a.verbs);
        self.b = *self.a.verbs.nearby.take().unwrap();
        if !is_passed {
            self.a.post(request);
        }
        self.a.verbs.passed.take()
    }

    /// Carries packets until none is sent now. Returns their lengths.
    pub fn settle(&mut self) -> Vec<usize> {
        let mut lengths = Vec::new();
        loop {
            let now = self.now;
            for side in [&mut self.a, &mut self.b] {
                side.qp.poll(now, PACKETS_AT_A_TIME, &mut side.verbs);
            }
            let sent = [&mut self.a, &mut self.b].map(|side| side.verbs.all_sent());
            let [from_a, from_b] = sent;
            if from_a.is_empty() && from_b.is_empty() {
                return lengths;
            }
            lengths.extend(from_a.iter().chain(&from_b).map(Vec::len));
            from_a.iter().for_each(|packet| self.b.receive(packet, now));
            from_b.iter().for_each(|packet| self.a.receive(packet, now));
        }
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        self.run_until(Duration::from_secs(3600));
    }

    pub fn run_until(&mut self, end: Duration) {
        for _ in 0..200_000 {
            let (a, b, now) = (&mut self.a, &mut self.b, self.now);
            let next = [&mut *a, &mut *b].map(|side| side.qp.poll(now, PACKETS_AT_A_TIME, &mut side.verbs));
            let (from_a, from_b) = (std::mem::take(&mut a.verbs.out), std::mem::take(&mut b.verbs.out));
            let quiet = from_a.is_empty() && from_b.is_empty();
            self.wire.carry(from_a).iter().for_each(|packet| b.receive(packet, now));
            self.wire.carry(from_b).iter().for_each(|packet| a.receive(packet, now));
            self.now += Duration::from_micros(1);
            if quiet {
                match next.into_iter().flatten().min() {
                    Some(next) if next <= end => self.now = self.now.max(next),
                    _ => return,
                }
            }
        }
        panic!("no end after 200000 rounds");
    }
}

/// Returns the base transport header of a packet from the peer that requests no answer.
pub fn bth(opcode: Opcode, psn: u32) -> Bth {
    Bth {
        opcode,
        solicited: false,
        migrated: true,
        partition: 0xffff,
        forward_congestion: false,
        backward_congestion: false,
        destination: 17,
        acknowledge: false,
        psn: psn & 0xff_ffff,
    }
}

/// Returns a packet of any kind, made from a few numbers.
pub fn forged(opcode: Opcode, [a, b, c, d]: [u32; 4], len: usize) -> Vec<u8> {
    let operation = opcode.operation();
    let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
    // Half of them are close to the expected one.
    let psn = if a & 1 == 0 { a >> 1 & 7 } else { a };
    let rkey = [WRITABLE, READ_ONLY, ATOMICS, b][b as usize & 3];
    let address = if c & 1 == 0 { ADDRESS } else { u64::from(c) << 32 };
    let payload = vec![0xee; len];
    let packet = Datagram {
        bth: Bth { acknowledge: true, ..bth(opcode, psn) },
        deth: matches!(opcode, Opcode::Of(Service::Ud, _)).then_some(Deth { queue_key: a, source: 1 }),
        reth: has(Operation::has_reth).then_some(Reth {
            address,
            rkey,
            len: if d & 1 == 0 { len as u32 } else { d },
        }),
        atomic: has(Operation::has_atomic).then_some(Atomic { address, rkey, swap_add: 1, compare: 5 }),
        aeth: has(Operation::has_aeth).then_some(packet::roce::Aeth {
            syndrome: Syndrome::from_byte(d as u8).unwrap_or(Syndrome::NO_CREDITS),
            msn: 0,
        }),
        original: (operation == Some(Operation::AtomicAcknowledge)).then_some(1),
        immediate: has(Operation::has_immediate).then_some([0; 4]),
        invalidate: has(Operation::has_invalidate).then_some(b),
        payload: if has(Operation::has_payload) { &payload } else { &[] },
    };
    let mut out = vec![0; 8192];
    let written = roce::write(&packet, &mut out).unwrap();
    out.truncate(written);
    out
}
