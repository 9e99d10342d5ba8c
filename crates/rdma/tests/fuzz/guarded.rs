//! Surroundings of a queue pair that check its promises.

use packet::roce::{self, Datagram, Opcode, Operation};
use rdma::{Access, AtomicOperation, Completion, Fault, Payload, SendRequest, Status, Verbs};
use std::collections::{BTreeMap, VecDeque};

/// The only region, for all accesses, and the part of it that may be invalidated.
pub const RKEY: u32 = 7;
pub const ADDRESS: u64 = 0x7fff_ffff_f000;
pub const SIZE: u32 = 8 << 10;
/// Number of packets that are kept for the peer.
const KEPT: usize = 64;

#[derive(Default)]
pub struct Guarded {
    /// Requests of the send queue whose completion is due, by their identifier.
    pub due: BTreeMap<u64, SendRequest>,
    /// Posted receives, and those that were taken: identifier and room.
    pub posted: VecDeque<(u64, u32)>,
    pub taken: BTreeMap<u64, u32>,
    current: u64,
    /// Number of the current receive's bytes that are filled, from its start.
    filled: u32,
    pub shares_receives: bool,
    /// Accesses that checks permitted: memory that the arriving message may write, and memory that may be read later.
    writable: Option<(u64, u32)>,
    readable: Vec<(u64, u32)>,
    counted: Option<u64>,
    /// Whether the memory is not there now.
    pub gone: bool,
    pub out: VecDeque<Vec<u8>>,
    /// Counts packets sent and, among them, acknowledgements; completions; and other calls. The reader resets them.
    pub work: Work,
    next: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    pub sent: usize,
    pub acknowledgements: usize,
    pub completed: usize,
    pub calls: usize,
}

fn within((start, room): (u64, u32), address: u64, len: u32) -> bool {
    address.checked_sub(start).is_some_and(|skipped| skipped + u64::from(len) <= room.into())
}

impl Guarded {
    pub fn new(shares_receives: bool) -> Self {
        Self { shares_receives, ..Self::default() }
    }

    /// Returns an identifier that was never used before.
    pub fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn post_receive(&mut self, room: u32) {
        let id = self.name();
        self.posted.push_back((id, room));
    }

    fn there(&self) -> Result<(), Fault> {
        if self.gone { Err(Fault::Protection) } else { Ok(()) }
    }

    fn region(&self, rkey: u32, address: u64, len: u32) -> Result<(), Fault> {
        self.there()?;
        if rkey == RKEY && within((ADDRESS, SIZE), address, len) { Ok(()) } else { Err(Fault::Protection) }
    }
}

impl Verbs for Guarded {
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        self.work.calls += 1;
        let room =
            if matches!(request.operation, rdma::SendOperation::Atomic { .. }) { 8 } else { request.len };
        assert!(within((0, room), offset.into(), bytes.len() as u32), "{offset} + {} of {room}", bytes.len());
        self.there()
    }

    fn take_receive(&mut self) -> Option<u64> {
        self.work.calls += 1;
        let (id, room) = self.posted.pop_front()?;
        self.taken.insert(id, room);
        (self.current, self.filled) = (id, 0);
        Some(id)
    }

    fn take_flushed(&mut self) -> Option<u64> {
        if self.shares_receives { None } else { self.take_receive() }
    }

    fn shares_receives(&self) -> bool {
        self.shares_receives
    }

    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        self.work.calls += 1;
        let room = *self.taken.get(&self.current).expect("a receive that is taken and not completed");
        if !within((0, room), offset.into(), bytes.len() as u32) {
            return Err(Fault::Length);
        }
        self.filled = offset + bytes.len() as u32;
        self.there()
    }

    fn check(&mut self, rkey: u32, address: u64, len: u32, access: Access) -> Result<(), Fault> {
        self.work.calls += 1;
        self.region(rkey, address, len)?;
        match access {
            Access::Write => self.writable = Some((address, len)),
            Access::Read => self.readable.push((address, len)),
            Access::Atomic => self.counted = Some(address),
        }
        Ok(())
    }

    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], _: bool) -> Result<(), Fault> {
        self.work.calls += 1;
        let announced = self.writable.is_some_and(|window| within(window, address, bytes.len() as u32));
        assert!(announced, "{address:#x} + {} was not announced: {:?}", bytes.len(), self.writable);
        self.region(rkey, address, bytes.len() as u32)
    }

    fn atomic(&mut self, rkey: u32, address: u64, _: AtomicOperation) -> Result<u64, Fault> {
        self.work.calls += 1;
        assert_eq!(self.counted.take(), Some(address), "once for each check");
        assert!(address.is_multiple_of(8));
        self.region(rkey, address, 8)?;
        Ok(0)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        self.work.calls += 1;
        self.there()?;
        if rkey == RKEY + 1 { Ok(()) } else { Err(Fault::Protection) }
    }

    fn complete(&mut self, completion: Completion) {
        self.work.completed += 1;
        let Completion { id, status, len, received } = completion;
        if let Some(room) = self.taken.remove(&id) {
            let by_send = received.is_some_and(|received| received.by == rdma::Arrival::Send);
            assert!(!by_send || len <= room && len == self.filled && id == self.current, "{completion:?}");
            assert_eq!(received.is_some(), status == Status::Success);
        } else {
            assert!(self.due.remove(&id).is_some(), "completed twice: {completion:?}");
            assert_eq!(received, None);
        }
    }

    fn send(&mut self, _: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault> {
        self.work.calls += 1;
        let len = match payload {
            Payload::None => 0,
            Payload::Message { request, offset, len } => {
                assert!(within((0, request.len), offset.into(), len), "{offset} + {len} of {}", request.len);
                len
            }
            Payload::Region { rkey, address, len } => {
                assert!(self.readable.iter().any(|window| within(*window, address, len)), "never checked");
                self.region(rkey, address, len)?;
                len
            }
        };
        self.there().or(if len == 0 { Ok(()) } else { Err(Fault::Protection) })?;
        self.work.sent += 1;
        let is_acknowledgement = matches!(packet.bth.opcode, Opcode::Of(_, Operation::Acknowledge));
        self.work.acknowledgements += usize::from(is_acknowledgement);
        let payload = vec![0xee; len as usize];
        let mut bytes = vec![0; 8192];
        let len = roce::write(&Datagram { payload: &payload, ..*packet }, &mut bytes).expect("a packet");
        bytes.truncate(len);
        self.out.push_back(bytes);
        self.out.truncate(KEPT);
        Ok(())
    }
}
