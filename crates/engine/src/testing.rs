//! A port in memory, for tests and benchmarks.
#![allow(unsafe_code)] // makes segments from its own buffers

use mem::{Accepts, Burst, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment, TxQueue};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A frame and its unfinished offloads.
pub type Packet = (Vec<u8>, Offload);

/// The other side of a [`TestPort`]: sends and receives.
#[derive(Debug)]
pub struct Wire {
    to_engine: Mutex<VecDeque<Packet>>,
    from_engine: Mutex<Vec<Packet>>,
    /// The mark of each packet that the engine sent: the counter of its flow of Open vSwitch, if it has one.
    marks: Mutex<Vec<Option<u32>>>,
    arrived: Condvar,
    event: OwnedFd,
    accepts: Accepts,
    /// Buffers free for the engine; `usize::MAX`: unlimited.
    room: AtomicUsize,
    down: AtomicBool,
    /// Whether it asks the engine to be told of right checksums.
    tells_valid: AtomicBool,
    /// Longest piece of a packet, bytes.
    piece: usize,
}

/// A queue pair of a port in memory.
#[derive(Clone, Debug)]
pub struct TestPort(Arc<Wire>);

impl TestPort {
    /// Creates a port whose packets are in pieces of at most `piece` bytes.
    ///
    /// # Panics
    /// If there are no event descriptors.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn new(accepts: Accepts, piece: usize) -> Self {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd");
        Self(Arc::new(Wire {
            to_engine: Mutex::default(),
            from_engine: Mutex::default(),
            marks: Mutex::default(),
            arrived: Condvar::new(),
            event,
            accepts,
            room: AtomicUsize::new(usize::MAX),
            down: AtomicBool::new(false),
            tells_valid: AtomicBool::new(false),
            piece,
        }))
    }

    #[must_use]
    pub fn open(&self) -> Opened {
        Self::open_all(std::slice::from_ref(self))
    }

    /// Opens several queue pairs as one port.
    #[must_use]
    pub fn open_all(queues: &[Self]) -> Opened {
        Opened {
            port: Arc::new(queues[0].clone()),
            rx: queues.iter().map(|queue| Box::new(queue.receiver()) as Box<dyn RxQueue>).collect(),
            tx: queues.iter().map(|queue| queue.sender()).collect(),
        }
    }

    #[must_use]
    pub fn receiver(&self) -> TestRx {
        TestRx { wire: self.0.clone(), lent: Vec::new() }
    }

    #[must_use]
    pub fn sender(&self) -> Arc<dyn TxQueue> {
        Arc::new(TestTx { wire: self.0.clone(), leased: Mutex::new(()) })
    }

    pub fn send(&self, packets: impl IntoIterator<Item = Packet>) {
        lock(&self.0.to_engine).extend(packets);
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    #[must_use]
    pub fn take(&self) -> Vec<Packet> {
        std::mem::take(&mut *lock(&self.0.from_engine))
    }

    /// Takes the marks of the packets that the engine sent.
    #[must_use]
    pub fn take_marks(&self) -> Vec<Option<u32>> {
        std::mem::take(&mut *lock(&self.0.marks))
    }

    /// Waits until the engine has sent `n` packets, or for `patience`, then takes them.
    #[must_use]
    pub fn wait(&self, n: usize, patience: Duration) -> Vec<Packet> {
        let guard = lock(&self.0.from_engine);
        let short = |packets: &mut Vec<Packet>| packets.len() < n;
        let waited = self.0.arrived.wait_timeout_while(guard, patience, short);
        let (mut guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *guard)
    }

    pub fn set_room(&self, room: usize) {
        self.0.room.store(room, Ordering::Relaxed);
    }

    /// Asks the engine to be told of right checksums, as an Open vSwitch does.
    pub fn tell_valid(&self) {
        self.0.tells_valid.store(true, Ordering::Relaxed);
    }

    /// Disconnects the port, or connects it again.
    pub fn set_down(&self, down: bool) {
        self.0.down.store(down, Ordering::Relaxed);
    }

    /// Returns whether no engine holds any part of it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Port for TestPort {
    fn status(&self) -> PortStatus {
        PortStatus { up: !self.0.down.load(Ordering::Relaxed), queues: 1, ..PortStatus::default() }
    }
}

/// The engine's receiving half of a [`TestPort`].
pub struct TestRx {
    wire: Arc<Wire>,
    lent: Vec<Vec<u8>>,
}

impl RxQueue for TestRx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        let mut waiting = lock(&self.wire.to_engine);
        let mut bytes = 0;
        while bytes < byte_budget && self.lent.len() < mem::BURST {
            let Some((mut frame, offload)) = waiting.pop_front() else { break };
            let segments = pieces(&mut frame, self.wire.piece);
            bytes += frame.len();
            if !burst.push(&segments, frame.len() as u32, offload) {
                waiting.push_front((frame, offload));
                break;
            }
            self.lent.push(frame);
        }
        self.lent.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        self.lent.clear();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.wire.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        !lock(&self.wire.to_engine).is_empty()
    }

    fn disarm(&mut self) {
        let _ = rustix::io::read(&self.wire.event, &mut [0; 8]);
    }
}

struct TestTx {
    wire: Arc<Wire>,
    leased: Mutex<()>,
}

impl TxQueue for TestTx {
    fn accepts(&self) -> Accepts {
        self.wire.accepts
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        // This blocks: the holder of the lease may be waiting for a CPU.
        let _lease = lock(&self.leased);
        let mut room = TestRoom {
            wire: &self.wire,
            frames: Vec::new(),
            marks: Vec::new(),
            mark: None,
            segments: Vec::new(),
        };
        fill(&mut room);
        lock(&self.wire.marks).append(&mut room.marks);
        lock(&self.wire.from_engine).append(&mut room.frames);
        self.wire.arrived.notify_all();
        true
    }

    fn has_room(&self) -> bool {
        self.wire.room.load(Ordering::Relaxed) > 0
    }
}

struct TestRoom<'a> {
    wire: &'a Wire,
    frames: Vec<Packet>,
    marks: Vec<Option<u32>>,
    mark: Option<u32>,
    segments: Vec<Segment>,
}

impl Room for TestRoom<'_> {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        if self.wire.down.load(Ordering::Relaxed) {
            return Err(NoRoom::Down);
        }
        let room = self.wire.room.load(Ordering::Relaxed);
        match room {
            0 => return Err(NoRoom::Full),
            usize::MAX => {}
            room => self.wire.room.store(room - 1, Ordering::Relaxed),
        }
        let mut frame = vec![0xee; len];
        self.segments = pieces(&mut frame, self.wire.piece);
        self.frames.push((frame, *offload));
        self.marks.push(self.mark);
        Ok(&self.segments)
    }

    fn mark(&mut self, flow: Option<u32>) {
        self.mark = flow;
    }

    fn tells_valid(&self) -> bool {
        self.wire.tells_valid.load(Ordering::Relaxed)
    }
}

/// Splits a frame into pieces. The frame's bytes must not move or be freed while the pieces are in use.
fn pieces(frame: &mut [u8], piece: usize) -> Vec<Segment> {
    let piece = piece.max(frame.len().div_ceil(64)).max(1);
    // SAFETY: each piece lies in the frame, a heap buffer that is kept until the burst has ended.
    frame
        .chunks_mut(piece)
        .map(|part| unsafe { Segment::new(part.as_mut_ptr(), part.len() as u32) })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
