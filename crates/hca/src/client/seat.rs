//! Whose turn it is to work for an application: its own thread's, or, while that sleeps, that of a thread which has a
//! packet for it.
//!
//! To wake a thread takes longer than to handle a packet. So a thread that sends to an application whose thread sleeps
//! handles the packet itself, if the application is in a virtual machine: its memory is in windows, which are there, so
//! nobody can make the thread wait. Of others a page may never arrive: only their own threads work for them.

use super::{Client, ENOUGH_CPUS, ROUNDS, SPIN};
use crate::clock::monotonic;
use crate::inbox::Substitute;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How its thread is to sleep.
pub(super) struct Sleep {
    /// What of the connection wakes it.
    pub awaits: PollFlags,
    /// `None`: until something wakes it.
    pub timeout: Option<Duration>,
    /// There is no work. Otherwise it only looks at the connection.
    pub is_idle: bool,
}

/// How long a thread looks for work before it sleeps.
pub(super) struct Pace {
    pub spin: Duration,
    pub rounds: u32,
    /// When it last had work.
    pub busy_at: Duration,
}

/// An application, in the hands of one thread at a time.
struct Seat(Mutex<Option<Client>>);

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}

impl Seat {
    fn take(&self) -> MutexGuard<'_, Option<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves an application, whose connection is that socket, until it disconnects.
pub(super) fn run(client: Client, socket: &Arc<OwnedFd>) {
    tracing::debug!(who = ?client.who, "verbs: an application connected");
    let spare = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= ENOUGH_CPUS);
    let spin = if spare { SPIN } else { Duration::ZERO };
    let mut pace = Pace { spin, rounds: 0, busy_at: monotonic() };
    let (inbox, never_waits) = (client.context.inbox.clone(), client.context.space.is_none());
    let seat = Arc::new(Seat(Mutex::new(Some(client))));
    if never_waits {
        let seat: Weak<Seat> = Arc::downgrade(&seat);
        inbox.set_substitute(seat);
    }
    loop {
        let mut taken = seat.take();
        let Some(client) = taken.as_mut() else { return };
        let Some(sleep) = client.work_until_idle(&mut pace) else { break };
        drop(taken);
        let mut wanted = [
            PollFd::from_borrowed_fd(socket.as_fd(), sleep.awaits),
            PollFd::from_borrowed_fd(inbox.event().as_fd(), PollFlags::IN),
        ];
        let limit = sleep.timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let polled = poll(&mut wanted, limit.as_ref());
        let mut taken = seat.take();
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
    let client = seat.take().take();
    client.into_iter().for_each(Client::leave);
}

impl Substitute for Seat {
    fn handle_packets(&self) -> bool {
        thread_local!(static IS_ONE: Cell<bool> = const { Cell::new(false) });
        if IS_ONE.replace(true) {
            // What a substitute sends is for other threads.
            return false;
        }
        let is_done = match self.0.try_lock() {
            Ok(mut taken) => taken.as_mut().is_some_and(Client::work_for_sleeper),
            Err(_) => false,
        };
        IS_ONE.set(false);
        is_done
    }
}

impl Client {
    /// Handles packets while its own thread sleeps. False if that must wake.
    fn work_for_sleeper(&mut self) -> bool {
        for _ in 0..ROUNDS {
            if !self.taken.packets.is_empty() || !self.context.inbox.take_packets(&mut self.taken) {
                return false;
            }
            let now = monotonic();
            self.take_packets(now);
            self.work(now);
            self.context.announce_frames();
            let is_done = self.taken.packets.is_empty() && self.ready.is_empty();
            let events_wait = self.context.flush_events();
            if !is_done
                || self.context.source.is_faulty()
                || self.deadline(now, events_wait) < self.sleeps_until
            {
                return false;
            }
            self.context.inbox.settle(&mut self.taken);
            let inbox = &self.context.inbox;
            // Whoever puts something there from now on sees that the thread sleeps, and wakes it if this is in the way.
            if !inbox.set_asleep(true) || !inbox.must_go_on() {
                return true;
            }
        }
        false
    }
}
