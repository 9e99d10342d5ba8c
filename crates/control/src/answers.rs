//! Bounds the memory of answers that clients have not read yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tonic::Status;

/// Bytes for the answers of all clients, about. Those of one user may have half of it.
const BYTES: usize = 512 << 20;

/// The memory of unread answers, by user.
#[derive(Clone)]
pub(crate) struct Answers {
    bytes: usize,
    held: Arc<Mutex<HashMap<Option<u32>, usize>>>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

/// The memory of an answer, until this is dropped.
pub(crate) struct Held {
    of: Answers,
    user: Option<u32>,
    bytes: usize,
}

impl Answers {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, held: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<u32>, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for an answer to a user. Who has no unread answer gets one, however long it is.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(crate) fn hold(&self, user: Option<u32>, bytes: usize) -> Result<Arc<Held>, Status> {
        let mut held = self.lock();
        let (all, own) = (held.values().sum::<usize>(), held.get(&user).copied().unwrap_or_default());
        if own > 0 && (own + bytes > self.bytes / 2 || all + bytes > self.bytes) {
            let text = format!(
                "answers that were not read yet take {} MB, {} of these by this user, and one more would be too much; read \
                 those first, or ask for less",
                all >> 20,
                own >> 20
            );
            return Err(Status::resource_exhausted(text));
        }
        held.insert(user, own + bytes);
        Ok(Arc::new(Held { of: self.clone(), user, bytes }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.of.lock();
        if let Some(own) = held.get_mut(&self.user) {
            *own -= self.bytes;
            if *own == 0 {
                held.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_one_answer_and_more_while_there_is_room() {
        let answers = Answers::new(100);
        let long = answers.hold(Some(1), 1000).unwrap();
        assert!(answers.hold(Some(1), 1).is_err());
        let other = answers.hold(Some(2), 10).unwrap();
        assert!(answers.hold(Some(2), 10).is_err(), "all of it is taken");
        drop(long);
        let more = [40, 50].map(|bytes| answers.hold(Some(2), bytes));
        assert!(more[0].is_ok() && more[1].is_err(), "half of it");
        drop((other, more));
        assert!(answers.lock().is_empty());
    }
}
