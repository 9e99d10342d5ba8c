//! The device's part in sharing memory between trusting peers. An application gets descriptors of the peer's queues,
//! so that it can store messages there itself (`verbs/src/direct.rs`). The device ends this when anything changes.
//!
//! An application's thread sends a message to the thread of the peer's application, which alone knows whether its
//! queue pair is ready. The answer returns as a message, too, so no thread waits for another.

use crate::base::clock::monotonic;
use crate::base::ids::{CqId, Qpn, SrqId};
use crate::base::refusal::{Answer, refuse};
use crate::client::Client;
use crate::inbox::message::{Grant, Message, QpAddress, SharedPart, SharingAnswer, SharingRequest};
use crate::net::path::{Path, Way};
use crate::program::grants::Process;
use crate::qp::Qp;
use crate::streams::events::Event;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use uverbs::{DirectSession, QpState, QpType, Refusal, Reply};

/// How long to wait for the answer of a peer.
const PATIENCE: Duration = Duration::from_millis(100);

/// A request to share memory that the peer has not answered yet.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    qpn: Qpn,
    pub until: Duration,
    ticket: Arc<()>,
}

impl Client {
    /// Asks the peer of a queue pair to share memory. The application gets its answer from [`Self::granted`] or
    /// [`Self::give_up`].
    pub(crate) fn request_sharing(&mut self, qpn: Qpn, wanted: SharedPart) -> Result<(), Refusal> {
        let spec = self.context.adapter.spec().clone();
        let process = self.process();
        let Some(endpoint) = self.qps.get(&qpn).map(|qp| &qp.endpoint) else {
            return refuse(Errno::INVAL, "there is no such queue pair");
        };
        let not_ready = || refuse(Errno::AGAIN, "the peer is not ready");
        let (Some(Path { header, way: Way::Local(adapter), .. }), Some(trust)) =
            (&endpoint.peer.path, &spec.trust)
        else {
            return refuse(Errno::PERM, "the peer does not share memory with this guest");
        };
        if endpoint.kind != QpType::Rc || endpoint.state != QpState::ReadyToSend || !spec.shares_memory() {
            return refuse(Errno::PERM, "the queue pair does not share memory");
        }
        let Some(peer) = adapter.owner(endpoint.peer_qpn()) else { return not_ready() };
        let Some(process) = process else { return not_ready() };
        let ticket = Arc::new(());
        let request = SharingRequest {
            qpn: endpoint.peer_qpn(),
            wanted,
            from: QpAddress { gid: header.source, qpn },
            uid: self.who.uid(),
            reach: self.context.source.reach.clone(),
            trust: trust.clone(),
            process,
            inbox: self.context.inbox.clone(),
            ticket: Arc::downgrade(&ticket),
        };
        if !peer.send(Message::Share(Box::new(request))) {
            return not_ready();
        }
        self.awaited = Some(PendingAnswer { qpn, until: monotonic() + PATIENCE, ticket });
        Ok(())
    }

    /// Returns the answer to the application if the peer does not answer in time.
    pub(crate) fn give_up(&mut self) -> Option<Answer> {
        let awaited = self.awaited.as_ref()?;
        self.granted(SharingAnswer { ticket: Arc::downgrade(&awaited.ticket), grant: None })
    }

    /// Returns the answer to the application after the peer has answered. `None` if nobody waits for this answer.
    pub(crate) fn granted(&mut self, granted: SharingAnswer) -> Option<Answer> {
        let is_its = |awaited: &mut PendingAnswer| granted.ticket.as_ptr() == Arc::as_ptr(&awaited.ticket);
        let PendingAnswer { qpn, .. } = self.awaited.take_if(is_its)?;
        let refused = || Some(refuse(Errno::AGAIN, "the peer is not ready, or shares no memory"));
        let mut grant = match granted.grant {
            Some(Grant::Queues(grant)) => grant,
            Some(Grant::Pages { address, len, id, memory }) => {
                return Some(Ok((Reply::Pages { address, len, file: id }, memory)));
            }
            Some(Grant::Memory { pid, token, file }) => {
                return Some(Ok((Reply::Memory { pid, token }, vec![file.into()])));
            }
            None => return refused(),
        };
        let endpoint = self.qps.get_mut(&qpn).map(|qp| &mut qp.endpoint);
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.state == QpState::ReadyToSend) else {
            return refused();
        };
        let source = &self.context.source;
        source.share();
        let Ok(session) = grant.session.open(DirectSession::BYTES, &source.fault) else { return refused() };
        let Some(cq) = self.context.cqs.get_mut(&endpoint.send.cq) else { return refused() };
        let own = [&grant.session, &self.context.regions.backing].map(|backing| backing.give(&source.reach));
        let ([Some(theirs), Some(regions)], Some(own_cq)) = (own, cq.share(&source.reach)) else {
            return refused();
        };
        (grant.peer.own_regions, grant.peer.own_entries) = (self.context.regions.limit, cq.entries);
        endpoint.sharing.trust = self.context.adapter.spec().trust.clone();
        endpoint.sharing.set_outbound(DirectSession::new(session), grant.session);
        let mut along = vec![theirs];
        along.append(&mut grant.first);
        along.extend([regions, own_cq]);
        along.append(&mut grant.last);
        Some(Ok((Reply::Direct(grant.peer), along)))
    }

    /// Finds all paths again. All sharing ends, and applications request it again. A connection within the host that
    /// is no longer permitted goes to the error state: it could not continue over the wire, where packets have other
    /// sizes and numbers.
    pub(crate) fn review(&mut self) {
        let (adapter, fabric) = (self.context.adapter.clone(), self.context.fabric.clone());
        let is_local = |path: &Path| matches!(path.way, Way::Local(_));
        let mut ended = Vec::new();
        let spec = adapter.spec().clone();
        self.unshare_all();
        for qp in self.qps.values_mut() {
            let was_local = qp.endpoint.peer.path.as_ref().is_some_and(is_local);
            let found = Path::to_peer(&qp.endpoint.attributes.ah, &adapter, &fabric);
            let reason = if was_local && !found.as_ref().is_ok_and(is_local) {
                Some("its peer may not be reached within the host any more")
            } else if !qp.endpoint.is_trusted(&spec) {
                Some("the trust in which it shared memory with its peer was taken away")
            } else {
                None
            };
            if let Some(reason) = reason {
                qp.endpoint.reason = Some(reason);
                self.context.tell(Event::QpFatal, qp.endpoint.qpn.0);
                qp.enter_error(&mut self.context);
                ended.push(qp.endpoint.qpn);
            }
        }
        ended.into_iter().for_each(|qpn| self.wake(qpn));
        for ah in self.context.ahs.values_mut() {
            if let Ok(path) = Path::find(&ah.vector, &adapter, &fabric) {
                ah.path = path;
            }
        }
    }

    fn unshare_all(&mut self) {
        self.qps.values().for_each(|qp| qp.endpoint.sharing.close_sessions());
        self.qps.values_mut().for_each(|qp| qp.endpoint.unshare(&mut self.context));
    }

    /// Returns the application's process, by which the device records who has whose memory.
    pub(crate) fn process(&mut self) -> Option<Arc<Process>> {
        if self.process.is_none() {
            let adapter = &self.context.adapter;
            let guest = adapter.spec().guest.clone();
            let life = self.who.is_remote().then(|| Arc::downgrade(&self.life));
            self.process = adapter.grants.process(self.who.pid(), life, &guest, &adapter.budget);
        }
        self.process.clone()
    }

    /// Ends the sharing of all queue pairs that receive from a shared queue.
    pub(crate) fn unshare_srq(&mut self, srq: SrqId) {
        let uses = |qp: &&mut Qp| qp.endpoint.receive.takes_from(srq);
        self.qps.values_mut().filter(uses).for_each(|qp| qp.endpoint.unshare(&mut self.context));
    }

    /// Ends the sharing of all queue pairs that use a completion queue.
    pub(crate) fn unshare_cq(&mut self, cq: CqId) {
        let uses = |qp: &&mut Qp| qp.endpoint.completes_to(cq);
        self.qps.values_mut().filter(uses).for_each(|qp| qp.endpoint.unshare(&mut self.context));
    }
}
