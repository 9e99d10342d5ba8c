//! What comes to an application's thread from others: packets for its queue pairs, and questions.

use crate::describe::ClientDescription;
use crate::direct::{Granted, Wish};
use crate::path::Network;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

/// Packets that may wait, and their bytes. Past that they are lost, as on any wire.
const PACKETS: usize = 16 << 10;
const BYTES: usize = 64 << 20;
/// Buffers that are kept for packets to come.
const SPARES: usize = 64;

/// A packet on its way to a queue pair.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Number of the queue pair it is for.
    pub qpn: u32,
    /// Its network header.
    pub network: Network,
    /// It did not leave the host.
    pub is_local: bool,
    /// Payload of UDP: base transport header to ICRC, which was checked where there is one.
    pub bytes: Vec<u8>,
}

/// What a thread is asked for.
#[derive(Debug)]
pub(crate) enum Question {
    /// To say what it has.
    Describe(mpsc::Sender<ClientDescription>),
    /// To look at its paths again: rules or addresses changed.
    Review,
    /// To tell its application that addresses changed.
    NewAddresses,
    /// To say that few receives are left in shared queues, where that is so.
    FewReceives,
    /// To share memory.
    Direct(Box<Wish>),
    /// What was asked for of another.
    Granted(Granted),
    /// To tell who waits for what a queue pair receives: its peer, GID and number, brought something.
    Tell(u32, (Ipv6Addr, u32)),
}

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<Packet>,
    bytes: usize,
    questions: Vec<Question>,
    spares: Vec<Vec<u8>>,
    /// Nobody takes anything any more.
    closed: bool,
}

/// What a thread took out of its inbox.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    pub packets: VecDeque<Packet>,
    pub questions: Vec<Question>,
    /// Buffers of packets that are done with.
    used: Vec<Vec<u8>>,
}

impl Arrivals {
    /// Has the buffer of a packet used again.
    pub fn give_back(&mut self, packet: Packet) {
        if self.used.len() < SPARES {
            self.used.push(packet.bytes);
        }
    }
}

/// Where others put what is for a thread.
#[derive(Debug)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    any: AtomicBool,
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl Inbox {
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Readable where the thread is to wake.
    pub const fn event(&self) -> &OwnedFd {
        &self.wake
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False where the packet is lost. `spare` is a buffer for the next one then: whoever sends here much allocates nothing.
    pub fn put(&self, packet: Packet, spare: &mut Vec<u8>) -> bool {
        let taken = self.put_quietly(packet, spare);
        if taken {
            self.announce();
        }
        taken
    }

    /// The same, without waking the thread: [`Self::announce`] is to follow.
    pub fn put_quietly(&self, packet: Packet, spare: &mut Vec<u8>) -> bool {
        let mut waiting = self.lock();
        let bytes = waiting.bytes + packet.bytes.len();
        if waiting.closed || waiting.packets.len() >= PACKETS || bytes > BYTES {
            *spare = packet.bytes;
            return false;
        }
        *spare = waiting.spares.pop().unwrap_or_default();
        waiting.bytes = bytes;
        waiting.packets.push_back(packet);
        true
    }

    /// The thread ended: what is here, and what comes, is lost.
    pub fn close(&self) {
        *self.lock() = Waiting { closed: true, ..Waiting::default() };
    }

    pub fn ask(&self, question: Question) {
        let same = |other: &Question| match (other, &question) {
            (Question::Tell(qpn, from), Question::Tell(to, by)) => (qpn, from) == (to, by),
            _ => false,
        };
        {
            let mut waiting = self.lock();
            if !(waiting.closed || waiting.questions.iter().any(same)) {
                waiting.questions.push(question);
            }
        }
        self.announce();
    }

    /// Asks to look for shared queues with few receives, once.
    pub fn tell_of_few(&self) {
        let waits = self.lock().questions.iter().any(|question| matches!(question, Question::FewReceives));
        if !waits {
            self.ask(Question::FewReceives);
        }
    }

    /// Has the thread see what was put here.
    pub fn announce(&self) {
        self.any.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the thread, or keeps it from sleeping the next time.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The thread's: takes everything, once what it took before is done with.
    pub fn take(&self, taken: &mut Arrivals) {
        if self.any.swap(false, Ordering::Acquire) {
            let mut waiting = self.lock();
            waiting.bytes = 0;
            std::mem::swap(&mut waiting.packets, &mut taken.packets);
            std::mem::swap(&mut waiting.questions, &mut taken.questions);
            taken.used.truncate(SPARES.saturating_sub(waiting.spares.len()));
            waiting.spares.append(&mut taken.used);
        }
    }

    /// The thread's: whether it sleeps from now on. Returns whether it may not: there is something.
    pub fn set_asleep(&self, asleep: bool) -> bool {
        self.asleep.store(asleep, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.any.load(Ordering::Relaxed)
    }

    /// The thread's: was woken.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}
