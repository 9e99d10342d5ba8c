//! Peers that share memory: if both sides trust each other, we execute our requests ourselves instead of the peer's
//! device.
//!
//! A message that fits into a completion is sent in it. Others are copied once, to the memory of the receive: by loads
//! and stores if the peer has that memory in a file ([`Windows`]), otherwise by a system call, for which the peer's
//! process must give us access to all of its memory; that is requested once a message needs it. Every unusual case (no
//! receive, wrong keys, full queues, atomic operations elsewhere) is left to the device, which works as without this
//! module.

mod copies;

use crate::abi::IBV_WC_WR_FLUSH_ERR;
use crate::errno::Outcome;
use crate::far::{Far, apart};
use crate::link::Link;
use crate::windows::Windows;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uverbs::completion::{self, INLINE, INLINE_SHARED, Message, bytes};
use uverbs::qp::access;
use uverbs::work::{opcode, send_flags};
use uverbs::{
    Completion, CompletionSink, DirectPeer, DirectSession, Given, MessageRing, Placement, Point, RegionTable,
    Reply, Request, Segment, SharedSource, WorkRequest, WorkSource, point,
};

/// Messages longer than this have their last byte stored after all others, because peers wait for it. Shorter ones
/// are stored with one instruction.
const AT_ONCE: usize = 8;

/// Number of attempts to take a receive of a shared queue while other senders take theirs.
const ATTEMPTS: u32 = 64;

type Part = libc::iovec;

/// Start and length of a part of an inline message.
pub type Bytes = (*const u8, usize);

#[derive(Clone, Copy)]
struct Place {
    address: u64,
    len: usize,
    /// The index of the window that maps the place.
    window: Option<usize>,
}

/// Everything that the two queue pairs of a connection share.
pub struct Direct {
    session: DirectSession,
    peer: DirectPeer,
    receives: Receives,
    message_ring: MessageRing,
    peer_cq: CompletionSink,
    peer_regions: RegionTable,
    windows: Windows,
    own_regions: RegionTable,
    own_cq: CompletionSink,
    memory: Far,
    channel: Option<OwnedFd>,
    /// Whether the peer lacks a notification, because its channel had no room or only the device reaches the channel.
    pub is_untold: bool,
    /// Buffers for the current request: `parts` are our memory, `list` is the peer's receive, `places` are its memory.
    parts: Vec<Part>,
    list: Vec<Segment>,
    places: Vec<Place>,
    vector: Vec<Part>,
}

// SAFETY: the parts belong to the current request, and nobody uses them after it.
unsafe impl Send for Direct {}

pub struct Sender {
    pub qpn: u32,
    pub pd: u32,
    pub signaled: bool,
}

/// The queue with the peer's receives.
enum Receives {
    Own(WorkSource),
    Shared(SharedSource),
}

/// Work for the device after a request was executed.
pub struct Done {
    /// The device must notify a completion channel of ours.
    pub tells: bool,
    /// The device must tell the peer that few receives are left in its shared queue.
    pub is_low: bool,
}

impl Direct {
    /// Asks the device to share memory with the peer of this queue pair, and maps it.
    ///
    /// # Errors
    /// `EAGAIN` if the peer is not ready; other errors if it never will be.
    pub fn open(link: &Link, qpn: u32) -> Outcome<Self> {
        let (Reply::Direct(peer), mut given) = link.ask_for(&Request::Direct { qpn })? else {
            return Err(libc::EIO);
        };
        let shared = if peer.takes_shared { Some(given.pop().ok_or(libc::EIO)?) } else { None };
        let channel = if peer.has_socket { given.pop().and_then(Given::descriptor).map(apart) } else { None };
        let [session, qp, cq, regions, own_regions, own_cq] =
            <[Given; 6]>::try_from(given).map_err(|_| libc::EIO)?;
        let map = |given, len| link.map_of_peer(vec![given], len);
        if !peer.entries.is_power_of_two() || !peer.own_entries.is_power_of_two() {
            return Err(libc::EIO);
        }
        let qp = Arc::new(map(qp, usize::try_from(peer.memory).map_err(|_| libc::EIO)?)?);
        let receives = match shared {
            Some(queue) => {
                let queue = Arc::new(map(queue, peer.receive.end())?);
                SharedSource::new(queue, peer.receive, peer.taker).map(Receives::Shared)
            }
            None => WorkSource::new(qp.clone(), peer.receive).map(Receives::Own),
        };
        let table = |given, regions| match given {
            Given::Descriptor(file) => RegionTable::open(file, regions).map_err(|_| libc::EIO),
            part => Ok(RegionTable::new(map(part, RegionTable::bytes(regions))?, regions)),
        };
        Ok(Self {
            session: DirectSession::new(map(session, DirectSession::BYTES)?),
            receives: receives.map_err(|_| libc::EIO)?,
            message_ring: MessageRing::new(qp, peer.message_ring).map_err(|_| libc::EIO)?,
            peer_cq: CompletionSink::new(map(cq, bytes(peer.entries))?, peer.entries),
            peer_regions: table(regions, peer.regions)?,
            windows: Windows::default(),
            own_regions: table(own_regions, peer.own_regions)?,
            own_cq: CompletionSink::new(map(own_cq, bytes(peer.own_entries))?, peer.own_entries),
            memory: Far::Unknown,
            channel,
            is_untold: false,
            peer,
            parts: Vec::new(),
            list: Vec::new(),
            places: Vec::new(),
            vector: Vec::new(),
        })
    }

    /// Is true once the peer's side or ours has ended the sharing.
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Maps peer memory that an earlier request needed and did not find mapped. Returns whether some was mapped now.
    #[inline]
    pub fn open_window(&mut self, link: &Link, qpn: u32) -> bool {
        self.windows.is_wanted() && self.windows.open(link, qpn, &self.peer_regions)
    }

    /// Requests access to the peer's memory that can't be mapped, if a message needs it. Returns whether the peer
    /// granted it now.
    #[inline]
    pub fn open_memory(&mut self, link: &Link, qpn: u32) -> bool {
        matches!(self.memory, Far::Wanted) && self.memory.open(link, qpn)
    }

    /// Unmaps memory that no longer belongs to a region of the peer, and allows new requests for refused memory.
    pub fn close_windows(&mut self) {
        if matches!(self.memory, Far::Refused) {
            self.memory = Far::Unknown;
        }
        self.windows.close_old(&self.peer_regions);
    }

    /// Executes a request completely, or returns `None` and leaves it to the device.
    ///
    /// # Safety
    /// The bytes of an inline message, and registered memory, must exist.
    pub unsafe fn perform(
        &mut self,
        sender: &Sender,
        request: &WorkRequest,
        list: &[Segment],
        inline: &[Bytes],
    ) -> Option<Done> {
        if sender.signaled && self.own_cq.is_full() {
            return None;
        }
        let len = self.gather(sender, request.opcode, list, inline)?;
        let is_long = len > copies::PIECE && matches!(request.opcode, opcode::RDMA_WRITE | opcode::RDMA_READ);
        let last_piece;
        let (last, left) = if is_long {
            // SAFETY: the caller's promise.
            last_piece = unsafe { self.do_pieces(request, len) }?;
            (&last_piece.0, last_piece.1)
        } else {
            (request, len)
        };
        if !self.session.enter() {
            return None;
        }
        // SAFETY: the caller's promise.
        let done = unsafe { self.do_it(last, left) }.map(|()| self.complete(sender, request, len));
        // Not earlier: after this our completion queue may be taken away.
        self.session.leave();
        done
    }

    /// Counts an executed request, and completes it.
    fn complete(&self, sender: &Sender, request: &WorkRequest, len: usize) -> Done {
        self.session.count(len as u64);
        let is_low = matches!(&self.receives, Receives::Shared(source) if source.is_low());
        if !sender.signaled {
            return Done { tells: false, is_low };
        }
        let own = Completion {
            opcode: completion::opcode::of(request.opcode),
            qpn: sender.qpn,
            byte_len: len as u32,
            id: request.id,
            number: request.number,
            ..Completion::default()
        };
        // There is room: it was checked. If somebody else completes a request at the same time, the queue overruns.
        let note = |place| self.session.note_own_place(place);
        Done { tells: self.own_cq.push_noting(&own, false, note) == Ok(true), is_low }
    }

    /// Collects our parts of a message. Returns their length, or `None` if a part may not be used for this operation.
    fn gather(
        &mut self,
        sender: &Sender,
        operation: u8,
        list: &[Segment],
        inline: &[Bytes],
    ) -> Option<usize> {
        self.parts.clear();
        if list.is_empty() {
            let part = |(start, len): &Bytes| Part { iov_base: start.cast_mut().cast(), iov_len: *len };
            self.parts.extend(inline.iter().map(part));
            return Some(inline.iter().map(|(_, len)| len).sum());
        }
        let fetches = matches!(
            operation,
            opcode::RDMA_READ | opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD
        );
        let needs = if fetches { access::LOCAL_WRITE } else { 0 };
        let mut sum = 0;
        for segment in list.iter().filter(|segment| segment.len > 0) {
            let region = self.own_regions.get(segment.lkey)?;
            let address = region.find_local(sender.pd, segment.address, segment.len.into(), needs)?;
            let len = segment.len as usize;
            self.parts.push(Part { iov_base: address as *mut _, iov_len: len });
            sum += len;
        }
        Some(sum)
    }

    /// Executes an operation on the collected parts.
    ///
    /// # Safety
    /// The parts must be readable; for a READ, writable.
    unsafe fn do_it(&mut self, request: &WorkRequest, len: usize) -> Option<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match request.opcode {
                opcode::SEND | opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM => self.send(request, len),
                opcode::RDMA_WRITE => {
                    self.aim(request, len)?;
                    self.reach()?;
                    self.copy(true)
                }
                opcode::RDMA_READ => {
                    let place = self.remote(request, len, access::REMOTE_READ)?;
                    self.places.clear();
                    self.places.push(place);
                    self.reach()?;
                    self.copy(false)
                }
                opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => self.atomic(request, len),
                _ => None,
            }
        }
    }

    /// Executes a request that consumes one of the peer's receives.
    ///
    /// # Safety
    /// The parts must be readable.
    unsafe fn send(&mut self, request: &WorkRequest, len: usize) -> Option<()> {
        if self.peer_cq.is_full() {
            return None;
        }
        let (number, id, is_simple) = self.take_receive(request, len)?;
        // SAFETY: the caller's promise.
        let placement = unsafe {
            match if is_simple && !self.is_mapped(len) { self.enclosed(len) } else { None } {
                Some(placement) => Some(placement),
                None => self
                    .copy(true)
                    .map(|()| if self.takes_shared() { Placement::Done } else { Placement::There }),
            }
        };
        let done = placement.and_then(|placement| {
            let arrived = self.arrived(request, len, id, placement);
            self.tell(&arrived, request)
        });
        done.or_else(|| self.put_back(number, id))
    }

    const fn takes_shared(&self) -> bool {
        matches!(self.receives, Receives::Shared(_))
    }

    /// Takes a receive of the peer. Returns its slot, its identifier, and whether the peer may copy the message to the
    /// receive's memory; otherwise `places` is the destination.
    fn take_receive(&mut self, request: &WorkRequest, len: usize) -> Option<(u32, u64, bool)> {
        for _ in 0..ATTEMPTS {
            self.list.clear();
            let (number, id) = match &mut self.receives {
                Receives::Own(source) => {
                    let note = |number, id| self.session.hold(number, id);
                    let (number, receive) = source.take_known(&mut self.list, note).ok()??;
                    (number, receive.id)
                }
                Receives::Shared(source) => source.peek(&mut self.list).ok()??,
            };
            let is_simple = if request.opcode == opcode::RDMA_WRITE_WITH_IMM {
                self.aim(request, len).map(|()| false)
            } else {
                self.place(len)
            };
            // This check comes before the receive is claimed.
            let is_simple =
                is_simple.filter(|simple| *simple && self.is_enclosed(len) || self.reach().is_some());
            match &self.receives {
                Receives::Own(source) if is_simple.is_none() => source.put_back(number),
                Receives::Shared(source) if is_simple.is_some() => {
                    self.session.hold(number, id);
                    if !source.claim(number) {
                        continue;
                    }
                }
                _ => {}
            }
            return is_simple.map(|is_simple| (number, id, is_simple));
        }
        None
    }

    /// Puts back a receive that was not used. A receive of a shared queue can't be put back, and is flushed; the device
    /// will report why.
    fn put_back(&mut self, number: u32, id: u64) -> Option<()> {
        match &self.receives {
            Receives::Own(source) => source.put_back(number),
            Receives::Shared(_) => {
                let status = IBV_WC_WR_FLUSH_ERR as u8;
                let flushed = Completion {
                    id,
                    status,
                    ..self.arrived(&WorkRequest::default(), 0, id, Placement::Done)
                };
                let _ = self.tell(&flushed, &WorkRequest::default());
            }
        }
        None
    }

    /// Finds the destination of a message in the receive that was taken. Returns whether the peer may copy the message
    /// there.
    fn place(&mut self, len: usize) -> Option<bool> {
        self.places.clear();
        let (mut left, mut same) = (len, true);
        for segment in &self.list {
            let part = left.min(segment.len as usize);
            if part == 0 {
                continue;
            }
            let region = self.peer_regions.get(segment.lkey)?;
            let address =
                region.find_local(self.peer.pd, segment.address, part as u64, access::LOCAL_WRITE)?;
            // The peer copies to the addresses in its list; the device would copy to where the region says they are.
            same &= address == segment.address;
            let window = self.windows.find(segment.lkey, &region, address, part);
            self.places.push(Place { address, len: part, window });
            left -= part;
        }
        // For a shared queue, the completion names the only destination.
        let is_simple = if self.takes_shared() { self.places.len() <= 1 } else { same };
        (left == 0).then_some(is_simple)
    }

    /// Encloses a message that the peer copies: in its completion or, if possible, in the message ring.
    ///
    /// # Safety
    /// The parts must be readable.
    unsafe fn enclosed(&mut self, len: usize) -> Option<Placement> {
        let place = self.places.first().map_or(0, |place| place.address);
        let shares = self.takes_shared();
        if len > if shares { INLINE_SHARED } else { INLINE } {
            let parts = self.parts.iter().map(|part| (part.iov_base.cast_const().cast(), part.iov_len));
            // SAFETY: the caller's promise.
            let position = unsafe { self.message_ring.put(parts, len) }?;
            return Some(if shares {
                Placement::MessageRingAt(place, position)
            } else {
                Placement::MessageRing(position)
            });
        }
        let (mut message, mut at) = (Message::default(), 0);
        for part in &self.parts {
            // SAFETY: the caller's promise; their lengths add up to the message's, for which there is room.
            unsafe {
                let to = message.as_mut_ptr().cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(part.iov_base.cast(), to, part.iov_len);
            }
            at += part.iov_len;
        }
        if !shares {
            return Some(Placement::Here(message));
        }
        let [first, second, third, ..] = message;
        Some(Placement::At(place, [first, second, third]))
    }

    fn arrived(&self, request: &WorkRequest, len: usize, id: u64, placement: Placement) -> Completion {
        let is_write = request.opcode == opcode::RDMA_WRITE_WITH_IMM;
        let has_immediate = is_write || request.opcode == opcode::SEND_WITH_IMM;
        Completion {
            opcode: if is_write { completion::opcode::RECV_RDMA_WITH_IMM } else { completion::opcode::RECV },
            flags: if has_immediate { completion::flags::WITH_IMM } else { 0 },
            qpn: self.peer.qpn,
            byte_len: len as u32,
            immediate: request.immediate,
            id,
            placement,
            ..Completion::default()
        }
    }

    /// Puts the completion of an arrived message into the peer's queue, and notifies the peer if it waits for it.
    fn tell(&mut self, arrived: &Completion, request: &WorkRequest) -> Option<()> {
        let solicited = request.flags & send_flags::SOLICITED != 0;
        let tells =
            self.peer_cq.push_noting(arrived, solicited, |place| self.session.note_place(place)).ok()?;
        if tells && self.peer.has_channel {
            use rustix::net::{SendFlags, send};
            self.is_untold |= self.channel.as_ref().is_none_or(|channel| {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let told = send(channel, &self.peer.cq.to_ne_bytes(), flags);
                point(Point::Told);
                told == Err(rustix::io::Errno::AGAIN)
            });
        }
        Some(())
    }

    /// Is true if a message that the peer may copy fits into its completion, or certainly into a message ring.
    const fn is_enclosed(&self, len: usize) -> bool {
        len <= if self.takes_shared() { INLINE_SHARED } else { MessageRing::LONGEST }
    }

    /// Checks that all places are accessible. Otherwise notes what to request; if that is not granted, the device
    /// executes the request.
    #[inline]
    fn reach(&mut self) -> Option<()> {
        let is_near = |place: &Place| place.window.is_some() || place.len == 0;
        if matches!(self.memory, Far::There { .. }) || self.places.iter().all(is_near) {
            return Some(());
        }
        if matches!(self.memory, Far::Unknown) && !self.windows.is_wanted() {
            self.memory = Far::Wanted;
        }
        None
    }

    /// Is true if a message that is too long for its completion should be stored at its destination.
    fn is_mapped(&self, len: usize) -> bool {
        len > INLINE && self.places.iter().all(|place| place.window.is_some())
    }

    /// Returns the peer's memory for a request, if the request may use it.
    fn remote(&mut self, request: &WorkRequest, len: usize, needs: u32) -> Option<Place> {
        if len == 0 {
            return Some(Place { address: 0, len, window: None });
        }
        if self.peer.access & needs == 0 {
            return None;
        }
        let region = self.peer_regions.get(request.rkey)?;
        let of = (self.peer.pd, self.peer.qpn);
        let address = region.find_remote(of, request.address, len as u64, needs)?;
        Some(Place { address, len, window: self.windows.find(request.rkey, &region, address, len) })
    }

    /// Executes an atomic operation on mapped memory.
    ///
    /// # Safety
    /// The parts must be writable.
    unsafe fn atomic(&mut self, request: &WorkRequest, len: usize) -> Option<()> {
        let place = self.remote(request, len, access::REMOTE_ATOMIC)?;
        let [part] = self.parts[..] else { return None };
        let word = self.windows.pages(place.window?)?.word(place.address).filter(|_| len == 8)?;
        let (operand, order) = (request.compare_add, Ordering::SeqCst);
        let old = if request.opcode == opcode::ATOMIC_FETCH_AND_ADD {
            word.fetch_add(operand, order)
        } else {
            word.compare_exchange(operand, request.swap, order, order).unwrap_or_else(|old| old)
        };
        point(Point::AtomicDone);
        // SAFETY: the caller's promise; it is as long as that.
        unsafe { part.iov_base.cast::<u64>().write_unaligned(old) };
        Some(())
    }

    /// Finds the destination of a WRITE.
    fn aim(&mut self, request: &WorkRequest, len: usize) -> Option<()> {
        let place = self.remote(request, len, access::REMOTE_WRITE)?;
        self.places.clear();
        if len > AT_ONCE && place.window.is_none() {
            // After each place, the kernel releases a page by an atomic operation that orders all stores. So the last
            // one is seen last, even on processors that reorder stores.
            self.places.push(Place { len: len - 1, ..place });
            self.places.push(Place { address: place.address + len as u64 - 1, len: 1, ..place });
        } else {
            self.places.push(place);
        }
        Some(())
    }
}
