//! How a queue pair comes into its error states, and out of them.

use super::{Qp, Receives, Transport};
use crate::carry::Surroundings;
use crate::direct::Brought;
use crate::events::Event;
use crate::objects::Objects;
use packet::roce::Nak;
use rdma::Status;
use uverbs::{QpAttributes, QpState};

/// Why a queue pair is in an error state, where it is nobody else's fault.
const OWN_REQUEST: &str = "a request of its own failed";

impl Qp {
    /// Follows the transport into the error states, and tells the application why.
    pub(super) fn settle(&mut self, objects: &mut Objects) {
        let own = &mut self.own;
        let state = match &self.transport {
            Transport::None => None,
            Transport::Connected(connected) => Some(connected.state()),
            Transport::Datagram(pair) => Some(pair.state()),
        };
        let broken = own.broken.take();
        if own.state == QpState::Error {
            return;
        }
        match state {
            Some(rdma::State::Error) => {}
            _ if broken.is_some() => {}
            Some(rdma::State::SendQueueError) => {
                own.state = QpState::SendQueueError;
                own.reason = Some(OWN_REQUEST);
                return;
            }
            _ => return,
        }
        if let Some(reason) = broken {
            own.reason = Some(reason);
            objects.tell(Event::QpFatal, own.qpn);
        } else if let Some(nak) = own.nak {
            let (event, reason) = match nak {
                Nak::RemoteAccessError => (Event::QpAccessError, "its peer used memory that it may not"),
                _ => (Event::QpRequestError, "its peer asked for what can't be done"),
            };
            own.reason = Some(reason);
            objects.tell(event, own.qpn);
        }
        own.reason.get_or_insert(OWN_REQUEST);
        self.enter_error(objects);
    }

    /// Goes to the error state: everything is flushed.
    pub fn enter_error(&mut self, objects: &mut Objects) {
        if self.own.state == QpState::Error {
            return;
        }
        self.own.state = QpState::Error;
        self.own.spare_doorbell(false);
        self.own.part(objects);
        let mut around = Surroundings { own: &mut self.own, objects };
        match &mut self.transport {
            Transport::None => {}
            // One that failed itself still has to tell its peer why.
            Transport::Connected(connected) if connected.state() == rdma::State::Error => {}
            Transport::Connected(connected) => connected.fail(&mut around),
            Transport::Datagram(pair) => pair.fail(&mut around),
        }
        if let Receives::Own(source) = &mut self.own.receives {
            source.want_doorbell(true);
            self.own.looks_again = true;
        }
        self.flush(objects);
        if self.own.takes_shared() {
            objects.tell(Event::LastWqeReached, self.own.qpn);
        }
    }

    /// Sends again after a send queue error: not what was posted meanwhile.
    pub fn resume(&mut self, objects: &mut Objects) {
        self.own.flush_sends(objects);
        self.own.reason = None;
        match &mut self.transport {
            Transport::None => {}
            Transport::Connected(connected) => connected.resume(),
            Transport::Datagram(pair) => pair.resume(),
        }
    }

    /// Flushes what was posted since.
    pub(super) fn flush(&mut self, objects: &mut Objects) {
        let own = &mut self.own;
        own.flushed = 0;
        own.flush_sends(objects);
        while let Some(id) = own.take_flushed(objects) {
            own.complete(&rdma::Completion { id, status: Status::Flushed, len: 0, received: None }, objects);
        }
        own.broken = None;
    }

    /// Forgets everything: back to the beginning.
    pub fn reset(&mut self, objects: &mut Objects) {
        self.own.part(objects);
        self.count_into(&mut objects.counters);
        self.transport = Transport::None;
        let own = &mut self.own;
        own.brought = Brought::default();
        own.shared_in = None;
        own.state = QpState::Reset;
        own.attributes = QpAttributes::default();
        own.sends.reset();
        if let Receives::Own(source) = &mut own.receives {
            source.reset();
        }
        if let Some((parcels, _)) = &own.parcels {
            parcels.reset();
        }
        (own.path, own.peer, own.nak, own.reason, own.broken) = (None, None, None, None, None);
        (own.wrong_keys, own.established, own.tells_drained) = (0, false, false);
        own.spares_doorbell = false;
        own.told_congestion = None;
        self.deadline = None;
    }
}
