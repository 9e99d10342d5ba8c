//! What an application has besides queue pairs: completion queues and channels, shared receive queues, address handles.

use crate::adapter::Adapter;
use crate::address_space::AddressSpace;
use crate::ah::Ah;
use crate::counters::Counters;
use crate::cq::{Channel, Cq};
use crate::events::{Event, Notifier};
use crate::fabric::Fabric;
use crate::ids::{CqId, Qpn, SrqId};
use crate::inbox::Inbox;
use crate::keys::KeyUsers;
use crate::pd::Pds;
use crate::question::Question;
use crate::receive_queue::Receive;
use crate::regions::{Reach, Regions};
use crate::sharing::{ClosedBond, Invalidation};
use crate::srq::Srq;
use crate::wire::FRAMES;
use mem::FaultWord;
use rdmaport::Uplink;
use std::collections::HashMap;
use std::sync::Arc;
use uverbs::{AsyncEvent, Completion, Corrupt, Point, point};

/// Bytes of Ethernet, IPv6 and UDP headers.
pub(crate) const BEFORE: usize = 14 + 40 + 8;

/// Everything of an application but its queue pairs.
#[derive(Debug)]
pub(crate) struct Context {
    pub adapter: Arc<Adapter>,
    pub fabric: Arc<Fabric>,
    pub inbox: Arc<Inbox<Question>>,
    pub uplink: Uplink,
    pub space: AddressSpace,
    pub regions: Regions,
    pub pds: Pds,
    pub channels: HashMap<u32, Channel>,
    pub cqs: HashMap<CqId, Cq>,
    pub srqs: HashMap<SrqId, Srq>,
    pub ahs: HashMap<u32, Ah>,
    pub asynchronous: Notifier,
    pub counters: Counters,
    /// What was shared, and somebody may be at work with still.
    pub closed_bonds: Vec<ClosedBond>,
    /// Raised where memory that the application shares with us went away.
    pub fault: Arc<FaultWord>,
    /// How many keys were taken away.
    pub invalidations: u64,
    /// A work request just took one away: peers may be at work with it.
    pub pending_invalidation: Option<Invalidation>,
    /// The queue pair whose turn it is waits for such peers, and nobody is at work any more.
    pub peers_are_done: bool,
    /// Frames sent of which the worker was not told.
    unannounced: u32,
    /// Room for the next packet.
    pub spare: Vec<u8>,
    next_handle: u32,
}

impl Context {
    pub fn new(
        (adapter, fabric): (Arc<Adapter>, Arc<Fabric>),
        inbox: Arc<Inbox<Question>>,
        uplink: Uplink,
        (space, regions): (AddressSpace, Regions),
        asynchronous: Notifier,
        fault: Arc<FaultWord>,
    ) -> Self {
        Self {
            adapter,
            fabric,
            inbox,
            uplink,
            space,
            regions,
            pds: Pds::default(),
            channels: HashMap::new(),
            cqs: HashMap::new(),
            srqs: HashMap::new(),
            ahs: HashMap::new(),
            asynchronous,
            counters: Counters::default(),
            closed_bonds: Vec::new(),
            fault,
            invalidations: 0,
            pending_invalidation: None,
            peers_are_done: false,
            unannounced: 0,
            spare: Vec::new(),
            next_handle: 0,
        }
    }

    /// The application's memory, by its regions' keys.
    pub const fn memory(&self) -> Reach<'_> {
        Reach { space: &self.space, regions: &self.regions }
    }

    /// A number for a new object that no other has.
    pub fn handle(&mut self) -> u32 {
        self.next_handle = self.next_handle.wrapping_add(1);
        self.next_handle
    }

    /// Another frame was sent, with so many bytes behind its UDP header.
    pub fn sent_frame(&mut self, bytes: usize) {
        self.adapter.spend((bytes + BEFORE) as u64);
        self.unannounced += 1;
        if self.unannounced >= FRAMES {
            self.announce_frames();
        }
    }

    /// Has the worker see the frames that were sent.
    pub fn announce_frames(&mut self) {
        if std::mem::take(&mut self.unannounced) > 0 {
            self.uplink.ring();
        }
    }

    pub fn tell(&mut self, event: Event, handle: u32) {
        self.asynchronous.tell(&AsyncEvent { kind: event as u32, handle }.to_bytes());
    }

    /// Puts a completion into a queue, and wakes who waits for it. False where the queue is full.
    pub fn complete(&mut self, cq: CqId, completion: &Completion, solicited: bool) -> bool {
        let Some(queue) = self.cqs.get_mut(&cq).filter(|cq| !cq.overrun) else { return false };
        let pushed = queue.sink.push(completion, solicited);
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

    /// Wakes who waits for completions of a queue.
    pub fn tell_channel(&mut self, cq: CqId) {
        point(Point::Tells);
        let channel = self.cqs.get(&cq).and_then(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.notifier.tell_once(&cq.0.to_ne_bytes());
        }
    }

    /// Removes a completion queue, if it is there, of which nobody is told any more.
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

    /// Says that few receives are left in a shared queue, where that is so.
    pub fn tell_of_few(&mut self, handle: SrqId) {
        if let Some(srq) = self.srqs.get_mut(&handle)
            && srq.limit > 0
            && srq.source.waiting() < srq.limit
        {
            srq.arm(0);
            self.tell(Event::SrqLimitReached, handle.0);
        }
    }

    /// Sends the events that the application had no room for. Returns whether some still wait.
    pub fn flush_events(&mut self) -> bool {
        let waiting = self.channels.values_mut().filter_map(|it| it.notifier.flush().then_some(())).count();
        self.asynchronous.flush() || waiting > 0
    }

    /// Whether somebody is at work with what a queue pair shared.
    pub fn is_still_used(&self, qpn: Qpn) -> bool {
        self.closed_bonds.iter().any(|closed| closed.qpn == qpn)
    }

    /// A key is taken away from these.
    pub const fn invalidate_for(&mut self, users: KeyUsers) -> Invalidation {
        self.invalidations += 1;
        Invalidation { users, number: self.invalidations }
    }
}
