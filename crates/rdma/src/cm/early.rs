//! Requests that come before their listener: they wait a moment for who is about to listen.
//!
//! perftest's server (`-R`) listens, is connected, ends its listener, tells the client to go on, and only then
//! listens again. An adapter's client resolves addresses meanwhile, which takes long enough; here that takes no time,
//! and would find nobody.

use super::header::IpHeader;
use super::{Manager, PortSpace};
use packet::roce::cm::{Mad, Message};
use std::net::IpAddr;
use std::time::Duration;

/// How long a request waits, before it is refused.
pub const GRACE: Duration = Duration::from_millis(100);
/// Requests that may wait; more are refused at once.
const MOST: usize = 64;

/// A request nobody listens for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    until: Duration,
    from: IpAddr,
    to: IpAddr,
    mad: Mad,
}

impl Manager {
    /// Keeps a request that nobody listens for. Returns whether it waits now.
    pub(super) fn wait_for_listener(&mut self, now: Duration, from: IpAddr, to: IpAddr, mad: &Mad) -> bool {
        let waits = self.early.len() < MOST && self.lacks_listener((from, to), mad);
        if waits {
            self.early.push_back(Early { until: now + GRACE, from, to, mad: *mad });
        }
        waits
    }

    /// Answers requests that have waited long enough, or need not any more. Returns until when the others wait.
    pub(super) fn serve_early(&mut self, now: Duration) -> Option<Duration> {
        for _ in 0..self.early.len() {
            let Some(early) = self.early.pop_front() else { break };
            if early.until > now && self.lacks_listener((early.from, early.to), &early.mad) {
                self.early.push_back(early);
            } else {
                self.hear(now, early.from, early.to, &early.mad);
            }
        }
        self.early.front().map(|early| early.until)
    }

    /// Whether it is a request to a port of a program, and nobody listens there.
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
