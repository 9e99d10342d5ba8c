//! Destroying an application's objects, which is refused while others use them.

use crate::base::ids::{CqId, PdId, Qpn, SrqId};
use crate::base::refusal::{Answer, done, found, refuse};
use crate::client::Client;
use rustix::io::Errno;

impl Client {
    pub(super) fn dealloc_pd(&mut self, pd: PdId) -> Answer {
        let context = &mut self.context;
        context.pds.check(pd)?;
        let used = context.regions.is_used(pd)
            || context.srqs.values().any(|srq| srq.pd == pd)
            || context.ahs.values().any(|ah| ah.pd == pd)
            || self.qps.values().any(|qp| qp.endpoint.pd == pd);
        if used {
            return refuse(Errno::BUSY, "the protection domain is in use");
        }
        context.pds.remove(pd);
        done()
    }

    pub(super) fn destroy_channel(&mut self, channel: u32) -> Answer {
        if self.context.cqs.values().any(|cq| cq.channel == Some(channel)) {
            return refuse(Errno::BUSY, "completion queues use the channel");
        }
        found(self.context.channels.remove(&channel), "completion channel")?;
        done()
    }

    pub(super) fn destroy_cq(&mut self, cq: CqId) -> Answer {
        if self.qps.values().any(|qp| qp.endpoint.completes_to(cq)) {
            return refuse(Errno::BUSY, "queue pairs use the completion queue");
        }
        found(self.context.remove_cq(cq), "completion queue")?.backing.empty();
        done()
    }

    pub(super) fn destroy_srq(&mut self, srq: SrqId) -> Answer {
        if self.qps.values().any(|qp| qp.endpoint.receive.takes_from(srq)) {
            return refuse(Errno::BUSY, "queue pairs use the shared receive queue");
        }
        found(self.context.srqs.remove(&srq), "shared receive queue")?.backing.empty();
        done()
    }

    pub(super) fn destroy_ah(&mut self, ah: u32) -> Answer {
        found(self.context.ahs.remove(&ah), "address handle")?;
        done()
    }

    pub(super) fn destroy_qp(&mut self, qpn: Qpn) -> Answer {
        let context = &mut self.context;
        if context.adapter.groups.has(qpn) {
            return refuse(Errno::BUSY, "the queue pair is attached to a multicast group");
        }
        let qp = found(self.qps.remove(&qpn), "queue pair")?;
        context.regions.unbind_all(qpn);
        qp.endpoint.backing.empty();
        qp.count_into(&mut context.counters);
        context.adapter.remove_qp(qpn);
        self.bells.take_back(qpn);
        done()
    }
}
