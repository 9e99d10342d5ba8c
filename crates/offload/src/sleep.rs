//! Sleeping until a port has packets or the executor a message.

use crate::carrier::Carrier;
use crate::carry::Carry;
use crate::ports::Line;
use mem::RxQueue;
use model::VifId;
use rustix::event::{Timespec, epoll};
use std::os::fd::AsFd;
use std::time::Instant;

impl<C: Carry> Carrier<C> {
    /// Has packets of a port wake the carrier.
    pub fn watch(&self, vif: VifId, line: &mut Line) {
        for queue in &mut line.rx {
            let data = epoll::EventData::new_u64(u64::from(vif.0) + 1);
            if let Err(error) = epoll::add(&self.epoll, queue.event_fd(), data, epoll::EventFlags::IN) {
                tracing::error!(%vif, %error, "a queue can't be waited for; it is polled once a second");
            }
            queue.disarm();
        }
        let data = epoll::EventData::new_u64(u64::from(vif.0) + 1);
        if let Err(error) = epoll::add(&self.epoll, line.downlink.event_fd(), data, epoll::EventFlags::IN) {
            tracing::error!(%vif, %error, "what the engine sends can't be waited for; it is polled once a second");
        }
        line.downlink.disarm();
    }

    /// Undoes that.
    pub fn forget(&self, line: &Line) {
        for queue in &line.rx {
            // It was added; and with the queue its descriptor goes anyway.
            let _ = epoll::delete(&self.epoll, queue.event_fd());
        }
        let _ = epoll::delete(&self.epoll, line.downlink.event_fd());
    }

    /// Sleeps until there is a packet or a message, or flows are to be looked after.
    pub fn sleep(&mut self) {
        let mut armed = 0;
        let mut ready = self.lines.values_mut().fold(false, |ready, line| line.downlink.arm() | ready);
        for queue in queues(&mut self.lines) {
            if ready {
                break;
            }
            armed += 1;
            ready = queue.arm();
        }
        if !ready && self.mailbox.is_empty() {
            let left = self.next.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: i64::from(left.subsec_nanos()) as _ };
            let timeout = (!self.failed).then_some(&timeout);
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
            self.stats.sleeps.add(1);
            // Interrupted or not: the carrier looks for itself what there is.
            let _ = epoll::wait(self.epoll.as_fd(), &mut events[..], timeout);
        }
        self.mailbox.drain();
        queues(&mut self.lines).take(armed).for_each(|queue| queue.disarm());
        self.lines.values_mut().for_each(|line| line.downlink.disarm());
    }
}

fn queues(
    lines: &mut std::collections::BTreeMap<VifId, Line>,
) -> impl Iterator<Item = &mut Box<dyn RxQueue>> {
    lines.values_mut().flat_map(|line| &mut line.rx)
}
