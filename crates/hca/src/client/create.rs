//! Creating an application's objects, and changing their size.

use crate::base::ids::{CqId, PdId, SrqId};
use crate::base::refusal::{Answer, found, no_memory, refuse, reply};
use crate::client::Client;
use crate::context::ah::Ah;
use crate::context::cq::{Channel, Cq, Entries};
use crate::context::quota::Quota;
use crate::context::srq::Srq;
use crate::qp::create::{Layout, create};
use rustix::io::Errno;
use uverbs::{AddressVector, CreateQp, QpType, Reply};

impl Client {
    pub(super) fn quota(&self) -> Quota {
        Quota::new(&self.context.adapter, &self.context.source)
    }

    pub(super) fn alloc_pd(&mut self) -> Answer {
        let (quota, pd) = (self.quota(), PdId(self.context.handle()));
        self.context.pds.alloc(pd, &quota)?;
        reply(Reply::Handle(pd.0))
    }

    pub(super) fn create_channel(&mut self) -> Answer {
        let quota = self.quota();
        let (notifier, theirs) = self.notifiers.create().map_err(no_memory)?;
        let channel = Channel::create(notifier, &quota)?;
        let handle = self.context.handle();
        self.context.channels.insert(handle, channel);
        Ok((Reply::Handle(handle), vec![theirs]))
    }

    pub(super) fn create_cq(&mut self, entries: u32, channel: Option<u32>, timestamps: bool) -> Answer {
        if let Some(channel) = channel {
            found(self.context.channels.get(&channel), "completion channel")?;
        }
        let quota = self.quota();
        let made = Cq::create(Entries::of_new(entries)?, channel, timestamps, &quota)?;
        let theirs = quota.give(&made.backing)?;
        let (cq, entries) = (CqId(self.context.handle()), made.entries);
        self.context.cqs.insert(cq, made);
        Ok((Reply::Cq { cq: cq.0, entries }, vec![theirs]))
    }

    pub(super) fn resize_cq(&mut self, cq: CqId, entries: u32) -> Answer {
        let (entries, quota) = (Entries::new(entries)?, self.quota());
        let resized = found(self.context.cqs.get_mut(&cq), "completion queue")?;
        let theirs = resized.resize(entries, &quota)?;
        Ok((Reply::Cq { cq: cq.0, entries: resized.entries }, vec![theirs]))
    }

    pub(super) fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u32) -> Answer {
        self.context.pds.check(pd)?;
        let quota = self.quota();
        let made = Srq::create(pd, max_wr, max_sge, &quota)?;
        let theirs = quota.give(&made.backing)?;
        let (srq, queue) = (SrqId(self.context.handle()), made.shape);
        self.context.srqs.insert(srq, made);
        Ok((Reply::Srq { srq: srq.0, queue, max_wr, max_sge }, vec![theirs]))
    }

    pub(super) fn resize_srq(&mut self, srq: SrqId, max_wr: u32, limit: Option<u32>) -> Answer {
        let quota = self.quota();
        let resized = found(self.context.srqs.get_mut(&srq), "shared receive queue")?;
        let theirs = resized.resize(max_wr, limit, &quota)?;
        let (queue, max_sge) = (resized.shape, resized.max_sge);
        Ok((Reply::Srq { srq: srq.0, queue, max_wr, max_sge }, vec![theirs]))
    }

    pub(super) fn create_ah(&mut self, pd: PdId, vector: &AddressVector) -> Answer {
        self.context.pds.check(pd)?;
        let (quota, context) = (self.quota(), &mut self.context);
        let made = Ah::create(pd, vector, &context.adapter, &context.fabric, &quota)?;
        let ah = context.handle();
        context.ahs.insert(ah, made);
        reply(Reply::Handle(ah))
    }

    pub(super) fn create_qp(&mut self, asked: &CreateQp) -> Answer {
        let quota = self.quota();
        let context = &mut self.context;
        context.pds.check(PdId(asked.pd))?;
        found(context.cqs.get(&CqId(asked.send_cq)), "completion queue for sends")?;
        found(context.cqs.get(&CqId(asked.recv_cq)), "completion queue for receives")?;
        if let Some(srq) = asked.srq {
            found(context.srqs.get(&SrqId(srq)), "shared receive queue")?;
        }
        let shares = asked.qp_type == QpType::Rc
            && context.adapter.spec().shares_memory()
            && context.source.is_common();
        let layout = Layout::of(asked, shares)?;
        let free = self.bells.free(self.doorbells.count());
        let Some((bell, qpn)) = free.and_then(|bell| Some((bell, context.adapter.add_qp(&context.inbox)?)))
        else {
            return refuse(Errno::NOMEM, "the guest's limit of queue pairs (rdma_limits) is reached");
        };
        let made = create(qpn, bell, asked, &layout, &quota).and_then(|(qp, reply)| {
            let theirs = quota.give(&qp.endpoint.backing)?;
            Ok((qp, reply, theirs))
        });
        match made {
            Ok((qp, reply, theirs)) => {
                self.qps.insert(qpn, qp);
                self.bells.give(bell, qpn);
                Ok((reply, vec![theirs]))
            }
            Err(refusal) => {
                context.adapter.remove_qp(qpn);
                Err(refusal)
            }
        }
    }
}
