//! Closing what programs sent: they determine how long that takes, so another thread does it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Descriptors that may wait to be closed, for each user.
const WAITING: usize = 256;

/// A thread for each user, so that each waits for his own.
#[derive(Default)]
pub struct Closers(BTreeMap<u32, SyncSender<OwnedFd>>);

impl Closers {
    /// Has a descriptor of a user closed. Gives it back if too many wait already: then its closing takes long, or
    /// the user sends more than can be closed.
    pub fn close(&mut self, user: u32, descriptor: OwnedFd) -> Result<(), OwnedFd> {
        let to = self.0.entry(user).or_insert_with(|| {
            let (to, from) = sync_channel(WAITING);
            let closer = move || from.into_iter().for_each(drop);
            if let Err(error) = std::thread::Builder::new().name("socket-closer".into()).spawn(closer) {
                tracing::warn!("no thread closes what programs send: {error}");
            }
            to
        });
        match to.try_send(descriptor) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(descriptor) | TrySendError::Disconnected(descriptor)) => Err(descriptor),
        }
    }

    /// Ends the thread of a user who has no programs here any more.
    pub fn end(&mut self, user: u32) {
        self.0.remove(&user);
    }
}
