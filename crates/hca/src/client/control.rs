//! What applications ask for on their control socket.

use crate::budget::{Held, Kind};
use crate::client::Client;
use crate::context::{Ah, Channel, Context, Cq, Receive, Srq};
use crate::endpoint::{Endpoint, Receives, Taken, Work};
use crate::events::Notifier;
use crate::header::is_group;
use crate::limits::{MAX_COMPLETIONS, MAX_INLINE, MAX_PDS, MAX_SEGMENTS, MAX_WORK};
use crate::modify;
use crate::path::Path;
use crate::qp::{Qp, Transport};
use crate::question::Question;
use crate::queue_memory::{empty, guarded_memory};
use crate::refusal::{Answer, done, found, no_memory, refuse, reply, within};
use crate::sharing::DirectTraffic;
use mem::FaultWord;
use rustix::io::Errno;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::qp::access;
use uverbs::{
    AddressVector, Capacity, CompletionSink, CreateQp, DEVICE, Kind as KeyKind, Memory, Parcels, PortInfo,
    QpAttributes, QpInfo, QpState, QpType, Refusal, Region, Reply, Request, Segment, Shape, SharedSource,
    WorkQueue, WorkSource, completion,
};

impl Client {
    /// Does what is asked for.
    pub(crate) fn handle(&mut self, request: Request, files: Vec<OwnedFd>) -> Answer {
        match request {
            // Answered when the peer has.
            Request::Direct { .. } | Request::Pages { .. } | Request::Memory { .. } => {
                refuse(Errno::PROTO, "asked for in passing")
            }
            Request::Cm(_) => refuse(Errno::PROTO, "the connection manager has connections of its own"),
            Request::Hello { .. } => refuse(Errno::PROTO, "greeted before"),
            Request::QueryPort => reply(Reply::Port(self.context.port())),
            Request::AllocPd => self.context.alloc_pd(),
            Request::DeallocPd { pd } => self.dealloc_pd(pd),
            Request::RegMr { pd, address, length: len, iova, access, pages } => {
                let region = Region { pd, address, len, iova, access, file: 0, kind: KeyKind::Region };
                self.context.register(region, pages, files)
            }
            Request::ReregMr { mr, pd, range, access } => self.context.reregister(mr, pd, range, access),
            Request::DeregMr { mr } => {
                self.context.check_windows(mr)?;
                found(self.context.regions.remove(mr), "memory region")?;
                done()
            }
            Request::AllocMw { pd, mw_type } => {
                self.context.check_pd(pd)?;
                let limits = self.context.adapter.spec().limits;
                self.context.regions.alloc_window(pd, mw_type, limits)
            }
            Request::DeallocMw { mw } => self.context.regions.dealloc_window(mw),
            Request::CreateChannel => self.context.create_channel(),
            Request::DestroyChannel { channel } => self.context.destroy_channel(channel),
            Request::CreateCq { entries, channel } => self.context.create_cq(entries, channel),
            Request::ResizeCq { cq, entries } => self.context.resize_cq(cq, entries),
            Request::TellChannel { cq } => {
                found(self.context.cqs.get(&cq), "completion queue")?;
                self.context.tell_channel(cq);
                done()
            }
            Request::TellPeer { qpn } => {
                found(self.qps.get(&qpn), "queue pair")?.endpoint.tell_peer();
                done()
            }
            Request::DestroyCq { cq } => self.destroy_cq(cq),
            Request::CreateSrq { pd, max_wr, max_sge } => self.context.create_srq(pd, max_wr, max_sge),
            Request::ResizeSrq { srq, max_wr, limit } => self.context.resize_srq(srq, max_wr, limit),
            Request::ArmSrq { srq, limit } => {
                found(self.context.srqs.get_mut(&srq), "shared receive queue")?.arm(limit);
                done()
            }
            Request::PeerIsLow { qpn } => {
                let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
                if let Some(peer) = endpoint.direct_peer() {
                    peer.ask(Question::FewReceives);
                }
                done()
            }
            Request::QuerySrq { srq } => {
                let srq = found(self.context.srqs.get(&srq), "shared receive queue")?;
                reply(Reply::SrqLimit(srq.limit))
            }
            Request::DestroySrq { srq } => self.destroy_srq(srq),
            Request::CreateQp(asked) => self.create_qp(&asked),
            Request::ModifyQp { qpn, mask, attributes } => {
                let qp = found(self.qps.get_mut(&qpn), "queue pair")?;
                modify::modify(qp, mask, &attributes, &mut self.context)?;
                self.wake(qpn);
                done()
            }
            Request::QueryQp { qpn } => {
                let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
                let state = endpoint.state as u32;
                let attributes = QpAttributes { qp_state: state, cur_qp_state: state, ..endpoint.attributes };
                reply(Reply::QpInfo(Box::new(QpInfo { attributes, capacity: endpoint.capacity })))
            }
            Request::DestroyQp { qpn } => self.destroy_qp(qpn),
            Request::AttachMcast { qpn, gid } => self.attach(qpn, gid),
            Request::DetachMcast { qpn, gid } => {
                found(self.qps.get(&qpn), "queue pair")?;
                found(self.context.adapter.groups.detach(gid, qpn).then_some(()), "queue pair in the group")?;
                done()
            }
            Request::CreateAh { pd, vector } => self.context.create_ah(pd, &vector),
            Request::DestroyAh { ah } => {
                found(self.context.ahs.remove(&ah), "address handle")?;
                done()
            }
        }
    }

    fn dealloc_pd(&mut self, pd: u32) -> Answer {
        let context = &mut self.context;
        context.check_pd(pd)?;
        let used = context.regions.is_used(pd)
            || context.srqs.values().any(|srq| srq.pd == pd)
            || context.ahs.values().any(|ah| ah.pd == pd)
            || self.qps.values().any(|qp| qp.endpoint.pd == pd);
        if used {
            return refuse(Errno::BUSY, "the protection domain is in use");
        }
        context.pds.remove(&pd);
        done()
    }

    fn destroy_cq(&mut self, cq: u32) -> Answer {
        if self.qps.values().any(|qp| qp.endpoint.send_cq == cq || qp.endpoint.recv_cq == cq) {
            return refuse(Errno::BUSY, "queue pairs use the completion queue");
        }
        empty(&found(self.context.remove_cq(cq), "completion queue")?.file);
        done()
    }

    fn destroy_srq(&mut self, srq: u32) -> Answer {
        if self.qps.values().any(|qp| qp.endpoint.takes_from(srq)) {
            return refuse(Errno::BUSY, "queue pairs use the shared receive queue");
        }
        let srq = found(self.context.srqs.remove(&srq), "shared receive queue")?;
        empty(&srq.file);
        done()
    }

    fn destroy_qp(&mut self, qpn: u32) -> Answer {
        if self.context.adapter.groups.has(qpn) {
            return refuse(Errno::BUSY, "the queue pair is attached to a multicast group");
        }
        let qp = found(self.qps.remove(&qpn), "queue pair")?;
        self.context.regions.unbind_all(qpn);
        empty(&qp.endpoint.file);
        qp.count_into(&mut self.context.counters);
        self.context.adapter.remove_qp(qpn);
        self.bells.iter_mut().filter(|bell| **bell == Some(qpn)).for_each(|bell| *bell = None);
        done()
    }

    fn attach(&self, qpn: u32, gid: Ipv6Addr) -> Answer {
        let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
        if endpoint.kind != QpType::Ud || !is_group(gid) {
            return refuse(Errno::INVAL, "queue pairs of datagrams are attached to multicast addresses");
        }
        let (member, context) = ((qpn, &endpoint.queue_key), &self.context);
        context.adapter.groups.attach(gid, member, &context.inbox).map_err(no_memory)?;
        done()
    }

    fn create_qp(&mut self, asked: &CreateQp) -> Answer {
        let context = &mut self.context;
        context.check_pd(asked.pd)?;
        found(context.cqs.get(&asked.send_cq), "completion queue for sends")?;
        found(context.cqs.get(&asked.recv_cq), "completion queue for receives")?;
        if let Some(srq) = asked.srq {
            found(context.srqs.get(&srq), "shared receive queue")?;
        }
        let cap = checked_capacity(asked)?;
        let shares = asked.qp_type == QpType::Rc && context.adapter.spec().shares_memory();
        let free = free_bell(&mut self.bells, self.doorbells.count());
        let Some((bell, qpn)) = free.and_then(|bell| Some((bell, context.adapter.add_qp(&context.inbox)?)))
        else {
            return refuse(Errno::NOMEM, "the guest's limit of queue pairs (rdma_limits) is reached");
        };
        let layout = Layout::of(asked, cap, shares);
        let held = context.adapter.account.take(Kind::QueuePair, layout.cost(), u32::MAX);
        let made = held
            .map_err(no_memory)
            .and_then(|held| make_qp((qpn, bell as u32), asked, &layout, held, &context.fault));
        match made {
            Ok((qp, reply, file)) => {
                self.qps.insert(qpn, qp);
                self.bells[bell] = Some(qpn);
                Ok((reply, vec![file]))
            }
            Err(error) => {
                context.adapter.remove_qp(qpn);
                Err(error)
            }
        }
    }
}

/// A doorbell of so many that no queue has. Those with low numbers first: all up to the last one that was given are
/// listened to.
fn free_bell(bells: &mut Vec<Option<u32>>, count: u32) -> Option<usize> {
    let free = bells.iter().position(Option::is_none);
    free.or_else(|| {
        (bells.len() < count as usize).then(|| bells.push(None))?;
        Some(bells.len() - 1)
    })
}

fn checked_capacity(asked: &CreateQp) -> Result<Capacity, Refusal> {
    let cap = asked.capacity;
    within("max_send_wr", cap.max_send_wr, MAX_WORK)?;
    within("max_recv_wr", cap.max_recv_wr, MAX_WORK)?;
    within("max_send_sge", cap.max_send_sge, MAX_SEGMENTS)?;
    within("max_recv_sge", cap.max_recv_sge, MAX_SEGMENTS)?;
    within("max_inline_data", cap.max_inline_data, MAX_INLINE)?;
    let receives = asked.srq.is_none();
    Ok(Capacity {
        max_recv_wr: if receives { cap.max_recv_wr } else { 0 },
        max_recv_sge: if receives { cap.max_recv_sge } else { 0 },
        ..cap
    })
}

/// How the memory of a queue pair is laid out.
struct Layout {
    cap: Capacity,
    send: Shape,
    receive: Option<Shape>,
    /// Bytes of its queues.
    queues: usize,
    shares: bool,
}

impl Layout {
    fn of(asked: &CreateQp, cap: Capacity, shares: bool) -> Self {
        let send = Shape::new(0, cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let end = send.end() as u32;
        let receives = asked.srq.is_none();
        let receive = receives.then(|| Shape::of_receives(end, cap.max_recv_wr, cap.max_recv_sge));
        Self { cap, send, receive, queues: receive.map_or(send.end(), |receive| receive.end()), shares }
    }

    /// Bytes of the memory that is shared.
    const fn bytes(&self) -> usize {
        self.queues + if self.shares { Parcels::BYTES } else { 0 }
    }

    /// Bytes with those that we keep of requests under way.
    fn cost(&self) -> u64 {
        let list = self.cap.max_send_sge as usize * size_of::<Segment>();
        let work = size_of::<Work>() + list + self.cap.max_inline_data as usize;
        (self.bytes() + self.send.slots as usize * work) as u64
    }
}

fn make_qp(
    (qpn, doorbell): (u32, u32),
    asked: &CreateQp,
    layout: &Layout,
    held: Held,
    fault: &Arc<FaultWord>,
) -> Result<(Qp, Reply, OwnedFd), Refusal> {
    let Layout { cap, send, receive, queues, shares } = *layout;
    let bytes = layout.bytes();
    let (memory, file) = guarded_memory("queue pair", bytes, fault)?;
    let memory = Arc::new(memory);
    let parcels =
        shares.then(|| Parcels::new(memory.clone(), queues as u32)).transpose().map_err(no_memory)?;
    let receives = match (receive, asked.srq) {
        (Some(shape), _) => Receives::Private(WorkSource::new(memory.clone(), shape).map_err(no_memory)?),
        (None, srq) => Receives::Shared(srq.unwrap_or_default()),
    };
    let endpoint = Endpoint {
        qpn,
        pd: asked.pd,
        kind: asked.qp_type,
        state: QpState::Reset,
        attributes: QpAttributes::default(),
        queue_key: Arc::default(),
        capacity: cap,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        sends: WorkSource::new(memory, send).map_err(no_memory)?,
        receives,
        taker: doorbell + 1,
        works: vec![Work::default(); send.slots as usize],
        _held: held,
        taken: Taken::default(),
        flushed: 0,
        receive: Receive::default(),
        all_signaled: asked.sq_sig_all,
        file: file.try_clone().map_err(no_memory)?,
        receive_shape: receive,
        parcels: parcels.map(|parcels| (parcels, queues as u32)),
        memory: bytes as u64,
        inbound: None,
        outbound: None,
        direct_traffic: DirectTraffic::default(),
        shared_in: None,
        path: None,
        peer: None,
        nak: None,
        wrong_keys: 0,
        reason: None,
        broken: None,
        spares_doorbell: false,
        established: false,
        told_congestion: None,
        tells_drained: false,
        tells_last: false,
        looks_again: false,
        local: None,
    };
    let qp = Qp { endpoint, transport: Transport::None, is_ready: false, deadline: None };
    let reply = Reply::Qp {
        qpn,
        capacity: cap,
        send,
        receive,
        parcels: shares.then_some(queues as u32),
        memory: bytes as u64,
        doorbell,
    };
    Ok((qp, reply, file))
}

impl Context {
    fn port(&self) -> PortInfo {
        let spec = self.adapter.spec();
        PortInfo {
            is_active: true,
            active_mtu: spec.active_mtu(),
            gids: spec.gids(),
            bad_pkeys: 0,
            qkey_violations: self.counters.get("qkey_violations").unwrap_or_default() as u32,
        }
    }

    pub(crate) fn check_pd(&self, pd: u32) -> Result<(), Refusal> {
        found(self.pds.contains_key(&pd).then_some(()), "protection domain")
    }

    fn alloc_pd(&mut self) -> Answer {
        let held = self.take(Kind::ProtectionDomain, 0, MAX_PDS)?;
        let pd = self.handle();
        self.pds.insert(pd, held);
        reply(Reply::Handle(pd))
    }

    /// A region stays as it is while windows are bound to it (`ibv_reg_mr(3)`).
    fn check_windows(&self, mr: u32) -> Result<(), Refusal> {
        if self.regions.has_windows(mr) {
            return refuse(Errno::BUSY, "memory windows are bound to the memory region");
        }
        Ok(())
    }

    fn check_region(&self, region: &Region) -> Result<(), Refusal> {
        self.check_pd(region.pd)?;
        if region.access & !(access::ALL | access::OPTIONAL) != 0 {
            return refuse(Errno::OPNOTSUPP, format!("access flags {:#x} are not offered", region.access));
        }
        let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        if region.access & writes != 0 && region.access & access::LOCAL_WRITE == 0 {
            return refuse(Errno::INVAL, "remote writing needs local writing too");
        }
        let wraps = |start: u64| start.checked_add(region.len.max(1) - 1).is_none();
        if wraps(region.address) || wraps(region.iova) {
            return refuse(Errno::INVAL, "the memory region passes the end of the address space");
        }
        let last = region.address.wrapping_add(region.len.max(1) - 1);
        let there = |at| region.len == 0 || region.is_implicit() || self.space.read(at, &mut [0]).is_ok();
        if !(there(region.address) && there(last)) {
            return refuse(Errno::FAULT, "there is no memory at the region's address");
        }
        Ok(())
    }

    /// Makes a region, pages of which may be in a file that others may map.
    fn register(&mut self, region: Region, pages: Option<(u64, u64)>, files: Vec<OwnedFd>) -> Answer {
        self.check_region(&region)?;
        let limits = self.adapter.spec().limits;
        let pages = match (pages, files.into_iter().next()) {
            (Some(range), Some(file)) => {
                let mapped = self.regions.map(file, range, limits, (&self.space, &self.fault));
                mapped.or_else(|error| refuse(Errno::INVAL, error.to_string()))?
            }
            (Some(_), None) => return refuse(Errno::BADF, "the file of the region's pages did not come"),
            (None, _) => None,
        };
        let key = self
            .regions
            .insert(region, pages, limits)
            .or_else(|full| refuse(Errno::NOMEM, full.to_string()))?;
        reply(Reply::Mr { mr: key, lkey: key, rkey: key })
    }

    /// Changes a region. One that moves gets another key: with the old key nobody may use what is
    /// there.
    fn reregister(
        &mut self,
        mr: u32,
        pd: Option<u32>,
        range: Option<(u64, u64)>,
        access: Option<u32>,
    ) -> Answer {
        self.check_windows(mr)?;
        let old = *found(self.regions.get(mr), "memory region")?;
        let (address, len) = range.unwrap_or((old.address, old.len));
        let iova = if range.is_some() { address } else { old.iova };
        let access = access.unwrap_or(old.access);
        let kind = KeyKind::Region;
        let new = Region { pd: pd.unwrap_or(old.pd), address, len, iova, access, file: 0, kind };
        self.check_region(&new)?;
        let limits = self.adapter.spec().limits;
        let keeps_key = range.is_none();
        let replaced = self.regions.replace(mr, new, keeps_key, limits);
        let key = replaced.or_else(|full| refuse(Errno::NOMEM, full.to_string()))?;
        reply(Reply::Mr { mr: key, lkey: key, rkey: key })
    }

    fn create_channel(&mut self) -> Answer {
        let held = self.take(Kind::Channel, 0, self.cq_limit())?;
        let (notifier, theirs) = Notifier::new().map_err(no_memory)?;
        let handle = self.handle();
        self.channels.insert(handle, Channel { notifier, _held: held });
        Ok((Reply::Handle(handle), vec![theirs]))
    }

    fn destroy_channel(&mut self, channel: u32) -> Answer {
        if self.cqs.values().any(|cq| cq.channel == Some(channel)) {
            return refuse(Errno::BUSY, "completion queues use the channel");
        }
        found(self.channels.remove(&channel), "completion channel")?;
        done()
    }

    fn cq_limit(&self) -> u32 {
        self.adapter.spec().limits.cqs()
    }

    /// Takes one more of a kind, and bytes, of what the applications of the device may have together.
    fn take(&self, kind: Kind, bytes: usize, limit: u32) -> Result<Held, Refusal> {
        self.adapter.account.take(kind, bytes as u64, limit).map_err(no_memory)
    }

    /// How many completions a queue has room for of which so many are asked for, and the bytes of that.
    fn cq_size(entries: u32) -> Result<(u32, usize), Refusal> {
        within("entries of a completion queue", entries, MAX_COMPLETIONS)?;
        if entries == 0 {
            return refuse(Errno::INVAL, "a completion queue of no entries");
        }
        let entries = entries.next_power_of_two();
        Ok((entries, completion::bytes(entries)))
    }

    /// The device's end of a completion queue, and the file, for the other end and to keep.
    fn cq_memory(&self, entries: u32) -> Result<(CompletionSink, [OwnedFd; 2]), Refusal> {
        let (memory, file) = guarded_memory("completion queue", completion::bytes(entries), &self.fault)?;
        let kept = file.try_clone().map_err(no_memory)?;
        Ok((CompletionSink::new(memory, entries), [file, kept]))
    }

    fn create_cq(&mut self, entries: u32, channel: Option<u32>) -> Answer {
        if let Some(channel) = channel {
            found(self.channels.get(&channel), "completion channel")?;
        }
        let (entries, bytes) = Self::cq_size(entries)?;
        let held = self.take(Kind::CompletionQueue, bytes, self.cq_limit())?;
        let (sink, [file, kept]) = self.cq_memory(entries)?;
        let cq = self.handle();
        self.cqs.insert(cq, Cq { sink, entries, channel, file: kept, overrun: false, held });
        Ok((Reply::Cq { cq, entries }, vec![file]))
    }

    fn resize_cq(&mut self, cq: u32, entries: u32) -> Answer {
        let (entries, bytes) = Self::cq_size(entries)?;
        found(self.cqs.get(&cq), "completion queue")?;
        // Both are there for a moment.
        let mut held = self.take(Kind::CompletionQueue, bytes, u32::MAX)?;
        let (sink, [file, kept]) = self.cq_memory(entries)?;
        let old = found(self.cqs.get_mut(&cq), "completion queue")?;
        if !old.sink.move_to(&sink) {
            return refuse(Errno::INVAL, "more completions wait than the queue would have room for");
        }
        (old.sink, old.entries) = (sink, entries);
        empty(&std::mem::replace(&mut old.file, kept));
        std::mem::swap(&mut old.held, &mut held);
        Ok((Reply::Cq { cq, entries }, vec![file]))
    }

    fn create_srq(&mut self, pd: u32, max_wr: u32, max_sge: u32) -> Answer {
        self.check_pd(pd)?;
        within("max_sge", max_sge, MAX_SEGMENTS)?;
        let limit = self.adapter.spec().limits.qps;
        let (made, _, file) = self.make_srq((pd, max_wr, max_sge), limit)?;
        let (srq, queue) = (self.handle(), made.shape);
        self.srqs.insert(srq, made);
        Ok((Reply::Srq { srq, queue, max_wr, max_sge }, vec![file]))
    }

    /// A shared receive queue, where there may be `limit` of them; its memory, and its file.
    fn make_srq(
        &self,
        (pd, max_wr, max_sge): (u32, u32, u32),
        limit: u32,
    ) -> Result<(Srq, Arc<Memory>, OwnedFd), Refusal> {
        within("max_wr", max_wr, MAX_WORK)?;
        let shape = SharedSource::shape(max_wr, max_sge);
        let held = self.take(Kind::SharedQueue, shape.end(), limit)?;
        let (memory, file) = guarded_memory("shared receive queue", shape.end(), &self.fault)?;
        let memory = Arc::new(memory);
        let source = SharedSource::new(memory.clone(), shape, DEVICE).map_err(no_memory)?;
        let kept = file.try_clone().map_err(no_memory)?;
        Ok((Srq { pd, source, file: kept, shape, max_sge, limit: 0, _held: held }, memory, file))
    }

    /// Gives a shared receive queue another size. Those who took from it parted from it.
    fn resize_srq(&mut self, srq: u32, max_wr: u32, limit: Option<u32>) -> Answer {
        let old = found(self.srqs.get(&srq), "shared receive queue")?;
        let (limit, max_sge) = (limit.unwrap_or(old.limit), old.max_sge);
        if limit > max_wr {
            return refuse(Errno::INVAL, "the limit is more than the queue would have room for");
        }
        // Both are there for a moment.
        let (mut new, memory, file) = self.make_srq((old.pd, max_wr, max_sge), u32::MAX)?;
        let mut queue = WorkQueue::new(memory, new.shape, max_wr).map_err(no_memory)?;
        let old = found(self.srqs.get_mut(&srq), "shared receive queue")?;
        match old.source.move_to(&mut queue) {
            Ok(true) => {}
            Ok(false) => {
                return refuse(Errno::INVAL, "more receives wait than the queue would have room for");
            }
            Err(error) => return refuse(Errno::INVAL, error.to_string()),
        }
        new.arm(limit);
        let queue = new.shape;
        empty(&std::mem::replace(old, new).file);
        Ok((Reply::Srq { srq, queue, max_wr, max_sge }, vec![file]))
    }

    fn create_ah(&mut self, pd: u32, vector: &AddressVector) -> Answer {
        self.check_pd(pd)?;
        let held = self.take(Kind::AddressHandle, 0, self.adapter.spec().limits.ahs())?;
        let path = Path::find(vector, &self.adapter, &self.fabric)
            .or_else(|e| refuse(Errno::INVAL, e.to_string()))?;
        let ah = self.handle();
        self.ahs.insert(ah, Ah { pd, vector: *vector, path, _held: held });
        reply(Reply::Handle(ah))
    }
}
