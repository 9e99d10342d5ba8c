//! What happens once a second, on a thread of its own: timeouts, ageing, solicitations.

use crate::engine::{Common, lock};
use crate::mailbox::Message;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tables::FlowLimits;

const EVERY: Duration = Duration::from_secs(1);
/// Seconds in which every connection is visited.
const SECONDS_PER_WALK: usize = 8;

/// The thread. Ends when dropped.
pub(crate) struct Housekeeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(common: Arc<Common>, flows: FlowLimits) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let visit = flows.connections.div_ceil(SECONDS_PER_WALK);
        let thread = Builder::new().name("housekeeping".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                keep_house(&common, visit);
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn keep_house(common: &Common, visit: usize) {
    let now = common.clock.now().seconds;
    common.shared.flows().expire(now, visit);
    common.shared.age(now);
    for question in common.shared.pending_solicitations(now) {
        if let Some(worker) = common.workers.first().filter(|worker| !worker.mailbox.is_full()) {
            worker.mailbox.post(Message::Solicit(question));
        }
    }
    forget_ended_captures(common);
}

/// Takes captures whose receiver is gone from the workers.
fn forget_ended_captures(common: &Common) {
    let mut taps = lock(&common.taps);
    let before = taps.len();
    taps.retain(|tap| {
        if tap.is_gone() && tap.lost() > 0 {
            tracing::warn!(lost = tap.lost(), "a capture ended that could not take all its packets");
        }
        !tap.is_gone()
    });
    if taps.len() < before {
        for worker in &common.workers {
            worker.mailbox.post(Message::Taps(taps.clone()));
        }
    }
}
