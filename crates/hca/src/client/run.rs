//! The loop of an application's thread, and the work that other threads do for the application while its own thread
//! sleeps.
//!
//! Waking a thread takes longer than handling a packet. So a thread that sends to an application whose thread
//! sleeps handles the packet itself, if the application is in a virtual machine: its memory is in windows, whose
//! pages are always present, so nobody can make the thread wait. A page of any other application may never arrive, nor
//! may a copier finish that an application in a virtual machine has, so only its own thread works for it.

use super::pace::Pace;
use super::{Client, ROUNDS, make_ready};
use crate::base::clock::monotonic;
use crate::base::ids::Qpn;
use crate::client::poll_set::PollSet;
use crate::inbox::message::Message;
use crate::inbox::sync_delivery::{SyncAnswers, SyncMessage, SyncPacket};
use crate::inbox::{Inbox, Rank, Substitute};
use crate::net::adapter::Adapter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sockets::Untrusted;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Most ready queue pairs that a polling thread works for in another application.
const FEW: usize = 8;
/// How long the thread does not poll if another thread wants to poll for its application.
const PAUSE: Duration = Duration::from_millis(1);

/// How the thread is to sleep.
pub(super) struct Sleep {
    /// The events of the connection that wake the thread.
    pub awaits: PollFlags,
    /// `None`: until something wakes it.
    pub until: Option<Duration>,
    /// True if there is no work. Otherwise the thread only looks at the connection.
    pub is_idle: bool,
}

/// The thread that polls an application's doorbells while its own thread has no work.
#[derive(Debug, Default)]
pub(super) struct Listener {
    by: AtomicU32,
    /// Whether only the application's own thread works for it, and polls as for applications on this kernel.
    is_alone: AtomicBool,
}

const NOBODY: u32 = 0;
const OTHER: u32 = 1;
const OWN: u32 = 2;
/// The application's own thread polls, but another thread wants to.
const OWN_WANTED: u32 = 3;

impl Listener {
    /// Is true if a thread polls: then the application need not wake anybody.
    pub fn is_there(&self) -> bool {
        self.by.load(Ordering::SeqCst) != NOBODY && !self.is_alone.load(Ordering::SeqCst)
    }

    fn begin(&self, by: u32) -> bool {
        !self.is_alone.load(Ordering::SeqCst)
            && self.by.compare_exchange(NOBODY, by, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Has no other thread work for the application from now on.
    pub fn work_alone(&self) {
        self.is_alone.store(true, Ordering::SeqCst);
    }

    /// Asks the application's own thread to stop, because another thread wants to poll.
    fn want(&self) {
        let _ = self.by.compare_exchange(OWN, OWN_WANTED, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Is true while the application's own thread is to go on polling. It stops if another thread wants to: one
    /// thread for several applications is quicker than one for each.
    fn is_own(&self) -> bool {
        self.by.load(Ordering::Relaxed) == OWN
    }

    fn end(&self) {
        self.by.store(NOBODY, Ordering::SeqCst);
    }
}

/// An application, on which one thread at a time works.
struct LockedClient {
    client: Mutex<Option<Client>>,
    listener: Arc<Listener>,
    adapter: Arc<Adapter>,
    inbox: Weak<Inbox<Message>>,
}

impl std::fmt::Debug for LockedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockedClient")
    }
}

impl LockedClient {
    fn take(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the application, unless another thread works for it, or it is gone, or its own thread may have
    /// to wait.
    fn try_with<T>(&self, work: impl FnOnce(&mut Client) -> T) -> Option<T> {
        self.client.try_lock().ok()?.as_mut().filter(|client| !client.context.may_wait()).map(work)
    }
}

/// Serves an application, whose connection is that socket, until it disconnects.
pub(super) fn run(client: Client, socket: &Arc<Untrusted>) {
    tracing::debug!(who = ?client.who, "verbs: an application connected");
    let (inbox, never_waits) = (client.context.inbox.clone(), client.context.space.is_none());
    let (mut pace, mut poll_set) = (Pace::new(), PollSet::default());
    let (listener, adapter) = (client.listener.clone(), client.context.adapter.clone());
    let locked = Arc::new(LockedClient {
        client: Mutex::new(Some(client)),
        listener,
        adapter,
        inbox: Arc::downgrade(&inbox),
    });
    if never_waits {
        let locked: Weak<LockedClient> = Arc::downgrade(&locked);
        inbox.set_substitute(locked);
    }
    loop {
        let mut taken = locked.take();
        let Some(client) = taken.as_mut() else { return };
        let Some(sleep) = client.work_until_idle(&mut pace) else { break };
        let never_waits = !client.context.may_wait();
        drop(taken);
        let mut wanted = [
            PollFd::from_borrowed_fd(socket.as_fd(), sleep.awaits),
            PollFd::from_borrowed_fd(inbox.event().as_fd(), PollFlags::IN),
        ];
        if never_waits && sleep.is_idle {
            locked.listen_for_long(&sleep, &mut pace, &mut poll_set, &mut wanted[..1]);
        }
        let limit = sleep.until.map(|until| {
            let timeout = until.saturating_sub(monotonic());
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() }
        });
        let polled = poll(&mut wanted, limit.as_ref());
        let mut taken = locked.take();
        let Some(client) = taken.as_mut() else { return };
        client.wake_up(&sleep);
        let is_over = match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                !wanted[0].revents().is_empty() && client.hear_request().is_err()
            }
            Err(_) => true,
        };
        if is_over {
            break;
        }
    }
    let client = locked.take().take();
    client.into_iter().for_each(Client::leave);
}

impl Substitute for LockedClient {
    fn handle_packets(&self) -> bool {
        thread_local!(static IS_ONE: Cell<bool> = const { Cell::new(false) });
        if IS_ONE.replace(true) {
            // Packets that a substitute sends are left to the threads of their receivers.
            return false;
        }
        let is_done = self.try_with(Client::work_for_sleeper);
        IS_ONE.set(false);
        is_done.unwrap_or(false)
    }

    fn handle_now(&self, delivered: &SyncPacket<'_>, answers: &mut SyncAnswers) -> bool {
        self.try_with(|client| client.handle_now(delivered, answers)).unwrap_or(false)
    }

    fn serve(&self, delivered: &mut SyncMessage<'_>) -> bool {
        self.try_with(|client| client.serve(delivered)).unwrap_or(false)
    }

    fn rank(&self) -> Rank {
        Rank { niceness: self.adapter.threads.niceness(), id: self.inbox.as_ptr().addr() as u64 }
    }

    fn begin_polling(&self, by: Rank) -> bool {
        let begins = self.begin(OTHER);
        // If two threads poll for their own applications and each wants the other's, only one stops.
        if !begins && by < self.rank() {
            self.listener.want();
        }
        begins
    }

    fn listen(&self, now: Duration) -> Option<u64> {
        self.try_with(|client| {
            let spoken_to = |client: &Client| client.context.spoken_to.as_ref().map_or(0, |to| to.id());
            client.work_if_rung(now).then(|| spoken_to(client))
        })?
    }

    fn spoken_to(&self) -> Option<Arc<Inbox<Message>>> {
        self.try_with(|client| client.context.spoken_to.clone())?
    }

    fn end_polling(&self) {
        self.listener.end();
        // A thread that works for the application now may believe that its doorbells are polled.
        if self.try_with(Client::update_doorbells).is_none()
            && let Some(inbox) = self.inbox.upgrade()
        {
            inbox.wake();
        }
    }
}

impl LockedClient {
    fn begin(&self, by: u32) -> bool {
        let begins = self.listener.begin(by);
        if begins {
            // If it is awake, it finds out before it sleeps.
            self.try_with(Client::update_doorbells);
        }
        begins
    }

    /// Polls for work of its own application, and of those to which it sends, as long as there is some now and
    /// then. Other threads may work for the application meanwhile, as if the thread slept.
    fn listen_for_long(
        self: &Arc<Self>,
        sleep: &Sleep,
        pace: &mut Pace,
        poll_set: &mut PollSet,
        socket: &mut [PollFd<'_>],
    ) {
        let (mut now, mut rounds) = (monotonic(), 0_u32);
        let inbox = self.inbox.upgrade().filter(|_| pace.polls(now) && self.begin(OWN));
        // The sleep that follows is no time lost by polling.
        let Some(inbox) = inbox else { return pace.rest(now, Duration::ZERO) };
        poll_set.begin(inbox.id(), self.clone(), now);
        while self.listener.is_own() && !inbox.is_woken() && sleep.until.is_none_or(|until| now < until) {
            if poll_set.listen(now) {
                pace.work(now);
            } else if !pace.polls(now) {
                break;
            }
            rounds = rounds.wrapping_add(1);
            let looks = rounds.is_multiple_of(ROUNDS);
            if looks
                && (self.try_with(Client::has_new_weight) == Some(true)
                    || poll(socket, Some(&Timespec::default())) != Ok(0))
            {
                break;
            }
            std::hint::spin_loop();
            now = monotonic();
        }
        // If another thread wants to poll, the pause lets it begin.
        pace.rest(now, if self.listener.is_own() { Duration::ZERO } else { PAUSE });
        poll_set.end();
    }
}

impl Client {
    /// Adapts the weight of the calling thread, the application's own, to the number of threads. Returns whether it
    /// may have changed.
    fn has_new_weight(&mut self) -> bool {
        self.nice.follow(&self.context.adapter.threads)
    }

    /// Tells the application whether it must wake its thread after it rings a doorbell, if that thread sleeps.
    fn update_doorbells(&mut self) {
        if !self.sleeps {
            return;
        }
        let is_heard = self.listener.is_there();
        self.doorbells.set_asleep(!is_heard);
        if !is_heard && (self.hear_doorbells() | self.end_polls()) {
            self.context.inbox.wake();
        }
    }

    /// Handles what doorbells announce while its own thread sleeps. Returns false if that is nothing.
    fn work_if_rung(&mut self, now: Duration) -> bool {
        if !self.sleeps || !self.hear_doorbells() {
            return false;
        }
        self.context.inbox.set_awake();
        // Much work is left to its own thread: the one that polls has an application of its own.
        if self.ready.len() > FEW || !self.work_for_sleeper_at(now) {
            self.context.inbox.wake();
        }
        true
    }

    /// Is true if its own thread sleeps, and nothing waits.
    fn is_free(&self) -> bool {
        let is_busy = !self.ready.is_empty() || !self.arrivals.packets.is_empty();
        self.sleeps && !is_busy && !self.context.inbox.has_any()
    }

    /// Handles a short message from a peer while its own thread sleeps. Returns false, with nothing done, if that
    /// thread must work, or if the message must come in a packet.
    fn serve(&mut self, delivered: &mut SyncMessage<'_>) -> bool {
        if !self.is_free() {
            return false;
        }
        let Some(qp) = self.qps.get_mut(&delivered.to) else { return false };
        let is_done = qp.serve(delivered, &mut self.context);
        // The requester waits for the end of a read, which leaves its thread no work except for an event.
        let is_over = is_done && delivered.message.is_read() && !self.context.asynchronous.waits();
        let must_wake = match is_over {
            true => self.context.source.is_faulty(),
            false => is_done && !self.may_sleep_on(delivered.now),
        };
        if must_wake {
            self.context.inbox.wake();
        }
        is_done
    }

    /// Handles a packet that a peer delivers synchronously while its own thread sleeps. Returns false, with nothing
    /// done, if that thread must work.
    fn handle_now(&mut self, delivered: &SyncPacket<'_>, answers: &mut SyncAnswers) -> bool {
        if !self.is_free() {
            return false;
        }
        let qpn = Qpn(delivered.packet.bth.destination);
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        answers.open(qpn);
        std::mem::swap(&mut self.context.answers, answers);
        self.context.now = delivered.now;
        let is_handled = qp.receive_sync(delivered, &mut self.context);
        if is_handled {
            make_ready(qp, &mut self.ready);
            self.work(delivered.now);
        }
        std::mem::swap(&mut self.context.answers, answers);
        answers.close();
        if is_handled && !self.may_sleep_on(delivered.now) {
            self.context.inbox.wake();
        }
        is_handled
    }

    /// Returns whether its own thread may go on sleeping after another thread worked for it.
    fn may_sleep_on(&mut self, now: Duration) -> bool {
        self.context.announce_frames();
        let is_done = self.arrivals.packets.is_empty() && self.ready.is_empty();
        let events_wait = self.context.flush_events();
        is_done && !self.context.source.is_faulty() && self.deadline(now, events_wait) >= self.sleeps_until
    }

    /// Handles packets and ready queue pairs while its own thread sleeps. Returns false if that thread must wake.
    fn work_for_sleeper(&mut self) -> bool {
        self.work_for_sleeper_at(monotonic())
    }

    fn work_for_sleeper_at(&mut self, mut now: Duration) -> bool {
        for _ in 0..ROUNDS {
            if !self.arrivals.packets.is_empty() || !self.context.inbox.take_packets(&mut self.arrivals) {
                return false;
            }
            self.take_packets(now);
            self.work(now);
            if !self.may_sleep_on(now) {
                return false;
            }
            self.context.inbox.settle(&mut self.arrivals);
            let inbox = &self.context.inbox;
            // Whoever puts something there from now on sees that the thread sleeps, and wakes it if this is in the way.
            if !inbox.set_asleep() || !inbox.must_go_on() {
                return true;
            }
            now = monotonic();
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "run_tests.rs"]
mod tests;
