//! Closing what programs sent: they determine how long that takes, so other threads do it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Descriptors that may wait to be closed, for each user of a guest.
const WAITING: usize = 256;
/// Threads in all, and those of one guest.
const THREADS: usize = 512;
const OF_A_GUEST: usize = 64;

/// A user of a guest.
pub type Who = (String, u32);

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
        std::thread::Builder::new().name("socket-closer".into()).spawn(move || {
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

/// A thread for each user of a guest, so that each waits for his own.
#[derive(Default)]
pub struct Closers(BTreeMap<Who, Closer>);

impl Closers {
    /// Prepares to close what a user's programs will send. Returns false if the user must wait: what he sent before is
    /// not closed yet, or there are too many threads.
    pub fn admit(&mut self, who: &Who) -> bool {
        if let Some(closer) = self.0.get(who) {
            return closer.left.is_empty();
        }
        if self.0.len() >= THREADS || self.0.keys().filter(|other| other.0 == who.0).count() >= OF_A_GUEST {
            return false;
        }
        match Closer::start() {
            Ok(closer) => self.0.insert(who.clone(), closer).is_none(),
            Err(error) => {
                tracing::warn!("no thread closes what programs send: {error}");
                false
            }
        }
    }

    /// Has a descriptor of an admitted user closed. Returns false if too many wait already: then the program that sent
    /// it is to go.
    pub fn close(&mut self, who: &Who, descriptor: OwnedFd) -> bool {
        match self.0.get_mut(who) {
            Some(closer) => closer.close(descriptor),
            // Whoever has programs here was admitted.
            None => false,
        }
    }

    /// Tries again what there was no room for, and ends threads without work of users who have no programs here.
    pub fn tidy(&mut self, has_programs: impl Fn(&Who) -> bool) {
        self.0.retain(|who, closer| {
            while let Some(descriptor) = closer.left.pop() {
                if !closer.close(descriptor) {
                    break;
                }
            }
            !closer.is_idle() || has_programs(who)
        });
    }
}
