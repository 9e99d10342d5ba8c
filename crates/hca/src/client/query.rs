//! Queries about an application's objects, and notifications to them.

use crate::base::ids::{CqId, Qpn, SrqId};
use crate::base::refusal::{Answer, done, found, reply};
use crate::client::Client;
use crate::inbox::message::Message;
use crate::qp::modify;
use uverbs::{PortInfo, QpAttributes, QpInfo, Reply};

impl Client {
    pub(super) fn query_port(&self) -> Answer {
        let spec = self.context.adapter.spec();
        let violations = self.context.counters.get("qkey_violations").unwrap_or_default();
        reply(Reply::Port(PortInfo {
            is_active: true,
            active_mtu: spec.active_mtu(),
            gids: spec.gids(),
            bad_pkeys: 0,
            qkey_violations: violations as u32,
        }))
    }

    pub(super) fn query_qp(&self, qpn: Qpn) -> Answer {
        let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
        let state = endpoint.state as u32;
        let attributes = QpAttributes { qp_state: state, cur_qp_state: state, ..endpoint.attributes };
        reply(Reply::QpInfo(Box::new(QpInfo { attributes, capacity: endpoint.capacity })))
    }

    pub(super) fn modify_qp(&mut self, qpn: Qpn, mask: u32, attributes: &QpAttributes) -> Answer {
        let qp = found(self.qps.get_mut(&qpn), "queue pair")?;
        modify::modify(qp, mask, attributes, &mut self.context)?;
        self.wake(qpn);
        done()
    }

    pub(super) fn query_srq(&self, srq: SrqId) -> Answer {
        let srq = found(self.context.srqs.get(&srq), "shared receive queue")?;
        reply(Reply::SrqLimit(srq.limit))
    }

    pub(super) fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Answer {
        found(self.context.srqs.get_mut(&srq), "shared receive queue")?.arm(limit);
        done()
    }

    /// Notifies the channel of a completion queue to which the application itself added a completion.
    pub(super) fn tell_channel(&mut self, cq: CqId) -> Answer {
        found(self.context.cqs.get(&cq), "completion queue")?;
        self.context.tell_channel(cq);
        done()
    }

    /// Notifies the channel of the peer's completion queue to which the application itself added a completion.
    pub(super) fn tell_peer(&self, qpn: Qpn) -> Answer {
        found(self.qps.get(&qpn), "queue pair")?.endpoint.tell_peer();
        done()
    }

    /// Makes the peer check which of its shared receive queues are low, since the application itself took receives.
    pub(super) fn tell_peer_of_few(&self, qpn: Qpn) -> Answer {
        let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
        if let Some(peer) = endpoint.direct_peer() {
            peer.send(Message::FewReceives);
        }
        done()
    }
}
