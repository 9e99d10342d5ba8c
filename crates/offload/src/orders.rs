//! The executor's messages to the carrier, for whose effect it waits.

use crate::line::Line;
use engine::{Mailbox, Pending, Receipt};
use model::{Change, VifId, ovs};
use rustix::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the carrier may take to obey: a simulated card is slow. Afterwards, nobody waits for the carrier any more.
const PATIENCE: Duration = Duration::from_secs(60);

pub enum Message {
    Attach(VifId, Line),
    Detach(VifId),
    /// From now on, only the engine serves this interface; with false, this no longer holds.
    Beside(VifId, bool),
    /// The tables changed.
    Apply(Vec<Change>),
    /// Flows of an Open vSwitch changed.
    Ovs(Vec<ovs::Change>),
    /// Connections were forgotten.
    Flushed,
    /// Leave all packets to the engine while it captures.
    Capture,
    /// End the thread.
    Stop,
}

/// The carrier's mailbox. A message counts as obeyed when the carrier drops it, or when the carrier ends.
pub struct Orders {
    pub mailbox: Mailbox<Message>,
    /// How long to wait until a message is obeyed.
    patience: Duration,
    /// The last message that was not obeyed in time.
    late: Mutex<Option<Pending>>,
}

impl Orders {
    /// Makes an empty mailbox.
    ///
    /// # Errors
    /// If no event descriptors are left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { mailbox: Mailbox::new()?, patience: PATIENCE, late: Mutex::default() })
    }

    /// Posts a message and waits until it is obeyed. Does not wait for a stalled carrier.
    pub fn tell(&self, message: Message) {
        let (receipt, done) = Receipt::new();
        self.mailbox.post_with(message, receipt);
        let patience = if self.is_stalled() { Duration::ZERO } else { self.patience };
        if !done.wait(Instant::now() + patience) {
            *self.late() = Some(done);
        }
    }

    /// Returns whether the carrier has not obeyed a message whose time has run out.
    pub fn is_stalled(&self) -> bool {
        let mut late = self.late();
        if late.as_ref().is_some_and(|done| done.wait(Instant::now())) {
            *late = None;
        }
        late.is_some()
    }

    fn late(&self) -> MutexGuard<'_, Option<Pending>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use model::VifId;

    /// Orders without a carrier: no message is obeyed until the test drops it.
    #[test]
    fn a_carrier_that_does_not_obey_is_not_waited_for_for_ever() {
        let orders = Orders { patience: Duration::from_millis(1), ..Orders::new().unwrap() };
        assert!(!orders.is_stalled());
        for _ in 0..3 {
            orders.tell(Message::Beside(VifId(1), true));
        }
        assert!(orders.is_stalled());
        while let Some((_, done)) = orders.mailbox.next() {
            assert!(orders.is_stalled(), "all of it counts");
            drop(done);
        }
        assert!(!orders.is_stalled());
    }
}
