//! Owns how threads talk: the inbox of a thread, and the messages and packets that other threads put into it. May
//! import `program` and what stands below it.

pub(crate) mod message;
pub(crate) mod sync_delivery;

use crate::base::budget::DeviceBudget;
use crate::base::header::NetworkHeader;
use crate::base::ids::Qpn;
use crate::inbox::message::Message;
use crate::inbox::sync_delivery::{SyncAnswers, SyncMessage, SyncPacket};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use sockets::Untrusted;
use std::any::Any;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use uverbs::fence;

/// How many packets may wait. Later ones are lost, as on a wire. Packets are also lost if the device has no room for
/// more bytes.
const PACKETS: usize = 16 << 10;
/// How many buffers are kept for later packets.
const SPARES: usize = 64;
/// Most reads from the stream by which an application wakes the thread, each time.
const READS: usize = 64;
/// Bytes that an inbox takes at a time from its device's budget.
const CHUNK: u64 = 128 << 10;

/// A packet on its way to a queue pair.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Number of the destination queue pair.
    pub qpn: Qpn,
    /// The network header with which it came.
    pub header: NetworkHeader,
    /// Whether it came from this host rather than over the wire.
    pub is_local: bool,
    /// The UDP payload, from base transport header to ICRC. The ICRC of packets from the wire is already checked.
    pub bytes: Vec<u8>,
}

/// A message to a thread.
///
/// The thread may stop forever, at a page of its application's memory that never arrives. To keep its queue short, a
/// new message replaces older ones that it makes unnecessary.
pub(crate) trait Enqueue: Sized {
    /// Adds the message to the waiting ones. Returns the messages that this makes unnecessary. The caller drops them
    /// after it has released its locks: they may hold descriptors, and closing those can take long.
    #[must_use]
    fn add_to(self, waiting: &mut Vec<Self>) -> Vec<Self>;
}

/// The bytes of an inbox: waiting packets, packets being handled, and spare buffers.
#[derive(Debug)]
struct Room {
    held: u64,
    /// The bytes that the inbox has taken from the device's budget.
    taken: u64,
    budget: Arc<DeviceBudget>,
}

impl Room {
    /// Makes room for more bytes. False if there is none.
    fn hold(&mut self, bytes: usize) -> bool {
        let held = self.held + bytes as u64;
        if held > self.taken {
            let wanted = (held - self.taken).next_multiple_of(CHUNK);
            if !self.budget.take_packets(self.taken, wanted) {
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
            self.budget.give_back_packets(self.taken - needed);
            self.taken = needed;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back_packets(self.taken);
    }
}

/// Orders the threads that could poll for the same application: the lesser one polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// By how much the thread's nice value is higher than the daemon's.
    pub niceness: i32,
    /// The identifier of its inbox.
    pub id: u64,
}

/// Works for a thread that sleeps.
pub(crate) trait Substitute: Any + std::fmt::Debug + Send + Sync {
    /// Handles the packets in the inbox. Returns false if the thread itself must do that.
    fn handle_packets(&self) -> bool;

    /// Handles a packet that is in no inbox, and adds what answers it. Returns false, with nothing done, if the
    /// thread itself works, or if something waits before the packet.
    fn handle_now(&self, delivered: &SyncPacket<'_>, answers: &mut SyncAnswers) -> bool;

    /// Has a queue pair do a short message. Returns false, with nothing done, if the thread itself works, if
    /// something waits before the message, or if the message must come in a packet.
    fn serve(&self, delivered: &mut SyncMessage<'_>) -> bool;

    /// Returns the rank of its thread.
    fn rank(&self) -> Rank;

    /// Has a thread of this rank begin to poll the application's doorbells, with [`Self::listen`], until
    /// [`Self::end_polling`]. Returns false if another thread does that. The application's own thread then stops
    /// soon if its rank is higher.
    fn begin_polling(&self, by: Rank) -> bool;

    /// Handles what the application's doorbells announce. Returns `None` if that is nothing; otherwise the inbox to
    /// which the last packet went ([`Inbox::id`]), or 0.
    fn listen(&self, now: Duration) -> Option<u64>;

    /// Returns the inbox to which the last packet went.
    fn spoken_to(&self) -> Option<Arc<Inbox<Message>>>;

    /// Leaves the application's doorbells to its own thread.
    fn end_polling(&self);
}

#[derive(Debug)]
struct Waiting<Q> {
    packets: VecDeque<Packet>,
    messages: Vec<Q>,
    spares: Vec<Vec<u8>>,
    room: Room,
    /// Whether the thread reads its inbox.
    is_open: bool,
}

impl<Q> Waiting<Q> {
    /// Takes what waits, and returns the buffers of earlier packets.
    fn exchange(&mut self, arrivals: &mut Arrivals<Q>) {
        std::mem::swap(&mut self.packets, &mut arrivals.packets);
        std::mem::swap(&mut self.messages, &mut arrivals.messages);
        let room = SPARES.saturating_sub(self.spares.len());
        for spare in arrivals.used.drain(room.min(arrivals.used.len())..) {
            arrivals.gone += spare.capacity();
        }
        self.spares.append(&mut arrivals.used);
        self.room.release(std::mem::take(&mut arrivals.gone));
    }
}

/// The packets and messages that a thread has taken out of its inbox.
#[derive(Debug)]
pub(crate) struct Arrivals<Q> {
    pub packets: VecDeque<Packet>,
    pub messages: Vec<Q>,
    /// Buffers of handled packets.
    used: Vec<Vec<u8>>,
    /// Bytes of handled packets whose buffers are freed.
    gone: usize,
}

impl<Q> Default for Arrivals<Q> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), messages: Vec::new(), used: Vec::new(), gone: 0 }
    }
}

impl<Q> Arrivals<Q> {
    /// Returns the buffer of a packet for reuse.
    pub fn give_back(&mut self, packet: Packet) {
        if self.used.len() < SPARES {
            self.used.push(packet.bytes);
        } else {
            self.gone += packet.bytes.capacity();
        }
    }
}

/// The inbox of a thread. Other threads put packets and messages into it.
///
/// No event descriptor is ever read: the kernel reports each signal once (edge-triggered). The application wakes the
/// thread through a separate descriptor; whatever it does to that, no thread of the daemon blocks. What comes by a
/// stream is read without waiting, so that there is room for more.
#[derive(Debug)]
pub(crate) struct Inbox<Q> {
    waiting: Mutex<Waiting<Q>>,
    any: AtomicBool,
    asleep: AtomicBool,
    /// True if the thread was woken, and has not noticed.
    woken: AtomicBool,
    /// The event descriptor with which the daemon's threads wake the thread.
    wake: OwnedFd,
    /// Readable after either event descriptor was signalled.
    events: OwnedFd,
    /// The stream with which an application in a virtual machine wakes the thread.
    stream: OnceLock<Arc<Untrusted>>,
    substitute: OnceLock<Weak<dyn Substitute>>,
}

impl<Q: Enqueue> Inbox<Q> {
    /// Creates a closed inbox, which accepts nothing yet.
    pub fn new(budget: Arc<DeviceBudget>) -> rustix::io::Result<Self> {
        let (packets, messages, spares) = Default::default();
        let room = Room { held: 0, taken: 0, budget };
        let inbox = Self {
            waiting: Mutex::new(Waiting { packets, messages, spares, room, is_open: false }),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            stream: OnceLock::new(),
            substitute: OnceLock::new(),
        };
        inbox.watch(inbox.wake.as_fd())?;
        Ok(inbox)
    }

    fn watch(&self, descriptor: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.events, descriptor, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Returns the descriptor that is readable when the thread must wake.
    pub const fn event(&self) -> &OwnedFd {
        &self.events
    }

    /// Makes an event descriptor with which the application wakes the thread.
    pub fn share(&self) -> rustix::io::Result<OwnedFd> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.watch(event.as_fd())?;
        Ok(event)
    }

    /// Has a stream wake the thread.
    pub fn wake_by(&self, stream: Arc<Untrusted>) -> rustix::io::Result<()> {
        self.watch(stream.as_fd())?;
        // Each ticket is used once.
        let _ = self.stream.set(stream);
        self.wake();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<Q>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identifies the inbox.
    pub fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// Is true if the thread has ended.
    pub fn is_done(&self) -> bool {
        !self.lock().is_open
    }

    /// Opens the inbox: the thread reads it from now on.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Puts a packet into the inbox and wakes the thread. False if the packet is lost. `spare` then holds a buffer for
    /// the next packet, so a thread that sends much allocates nothing.
    pub fn put(&self, packet: Packet, spare: &mut Vec<u8>) -> bool {
        let taken = self.put_quietly(packet, spare);
        if taken {
            self.announce();
        }
        taken
    }

    /// Sets the substitute that works for the thread while it sleeps.
    pub fn set_substitute(&self, substitute: Weak<dyn Substitute>) {
        // An inbox has one thread.
        let _ = self.substitute.set(substitute);
    }

    /// Returns the substitute that works for the thread while it sleeps.
    pub fn substitute(&self) -> Option<Arc<dyn Substitute>> {
        self.substitute.get().and_then(Weak::upgrade)
    }

    /// Puts a packet into the inbox, like [`Self::put`]. If the thread sleeps, its substitute handles the packet at
    /// once, on this thread. The caller must hold nothing for which others wait.
    pub fn put_or_handle(&self, packet: Packet, spare: &mut Vec<u8>) -> bool {
        let taken = self.put_quietly(packet, spare);
        let is_handled = || self.substitute().is_some_and(|substitute| substitute.handle_packets());
        if taken && self.must_wake() && !is_handled() {
            self.wake();
        }
        taken
    }

    /// Puts a packet into the inbox without waking the thread. The caller calls [`Self::announce`] later.
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

    /// Closes the inbox, because the thread has ended. Packets and messages in it are lost.
    pub fn close(&self) {
        let mut waiting = self.lock();
        waiting.is_open = false;
        let packets = std::mem::take(&mut waiting.packets);
        let (messages, spares) = (std::mem::take(&mut waiting.messages), std::mem::take(&mut waiting.spares));
        let held = waiting.room.held as usize;
        waiting.room.release(held);
        let needless = waiting.room.taken;
        waiting.room.taken = 0;
        waiting.room.budget.give_back_packets(needless);
        drop(waiting);
        drop((packets, messages, spares));
    }

    /// Puts a message into the inbox and wakes the thread. False if that has ended.
    pub fn send(&self, message: Q) -> bool {
        let mut waiting = self.lock();
        if !waiting.is_open {
            return false;
        }
        let needless = message.add_to(&mut waiting.messages);
        drop(waiting);
        drop(needless);
        self.announce();
        true
    }

    /// Wakes the thread, if it sleeps, to handle what was put into the inbox.
    pub fn announce(&self) {
        if self.must_wake() {
            self.wake();
        }
    }

    /// Notes that something is in the inbox. Returns whether the thread sleeps; the caller then wakes it.
    fn must_wake(&self) -> bool {
        self.any.store(true, Ordering::Release);
        fence();
        self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Is true if nobody else has seen that something is in the inbox, so that the caller must go on: a substitute
    /// that said that the thread sleeps, and found something then.
    pub fn must_go_on(&self) -> bool {
        self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Wakes the thread, or keeps it from sleeping the next time.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Is true if the thread was woken since it last looked for what woke it ([`Self::drain`]).
    pub fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes everything out of the inbox, and returns the buffers of earlier packets. The thread calls it.
    pub fn take(&self, arrivals: &mut Arrivals<Q>) {
        if self.has_any() && self.any.swap(false, Ordering::Acquire) {
            self.lock().exchange(arrivals);
        }
    }

    /// Takes packets out of the inbox. A substitute calls it. Returns false if there are messages, which only the
    /// thread itself answers; then everything stays.
    pub fn take_packets(&self, arrivals: &mut Arrivals<Q>) -> bool {
        // Whoever puts something there says so afterwards.
        if !self.has_any() {
            return true;
        }
        let mut waiting = self.lock();
        if !waiting.messages.is_empty() {
            return false;
        }
        if self.any.swap(false, Ordering::Acquire) {
            waiting.exchange(arrivals);
        }
        true
    }

    /// Returns the room of handled packets. The idle thread calls it.
    pub fn settle(&self, arrivals: &mut Arrivals<Q>) {
        if arrivals.gone > 0 {
            self.lock().room.release(std::mem::take(&mut arrivals.gone));
        }
    }

    /// Marks the thread as awake. The thread calls it after it slept, and a substitute before it works.
    pub fn set_awake(&self) {
        // A thread that does not see that wakes the thread needlessly.
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Marks the thread as asleep, before it sleeps. Returns whether something is in the inbox, so that it must not
    /// sleep.
    pub fn set_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence();
        self.any.load(Ordering::Relaxed)
    }

    /// Takes note of what woke the thread. The thread calls it after it woke.
    pub fn drain(&self) {
        self.woken.store(false, Ordering::Relaxed);
        let mut events = [const { MaybeUninit::uninit() }; 3];
        let _ = epoll::wait(&self.events, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let Some(stream) = self.stream.get() else { return };
        let mut bytes = [0; 512];
        for _ in 0..READS {
            match stream.receive(&mut bytes) {
                Ok(len) if len == bytes.len() => {}
                _ => break,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::HostBudget;
    use std::net::Ipv6Addr;

    /// A message that is never sent.
    #[derive(Debug)]
    enum Never {}

    impl Enqueue for Never {
        fn add_to(self, _: &mut Vec<Self>) -> Vec<Self> {
            match self {}
        }
    }

    fn packet(len: usize) -> Packet {
        let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let header = NetworkHeader { source, destination, traffic_class: 0, hop_limit: 1, flow_label: 0 };
        Packet { qpn: Qpn(17), header, is_local: true, bytes: vec![0; len] }
    }

    /// Puts packets there until they are lost; returns their bytes.
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
        let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0));
        let inboxes: Vec<_> = (0..256).map(|_| Inbox::new(budget.clone()).unwrap()).collect();
        assert!(!inboxes[0].put(packet(1), &mut Vec::new()), "nobody takes it");
        inboxes.iter().for_each(Inbox::open);
        let bytes: Vec<_> = inboxes.iter().map(|inbox| fill(inbox, LEN)).collect();
        let all = bytes.iter().sum::<usize>();
        assert!((100 << 20..=128 << 20).contains(&all), "{all}");
        assert!((60 << 20..=64 << 20).contains(&bytes[0]), "one has half of what is left: {}", bytes[0]);
        // Packets that the thread took count until they are returned.
        let mut arrivals = Arrivals::default();
        inboxes[0].take(&mut arrivals);
        assert_eq!((arrivals.packets.len() * LEN, fill(&inboxes[0], LEN) / (1 << 20)), (bytes[0], 0));
        while let Some(packet) = arrivals.packets.pop_front() {
            arrivals.give_back(packet);
        }
        inboxes[0].settle(&mut arrivals);
        assert!(fill(&inboxes[0], LEN) > 30 << 20);
        inboxes.iter().for_each(Inbox::close);
        assert!(budget.take_packets(0, 64 << 20), "all is given back");
    }

    /// A substitute that says what it was told to say, and counts how often it was asked.
    #[derive(Debug)]
    struct Answers(bool, std::sync::atomic::AtomicU32);

    impl Substitute for Answers {
        fn handle_packets(&self) -> bool {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0
        }

        fn handle_now(&self, _: &SyncPacket<'_>, _: &mut SyncAnswers) -> bool {
            unreachable!()
        }

        fn serve(&self, _: &mut SyncMessage<'_>) -> bool {
            unreachable!()
        }

        fn rank(&self) -> Rank {
            unreachable!()
        }

        fn begin_polling(&self, _: Rank) -> bool {
            unreachable!()
        }

        fn listen(&self, _: Duration) -> Option<u64> {
            unreachable!()
        }

        fn spoken_to(&self) -> Option<Arc<Inbox<Message>>> {
            unreachable!()
        }

        fn end_polling(&self) {
            unreachable!()
        }
    }

    #[test]
    fn whose_thread_sleeps_has_a_substitute_who_may_wake_it() {
        for does_it in [true, false] {
            let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0));
            let inbox = Inbox::<Never>::new(budget).unwrap();
            inbox.open();
            let answers: Arc<Answers> = Arc::new(Answers(does_it, 0.into()));
            let substitute: Weak<Answers> = Arc::downgrade(&answers);
            inbox.set_substitute(substitute);
            let is_woken = || {
                let mut events = [const { MaybeUninit::uninit() }; 1];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                !epoll::wait(&inbox.events, &mut events, Some(&now)).unwrap().0.is_empty()
            };
            let put = || assert!(inbox.put_or_handle(packet(1), &mut Vec::new()));
            // While the thread is awake, nobody is asked, and nobody woken.
            put();
            assert_eq!((answers.1.load(Ordering::Relaxed), is_woken()), (0, false));
            assert!(inbox.set_asleep());
            put();
            assert_eq!((answers.1.load(Ordering::Relaxed), is_woken()), (1, !does_it));
            // Once is enough until it sleeps again.
            put();
            assert_eq!((answers.1.load(Ordering::Relaxed), is_woken()), (1, false));
            // If another thread saw what came meanwhile, the substitute must not go on.
            inbox.set_asleep();
            assert!(inbox.must_go_on() && !inbox.must_go_on());
            // A substitute that is gone wakes it, too.
            drop(answers);
            inbox.set_asleep();
            put();
            assert!(is_woken());
        }
    }
}
