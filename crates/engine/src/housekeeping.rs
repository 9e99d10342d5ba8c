//! Work done once a second, on its own thread: timeouts, ageing, solicitations.

use crate::announcer::Announcer;
use crate::common::Common;
use crate::message::Message;
use crate::mutex::lock;
use model::{NeighbourScope, Question, Seconds, VifId};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tables::{FlowLimits, Waiting};

const EVERY: Duration = Duration::from_secs(1);
/// Most ports whose losses are read in a second: the kernel, or the helper, is asked for each.
const PORTS_PER_SECOND: usize = 64;
/// Seconds within which every connection is visited.
const SECONDS_PER_WALK: usize = 8;

/// The housekeeper's thread. It ends when this is dropped.
pub(crate) struct Housekeeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(common: Arc<Common>, flows: FlowLimits, announces: bool) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let visit = flows.connections.div_ceil(SECONDS_PER_WALK);
        let thread = Builder::new().name("housekeeping".into()).spawn(move || {
            let mut announcer = announces.then(Announcer::default);
            let mut looked_at = None;
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                keep_house(&common, visit, announcer.as_mut());
                looked_at = count_lost(&common, looked_at);
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}

fn keep_house(common: &Common, visit: usize, announcer: Option<&mut Announcer>) {
    let now = common.clock.now().seconds;
    common.shared.flows().expire(now, visit);
    common.shared.age(now);
    let questions = common.shared.pending_solicitations(now).into_iter().map(Message::Solicit);
    let told = announcer.map_or_else(Vec::new, |announcer| tell(common, announcer, now));
    for message in questions.chain(told) {
        if let Some(worker) = common.workers.first().filter(|worker| !worker.mailbox.is_full()) {
            worker.mailbox.post(message);
        }
    }
    forget_ended_captures(common);
}

/// Counts what ports lost before workers received it, for the ports after the one looked at last. Returns the last.
fn count_lost(common: &Common, after: Option<VifId>) -> Option<VifId> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let ports = lock(&common.ports);
    let some: Vec<_> = ports.range((from, Bound::Unbounded)).take(PORTS_PER_SECOND).collect();
    let last = some.last().map(|(vif, _)| **vif).filter(|_| some.len() == PORTS_PER_SECOND);
    let some: Vec<_> = some.into_iter().map(|(vif, port)| (*vif, port.clone())).collect();
    drop(ports);
    for (vif, port) in some {
        let lost = port.status().lost;
        if lock(&common.ports).get(&vif).is_some_and(|now| Arc::ptr_eq(now, &port)) {
            lock(&common.lost).entry(vif).or_default().follow(lost);
        }
    }
    last
}

/// Removes captures whose receiver is gone from the workers.
fn forget_ended_captures(common: &Common) {
    let mut taps = lock(&common.taps);
    let before = taps.len();
    taps.retain(|tap| {
        if tap.is_gone() && tap.lost() > 0 {
            tracing::warn!(
                lost = tap.lost(),
                "a capture ended; it missed packets because its receiver was too slow"
            );
        }
        !tap.is_gone()
    });
    if taps.len() < before {
        for worker in &common.workers {
            worker.mailbox.post(Message::Taps(taps.clone()));
        }
    }
}

/// Returns the announcements for this second, with solicitations for the neighbours that they need.
fn tell(common: &Common, announcer: &mut Announcer, now: Seconds) -> Vec<Message> {
    let up = lock(&common.ports).iter().filter(|(_, port)| port.is_up()).map(|(vif, _)| *vif).collect();
    let snapshot = common.shared.snapshot();
    let unreachable = |scope, addr| common.shared.is_unreachable(scope, addr);
    let view = snapshot.view(common.shared.flows(), now).without(&unreachable);
    let mut messages = Vec::new();
    for unasked in announcer.tell(&view, up) {
        messages.extend(unasked.missing.and_then(|missing| ask(common, missing, now)).map(Message::Solicit));
        messages.push(Message::Tell(unasked, None));
    }
    messages
}

/// Has a neighbour solicited, on behalf of the wire on which it is looked for.
pub(crate) fn ask(
    common: &Common,
    (scope, addr): (NeighbourScope, IpAddr),
    now: Seconds,
) -> Option<Question> {
    let NeighbourScope::Wire(wire) = scope else { return None };
    let waiting = common.shared.wait_for(scope, addr, wire, now);
    (waiting == Waiting::Solicit).then_some(Question { scope, addr, at: None })
}
