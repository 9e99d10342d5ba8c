//! Owns an application's context (`ibv_context`): its objects, queue pairs without their transport included. May import
//! `net` and what stands below it.

pub(crate) mod ah;
pub(crate) mod copier;
pub(crate) mod cq;
pub(crate) mod endpoint;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod peer;
pub(crate) mod quota;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod sharing;
pub(crate) mod srq;
pub(crate) mod terms;

use crate::base::counters::{Counter, Counters};
use crate::base::ids::{ById, CqId, Qpn, SrqId};
use crate::context::ah::Ah;
use crate::context::copier::Copier;
use crate::context::cq::{Channel, Cq};
use crate::context::pd::Pds;
use crate::context::receive_queue::Receive;
use crate::context::sharing::{ClosedSession, Invalidation};
use crate::context::srq::Srq;
use crate::inbox::Inbox;
use crate::inbox::message::Message;
use crate::inbox::sync_delivery::SyncAnswers;
use crate::memory::address_space::AddressSpace;
use crate::memory::keys::KeyUsers;
use crate::memory::regions::{MemoryAccess, Regions};
use crate::net::adapter::Adapter;
use crate::net::fabric::Fabric;
use crate::net::wire::FRAMES;
use crate::streams::events::{Event, Notifier};
use crate::window::source::MemorySource;
use ringport::Uplink;
use std::sync::Arc;
use std::time::Duration;
use uverbs::{AsyncEvent, Completion, Corrupt, Point, point};

/// Bytes of Ethernet, IPv6 and UDP headers.
pub(crate) const BEFORE: usize = 14 + 40 + 8;

#[derive(Debug)]
pub(crate) struct Context {
    pub adapter: Arc<Adapter>,
    pub fabric: Arc<Fabric>,
    pub inbox: Arc<Inbox<Message>>,
    pub uplink: Uplink,
    pub space: AddressSpace,
    pub regions: Regions,
    /// The thread of the program that copies for regions whose memory can't move, if there are any.
    pub copier: Option<Copier>,
    pub pds: Pds,
    pub channels: ById<u32, Channel>,
    pub cqs: ById<CqId, Cq>,
    pub srqs: ById<SrqId, Srq>,
    pub ahs: ById<u32, Ah>,
    pub asynchronous: Notifier,
    pub counters: Counters,
    /// Closed sessions whose users may not have stopped yet.
    pub closed_sessions: Vec<ClosedSession>,
    /// The source of memory for the application.
    pub source: Arc<MemorySource>,
    /// How many keys have been invalidated.
    pub invalidations: u64,
    /// The key that a work request has just invalidated, and that peers may still use.
    pub pending_invalidation: Option<Invalidation>,
    /// True while a queue pair works that waits for peers to stop using a key, and all of them have.
    pub peers_are_done: bool,
    /// Frames sent since the worker was last notified.
    unannounced: u32,
    /// The inbox to which the last packet went.
    pub spoken_to: Option<Arc<Inbox<Message>>>,
    /// Answers to packets that were delivered synchronously.
    pub answers: SyncAnswers,
    pub heard: SyncAnswers,
    /// When the current work began.
    pub now: Duration,
    /// Packets that were taken from the inbox are still to be handled.
    pub has_more: bool,
    /// Buffer for the next packet.
    pub spare: Vec<u8>,
    next_handle: u32,
}

/// The parts with which a context begins; its objects come later.
pub(crate) struct NewContext {
    pub adapter: Arc<Adapter>,
    pub fabric: Arc<Fabric>,
    pub inbox: Arc<Inbox<Message>>,
    pub uplink: Uplink,
    pub space: AddressSpace,
    pub regions: Regions,
    pub asynchronous: Notifier,
    pub source: Arc<MemorySource>,
}

impl Context {
    pub fn new(new: NewContext) -> Self {
        let NewContext { adapter, fabric, inbox, uplink, space, regions, asynchronous, source } = new;
        Self {
            adapter,
            fabric,
            inbox,
            uplink,
            space,
            regions,
            copier: None,
            pds: Pds::default(),
            channels: ById::default(),
            cqs: ById::default(),
            srqs: ById::default(),
            ahs: ById::default(),
            asynchronous,
            counters: Counters::default(),
            closed_sessions: Vec::new(),
            source,
            invalidations: 0,
            pending_invalidation: None,
            peers_are_done: false,
            unannounced: 0,
            spoken_to: None,
            answers: SyncAnswers::default(),
            heard: SyncAnswers::default(),
            now: Duration::ZERO,
            has_more: false,
            spare: Vec::new(),
            next_handle: 0,
        }
    }

    /// Returns access to the application's memory by the keys of its regions.
    pub const fn memory(&self) -> MemoryAccess<'_> {
        MemoryAccess { space: &self.space, regions: &self.regions }
    }

    /// Returns a handle that no other object has.
    pub fn handle(&mut self) -> u32 {
        self.next_handle = self.next_handle.wrapping_add(1);
        self.next_handle
    }

    /// Counts a packet of so many bytes that was received without an inbox.
    pub fn count_received(&mut self, bytes: usize) {
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters.add(Counter::ReceivedBytes, bytes as u64);
    }

    /// Counts a packet of so many bytes that was sent without an inbox.
    pub fn count_sent(&mut self, bytes: usize) {
        self.counters.add(Counter::SentPackets, 1);
        self.counters.add(Counter::SentBytes, bytes as u64);
        self.adapter.spend((bytes + BEFORE) as u64);
    }

    /// Counts a frame with this many bytes after its UDP header.
    pub fn sent_frame(&mut self, bytes: usize) {
        self.adapter.spend((bytes + BEFORE) as u64);
        self.unannounced += 1;
        if self.unannounced >= FRAMES {
            self.announce_frames();
        }
    }

    /// Notifies the worker of the frames that were sent.
    pub fn announce_frames(&mut self) {
        if std::mem::take(&mut self.unannounced) > 0 {
            self.uplink.ring();
        }
    }

    pub fn tell(&mut self, event: Event, handle: u32) {
        self.asynchronous.tell(&AsyncEvent { kind: event as u32, handle }.to_bytes());
    }

    /// Adds a completion to a queue, and notifies the queue's channel if the application asked for that. False if the
    /// queue is full.
    pub fn complete(&mut self, cq: CqId, completion: &Completion, solicited: bool) -> bool {
        let Some(queue) = self.cqs.get_mut(&cq).filter(|cq| !cq.overrun) else { return false };
        let pushed = queue.push(*completion, solicited);
        point(Point::Completed);
        match pushed {
            Ok(tells) => {
                if tells {
                    self.tell_channel(cq);
                }
                true
            }
            Err(uverbs::Overrun) => {
                queue.overrun = true;
                self.tell(Event::CqError, cq.0);
                false
            }
        }
    }

    /// Notifies the channel of a completion queue.
    pub fn tell_channel(&mut self, cq: CqId) {
        point(Point::Tells);
        let channel = self.cqs.get(&cq).and_then(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.notifier.tell_once(&cq.0.to_ne_bytes());
        }
    }

    /// Removes a completion queue. Its channel drops waiting notifications of it.
    pub fn remove_cq(&mut self, handle: CqId) -> Option<Cq> {
        let cq = self.cqs.remove(&handle)?;
        if let Some(channel) = cq.channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.notifier.forget(&handle.0.to_ne_bytes());
        }
        Some(cq)
    }

    /// Takes a receive from a shared queue.
    pub fn take_shared(&mut self, handle: SrqId, into: &mut Receive) -> bool {
        let Some(srq) = self.srqs.get_mut(&handle) else { return false };
        into.segments.clear();
        match srq.source.take(&mut into.segments) {
            Ok(taken) => {
                into.id = taken.unwrap_or_default();
                self.tell_of_few(handle);
                taken.is_some()
            }
            Err(Corrupt) => {
                self.srqs.remove(&handle);
                self.tell(Event::SrqError, handle.0);
                false
            }
        }
    }

    /// Raises an event if few receives are left in a shared queue.
    pub fn tell_of_few(&mut self, handle: SrqId) {
        if let Some(srq) = self.srqs.get_mut(&handle)
            && srq.limit > 0
            && srq.source.waiting() < srq.limit
        {
            srq.arm(0);
            self.tell(Event::SrqLimitReached, handle.0);
        }
    }

    /// Sends events for which the application had no room before. Returns whether some still wait.
    pub fn flush_events(&mut self) -> bool {
        let waiting = self.channels.values_mut().filter_map(|it| it.notifier.flush().then_some(())).count();
        self.asynchronous.flush() || waiting > 0
    }

    /// Orphans the application's pages of windows: it, or a peer of it, may go on using them, so nobody else gets
    /// them.
    pub fn leave(&self) {
        self.source.leave();
        self.regions.leave();
    }

    /// Is true if a peer, or the application, still uses what a queue pair shared.
    pub fn is_still_used(&self, qpn: Qpn) -> bool {
        self.closed_sessions.iter().any(|closed| closed.qpn == qpn)
    }

    /// Counts an invalidation of a key that these users may have.
    pub const fn invalidate_for(&mut self, users: KeyUsers) -> Invalidation {
        self.invalidations += 1;
        Invalidation { users, number: self.invalidations }
    }
}
