//! The functions that a queue pair's transport calls: they read and write memory, take receives, complete requests and
//! send packets to the peer.

use crate::base::counters::Counter;
use crate::base::header::{NetworkHeader, source_port};
use crate::base::ids::{Key, PdId, Qpn};
use crate::base::limits::PARTITION;
use crate::context::endpoint::Endpoint;
use crate::context::{BEFORE, Context};
use crate::inbox::message::Message;
use crate::inbox::sync_delivery::{SHORT, SyncMessage, SyncPacket};
use crate::inbox::{Inbox, Packet};
use crate::memory::regions::{Place, right};
use crate::net::adapter::Adapter;
use crate::net::groups::{self, Multicast};
use crate::net::path::Way;
use crate::net::wire;
use packet::WriteError;
use packet::roce::{self, Aeth, Bth, Datagram, Nak, Opcode, Syndrome};
use rdma::{
    Access, AtomicOperation, Completion, Fault, LocalVerbs, Payload, SendRequest, ShortMessage, Verbs,
};
use std::sync::Arc;
use std::time::Duration;
use uverbs::qp::access;
use uverbs::{Point, Segment, point};

/// Most bytes of headers and trailers around a payload.
const AROUND: usize = 80;

/// Both bits of ECN (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 3;

/// The objects that the transport of a queue pair uses while it runs.
pub(crate) struct Callbacks<'a> {
    pub endpoint: &'a mut Endpoint,
    pub context: &'a mut Context,
}

/// The bytes of a scatter/gather list from `offset` to `offset + len`.
#[derive(Clone, Copy)]
struct ListPart<'a> {
    list: &'a [Segment],
    offset: u32,
    len: usize,
}

/// Calls `each` for each segment's share of a part of a scatter/gather list, with the address of the share in the
/// application's memory, and its length.
fn for_each_part(
    context: &Context,
    pd: PdId,
    of: ListPart<'_>,
    needs: u32,
    mut each: impl FnMut(Place, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut skip, mut left) = (u64::from(of.offset), of.len);
    for segment in of.list {
        if left == 0 {
            break;
        }
        let segment_len = u64::from(segment.len);
        if skip >= segment_len {
            skip -= segment_len;
            continue;
        }
        let part = ((segment_len - skip) as usize).min(left);
        let address = segment.address.wrapping_add(skip);
        each(context.regions.find_local(Key(segment.lkey), pd, address, part as u64, needs)?, part)?;
        (skip, left) = (0, left - part);
    }
    if left == 0 { Ok(()) } else { Err(Fault::Length) }
}

/// Copies bytes to the segments of a scatter/gather list, starting at `offset`.
fn scatter(
    context: &mut Context,
    pd: PdId,
    list: &[Segment],
    offset: u32,
    bytes: &[u8],
) -> Result<(), Fault> {
    let (mut done, mut written) = (0, Vec::new());
    let part = ListPart { list, offset, len: bytes.len() };
    for_each_part(context, pd, part, access::LOCAL_WRITE, |place, len| {
        context.memory().write(place, &bytes[done..done + len], false)?;
        done += len;
        if context.copier.is_some() {
            written.push((place, len));
        }
        Ok(())
    })?;
    written.into_iter().for_each(|(place, len)| context.note_written(place, len));
    Ok(())
}

impl Callbacks<'_> {
    /// Tells the peer that its packet met congestion, if it did (IBTA annex A17.9).
    pub fn notify_congestion(&mut self, packet: &Datagram<'_>, header: &NetworkHeader, now: Duration) {
        if packet.bth.opcode == Opcode::CongestionNotification {
            self.context.counters.add(Counter::CnpHandled, 1);
            return;
        }
        if !met_congestion(header) || !self.endpoint.peer.may_tell_congestion(now) {
            return;
        }
        let bth = Bth {
            opcode: Opcode::CongestionNotification,
            solicited: false,
            migrated: true,
            partition: PARTITION,
            forward_congestion: false,
            backward_congestion: true,
            destination: self.endpoint.attributes.dest_qp_num,
            acknowledge: false,
            psn: 0,
        };
        // The packet has no payload, so no memory can be missing.
        let _ = self.send(None, &Datagram::new(bth, &[]), Payload::None);
        self.context.counters.add(Counter::CnpSent, 1);
    }

    /// Copies a part of the message that a request sends.
    fn gather(&self, request: &SendRequest, offset: u32, out: &mut [u8]) -> Result<(), Fault> {
        let work = self.endpoint.send.work(request.id);
        let start = offset as usize;
        if let Some(bytes) = work.inline.get(start..start + out.len()) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let mut done = 0;
        let part = ListPart { list: &work.segments, offset, len: out.len() };
        for_each_part(self.context, self.endpoint.pd, part, 0, |place, len| {
            self.context.memory().read(place, &mut out[done..done + len])?;
            done += len;
            Ok(())
        })
    }

    /// Finds the memory for a peer's key, if the peer may access it.
    fn find(&self, key: Key, address: u64, len: u64, wanted: Access) -> Result<Place, Fault> {
        let needs = right(wanted);
        if self.endpoint.attributes.qp_access_flags & needs == 0 {
            return Err(Fault::Protection);
        }
        self.context.regions.find_remote(key, self.endpoint.scope(), address, len, needs)
    }

    /// Finds the memory like [`Self::find`], and counts refused access.
    fn region(&mut self, key: Key, address: u64, len: u64, wanted: Access) -> Result<Place, Fault> {
        let found = self.find(key, address, len, wanted);
        if found.is_err() {
            self.context.counters.add(Counter::RemoteAccess, 1);
            self.endpoint.wrong_key();
        }
        found
    }

    /// Writes a packet with its payload into a buffer.
    fn store(&mut self, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<Vec<u8>, Fault> {
        let len = bytes_of(payload);
        let place = match payload {
            Payload::Region { rkey, address, len } => {
                Some(self.region(Key(rkey), address, len.into(), Access::Read)?)
            }
            _ => None,
        };
        let mut bytes = std::mem::take(&mut self.context.spare);
        bytes.resize(len + AROUND, 0);
        let written = roce::write_with(packet, len, &mut bytes, |out| match payload {
            Payload::Message { request, offset, .. } => {
                self.gather(request, offset, out).map_err(NotWritten::from)
            }
            _ => {
                place.map_or(Ok(()), |place| self.context.memory().read(place, out)).map_err(NotWritten::from)
            }
        });
        match written {
            Ok(written) => {
                bytes.truncate(written);
                Ok(bytes)
            }
            Err(error) => {
                self.context.spare = bytes;
                match error {
                    NotWritten::Fault(fault) => Err(fault),
                    // The transport makes whole packets, and the buffer has room for all of them.
                    NotWritten::Malformed => Err(Fault::Protection),
                }
            }
        }
    }

    /// Copies the payload of a short packet.
    fn load(&mut self, payload: Payload<'_>, out: &mut [u8]) -> Result<(), Fault> {
        match payload {
            Payload::None => Ok(()),
            Payload::Message { request, offset, .. } => self.gather(request, offset, out),
            Payload::Region { rkey, address, len } => {
                let place = self.region(Key(rkey), address, len.into(), Access::Read)?;
                self.context.memory().read(place, out)
            }
        }
    }

    /// Delivers a short packet synchronously to the peer's queue pair, if its thread sleeps and its memory is
    /// always present. Returns false, with nothing done, if that is not possible now.
    fn deliver_sync(&mut self, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<bool, Fault> {
        let len = bytes_of(payload);
        if len > SHORT || self.context.has_more || !self.context.space.is_none() {
            return Ok(false);
        }
        let (mut bytes, qpn) = ([0; SHORT], self.endpoint.qpn);
        let wire = packet.bytes(len);
        if self.context.answers.is_open() {
            // Packets in the inbox, which is read later, must not be overtaken.
            let is_first = self.endpoint.peer.inbox.as_ref().is_none_or(|inbox| !inbox.has_any());
            let is_wanted = is_first && self.context.answers.wants(packet, qpn);
            if is_wanted {
                self.load(payload, &mut bytes[..len])?;
                self.context.answers.push(packet, &bytes[..len]);
                self.context.count_sent(wire);
            }
            return Ok(is_wanted);
        }
        if self.endpoint.peer.substitute.is_none() || self.endpoint.peer.local().is_none() {
            return Ok(false);
        }
        self.load(payload, &mut bytes[..len])?;
        let Self { endpoint, context } = self;
        let peer = &endpoint.peer;
        let (Some((path, _)), Some(inbox), Some(substitute)) = (peer.local(), &peer.inbox, &peer.substitute)
        else {
            return Ok(false);
        };
        let packet = Datagram { payload: &bytes[..len], ..*packet };
        let delivered = SyncPacket { packet: &packet, header: &path.header, from: qpn, now: context.now };
        if !substitute.handle_now(&delivered, &mut context.answers) {
            return Ok(false);
        }
        note(&mut context.spoken_to, inbox);
        self.context.count_sent(wire);
        Ok(true)
    }

    /// Sends a packet to the connection's peer, or through the address handle `to`.
    fn emit(&mut self, to: Option<u32>, qpn: Qpn, bytes: Vec<u8>) -> Result<(), Fault> {
        let endpoint = &mut *self.endpoint;
        let Context { adapter: ours, ahs, counters, uplink, spare, spoken_to, .. } = &mut *self.context;
        let path = match to.map(|ah| ahs.get(&ah).filter(|ah| ah.pd == endpoint.pd)) {
            None => endpoint.peer.path.as_ref(),
            Some(ah) => Some(&ah.ok_or(Fault::Protection)?.path),
        };
        let Some(path) = path else { return Ok(()) };
        counters.add(Counter::SentPackets, 1);
        counters.add(Counter::SentBytes, bytes.len() as u64);
        let Way::Local(adapter) = &path.way else {
            if matches!(path.way, Way::Group) && qpn == groups::QPN {
                ours.spend(give(ours, path.header, &bytes, endpoint.qpn, spare));
            }
            let port = source_port(path.header.flow_label, endpoint.qpn, qpn);
            let sent = wire::send(uplink, path, port, &bytes);
            counters.add(Counter::SendError, u64::from(!sent));
            let len = bytes.len();
            *spare = bytes;
            self.context.sent_frame(len);
            return Ok(());
        };
        // A guest with a rate reaches other guests through the vRouter. Only packets to itself come here.
        ours.spend((bytes.len() + BEFORE) as u64);
        let found = if to.is_some() || endpoint.peer.inbox.is_none() { adapter.owner(qpn) } else { None };
        if to.is_none() && found.is_some() {
            endpoint.peer.substitute = found.as_ref().and_then(|inbox| inbox.substitute());
            endpoint.peer.inbox.clone_from(&found);
        }
        let inbox = if to.is_some() { &found } else { &endpoint.peer.inbox };
        let packet = Packet { qpn, header: path.header, is_local: true, bytes };
        let Some(inbox) = inbox else { return Ok(()) };
        if !inbox.put_or_handle(packet, spare) {
            counters.add(Counter::SendError, 1);
        }
        note(spoken_to, inbox);
        Ok(())
    }
}

/// Is true if a packet with this header met congestion.
const fn met_congestion(header: &NetworkHeader) -> bool {
    header.traffic_class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
}

/// Remembers the inbox to which the last packet went.
fn note(spoken_to: &mut Option<Arc<Inbox<Message>>>, inbox: &Arc<Inbox<Message>>) {
    if spoken_to.as_ref().is_none_or(|last| !Arc::ptr_eq(last, inbox)) {
        *spoken_to = Some(inbox.clone());
    }
}

const fn bytes_of(payload: Payload<'_>) -> usize {
    match payload {
        Payload::None => 0,
        Payload::Message { len, .. } | Payload::Region { len, .. } => len as usize,
    }
}

/// Copies a datagram to the members of its group that are queue pairs of the sender's device. Returns the bytes of the
/// copies.
fn give(ours: &Adapter, header: NetworkHeader, bytes: &[u8], sender: Qpn, spare: &mut Vec<u8>) -> u64 {
    let Some(members) = ours.groups.members(header.destination) else { return 0 };
    // The transport made this datagram, so it is well formed.
    let Ok(multicast) = Multicast::new(header, true, bytes) else { return 0 };
    let copies = multicast.give(&members, Some(sender), &ours.errors, spare, |inbox| inbox.announce());
    (copies * bytes.len()) as u64
}

/// Why a packet could not be written.
enum NotWritten {
    Fault(Fault),
    Malformed,
}

impl From<Fault> for NotWritten {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<WriteError> for NotWritten {
    fn from(_: WriteError) -> Self {
        Self::Malformed
    }
}

impl Verbs for Callbacks<'_> {
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        scatter(self.context, self.endpoint.pd, &self.endpoint.send.work(request.id).segments, offset, bytes)
    }

    fn take_receive(&mut self) -> Option<u64> {
        self.endpoint.take_receive(self.context)
    }

    fn take_flushed(&mut self) -> Option<u64> {
        self.endpoint.take_flushed(self.context)
    }

    fn shares_receives(&self) -> bool {
        self.endpoint.receive.is_shared()
    }

    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        scatter(self.context, self.endpoint.pd, &self.endpoint.receive.last.segments, offset, bytes)
    }

    fn check(&mut self, rkey: u32, address: u64, len: u32, wanted: Access) -> Result<(), Fault> {
        let place = self.region(Key(rkey), address, len.into(), wanted)?;
        if wanted == Access::Read {
            self.context.fetch(place, len)?;
        }
        if wanted == Access::Read && len as usize <= SHORT {
            // It is on its way from the program's CPU while the answer is made.
            self.context.memory().prefetch(place, len as usize);
        }
        Ok(())
    }

    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], ends: bool) -> Result<(), Fault> {
        let place = self.region(Key(rkey), address, bytes.len() as u64, Access::Write)?;
        self.context.memory().write(place, bytes, ends)?;
        self.context.note_written(place, bytes.len());
        if ends { self.context.store() } else { Ok(()) }
    }

    fn atomic(&mut self, rkey: u32, address: u64, operation: AtomicOperation) -> Result<u64, Fault> {
        let place = self.region(Key(rkey), address, 8, Access::Atomic)?;
        if let Some(done) = self.context.copier_exchange(place, operation) {
            return done;
        }
        let turn = &self.context.adapter.turn;
        let done = self.context.memory().exchange(place, turn, |original| match operation {
            AtomicOperation::FetchAdd(add) => original.wrapping_add(add),
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
        });
        self.context.counters.add(Counter::AtomicBusy, u64::from(done == Err(Fault::Busy)));
        done
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        self.context.regions.invalidate_remote(Key(rkey), self.endpoint.scope())
    }

    fn complete(&mut self, completion: Completion) {
        // The program may have unmapped the memory; nobody misses what was for it.
        let _ = self.context.store();
        self.endpoint.complete(&completion, self.context);
    }

    fn send(&mut self, to: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault> {
        if let Some(Aeth { syndrome: Syndrome::Nak(nak), .. }) = packet.aeth
            && nak != Nak::PsnSequenceError
        {
            self.endpoint.peer.nak = Some(nak);
        }
        if to.is_none() && self.deliver_sync(packet, payload)? {
            point(Point::PacketSent);
            return Ok(());
        }
        let bytes = self.store(packet, payload)?;
        let emitted = self.emit(to, Qpn(packet.bth.destination), bytes);
        point(Point::PacketSent);
        emitted
    }
}

impl LocalVerbs for Callbacks<'_> {
    fn pass(&mut self, request: &SendRequest, message: &ShortMessage, bytes: &mut [u8]) -> bool {
        // As for packets (`deliver_sync`). What a rate limits waits for its turn in packets.
        let context = &*self.context;
        let must_wait = context.has_more || context.answers.is_open() || context.adapter.has_rate();
        if must_wait || !context.space.is_none() {
            return false;
        }
        let peer = &self.endpoint.peer;
        let (Some((path, _)), Some(inbox), Some(substitute)) = (peer.local(), &peer.inbox, &peer.substitute)
        else {
            return false;
        };
        if met_congestion(&path.header) || !message.is_read() && self.gather(request, 0, bytes).is_err() {
            return false;
        }
        let (from, to) = (self.endpoint.qpn, self.endpoint.peer_qpn());
        let mut delivered = SyncMessage { message, bytes, header: &path.header, from, to, now: context.now };
        if !substitute.serve(&mut delivered) {
            return false;
        }
        note(&mut self.context.spoken_to, inbox);
        point(Point::PacketSent);
        true
    }

    fn count_passed(&mut self, message: &ShortMessage, len: usize) {
        let (sent, answer) = message.packets(len);
        self.context.count_sent(sent);
        if let Some(bytes) = answer {
            self.context.count_received(bytes);
            self.endpoint.establish(self.context);
        }
    }

    fn try_write(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> bool {
        let place = self.find(Key(rkey), address, bytes.len() as u64, Access::Write);
        place.is_ok_and(|place| self.context.memory().write(place, bytes, true).is_ok())
    }

    fn try_read(&mut self, rkey: u32, address: u64, out: &mut [u8]) -> bool {
        let place = self.find(Key(rkey), address, out.len() as u64, Access::Read);
        place.is_ok_and(|place| self.context.memory().read(place, out).is_ok())
    }
}
