//! Queue pairs of peers that trust each other and share memory. This process carries out its own requests, in the
//! peer's memory, instead of asking the device.
//!
//! A short message travels inside the completion that the peer gets. A longer one is copied once, into the buffers of
//! the peer's receive. Where those buffers are in a file that this process has mapped ([`Windows`]), it copies with
//! plain loads and stores. Elsewhere it copies with a system call, and for that the peer's process must give us access
//! to all of its memory ([`Far`]). We ask for that access when the first message needs it.
//!
//! The device handles each request that this module cannot: the peer has no receive, a key is wrong, a queue is full,
//! or an atomic operation concerns memory that is not mapped. The device then works as if nothing were shared.

mod copy;

use crate::abi::IBV_WC_WR_FLUSH_ERR;
use crate::errno::Outcome;
use crate::far::Far;
use crate::link::{Link, map};
use crate::windows::Windows;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uverbs::completion::{self, INLINE, INLINE_SHARED, Message, bytes};
use uverbs::qp::access;
use uverbs::work::{opcode, send_flags};
use uverbs::{
    Bond, Completion, CompletionSink, DirectPeer, Parcels, Placement, RegionTable, Reply, Request, Segment,
    SharedSource, WorkRequest, WorkSource,
};

/// The processor stores up to so many bytes at once. Of a longer message the last byte must be stored after all others:
/// peers wait until it changes.
const AT_ONCE: usize = 8;

/// How often we try to take a receive from a shared queue while other processes take theirs.
const ATTEMPTS: u32 = 64;

/// Some bytes of this process's memory.
type Part = libc::iovec;

/// Some bytes of an inline message: their address and number.
pub type Bytes = (*const u8, usize);

/// Some bytes of the peer's memory.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    len: usize,
    /// The window in which they are mapped here, if they are.
    window: Option<usize>,
}

/// What a queue pair shares with its peer.
pub struct Direct {
    bond: Bond,
    peer: DirectPeer,
    receives: Receives,
    parcels: Parcels,
    peer_cq: CompletionSink,
    peer_regions: RegionTable,
    windows: Windows,
    own_regions: RegionTable,
    own_cq: CompletionSink,
    memory: Far,
    channel: Option<OwnedFd>,
    /// The peer's completion channel was full, so the peer still has to be notified.
    pub is_untold: bool,
    // Scratch space for one request.
    /// Our side of the message.
    parts: Vec<Part>,
    /// The scatter list of the peer's receive.
    list: Vec<Segment>,
    /// The peer's side of the message.
    places: Vec<Place>,
    /// The argument of one copy.
    vector: Vec<Part>,
}

// SAFETY: the pointers in `parts` and `vector` are only used during a call of `perform`, which fills them anew.
unsafe impl Send for Direct {}

/// The queue pair that sends.
pub struct Sender {
    /// Its number.
    pub qpn: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Whether the application wants a completion of this request.
    pub signaled: bool,
}

/// The queue from which the peer's receives come.
enum Receives {
    Own(WorkSource),
    Shared(SharedSource),
}

/// What the device still has to do for a request that this process carried out.
pub struct Done {
    /// It has to notify our completion channel.
    pub tells: bool,
    /// It has to tell the peer that few receives are left in its shared queue.
    pub is_low: bool,
}

impl Direct {
    /// Asks the device for the peer's queues.
    ///
    /// # Errors
    /// `EAGAIN`: the peer is not ready yet. Any other: it will never share.
    pub fn open(link: &Link, qpn: u32) -> Outcome<Self> {
        let (Reply::Direct(peer), mut files) = link.ask_for(&Request::Direct { qpn })? else {
            return Err(libc::EIO);
        };
        let shared = if peer.takes_shared { Some(files.pop().ok_or(libc::EIO)?) } else { None };
        let channel = if peer.has_channel { files.pop() } else { None };
        let [bond, qp, cq, regions, own_regions, own_cq] =
            <[OwnedFd; 6]>::try_from(files).map_err(|_| libc::EIO)?;
        if !peer.entries.is_power_of_two() || !peer.own_entries.is_power_of_two() {
            return Err(libc::EIO);
        }
        let qp = Arc::new(map(&qp, usize::try_from(peer.memory).map_err(|_| libc::EIO)?)?);
        let receives = match shared {
            Some(file) => {
                let queue = Arc::new(map(&file, peer.receive.end())?);
                SharedSource::new(queue, peer.receive).map(Receives::Shared)
            }
            None => WorkSource::new(qp.clone(), peer.receive).map(Receives::Own),
        };
        let table = |file, regions| RegionTable::open(file, regions).map_err(|_| libc::EIO);
        Ok(Self {
            bond: Bond::new(map(&bond, Bond::BYTES)?),
            receives: receives.map_err(|_| libc::EIO)?,
            parcels: Parcels::new(qp, peer.parcels).map_err(|_| libc::EIO)?,
            peer_cq: CompletionSink::new(map(&cq, bytes(peer.entries))?, peer.entries),
            peer_regions: table(regions, peer.regions)?,
            windows: Windows::default(),
            own_regions: table(own_regions, peer.own_regions)?,
            own_cq: CompletionSink::new(map(&own_cq, bytes(peer.own_entries))?, peer.own_entries),
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

    /// Whether the device has ended the sharing.
    pub fn is_closed(&self) -> bool {
        self.bond.is_closed()
    }

    /// Maps the region of the peer that a request needed and did not find mapped.
    #[inline]
    pub fn open_window(&mut self, link: &Link, qpn: u32) {
        self.windows.open(link, qpn, &self.peer_regions);
    }

    /// Asks for access to all of the peer's memory, if a request needed that. Returns whether we have it now.
    #[inline]
    pub fn open_memory(&mut self, link: &Link, qpn: u32) -> bool {
        matches!(self.memory, Far::Wanted) && self.memory.open(link, qpn)
    }

    /// Unmaps memory that the peer has deregistered. If the peer's process refused access to all of its memory before,
    /// the next request that needs it asks again.
    pub fn close_windows(&mut self) {
        if matches!(self.memory, Far::Refused) {
            self.memory = Far::Unknown;
        }
        self.windows.close_old(&self.peer_regions);
    }

    /// Carries out a whole request. Returns `None` if it did nothing and the device has to carry it out.
    ///
    /// # Safety
    /// The bytes of an inline message must be readable, and all memory that this process registered must be mapped.
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
        if !self.bond.enter() {
            return None;
        }
        // SAFETY: the caller's promise.
        let done = unsafe { self.do_it(request, len) }.map(|()| self.complete(sender, request, len));
        // Only now: after this, the device may free our completion queue.
        self.bond.leave();
        done
    }

    /// Counts a request that was carried out, and adds its completion to our queue.
    fn complete(&self, sender: &Sender, request: &WorkRequest, len: usize) -> Done {
        self.bond.count(len as u64);
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
        // `perform` has seen that there is room. If another thread has filled the queue since, the queue overruns.
        let note = |place| self.bond.note_own_place(place);
        Done { tells: self.own_cq.push_noting(&own, false, note) == Ok(true), is_low }
    }

    /// Collects our side of a message in `parts`, and returns its length; `None` if a key does not permit the
    /// operation.
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
            let address = region.find(sender.pd, segment.address, segment.len.into(), needs)?;
            let len = segment.len as usize;
            self.parts.push(Part { iov_base: address as *mut _, iov_len: len });
            sum += len;
        }
        Some(sum)
    }

    /// Carries out a request of `len` bytes whose parts are collected.
    ///
    /// # Safety
    /// The parts must be readable; for a READ or an atomic operation, writable.
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

    /// Carries out a request that uses up a receive of the peer: a SEND, or a WRITE with immediate data.
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

    /// Takes a receive of the peer, and puts the places for the message into `places`. Returns the number of the
    /// receive's slot, its identifier, and whether the message is simple: the peer may copy it itself, from its
    /// completion or a parcel.
    fn take_receive(&mut self, request: &WorkRequest, len: usize) -> Option<(u32, u64, bool)> {
        for _ in 0..ATTEMPTS {
            self.list.clear();
            let (number, id) = match &mut self.receives {
                Receives::Own(source) => {
                    let note = |number, id| self.bond.hold(number, id);
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
            // A receive of a shared queue can't be given back once it is claimed, so look at its places first.
            let is_simple =
                is_simple.filter(|simple| *simple && self.is_enclosed(len) || self.reach().is_some());
            match &self.receives {
                Receives::Own(source) if is_simple.is_none() => source.put_back(number),
                Receives::Shared(source) if is_simple.is_some() => {
                    if !source.claim(number) {
                        continue;
                    }
                    self.bond.hold(number, id);
                }
                _ => {}
            }
            return is_simple.map(|is_simple| (number, id, is_simple));
        }
        None
    }

    /// Gives back a receive that was not used. A receive of a shared queue can't be put back: it is completed as
    /// flushed, and the device, which gets the request next, reports the reason.
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

    /// Finds the places for a message of `len` bytes in the scatter list of the receive. Returns whether the peer may
    /// copy the message itself; `None` if the list is too short or a key is wrong.
    fn place(&mut self, len: usize) -> Option<bool> {
        self.places.clear();
        let (mut left, mut same) = (len, true);
        for segment in &self.list {
            let part = left.min(segment.len as usize);
            if part == 0 {
                continue;
            }
            let region = self.peer_regions.get(segment.lkey)?;
            let address = region.find(self.peer.pd, segment.address, part as u64, access::LOCAL_WRITE)?;
            // The peer copies to the addresses in its list, without looking them up in its regions as the device does.
            same &= address == segment.address;
            let window = self.windows.find(segment.lkey, &region, address, part);
            self.places.push(Place { address, len: part, window });
            left -= part;
        }
        // The completion of a receive of a shared queue has room for one address.
        let is_simple = if self.takes_shared() { self.places.len() <= 1 } else { same };
        (left == 0).then_some(is_simple)
    }

    /// Puts a message where the peer can copy it from: into its completion, or into a parcel if it is longer. Returns
    /// `None` if there is no room for a parcel.
    ///
    /// # Safety
    /// The parts must be readable.
    unsafe fn enclosed(&mut self, len: usize) -> Option<Placement> {
        let place = self.places.first().map_or(0, |place| place.address);
        let shares = self.takes_shared();
        if len > if shares { INLINE_SHARED } else { INLINE } {
            let parts = self.parts.iter().map(|part| (part.iov_base.cast_const().cast(), part.iov_len));
            // SAFETY: the caller's promise.
            let position = unsafe { self.parcels.put(parts, len) }?;
            return Some(if shares {
                Placement::ParcelAt(place, position)
            } else {
                Placement::Parcel(position)
            });
        }
        let (mut message, mut at) = (Message::default(), 0);
        for part in &self.parts {
            // SAFETY: the caller says that the part is readable. `message` has room: the lengths of all parts sum up to
            // `len`, which is at most `INLINE`.
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

    /// The completion that the peer gets.
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

    /// Gives the peer a completion, and notifies its completion channel if it waits there.
    fn tell(&mut self, arrived: &Completion, request: &WorkRequest) -> Option<()> {
        let solicited = request.flags & send_flags::SOLICITED != 0;
        let tells = self.peer_cq.push_noting(arrived, solicited, |place| self.bond.note_place(place)).ok()?;
        if let Some(channel) = self.channel.as_ref().filter(|_| tells) {
            use rustix::net::{SendFlags, send};
            let told = send(channel, &self.peer.cq.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.is_untold |= told == Err(rustix::io::Errno::AGAIN);
        }
        Some(())
    }

    /// Whether a message of this length always fits into a completion or a parcel, so that its places need not be
    /// reached.
    const fn is_enclosed(&self, len: usize) -> bool {
        len <= if self.takes_shared() { INLINE_SHARED } else { Parcels::LONGEST }
    }

    /// Returns `Some` if we can copy to or from all places. Otherwise it notes what to ask for, and the device carries
    /// out this request.
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

    /// Whether to copy a message into mapped places rather than through a parcel.
    fn is_mapped(&self, len: usize) -> bool {
        len > INLINE && self.places.iter().all(|place| place.window.is_some())
    }

    /// The place of the peer's memory that a request names by address and key, if the key permits what it needs.
    fn remote(&mut self, request: &WorkRequest, len: usize, needs: u32) -> Option<Place> {
        if len == 0 {
            return Some(Place { address: 0, len, window: None });
        }
        if self.peer.access & needs == 0 {
            return None;
        }
        let region = self.peer_regions.get(request.rkey)?;
        let address = region.find(self.peer.pd, request.address, len as u64, needs)?;
        Some(Place { address, len, window: self.windows.find(request.rkey, &region, address, len) })
    }

    /// Carries out an atomic operation on a word of the peer that is mapped here.
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
        // SAFETY: the caller says that the part is writable, and it is 8 bytes long as `len` says.
        unsafe { part.iov_base.cast::<u64>().write_unaligned(old) };
        Some(())
    }

    /// Puts the places of a WRITE into `places`. A long message that a system call copies has its last byte in a place
    /// of its own, which is written last.
    fn aim(&mut self, request: &WorkRequest, len: usize) -> Option<()> {
        let place = self.remote(request, len, access::REMOTE_WRITE)?;
        self.places.clear();
        if len > AT_ONCE && place.window.is_none() {
            self.places.push(Place { len: len - 1, ..place });
            self.places.push(Place { address: place.address + len as u64 - 1, len: 1, ..place });
        } else {
            self.places.push(place);
        }
        Some(())
    }
}
