//! Closing what programs sent: they determine how long that takes, so other threads do it.

use crate::client::half_of;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Descriptors that may wait to be closed, for each user of a guest.
const WAITING: usize = 256;
/// Threads in all. A guest has at most half of what others leave.
const THREADS: usize = 2048;
/// Threads of a guest: more users share them.
const OF_A_GUEST: u32 = 64;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;

/// A user of a guest.
pub type Who = (String, u32);

/// Returns the users of a guest that share a thread, as one of them.
fn shared(who: &Who) -> Who {
    (who.0.clone(), who.1 % OF_A_GUEST)
}

struct Closer {
    to: SyncSender<OwnedFd>,
    /// Descriptors that the thread has still to close.
    waiting: Arc<AtomicUsize>,
    /// Those for which there was no room.
    left: Vec<OwnedFd>,
}

impl Closer {
    fn start() -> std::io::Result<Self> {
        let (to, from) = sync_channel::<OwnedFd>(WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = waiting.clone();
        std::thread::Builder::new().name("socket-closer".into()).stack_size(STACK).spawn(move || {
            for descriptor in from {
                drop(descriptor);
                count.fetch_sub(1, Ordering::AcqRel);
            }
        })?;
        Ok(Self { to, waiting, left: Vec::new() })
    }

    fn close(&mut self, descriptor: OwnedFd) -> bool {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        match self.to.try_send(descriptor) {
            Ok(()) => true,
            Err(TrySendError::Full(descriptor) | TrySendError::Disconnected(descriptor)) => {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                self.left.push(descriptor);
                false
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.left.is_empty() && self.waiting.load(Ordering::Acquire) == 0
    }
}

/// Threads, so that who sends what takes long to close waits for that, and others seldom do.
#[derive(Default)]
pub struct Closers(BTreeMap<Who, Closer>);

impl Closers {
    /// Prepares to close what a user's programs will send. Returns false if the user must wait: what was sent before is
    /// not closed yet, or there are too many threads.
    pub fn admit(&mut self, who: &Who) -> bool {
        let who = shared(who);
        if let Some(closer) = self.0.get(&who) {
            return closer.left.is_empty();
        }
        let of_guest = self.0.keys().filter(|other| other.0 == who.0).count();
        if of_guest >= half_of(THREADS, self.0.len() - of_guest) {
            return false;
        }
        match Closer::start() {
            Ok(closer) => self.0.insert(who, closer).is_none(),
            Err(error) => {
                tracing::warn!("no thread closes what programs send: {error}");
                false
            }
        }
    }

    /// Has a descriptor of an admitted user closed. Returns false if too many wait already: then the program that sent
    /// it is to go.
    pub fn close(&mut self, who: &Who, descriptor: OwnedFd) -> bool {
        match self.0.get_mut(&shared(who)) {
            Some(closer) => closer.close(descriptor),
            // Whoever has programs here was admitted.
            None => false,
        }
    }

    /// Tries again what there was no room for, and ends threads without work of users who have no programs here.
    pub fn tidy<'a>(&mut self, programs: impl Iterator<Item = (&'a str, u32)>) {
        let used: BTreeSet<Who> = programs.map(|(guest, user)| shared(&(guest.to_owned(), user))).collect();
        self.0.retain(|who, closer| {
            while let Some(descriptor) = closer.left.pop() {
                if !closer.close(descriptor) {
                    break;
                }
            }
            !closer.is_idle() || used.contains(who)
        });
    }
}
