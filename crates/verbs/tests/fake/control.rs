//! Control messages.

use super::*;
use rustix::net::socketpair;
use uverbs::qp::mask;
use uverbs::{CreateQp, DeviceInfo, PortInfo, QpInfo, Reply, VERSION};

pub const DOORBELLS: u32 = 1024;

type Answer = (Reply, Vec<OwnedFd>);

fn refuse<T>(errno: i32, message: &str) -> Result<T, Refusal> {
    Err(Refusal { errno, message: message.into() })
}

fn info() -> DeviceInfo {
    DeviceInfo {
        name: "fake".into(),
        version: "fake-1".into(),
        node_guid: 0x0200_00ff_fe00_0001,
        max_mr_size: 1 << 40,
        max_qp: 1000,
        max_qp_wr: 4096,
        max_sge: 16,
        max_inline_data: 256,
        max_cq: 1000,
        max_cqe: 1 << 16,
        max_mr: 1000,
        max_pd: 1000,
        max_ah: 1000,
        max_srq: 1000,
        max_srq_wr: 4096,
        max_srq_sge: 16,
        max_rd_atomic: 16,
        doorbells: DOORBELLS,
    }
}

impl Device {
    fn handle(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub fn answer(
        &mut self,
        client: &mut Option<u32>,
        control: &OwnedFd,
        wake: &OwnedFd,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        let outcome = match (*client, request) {
            (None, Request::Hello { version: VERSION }) => self.hello(client, control, wake, descriptors),
            (None, _) => refuse(libc::EPROTONOSUPPORT, "speak version 1"),
            (Some(client), request) => {
                self.log.push(request.clone());
                match self.refusal.take() {
                    Some(refusal) => Err(refusal),
                    None => self.serve(client, request),
                }
            }
        };
        match outcome {
            Ok((reply, descriptors)) => (Ok(reply), descriptors),
            Err(refusal) => (Err(refusal), Vec::new()),
        }
    }

    fn hello(
        &mut self,
        client: &mut Option<u32>,
        control: &OwnedFd,
        wake: &OwnedFd,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let [memory] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        let (bells, file) = Memory::create("doorbells", Doorbells::bytes(DOORBELLS)).unwrap();
        let bells = Doorbells::new(bells, DOORBELLS);
        // The others' worker may sleep already.
        bells.set_asleep(true);
        let (events, theirs) = sockets();
        let handle = self.handle();
        *client = Some(handle);
        let (control, channels) = (control.try_clone().unwrap(), HashMap::new());
        self.clients.insert(handle, Client { control, memory, bells, events, channels });
        Ok((Reply::Device(info()), vec![file, wake.try_clone().unwrap(), theirs]))
    }

    pub fn forget(&mut self, client: Option<u32>) {
        let Some(gone) = client else { return };
        self.clients.remove(&gone);
        self.qps.retain(|_, qp| qp.client != gone);
        self.cqs.retain(|_, cq| cq.client != gone);
        self.srqs.retain(|_, srq| srq.client != gone);
        self.mrs.retain(|_, mr| mr.client != gone);
    }

    fn serve(&mut self, client: u32, request: Request) -> Result<Answer, Refusal> {
        let plain = |reply| Ok((reply, Vec::new()));
        match request {
            Request::Hello { .. } => refuse(libc::EINVAL, "again?"),
            Request::QueryPort => plain(Reply::Port(PortInfo {
                is_active: true,
                active_mtu: 3,
                gids: vec!["fe80::1".parse().unwrap(), "::ffff:10.0.0.1".parse().unwrap()],
                ..PortInfo::default()
            })),
            Request::AllocPd => {
                let pd = self.handle();
                self.pds.insert(pd, client);
                plain(Reply::Handle(pd))
            }
            Request::DeallocPd { pd } => done(self.pds.remove(&pd).is_some()),
            Request::RegMr { address, iova, .. } => {
                let mr = self.handle();
                self.mrs.insert(mr, Mr { address, iova, client });
                plain(Reply::Mr { mr, lkey: mr, rkey: mr })
            }
            Request::ReregMr { mr, range, .. } => {
                if let (Some((address, _)), Some(old)) = (range, self.mrs.get_mut(&mr)) {
                    (old.address, old.iova) = (address, address);
                }
                plain(Reply::Mr { mr, lkey: mr, rkey: mr })
            }
            Request::DeregMr { mr } => done(self.mrs.remove(&mr).is_some()),
            Request::CreateChannel => {
                let ((ours, theirs), channel) = (sockets(), self.handle());
                self.clients.get_mut(&client).unwrap().channels.insert(channel, ours);
                Ok((Reply::Handle(channel), vec![theirs]))
            }
            Request::DestroyChannel { channel } => {
                done(self.clients.get_mut(&client).unwrap().channels.remove(&channel).is_some())
            }
            Request::CreateCq { entries, channel } => {
                let (cq, entries) = (self.handle(), entries.next_power_of_two());
                let (memory, file) = Memory::create("cq", uverbs::completion::bytes(entries)).unwrap();
                let sink = CompletionSink::new(memory, entries);
                self.cqs.insert(cq, Cq { sink, channel, client });
                Ok((Reply::Cq { cq, entries }, vec![file]))
            }
            Request::ResizeCq { cq, entries } => {
                let entries = entries.next_power_of_two();
                let (memory, file) = Memory::create("cq", uverbs::completion::bytes(entries)).unwrap();
                let mut sink = CompletionSink::new(memory, entries);
                let old = self.cqs.get_mut(&cq).unwrap();
                if !old.sink.move_to(&mut sink) {
                    return refuse(libc::EINVAL, "too small");
                }
                old.sink = sink;
                Ok((Reply::Cq { cq, entries }, vec![file]))
            }
            Request::DestroyCq { cq } => {
                if self.qps.values().any(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                    return refuse(libc::EBUSY, "has queue pairs");
                }
                done(self.cqs.remove(&cq).is_some())
            }
            Request::CreateSrq { max_wr, max_sge, .. } => {
                let (srq, queue) = (self.handle(), Shape::new(0, max_wr, max_sge, 0));
                let (memory, file) = Memory::create("srq", queue.end()).unwrap();
                let source = WorkSource::new(memory.into(), queue).unwrap();
                self.srqs.insert(srq, Srq { source, limit: 0, client });
                Ok((Reply::Srq { srq, queue, max_wr, max_sge }, vec![file]))
            }
            Request::ArmSrq { srq, limit } => {
                self.srqs.get_mut(&srq).unwrap().limit = limit;
                done(true)
            }
            Request::QuerySrq { srq } => plain(Reply::SrqLimit(self.srqs[&srq].limit)),
            Request::DestroySrq { srq } => done(self.srqs.remove(&srq).is_some()),
            Request::CreateQp(wanted) => Ok(self.create_qp(client, wanted)),
            Request::ModifyQp { qpn, mask, attributes } => {
                self.modify_qp(qpn, mask, &attributes);
                done(true)
            }
            Request::QueryQp { qpn } => {
                let qp = &self.qps[&qpn];
                let (attributes, capacity) = (qp.attributes, qp.capacity);
                plain(Reply::QpInfo(Box::new(QpInfo { attributes, capacity })))
            }
            Request::DestroyQp { qpn } => done(self.qps.remove(&qpn).is_some()),
            Request::CreateAh { vector, .. } => {
                let ah = self.handle();
                self.ahs.insert(ah, vector);
                plain(Reply::Handle(ah))
            }
            Request::DestroyAh { ah } => done(self.ahs.remove(&ah).is_some()),
        }
    }

    fn create_qp(&mut self, client: u32, wanted: CreateQp) -> Answer {
        let (qpn, capacity) = (self.handle(), wanted.capacity);
        let (send, receive) = shapes(&capacity, wanted.srq.is_some());
        let len = receive.unwrap_or(send).end();
        let (memory, file) = Memory::create("qp", len).unwrap();
        let memory = Arc::new(memory);
        let source = |shape| WorkSource::new(memory.clone(), shape).unwrap();
        let qp = Qp {
            client,
            qp_type: wanted.qp_type,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            all_signaled: wanted.sq_sig_all,
            capacity,
            attributes: QpAttributes::default(),
            send: source(send),
            receive: receive.map(source),
            memory,
            waiting: None,
        };
        self.qps.insert(qpn, qp);
        let (memory, doorbell) = (len as u64, doorbell(qpn));
        (Reply::Qp { qpn, capacity, send, receive, memory, doorbell }, vec![file])
    }

    fn modify_qp(&mut self, qpn: u32, mask: u32, new: &QpAttributes) {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let old = qp.attributes;
        let has = |bit| mask & bit != 0;
        let now = &mut qp.attributes;
        *now = *new;
        now.qp_state = if has(mask::STATE) { new.qp_state } else { old.qp_state };
        now.cur_qp_state = now.qp_state;
        for (bit, field, kept) in [
            (mask::DEST_QPN, &mut now.dest_qp_num, old.dest_qp_num),
            (mask::QKEY, &mut now.qkey, old.qkey),
            (mask::PATH_MTU, &mut now.path_mtu, old.path_mtu),
            (mask::RQ_PSN, &mut now.rq_psn, old.rq_psn),
            (mask::SQ_PSN, &mut now.sq_psn, old.sq_psn),
            (mask::PORT, &mut now.port_num, old.port_num),
            (mask::ACCESS_FLAGS, &mut now.qp_access_flags, old.qp_access_flags),
        ] {
            if !has(bit) {
                *field = kept;
            }
        }
        if !has(mask::AV) {
            now.ah = old.ah;
        }
        match now.qp_state {
            0 => {
                qp.send.reset();
                qp.receive.iter_mut().for_each(WorkSource::reset);
                qp.waiting = None;
            }
            6 => self.flush(qpn),
            _ => {}
        }
    }
}

fn done(is_done: bool) -> Result<Answer, Refusal> {
    if is_done { Ok((Reply::Done, Vec::new())) } else { refuse(libc::EINVAL, "no such thing") }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}
