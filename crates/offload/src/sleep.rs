//! Sleeping until a port has packets or the executor a message.

use crate::line::Line;
use crate::orders::Message;
use crate::ports::Ports;
use crate::stats::Count;
use engine::Mailbox;
use model::VifId;
use rustix::event::{Timespec, epoll};
use rustix::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Waits for the events that wake the carrier.
pub struct Sleep {
    epoll: OwnedFd,
}

impl Sleep {
    /// Starts with messages as the only events that wake the carrier.
    ///
    /// # Errors
    /// If no event descriptors are left.
    pub fn new(mailbox: &Mailbox<Message>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.event(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { epoll })
    }

    /// Lets packets of a port wake the carrier, too.
    pub fn watch(&self, vif: VifId, line: &mut Line) {
        for queue in &mut line.rx {
            let data = epoll::EventData::new_u64(u64::from(vif.0) + 1);
            if let Err(error) = epoll::add(&self.epoll, queue.event_fd(), data, epoll::EventFlags::IN) {
                tracing::error!(%vif, %error, "can't wait for this queue, so it is polled once a second");
            }
            queue.disarm();
        }
        let data = epoll::EventData::new_u64(u64::from(vif.0) + 1);
        if let Err(error) = epoll::add(&self.epoll, line.downlink.event_fd(), data, epoll::EventFlags::IN) {
            tracing::error!(%vif, %error, "can't wait for the engine's frames, so they are polled once a second");
        }
        line.downlink.disarm();
    }

    /// Ends the watch of a port.
    pub fn forget(&self, line: &Line) {
        for queue in &line.rx {
            // Fails only if the queue was not added; its descriptor is closed with the queue anyway.
            let _ = epoll::delete(&self.epoll, queue.event_fd());
        }
        let _ = epoll::delete(&self.epoll, line.downlink.event_fd());
    }

    /// Sleeps until there is a packet or a message, but not past `until`.
    pub fn sleep(
        &self,
        ports: &mut Ports,
        mailbox: &Mailbox<Message>,
        until: Option<Instant>,
        sleeps: &Count,
    ) {
        let mut armed = 0;
        let mut ready = ports.iter_mut().fold(false, |ready, (_, line)| line.downlink.arm() | ready);
        for queue in ports.queues() {
            if ready {
                break;
            }
            armed += 1;
            ready = queue.arm();
        }
        if !ready && !mailbox.has_mail() {
            sleeps.add(1);
            self.wait(until);
        }
        mailbox.drain();
        ports.queues().take(armed).for_each(|queue| queue.disarm());
        ports.iter_mut().for_each(|(_, line)| line.downlink.disarm());
    }

    fn wait(&self, until: Option<Instant>) {
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: i64::from(left.subsec_nanos()) as _ }
        });
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        // Interrupted or not, the carrier checks what there is.
        let _ = epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref());
    }
}
