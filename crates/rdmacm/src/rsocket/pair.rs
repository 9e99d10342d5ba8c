//! The queue pair of a stream, with its completion queue and its registered memory.

use super::area::Area;
use super::flow::Sizes;
use super::identifier::Identifier;
use super::wire::{BUFFER, Buffer, Hello, Message, TABLE};
use crate::abi::{CompChannel, Cq, IBV_QPT_RC, Mr, Pd, Qp, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Wc};
use crate::error::{Errno, checked, made};
use crate::id::Id;
use crate::queue_pair;
use crate::verbs;
use libc::c_int;
use rustix::fs::OFlags;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use verbs_abi::{IBV_SEND_INLINE, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE_WITH_IMM};

/// Access flags `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE` for memory to which the peer writes.
const WRITABLE: c_int = 1 | 2;
/// Number of completions that are taken at a time.
const BATCH: usize = 16;
/// `IBV_WC_WITH_IMM`.
const WITH_IMMEDIATE: u32 = 1 << 1;
/// The `wr_id` of receives. For other work requests, it is the message that they send.
const RECEIVE: u64 = 1 << 63;
/// Largest number of bytes that are sent inline.
pub const INLINE: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The peer has sent this immediate data; `None` if it has sent something else.
    Received(Option<u32>),
    /// A message of ours is done, with this `ibv_wc_status`.
    Sent(Message, u32),
    Failed,
}

#[derive(Debug)]
struct Region {
    area: Area,
    region: *mut Mr,
}

impl Region {
    fn new(pd: *mut Pd, len: usize, access: c_int) -> Result<Self, Errno> {
        let area = Area::new(len)?;
        // SAFETY: the domain is the device's, and the memory is there until the region is gone.
        let region = made(unsafe { verbs::ibv_reg_mr(pd, area.address(0).cast(), area.len(), access) })?;
        Ok(Self { area, region })
    }

    const fn keys(&self) -> (u32, u32) {
        // SAFETY: it is ours, and there until `drop`.
        unsafe { ((*self.region).lkey, (*self.region).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was made here; the queue pair is gone.
        unsafe { verbs::ibv_dereg_mr(self.region) };
    }
}

/// A completion queue with its channel.
#[derive(Debug)]
struct Completions {
    cq: *mut Cq,
    channel: *mut CompChannel,
}

impl Completions {
    fn new(id: &Id, entries: u32) -> Result<Self, Errno> {
        let context = id.visible(|public| public.verbs);
        let entries = c_int::try_from(entries).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: the device is open.
        let channel = made(unsafe { verbs::ibv_create_comp_channel(context) })?;
        let mut this = Self { cq: ptr::null_mut(), channel };
        let flags = rustix::fs::fcntl_getfl(this.fd())? | OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(this.fd(), flags)?;
        // SAFETY: the device is open, and the channel of it.
        this.cq = made(unsafe { verbs::ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) })?;
        Ok(this)
    }

    const fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as the channel exists.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: they were made here; the queue pair is gone.
        unsafe {
            if !self.cq.is_null() {
                verbs::ibv_destroy_cq(self.cq);
            }
            verbs::ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// A queue pair with its completion queue and memory. The identifier refers to the queue pair, but does not destroy it.
#[derive(Debug)]
pub struct Pair {
    qp: *mut Qp,
    sizes: Sizes,
    inline: u32,
    // These fields are in the order in which they must be dropped.
    completions: Completions,
    sends: Region,
    receives: Region,
    identifier: Arc<Identifier>,
}

// SAFETY: verbs may be used from any thread.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    /// Creates a queue pair for an identifier that has a device, and posts its receives.
    pub fn new(identifier: Arc<Identifier>, sizes: Sizes, inline: u32) -> Result<Self, Errno> {
        let id = identifier.id();
        let pd = id.visible(|public| public.pd);
        let sends = Region::new(pd, sizes.send as usize, 0)?;
        let receives = Region::new(pd, sizes.receive as usize + TABLE as usize * BUFFER, WRITABLE)?;
        let completions = Completions::new(id, u32::from(sizes.sends) + u32::from(sizes.receives))?;
        let cap = QpCap {
            max_send_wr: sizes.sends.into(),
            max_recv_wr: sizes.receives.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let mut attr = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: completions.cq,
            recv_cq: completions.cq,
            srq: ptr::null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: the attributes are whole.
        unsafe { queue_pair::create_plain(id, ptr::null_mut(), &raw mut attr) }?;
        let qp = id.visible(|public| public.qp);
        let inline = attr.cap.max_inline_data.min(INLINE as u32);
        let pair = Self { qp, sizes, inline, completions, sends, receives, identifier };
        for _ in 0..sizes.receives {
            pair.post_receive()?;
        }
        pair.arm()?;
        Ok(pair)
    }

    /// Returns the hello for the peer: it describes our ring, table and credits.
    pub fn hello(&self) -> Hello {
        let (_, key) = self.receives.keys();
        let address = |offset: u32| self.receives.area.address(offset as usize) as u64;
        Hello {
            is_big_endian: cfg!(target_endian = "big"),
            credits: self.sizes.receives,
            table: Buffer { address: address(self.sizes.receive), key, len: TABLE },
            data: self.half(0),
        }
    }

    /// Describes the half of the ring at this offset for the peer.
    pub fn half(&self, offset: u32) -> Buffer {
        let (_, key) = self.receives.keys();
        let address = self.receives.area.address(offset as usize) as u64;
        Buffer { address, key, len: self.sizes.receive / 2 }
    }

    /// Returns the largest number of bytes that are sent inline.
    pub const fn inline(&self) -> u32 {
        self.inline
    }

    /// Returns the descriptor that is readable if there is an event.
    pub const fn fd(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }

    pub const fn identifier(&self) -> &Arc<Identifier> {
        &self.identifier
    }

    /// Takes the buffer that the peer has put into this entry of our table, and frees the entry.
    pub fn take_entry(&self, entry: u32) -> Option<Buffer> {
        let at = self.sizes.receive as usize + entry as usize * BUFFER;
        let (address, rest) = self.receives.area.take_pair(at)?;
        Some(Buffer::from_words(address, rest)).filter(|buffer| buffer.len > 0)
    }

    /// Reads bytes that have arrived, at this offset of the ring.
    pub fn read(&self, at: u32, to: &mut [u8]) {
        self.receives.area.read(at as usize, to);
    }

    /// Writes bytes into the send ring; they continue at its start.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let size = self.sizes.send as usize;
        let at = at % size;
        let (first, second) = bytes.split_at(bytes.len().min(size - at));
        self.sends.area.write(at, first);
        self.sends.area.write(0, second);
    }

    /// Sends bytes that are in the send ring.
    pub fn send_put(&self, at: u32, len: u32, message: Message, to: Buffer) -> Result<(), Errno> {
        let (key, _) = self.sends.keys();
        let first = len.min(self.sizes.send - at);
        let part = |offset: u32, length| Sge {
            addr: self.sends.area.address(offset as usize) as u64,
            length,
            lkey: key,
        };
        let mut list = [part(at, first), part(0, len - first)];
        let parts = if first == len { 1 } else { 2 };
        self.post(&mut list[..parts], 0, message, to)
    }

    /// Sends up to [`Self::inline`] bytes, which are copied now.
    pub fn send_inline(&self, bytes: &[u8], message: Message, to: Buffer) -> Result<(), Errno> {
        let mut list = [Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }];
        let parts = usize::from(!bytes.is_empty());
        self.post(&mut list[..parts], IBV_SEND_INLINE, message, to)
    }

    fn post(&self, list: &mut [Sge], send_flags: u32, message: Message, to: Buffer) -> Result<(), Errno> {
        // SAFETY: numbers and pointers, which may all be zero.
        let mut wr: SendWr = unsafe { std::mem::zeroed() };
        let number = message.to_number();
        (wr.wr_id, wr.imm_data) = (number.into(), number.to_be());
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        (wr.opcode, wr.send_flags) = (IBV_WR_RDMA_WRITE_WITH_IMM, send_flags);
        wr.wr.rdma = verbs_abi::Rdma { remote_addr: to.address, rkey: to.key };
        // SAFETY: the queue pair is ours; the list is whole, and names memory of ours, or bytes that are copied now.
        checked(unsafe { verbs::post_send(self.qp, &mut wr) })
    }

    /// Posts a receive for immediate data.
    pub fn post_receive(&self) -> Result<(), Errno> {
        let mut wr = RecvWr { wr_id: RECEIVE, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        // SAFETY: the queue pair is ours, and the request is whole.
        checked(unsafe { verbs::post_receive(self.qp, &mut wr) })
    }

    /// Takes all completions, and calls `with` for each.
    pub fn completed(&self, mut with: impl FnMut(Completed)) -> Result<(), Errno> {
        loop {
            let mut found = [Wc::default(); BATCH];
            // SAFETY: the completion queue is ours, and there is room for as many.
            let count = unsafe { verbs::poll_cq(self.completions.cq, &mut found) };
            let count = usize::try_from(count).map_err(|_| Errno(libc::EIO))?;
            found.iter().take(count).for_each(|wc| with(completion(wc)));
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Makes the next completion cause an event.
    pub fn arm(&self) -> Result<(), Errno> {
        // SAFETY: the completion queue is ours.
        checked(unsafe { verbs::request_notification(self.completions.cq) })
    }

    pub fn take_events(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel and the queue are ours, and there is room for the results.
        unsafe {
            while verbs::ibv_get_cq_event(self.completions.channel, &raw mut cq, &raw mut context) == 0 {
                verbs::ibv_ack_cq_events(self.completions.cq, 1);
            }
        }
    }

    /// Ends communication: posted requests are flushed.
    pub fn fail(&self) {
        queue_pair::fail(self.identifier.id());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: the queue pair was made here.
        unsafe { verbs::ibv_destroy_qp(self.qp) };
        self.identifier.id().visible(|public| public.qp = ptr::null_mut());
    }
}

fn completion(wc: &Wc) -> Completed {
    match (wc.wr_id & RECEIVE, wc.status) {
        (0, status) => {
            // The `wr_id` of a send is its message.
            let message = Message::from_number(wc.wr_id as u32).unwrap_or(Message::KeepAlive);
            Completed::Sent(message, status)
        }
        (_, IBV_WC_SUCCESS) => {
            Completed::Received((wc.wc_flags & WITH_IMMEDIATE != 0).then(|| u32::from_be(wc.imm_data)))
        }
        _ => Completed::Failed,
    }
}
