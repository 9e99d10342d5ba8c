//! Requests that arrive before their listener: they wait a moment for a program that is about to listen.
//!
//! perftest's server (`-R`) listens, is connected, ends its listener, tells the client to continue, and only then
//! listens again. With an adapter, the client resolves addresses meanwhile, which takes long enough; here that takes
//! no time, and the request would find no listener.

use super::header::IpHeader;
use super::{Manager, PortSpace};
use packet::roce::cm::{Mad, Message};
use std::net::IpAddr;
use std::time::Duration;

/// Time for which a request waits before it is refused.
pub const GRACE: Duration = Duration::from_millis(100);
/// Largest number of requests that wait; more are refused at once.
const MOST: usize = 64;

/// A request without a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    until: Duration,
    from: IpAddr,
    to: IpAddr,
    mad: Mad,
}

impl Manager {
    /// Keeps a request without a listener, if there is room. Returns whether it waits now.
    pub(super) fn wait_for_listener(&mut self, now: Duration, from: IpAddr, to: IpAddr, mad: &Mad) -> bool {
        let waits = self.pending.len() < MOST && self.lacks_listener((from, to), mad);
        if waits {
            self.pending.push_back(PendingRequest { until: now + GRACE, from, to, mad: *mad });
        }
        waits
    }

    /// Answers requests that have waited long enough, or that need not wait any more. Returns the time until which the
    /// others wait.
    pub(super) fn serve_pending(&mut self, now: Duration) -> Option<Duration> {
        for _ in 0..self.pending.len() {
            let Some(pending) = self.pending.pop_front() else { break };
            if pending.until > now && self.lacks_listener((pending.from, pending.to), &pending.mad) {
                self.pending.push_back(pending);
            } else {
                self.hear(now, pending.from, pending.to, &pending.mad);
            }
        }
        self.pending.front().map(|pending| pending.until)
    }

    /// Is true if a message is a request to a program's port on which nobody listens.
    fn lacks_listener(&self, (from, to): (IpAddr, IpAddr), mad: &Mad) -> bool {
        let (service, private, datagram) = match &mad.message {
            Message::Req(req) => (req.service, &req.private[..], false),
            Message::SidrReq { service, private, .. } => (*service, &private[..], true),
            _ => return false,
        };
        PortSpace::from_number((service >> 16) as u32).is_some()
            && self.listener(service, IpHeader::asked(private, from, to), datagram).is_none()
    }
}
