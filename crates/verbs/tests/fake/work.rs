//! Work requests: each is done at once, or waits for its receive.

use super::*;
use std::os::unix::fs::FileExt;
use uverbs::{AsyncEvent, Completion, Segment, WorkRequest};

/// A request that was taken.
pub struct Send {
    request: WorkRequest,
    segments: Vec<Segment>,
    inline: Vec<u8>,
}

/// `ibv_wr_opcode` and the `ibv_wc_opcode` of its completion.
const OPCODES: [(u8, u32); 8] = [(0, 1), (1, 1), (2, 0), (3, 0), (4, 2), (5, 3), (6, 4), (9, 0)];
const RECV: u32 = 128;
const FLUSHED: u8 = 5;
const SIGNALED: u8 = 2;
const SOLICITED: u8 = 4;

impl Device {
    fn file(&self, client: u32) -> std::fs::File {
        self.clients[&client].memory.try_clone().unwrap().into()
    }

    /// A place in a program's memory, by key and address.
    fn place(&self, key: u32, address: u64) -> (std::fs::File, u64) {
        let mr = &self.mrs[&key];
        (self.file(mr.client), address - mr.iova + mr.address)
    }

    fn read(&self, key: u32, address: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        if len > 0 {
            let (file, at) = self.place(key, address);
            file.read_exact_at(&mut bytes, at).unwrap();
        }
        bytes
    }

    fn write(&self, key: u32, address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            let (file, at) = self.place(key, address);
            file.write_all_at(bytes, at).unwrap();
        }
    }

    fn gather(&self, send: &Send) -> Vec<u8> {
        let listed = send.segments.iter().flat_map(|s| self.read(s.lkey, s.address, s.len));
        send.inline.iter().copied().chain(listed).collect()
    }

    fn scatter(&self, segments: &[Segment], mut bytes: &[u8]) {
        for segment in segments {
            let len = bytes.len().min(segment.len as usize);
            self.write(segment.lkey, segment.address, &bytes[..len]);
            bytes = &bytes[len..];
        }
        assert!(bytes.is_empty(), "the receive is too short");
    }

    fn complete(&mut self, cq: u32, completion: Completion, is_solicited: bool) {
        let cq_handle = cq;
        let Some(cq) = self.cqs.get_mut(&cq) else { return };
        let is_solicited = is_solicited || completion.status != 0;
        if cq.sink.push(&completion, is_solicited).expect("overrun") {
            let channel = &self.clients[&cq.client].channels[&cq.channel.expect("armed, and has none")];
            rustix::io::write(channel, &cq_handle.to_ne_bytes()).unwrap();
        }
    }

    pub fn tell(&self, client: u32, kind: u32, handle: u32) {
        rustix::io::write(&self.clients[&client].events, &AsyncEvent { kind, handle }.to_bytes()).unwrap();
    }

    /// Doorbells that were rung, by client.
    pub fn listen(&mut self) -> Vec<(u32, u32)> {
        let mut rung = Vec::new();
        for (client, it) in &self.clients {
            it.bells.answer(|bell| rung.push((*client, bell)));
        }
        self.heard.extend(rung.iter().map(|(_, bell)| bell));
        rung
    }

    /// Answers the doorbells. Returns whether there were any.
    pub fn work(&mut self) -> bool {
        let rung = self.listen();
        let is_any = !rung.is_empty();
        let of = |(qpn, qp): (&u32, &Qp)| rung.contains(&(qp.client, doorbell(*qpn))).then_some(*qpn);
        let rung: Vec<u32> = self.qps.iter().filter_map(of).collect();
        // A receive may be what somebody's send waited for.
        let waits = self.qps.iter().filter(|(_, qp)| qp.waiting.is_some()).map(|(qpn, _)| *qpn);
        let all: Vec<u32> = rung.iter().copied().chain(waits.filter(|qpn| !rung.contains(qpn))).collect();
        for qpn in all {
            if self.qps[&qpn].attributes.qp_state == 6 {
                self.flush(qpn);
            } else {
                while self.step(qpn) {}
            }
        }
        is_any
    }

    fn step(&mut self, qpn: u32) -> bool {
        let qp = self.qps.get_mut(&qpn).unwrap();
        let send = qp.waiting.take().or_else(|| {
            let (mut segments, mut inline) = (Vec::new(), Vec::new());
            let (_, request) = qp.send.take(&mut segments, &mut inline).unwrap()?;
            Some(Send { request, segments, inline })
        });
        let Some(send) = send else { return false };
        let (opcode, done) = (send.request.opcode, self.execute(qpn, &send));
        let qp = self.qps.get_mut(&qpn).unwrap();
        let Some(len) = done else {
            qp.waiting = Some(send);
            return false;
        };
        qp.send.release_taken();
        if qp.all_signaled || send.request.flags & SIGNALED != 0 {
            let opcode = OPCODES.iter().find(|(of, _)| *of == opcode).unwrap().1;
            let completion =
                Completion { opcode, id: send.request.id, byte_len: len, qpn, ..Completion::default() };
            let cq = qp.send_cq;
            self.complete(cq, completion, false);
        }
        true
    }

    /// Bytes, or none where there is no receive.
    fn execute(&mut self, qpn: u32, send: &Send) -> Option<u32> {
        let WorkRequest { opcode, rkey, address, compare_add, swap, .. } = send.request;
        match opcode {
            0 | 1 => {
                let bytes = self.gather(send);
                if opcode == 1 {
                    self.deliver(qpn, send, None, bytes.len())?;
                }
                self.write(rkey, address, &bytes);
                Some(bytes.len() as u32)
            }
            2 | 3 | 9 => {
                let bytes = self.gather(send);
                self.deliver(qpn, send, Some(&bytes), bytes.len())?;
                Some(bytes.len() as u32)
            }
            4 => {
                let len = send.segments.iter().map(|segment| segment.len).sum();
                self.scatter(&send.segments, &self.read(rkey, address, len));
                Some(len)
            }
            _ => {
                let old = u64::from_ne_bytes(self.read(rkey, address, 8).try_into().unwrap());
                let added = old.wrapping_add(compare_add);
                let new = if opcode == 6 { added } else { [old, swap][usize::from(old == compare_add)] };
                self.write(rkey, address, &new.to_ne_bytes());
                self.scatter(&send.segments, &old.to_ne_bytes());
                Some(8)
            }
        }
    }

    /// Puts a message into the peer's next receive. None, where there is none, or the peer is not ready.
    fn deliver(&mut self, qpn: u32, send: &Send, bytes: Option<&[u8]>, len: usize) -> Option<()> {
        let from = &self.qps[&qpn];
        let is_datagram = from.qp_type == QpType::Ud;
        let to = if is_datagram { send.request.remote_qpn } else { from.attributes.dest_qp_num };
        let peer = self.qps.get_mut(&to).filter(|peer| (2..6).contains(&peer.attributes.qp_state))?;
        let mut segments = Vec::new();
        let (client, cq, srq) = (peer.client, peer.recv_cq, peer.srq);
        let source = match srq {
            Some(srq) => &mut self.srqs.get_mut(&srq).unwrap().source,
            None => peer.receive.as_mut().unwrap(),
        };
        let Some((_, request)) = source.take(&mut segments, &mut Vec::new()).unwrap() else {
            source.want_doorbell(true);
            return None;
        };
        source.want_doorbell(false);
        source.release_taken();
        if let Some(srq) = srq {
            let queue = self.srqs.get_mut(&srq).unwrap();
            if queue.source.waiting().unwrap() < queue.limit {
                queue.limit = 0;
                self.tell(client, 15, srq);
            }
        }
        let mut header = Vec::new();
        if is_datagram {
            header = datagram_header();
        }
        if let Some(bytes) = bytes {
            header.extend_from_slice(bytes);
            self.scatter(&segments, &header);
        }
        let has_immediate = matches!(send.request.opcode, 1 | 3);
        let is_invalidating = send.request.opcode == 9;
        let completion = Completion {
            opcode: if bytes.is_some() { RECV } else { RECV + 1 },
            id: request.id,
            byte_len: if is_datagram { len as u32 + 40 } else { len as u32 },
            immediate: send.request.immediate,
            qpn: to,
            source_qpn: qpn,
            timestamp: 7,
            flags: u16::from(is_datagram) | u16::from(has_immediate) << 1 | u16::from(is_invalidating) << 3,
            ..Completion::default()
        };
        self.complete(cq, completion, send.request.flags & SOLICITED != 0);
        Some(())
    }

    /// Ends everything that was posted.
    pub fn flush(&mut self, qpn: u32) {
        let mut flushed = Vec::new();
        let qp = self.qps.get_mut(&qpn).unwrap();
        let completion =
            |id, opcode| Completion { id, opcode, qpn, status: FLUSHED, ..Completion::default() };
        if let Some(send) = qp.waiting.take() {
            flushed.push((qp.send_cq, completion(send.request.id, 0)));
        }
        while let Some((_, request)) = qp.send.take(&mut Vec::new(), &mut Vec::new()).unwrap() {
            flushed.push((qp.send_cq, completion(request.id, 0)));
        }
        qp.send.release_taken();
        if let Some(receive) = &mut qp.receive {
            receive.want_doorbell(true);
            while let Some((_, request)) = receive.take(&mut Vec::new(), &mut Vec::new()).unwrap() {
                flushed.push((qp.recv_cq, completion(request.id, RECV)));
            }
            receive.release_taken();
        }
        for (cq, completion) in flushed {
            self.complete(cq, completion, true);
        }
    }
}

/// From 10.0.0.1 to itself.
fn datagram_header() -> Vec<u8> {
    let ip = [69, 0, 0, 64, 0, 0, 64, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 1];
    [[0; 20], ip].concat()
}
