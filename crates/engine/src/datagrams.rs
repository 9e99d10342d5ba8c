//! Packets of the host itself: answers of its services to guests, and datagrams to remotes of tunnels.

use crate::asked::{Asked, Place};
use crate::engine::Engine;
use crate::housekeeping::ask;
use crate::message::Message;
use model::{Unasked, VifId};
use std::net::IpAddr;
use tables::View;

impl Engine {
    /// Returns the ways among which the flows to the remote of a tunnel are spread, as wire and next hop, but no more
    /// than `most`.
    #[must_use]
    pub fn ways_to(&self, remote: IpAddr, most: usize) -> Vec<(VifId, IpAddr)> {
        self.view(|view| {
            let ways = model::underlay_paths(view, remote).map(|path| (path.wire.id, path.hop));
            ways.take(most).collect()
        })
    }

    /// Sends a UDP datagram to the remote of a tunnel, as tunnel packets go, or by one of [`Self::ways_to`]. `ports`:
    /// from and to. If the next hop is not known, it is lost, and the next hop is asked for.
    pub fn send_to_remote(
        &self,
        remote: IpAddr,
        by: Option<(VifId, IpAddr)>,
        ports: (u16, u16),
        payload: &[u8],
    ) {
        self.tell(|view| model::to_remote(view, remote, by, ports, payload));
    }

    /// Answers a UDP datagram of a tunnel's remote, by the way by which it came.
    pub fn answer_remote(&self, asked: &Asked, payload: &[u8]) {
        self.tell(|view| model::reflect(view, asked.guest, &asked.frame, payload));
    }

    fn tell(&self, what: impl FnOnce(&View<'_>) -> Option<Unasked>) {
        let Some(told) = self.view(what) else { return };
        let asked = told.missing.and_then(|missing| ask(&self.common, missing, self.now()));
        let asked = asked.map(Message::Solicit);
        let told = (!told.to.is_empty()).then_some(Message::Tell(told, None));
        for message in asked.into_iter().chain(told) {
            if let Some(worker) = self.common.workers.first().filter(|worker| !worker.mailbox.is_full()) {
                worker.mailbox.post(message);
            }
        }
    }

    /// Sends the answer of a service, a frame without tags, to a guest. Returns whether a worker will do it: not if the
    /// guest is gone, or if too much waits for the worker. `place`: of the question.
    pub fn answer(&self, guest: VifId, frame: Vec<u8>, place: Option<Place>) -> bool {
        let Some(unasked) = self.view(|view| model::answer(view, guest, frame)) else { return false };
        let worker = &self.common.workers[usize::from(guest.0) % self.common.workers.len()];
        let has_room = !worker.mailbox.is_full();
        if has_room {
            worker.mailbox.post(Message::Tell(unasked, place));
        }
        has_room
    }
}
