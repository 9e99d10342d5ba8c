//! The peer of a connected queue pair: the path to it, and what is known about it.

use crate::base::header::NetworkHeader;
use crate::inbox::message::Message;
use crate::inbox::{Inbox, Substitute};
use crate::net::adapter::Adapter;
use crate::net::path::{Path, Way};
use packet::roce::Nak;
use std::sync::Arc;
use std::time::Duration;

/// The shortest time between two notifications of congestion to a peer.
const BETWEEN_NOTIFICATIONS: Duration = Duration::from_micros(50);

/// The peer of a connection. Empty if the queue pair is not connected.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub path: Option<Path>,
    /// The inbox of the peer's thread, if the peer is on this host and a packet was sent there.
    pub inbox: Option<Arc<Inbox<Message>>>,
    /// The substitute that works for that thread while it sleeps, if one may.
    pub substitute: Option<Arc<dyn Substitute>>,
    /// The NAK to the peer's last wrong request.
    pub nak: Option<Nak>,
    /// How many wrong keys it used.
    pub wrong_keys: u32,
    /// A packet arrived from the peer, or it requested shared memory.
    pub established: bool,
    /// When the peer was last notified of congestion.
    told_congestion: Option<Duration>,
}

impl Peer {
    /// Is true if packets to the peer leave through the vRouter.
    pub const fn is_remote(&self) -> bool {
        matches!(self.path, Some(Path { way: Way::Wire, .. }))
    }

    /// Returns the path to a peer on this host, and its device.
    pub const fn local(&self) -> Option<(&Path, &Arc<Adapter>)> {
        match &self.path {
            Some(path @ Path { way: Way::Local(adapter), .. }) => Some((path, adapter)),
            _ => None,
        }
    }

    /// Is true if a packet with this header comes from the peer, on the path that leads there.
    pub fn sent(&self, header: &NetworkHeader, is_local: bool) -> bool {
        self.path.as_ref().is_some_and(|path| {
            header.source == path.header.destination
                && header.destination == path.header.source
                && is_local == matches!(path.way, Way::Local(_))
        })
    }

    /// Returns whether the peer may be notified of congestion now. If so, it counts as notified.
    pub fn may_tell_congestion(&mut self, now: Duration) -> bool {
        let told = self.told_congestion.is_some_and(|at| now < at + BETWEEN_NOTIFICATIONS);
        if !told {
            self.told_congestion = Some(now);
        }
        !told
    }
}
