//! Packets from a guest: [`mem::RxQueue`] over a driver's transmit ring.

use crate::announcement::Frame;
use crate::aside::Inlet;
use crate::features::Features;
use crate::frames::Frames;
use crate::queue::{Held, Queue, Running, Shared};
use crate::ring::{Access, Chain, Fault, Memory, Virtqueue, dispatch};
use arrayvec::ArrayVec;
use mem::vnet::{self, DataValid};
use mem::{BURST, Burst, Offload, RxQueue, Segment, cycles, gather, prefetch};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Shortest frame: an Ethernet header.
const MIN_FRAME: usize = 14;
/// Longest frame: a TCP segment of 64 KiB under its headers.
pub(crate) const MAX_FRAME: usize = 65536 + 128;
/// How often the thread for memory is asked whether there are packets, while the worker polls: ticks of the cycle
/// counter.
const ASKED: u64 = 1 << 18;

/// Takes packets from the ring at `index` of a port.
pub(crate) struct Direct {
    shared: Arc<Shared>,
    index: usize,
    /// Chains of the current burst, oldest first. While there are any, the lease is ours.
    taken: ArrayVec<Chain, BURST>,
    /// The frame that we send in the guest's name.
    own: Box<Frame>,
}

impl Direct {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self { shared, index, taken: ArrayVec::new(), own: Box::new([0; _]) }
    }

    /// Puts an announcement into an empty burst, if there is one to send. Returns the number of packets in
    /// the burst then. Separate from the loops over packets, so as not to slow them down.
    #[inline(never)]
    fn announce(&mut self, burst: &mut Burst) -> usize {
        let Some(frame) = self.shared.announcement.take() else { return 0 };
        *self.own = frame;
        // SAFETY: it stays where it is, and as it is, while the burst is out: `poll` is what writes it.
        let segment = unsafe { Segment::new(self.own.as_mut_ptr(), self.own.len() as u32) };
        usize::from(burst.push_one(segment, Offload::default()))
    }

    fn queue(&self) -> &Queue {
        &self.shared.queues[self.index]
    }

    /// Returns all taken chains to the driver.
    fn give_back(running: &mut Running, taken: &mut ArrayVec<Chain, BURST>) {
        let notify = dispatch!(&mut running.ring, ring => {
            for chain in taken.drain(..) {
                ring.complete(chain, 0);
            }
            let notify = ring.publish();
            ring.read_ahead();
            notify
        });
        running.memory.written(&running.areas);
        if notify {
            running.notify();
        }
    }
}

impl Direct {
    #[inline]
    pub(crate) fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        debug_assert!(self.taken.is_empty() && burst.is_empty(), "a burst is still out");
        if !self.taken.is_empty() || !self.shared.healthy() {
            return 0;
        }
        let Ok(mut held) = self.shared.queues[self.index].try_lease() else { return 0 };
        if !dispatch!(&held.ring, ring => ring.pending()) {
            drop(held);
            return self.announce(burst);
        }
        let Running { ring, memory, segments, features, .. } = &mut *held;
        let taken = &mut self.taken;
        let collected =
            dispatch!(ring, r => collect(r, memory, segments, *features, byte_budget, taken, burst));
        let malformed = match collected {
            Ok(malformed) => malformed,
            Err(fault) => {
                self.shared.fail(&held, fault);
                taken.clear();
                burst.clear();
                return 0;
            }
        };
        held.count_malformed(malformed);
        if !held.enabled {
            // Packets of a disabled queue are processed and discarded (vhost-user, "Ring states").
            burst.clear();
        }
        if burst.is_empty() {
            if !taken.is_empty() {
                Self::give_back(&mut held, taken);
            }
            drop(held);
            return self.announce(burst);
        }
        std::mem::forget(held);
        burst.len()
    }

    #[inline]
    pub(crate) fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        if self.taken.is_empty() {
            return;
        }
        // SAFETY: `poll` took the lease and forgot it, since there are taken chains.
        let mut held: Held<'_> = unsafe { self.shared.queues[self.index].resume() };
        Self::give_back(&mut held, &mut self.taken);
    }

    /// Requests events; returns whether packets wait already, and whether events come.
    pub(crate) fn want_kicks(&self) -> (bool, bool) {
        if !self.shared.healthy() {
            return (false, true);
        }
        let Ok(mut held) = self.queue().lease() else { return (false, true) };
        held.want_kicks(true);
        (dispatch!(&held.ring, ring => ring.pending()), held.kicked)
    }

    /// Returns whether events come, as far as that is known without waiting.
    fn is_kicked(&self) -> bool {
        self.queue().try_lease().map_or(true, |held| held.kicked)
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.release(&mut Burst::default());
    }
}

/// The queue at `index` of a port.
pub(crate) struct GuestRx {
    direct: Direct,
    /// The source of packets while the worker should not touch the ring.
    inlet: Arc<Inlet>,
    /// Whether they do; the frames of the burst then, and when it was asked for more.
    is_aside: bool,
    frames: Frames,
    asked: u64,
}

impl GuestRx {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Self> {
        let inlet = Inlet::new(shared.clone(), index)?;
        let direct = Direct::new(shared, index);
        Ok(Self { direct, inlet, is_aside: false, frames: Frames::default(), asked: 0 })
    }

    #[cold]
    fn poll_aside(&mut self, burst: &mut Burst) -> usize {
        let pages = &self.direct.shared.pages;
        let is_thread = pages.is_aside();
        if !is_thread {
            self.inlet.look();
        }
        let is_any = self.inlet.exchange(&mut self.frames);
        self.frames.for_each(|segment, offload| {
            burst.push_one(segment, *offload);
        });
        let now = cycles::now();
        if is_thread {
            if is_any || now.saturating_sub(self.asked) > ASKED {
                self.asked = now;
                self.inlet.ask();
            }
        } else if !is_any && pages.is_calm() && self.inlet.leave() {
            self.is_aside = false;
            self.frames = Frames::default();
        }
        burst.len()
    }
}

impl RxQueue for GuestRx {
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize {
        if self.is_aside {
            return self.poll_aside(burst);
        }
        self.direct.poll(burst, byte_budget)
    }

    fn release(&mut self, burst: &mut Burst) {
        self.direct.release(burst);
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.direct.queue().event_fd()
    }

    fn arm(&mut self) -> bool {
        // Before the attempt: if the control thread has the lease, it reads this later and wakes us.
        self.direct.queue().armed.store(true, Ordering::SeqCst);
        match self.is_aside {
            false => {
                let (waits, is_kicked) = self.direct.want_kicks();
                waits || !is_kicked
            }
            true if self.direct.shared.pages.is_aside() => {
                self.inlet.ask();
                self.inlet.holds() || !self.direct.is_kicked()
            }
            true => self.inlet.arm() || self.inlet.holds() || !self.direct.is_kicked(),
        }
    }

    fn disarm(&mut self) {
        let queue = self.direct.queue();
        queue.armed.store(false, Ordering::SeqCst);
        queue.drain_events();
        if !self.is_aside
            && let Ok(mut held) = queue.lease()
        {
            held.want_kicks(false);
        }
    }

    fn suspect(&mut self) {
        self.direct.shared.pages.suspect();
        self.is_aside = true;
    }
}

/// Takes chains and makes packets of them; returns how many were refused.
fn collect<R: Virtqueue>(
    ring: &mut R,
    memory: &mut Memory,
    segments: &mut Vec<Segment>,
    features: Features,
    byte_budget: usize,
    taken: &mut ArrayVec<Chain, BURST>,
    burst: &mut Burst,
) -> Result<u64, Fault> {
    segments.clear();
    memory.work.grant_poll();
    if ring.known() < BURST {
        ring.look()?;
    }
    // First pass: resolves descriptors to segments and prefetches the headers. It begins with the chains of one
    // buffer, which are the majority, up to one that differs.
    let mut bytes = 0;
    ring.take_singles(Access::Read, memory, BURST, |chain, buffer| {
        prefetch(buffer.as_ptr());
        // Drivers often put the virtio-net header at the end of the line before the frame's.
        prefetch(buffer.as_ptr().wrapping_add(features.header_len()));
        bytes += buffer.len();
        segments.push(buffer);
        taken.push(chain);
        bytes < byte_budget
    });
    let singles = segments.len();
    if singles > 0 {
        memory.work.good();
    }
    let mut ends: ArrayVec<(usize, usize), BURST> = ArrayVec::new();
    if !taken.is_full() {
        take_chains(ring, memory, segments, byte_budget.max(1).saturating_sub(bytes), taken, &mut ends)?;
    }
    ring.expect_used(taken.len());
    // Second pass: headers.
    let mut malformed = 0;
    for buffer in &segments[..singles] {
        let frame = single_frame(buffer, features);
        let pushed = frame.is_some_and(|(segment, offload)| burst.push_one(segment, offload));
        malformed += u64::from(!pushed);
    }
    let mut first = singles;
    for (chain, &(end, len)) in taken[singles..].iter().zip(&ends) {
        let frame = if chain.ok { frame(&mut segments[first..end], len, features) } else { None };
        let pushed = frame.is_some_and(|(segments, len, offload)| burst.push(segments, len, offload));
        malformed += u64::from(!pushed);
        first = end;
    }
    Ok(malformed)
}

/// Takes chains of any form, for up to `byte_budget` bytes. Returns for each where its segments end, and its length.
/// Separate from the loop over chains of one buffer, so as not to slow it down.
#[inline(never)]
fn take_chains<R: Virtqueue>(
    ring: &mut R,
    memory: &mut Memory,
    segments: &mut Vec<Segment>,
    byte_budget: usize,
    taken: &mut ArrayVec<Chain, BURST>,
    ends: &mut ArrayVec<(usize, usize), BURST>,
) -> Result<(), Fault> {
    let mut bytes = 0;
    while !taken.is_full() && bytes < byte_budget && Running::has_room(segments) && !memory.work.is_used_up()
    {
        let first = segments.len();
        let Some(chain) = ring.take(Access::Read, memory, segments)? else { break };
        match segments.get(first) {
            Some(head) => {
                prefetch(head.as_ptr());
                memory.work.good();
            }
            None => memory.work.malformed()?,
        }
        let len = segments[first..].iter().map(Segment::len).sum();
        bytes += len;
        taken.push(chain);
        ends.push((segments.len(), len));
    }
    Ok(())
}

/// Returns the frame in a chain of one buffer, as [`frame`] does.
#[inline(always)]
fn single_frame(buffer: &Segment, features: Features) -> Option<(Segment, Offload)> {
    let header_len = features.header_len();
    let len = buffer.len().checked_sub(header_len).filter(|len| (MIN_FRAME..=MAX_FRAME).contains(len))?;
    let header = buffer.load(0)?;
    let offload = vnet::parse(&header, len, features.finished_for_driver(), DataValid::Ignore).ok()?;
    Some((buffer.slice(header_len, len), offload))
}

/// Returns the frame in a chain of `len` bytes, after its header. `None` if the header or the length is
/// invalid.
#[inline(always)]
fn frame(chain: &mut [Segment], len: usize, features: Features) -> Option<(&[Segment], u32, Offload)> {
    let header_len = features.header_len();
    let frame_len = len.checked_sub(header_len).filter(|len| (MIN_FRAME..=MAX_FRAME).contains(len))? as u32;
    // Without num_buffers, which means nothing here (5.1.6.2.1).
    let mut header = [0; vnet::VNET_HEADER_SHORT];
    gather(chain, 0, &mut header);
    let offload =
        vnet::parse(&header, frame_len as usize, features.finished_for_driver(), DataValid::Ignore).ok()?;
    Some((skip(chain, header_len), frame_len, offload))
}

/// Returns `segments` without their first `bytes` bytes.
#[inline(always)]
pub(crate) fn skip(segments: &mut [Segment], bytes: usize) -> &mut [Segment] {
    match segments.first_mut() {
        Some(first) if bytes < first.len() => {
            *first = first.slice(bytes, first.len() - bytes);
            segments
        }
        _ => skip_many(segments, bytes),
    }
}

#[cold]
fn skip_many(segments: &mut [Segment], mut bytes: usize) -> &mut [Segment] {
    let mut first = 0;
    while bytes > 0 && first < segments.len() {
        let len = segments[first].len();
        if bytes < len {
            segments[first] = segments[first].slice(bytes, len - bytes);
            break;
        }
        bytes -= len;
        first += 1;
    }
    &mut segments[first..]
}
