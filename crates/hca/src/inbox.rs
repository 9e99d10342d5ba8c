//! What comes to an application's thread from others: packets for its queue pairs, and questions.

use crate::budget::Account;
use crate::header::NetworkHeader;
use crate::ids::Qpn;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets that may wait. Past that they are lost, as on any wire; and where the device has no room for more bytes.
const PACKETS: usize = 16 << 10;
/// Buffers that are kept for packets to come.
const SPARES: usize = 64;
/// Bytes that an inbox takes of its device's at a time.
const CHUNK: u64 = 128 << 10;

/// A packet on its way to a queue pair.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Number of the queue pair it is for.
    pub qpn: Qpn,
    /// Its network header.
    pub header: NetworkHeader,
    /// It did not leave the host.
    pub is_local: bool,
    /// Payload of UDP: base transport header to ICRC, which was checked where there is one.
    pub bytes: Vec<u8>,
}

/// A question to a thread.
///
/// The thread may stop for ever, at a page of its application's memory that never comes. So that the queue of its
/// questions stays short, a new question replaces older ones that it makes unnecessary.
pub(crate) trait Ask: Sized {
    /// Adds the question to those that wait. Returns the questions that this makes unnecessary. The caller drops them
    /// after it has released its locks: they may hold descriptors, and closing those can take long.
    #[must_use]
    fn add_to(self, waiting: &mut Vec<Self>) -> Vec<Self>;
}

/// Bytes of an inbox: of packets that wait or are looked at, and of buffers that are kept.
#[derive(Debug)]
struct Room {
    held: u64,
    /// This inbox's part of the device's budget.
    taken: u64,
    account: Arc<Account>,
}

impl Room {
    /// Makes room for more bytes. False where there is none.
    fn hold(&mut self, bytes: usize) -> bool {
        let held = self.held + bytes as u64;
        if held > self.taken {
            let wanted = (held - self.taken).next_multiple_of(CHUNK);
            if !self.account.take_packets(self.taken, wanted) {
                return false;
            }
            self.taken += wanted;
        }
        self.held = held;
        true
    }

    fn release(&mut self, bytes: usize) {
        self.held -= bytes as u64;
        let needed = self.held.next_multiple_of(CHUNK) + CHUNK;
        if self.taken > needed {
            self.account.give_back_packets(self.taken - needed);
            self.taken = needed;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.account.give_back_packets(self.taken);
    }
}

#[derive(Debug)]
struct Waiting<Q> {
    packets: VecDeque<Packet>,
    questions: Vec<Q>,
    spares: Vec<Vec<u8>>,
    room: Room,
    /// Whether the reader is there.
    is_open: bool,
}

/// What a thread took out of its inbox.
#[derive(Debug)]
pub(crate) struct Arrivals<Q> {
    pub packets: VecDeque<Packet>,
    pub questions: Vec<Q>,
    /// Buffers of packets that are done with.
    used: Vec<Vec<u8>>,
    /// Bytes of packets that left.
    gone: usize,
}

impl<Q> Default for Arrivals<Q> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), questions: Vec::new(), used: Vec::new(), gone: 0 }
    }
}

impl<Q> Arrivals<Q> {
    /// Has the buffer of a packet used again.
    pub fn give_back(&mut self, packet: Packet) {
        if self.used.len() < SPARES {
            self.used.push(packet.bytes);
        } else {
            self.gone += packet.bytes.capacity();
        }
    }
}

/// Where others put what is for a thread.
///
/// What wakes the thread is read by nobody: the kernel tells of each signal once (edge-triggered). The application has
/// an event descriptor of its own for that, and whatever it does to it, none of our threads waits for it.
#[derive(Debug)]
pub(crate) struct Inbox<Q> {
    waiting: Mutex<Waiting<Q>>,
    any: AtomicBool,
    asleep: AtomicBool,
    /// Ours alone.
    wake: OwnedFd,
    /// Readable where either was signalled.
    events: OwnedFd,
}

impl<Q: Ask> Inbox<Q> {
    /// One that takes nothing yet.
    pub fn new(account: Arc<Account>) -> rustix::io::Result<Self> {
        let (packets, questions, spares) = Default::default();
        let room = Room { held: 0, taken: 0, account };
        let inbox = Self {
            waiting: Mutex::new(Waiting { packets, questions, spares, room, is_open: false }),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        inbox.watch(inbox.wake.as_fd())?;
        Ok(inbox)
    }

    fn watch(&self, descriptor: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.events, descriptor, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Readable where the thread is to wake.
    pub const fn event(&self) -> &OwnedFd {
        &self.events
    }

    /// An event descriptor for the application to wake the thread by. It wakes it as long as the application has it.
    pub fn share(&self) -> rustix::io::Result<OwnedFd> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.watch(event.as_fd())?;
        Ok(event)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<Q>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is known by.
    pub fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// Whether the reader is gone.
    pub fn is_done(&self) -> bool {
        !self.lock().is_open
    }

    /// Somebody takes what comes from now on.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// False where the packet is lost. `spare` is a buffer for the next one then: whoever sends here much allocates
    /// nothing.
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
        let may = waiting.is_open && waiting.packets.len() < PACKETS;
        if !may || !waiting.room.hold(packet.bytes.capacity()) {
            *spare = packet.bytes;
            return false;
        }
        *spare = waiting.spares.pop().unwrap_or_default();
        waiting.room.release(spare.capacity());
        waiting.packets.push_back(packet);
        true
    }

    /// The thread ended: what is here, and what comes, is lost.
    pub fn close(&self) {
        let mut waiting = self.lock();
        waiting.is_open = false;
        let packets = std::mem::take(&mut waiting.packets);
        let (questions, spares) =
            (std::mem::take(&mut waiting.questions), std::mem::take(&mut waiting.spares));
        let held = waiting.room.held as usize;
        waiting.room.release(held);
        let needless = waiting.room.taken;
        waiting.room.taken = 0;
        waiting.room.account.give_back_packets(needless);
        drop(waiting);
        drop((packets, questions, spares));
    }

    /// Asks for something. False if the reader is gone.
    pub fn ask(&self, question: Q) -> bool {
        let mut waiting = self.lock();
        if !waiting.is_open {
            return false;
        }
        let needless = question.add_to(&mut waiting.questions);
        drop(waiting);
        drop(needless);
        self.announce();
        true
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
    pub fn take(&self, taken: &mut Arrivals<Q>) {
        if self.any.swap(false, Ordering::Acquire) {
            let mut waiting = self.lock();
            std::mem::swap(&mut waiting.packets, &mut taken.packets);
            std::mem::swap(&mut waiting.questions, &mut taken.questions);
            let room = SPARES.saturating_sub(waiting.spares.len());
            for spare in taken.used.drain(room.min(taken.used.len())..) {
                taken.gone += spare.capacity();
            }
            waiting.spares.append(&mut taken.used);
            waiting.room.release(std::mem::take(&mut taken.gone));
        }
    }

    /// The thread's, which has nothing to do: gives back the room of what it took.
    pub fn settle(&self, taken: &mut Arrivals<Q>) {
        if taken.gone > 0 {
            self.lock().room.release(std::mem::take(&mut taken.gone));
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
        let mut events = [const { MaybeUninit::uninit() }; 2];
        let _ = epoll::wait(&self.events, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::budget::Stock;
    use std::net::Ipv6Addr;

    /// A question that nobody asks.
    #[derive(Debug)]
    enum Never {}

    impl Ask for Never {
        fn add_to(self, _: &mut Vec<Self>) -> Vec<Self> {
            match self {}
        }
    }

    fn packet(len: usize) -> Packet {
        let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let header = NetworkHeader { source, destination, traffic_class: 0, hop_limit: 1, flow_label: 0 };
        Packet { qpn: Qpn(17), header, is_local: true, bytes: vec![0; len] }
    }

    /// Puts packets there until they are lost: their bytes.
    fn fill(inbox: &Inbox<Never>, len: usize) -> usize {
        let (mut bytes, mut spare) = (0, Vec::new());
        while inbox.put(packet(len), &mut spare) {
            bytes += len;
        }
        bytes
    }

    #[test]
    fn those_who_stand_still_hold_no_more_together_than_a_device_may() {
        const LEN: usize = 30_000;
        let account = Arc::new(Account::new(Arc::new(Stock::new(0, 0)), 0));
        let inboxes: Vec<_> = (0..256).map(|_| Inbox::new(account.clone()).unwrap()).collect();
        assert!(!inboxes[0].put(packet(1), &mut Vec::new()), "nobody takes it");
        inboxes.iter().for_each(Inbox::open);
        let bytes: Vec<_> = inboxes.iter().map(|inbox| fill(inbox, LEN)).collect();
        let all = bytes.iter().sum::<usize>();
        assert!((100 << 20..=128 << 20).contains(&all), "{all}");
        assert!((60 << 20..=64 << 20).contains(&bytes[0]), "one has half of what is left: {}", bytes[0]);
        // What they took counts until it is done with.
        let mut taken = Arrivals::default();
        inboxes[0].take(&mut taken);
        assert_eq!((taken.packets.len() * LEN, fill(&inboxes[0], LEN) / (1 << 20)), (bytes[0], 0));
        while let Some(packet) = taken.packets.pop_front() {
            taken.give_back(packet);
        }
        inboxes[0].settle(&mut taken);
        assert!(fill(&inboxes[0], LEN) > 30 << 20);
        inboxes.iter().for_each(Inbox::close);
        assert!(account.take_packets(0, 64 << 20), "all is given back");
    }
}
