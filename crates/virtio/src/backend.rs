//! The vhost-user back end of one connection: from the VMM's messages to running rings.
//!
//! It lives on the port's control thread and is dropped with the connection. Before a change to a ring or to the
//! guest's memory, it closes the leases of the affected rings, so no worker ever uses what changes.

mod blank;
mod in_use;
mod requests;
mod session;

pub(crate) use session::Session;

use crate::control::{Lack, Watch};
use crate::features::Features;
use crate::inflight::{Inflight, InflightError};
use crate::journals::Journals;
use crate::log::Log;
use crate::queue::{Running, Shared};
use crate::ring::{
    Addresses, Identity, Journal, Layout, LayoutError, Memory, Packed, Ring, Split, Virtqueue, dispatch,
};
use mem::{Bell, DirtyLog, FaultWord, Region, RegionError, RegionSpec, Regions};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::debug;
use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserProtocolFeatures};
use vhost::vhost_user::{Error as VhostError, Result};

/// Smallest MTU an IPv4 link may have (RFC 791).
const MIN_MTU: u64 = 68;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Features that were not offered.
    #[error("VMM acknowledged features {0:#x}, which were not offered")]
    Features(u64),
    /// Features of the protocol that were not offered.
    #[error("VMM acknowledged features {0:#x} of the protocol, which were not offered")]
    ProtocolFeatures(u64),
    /// Guest memory can't be used.
    #[error("guest memory refused: {0}")]
    Memory(#[from] RegionError),
    /// The memory for rings to go on can't be used.
    #[error("memory for requests in flight refused: {0}")]
    Inflight(#[from] InflightError),
    /// A ring can't be used.
    #[error("ring {index}: {source}")]
    Ring { index: usize, source: LayoutError },
    /// A descriptor that is not an eventfd could block a worker.
    #[error("ring {0}: the notification descriptor is not an eventfd")]
    NotEventfd(usize),
    /// The number is no MTU.
    #[error("VMM announced an MTU of {0}")]
    Mtu(u64),
    /// The request was not negotiated.
    #[error("request is not supported")]
    Unsupported,
}

impl From<Refused> for VhostError {
    fn from(e: Refused) -> Self {
        Self::ReqHandlerError(std::io::Error::other(e))
    }
}

/// One ring, as the VMM describes it.
#[derive(Default)]
struct Vring {
    size: u32,
    at: Option<Addresses>,
    base: u32,
    /// The `base` that the VMM gave; after a stop, `base` itself comes from us.
    told: u32,
    /// Whether the ring ran in this connection, so that `base` is its position.
    ran: bool,
    /// The journal of a packed ring that is stopped.
    journal: Option<Journal>,
    /// Whether the VMM asked for the position of the stopped ring: it knows the position once it has the
    /// answer.
    asked: bool,
    /// Outer: whether SET_VRING_KICK came, which starts the ring. Inner: `None` if the ring is polled instead.
    kick: Option<Option<OwnedFd>>,
    call: Option<Arc<Bell>>,
    err: Option<Arc<Bell>>,
    enabled: bool,
    running: bool,
}

/// The state of one connection.
pub(crate) struct Backend {
    log: Arc<Log>,
    shared: Arc<Shared>,
    journals: Option<Arc<Journals>>,
    watch: Option<Watch>,
    /// Whether the watcher was told that the guest's memory may be written.
    is_in_use: bool,
    offered: Features,
    max_mtu: u16,
    features: Features,
    protocol: VhostUserProtocolFeatures,
    /// The device status that the VMM set last (VIRTIO 1.2, 2.1).
    status: u8,
    regions: Arc<Regions>,
    /// The log in which written pages are marked, if features say that they are.
    dirty: Option<DirtyLog>,
    /// The files of `regions`, and that of `dirty`, for a process that goes on with this connection.
    files: Vec<(RegionSpec, File)>,
    log_file: Option<(RegionSpec, File)>,
    /// Memory in which the VMM keeps what packed rings need to go on.
    inflight: Option<Inflight>,
    rings: Vec<Vring>,
}

impl Backend {
    /// Creates the state of a new connection.
    pub(crate) fn new(
        log: Arc<Log>,
        shared: Arc<Shared>,
        (journals, watch): (Option<Arc<Journals>>, Option<Watch>),
        offered: Features,
        max_mtu: u16,
    ) -> Self {
        shared.fault.clear();
        let rings = shared.queues.iter().map(|_| Vring::default()).collect();
        let protocol = VhostUserProtocolFeatures::empty();
        let features = Features::default();
        Self {
            log,
            shared,
            journals,
            watch,
            is_in_use: false,
            offered,
            max_mtu,
            features,
            protocol,
            status: 0,
            regions: Arc::default(),
            dirty: None,
            files: Vec::new(),
            log_file: None,
            inflight: None,
            rings,
        }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns whether replies to requests that have no reply of their own were negotiated.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK)
    }

    /// Returns what is missing of the guest's memory, if its driver is to run: VMMs that enable rings tell
    /// that it is.
    pub(crate) fn lack(&self) -> Option<Lack> {
        let enables = self.features.has(Features::PROTOCOL_FEATURES);
        if enables && self.files.is_empty() && self.rings.iter().any(|ring| ring.enabled) {
            return Some(Lack::File);
        }
        self.is_blank().then_some(Lack::Contents)
    }

    /// Answers GET_STATUS.
    pub(crate) const fn status(&self) -> u8 {
        self.status
    }

    /// Handles SET_STATUS. Zero stops the rings; other progress of the driver is known from the rings
    /// themselves. They keep their positions: before version 8.0, QEMU asks for these afterwards, when it
    /// saves or migrates a VM.
    pub(crate) fn set_status(&mut self, status: u8) {
        self.status = status;
        if status == 0 {
            self.stop_all();
            self.rings.iter_mut().for_each(|ring| ring.kick = None);
        }
    }

    /// Handles NET_SET_MTU. The VMM decides; if the network carries less, that is worth a warning.
    pub(crate) fn set_mtu(&mut self, mtu: u64) -> std::result::Result<(), Refused> {
        let valid = u16::try_from(mtu).ok().filter(|_| mtu >= MIN_MTU).ok_or(Refused::Mtu(mtu))?;
        if valid > self.max_mtu {
            let max = self.max_mtu;
            self.log.warn(format_args!("VMM announces an MTU of {mtu}, larger than the network's {max}"));
        }
        self.shared.mtu.store(valid, Ordering::Relaxed);
        Ok(())
    }

    /// Handles SEND_RARP. The guest arrived here by migration, and its driver does not announce it; `mac` is
    /// its MAC, with the first byte lowest.
    pub(crate) fn announce(&self, mac: u64) {
        let [mac @ .., _, _] = mac.to_le_bytes();
        self.shared.announcement.ask(mac);
        // A port has at least one pair of queues.
        if let Some(queue) = self.shared.queues.get(1) {
            queue.wake();
        }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Vring> {
        self.rings.get_mut(index as usize).ok_or(VhostError::InvalidParam)
    }

    /// Starts the ring if everything it needs is set.
    fn start(&mut self, index: usize) -> std::result::Result<(), Refused> {
        let first = self.rings.iter().all(|r| !r.running);
        let (ring, features) = (&mut self.rings[index], self.features);
        let (Some(at), Some(kick)) = (&ring.at, &ring.kick) else { return Ok(()) };
        if ring.running || ring.size == 0 {
            return Ok(());
        }
        let (packed, event_idx) = (features.has(Features::RING_PACKED), features.has(Features::EVENT_IDX));
        let dirty = self.dirty.clone().filter(|_| features.has(Features::LOG_ALL));
        // SAFETY: the memory goes into `Running`, which drops it together with the ring, after the last burst.
        let memory =
            unsafe { Memory::new(self.regions.clone(), features.has(Features::INDIRECT_DESC), dirty) };
        let Some(memory) = memory else { return Ok(()) };
        let layout = Layout::resolve(&self.regions, at, ring.size, packed, event_idx)
            .map_err(|source| Refused::Ring { index, source })?;
        // SAFETY: the layout was checked for this form of ring, in regions that `memory` keeps mapped.
        let form = unsafe {
            if packed {
                let kept = ring.journal.take().filter(|journal| journal.is_for(ring.size as u16));
                let mut journal =
                    kept.unwrap_or_else(|| journal(ring, index, self.journals.as_ref(), &self.log));
                journal.forget_copy();
                self.inflight.iter().for_each(|kept| kept.keep(index, ring.size as u16, &mut journal));
                Ring::Packed(begin(ring, layout, features, journal))
            } else {
                Ring::Split(Split::new(layout, event_idx, ring.base))
            }
        };
        // All rings were stopped and are now started again: the driver was reset. Memory that disappeared is still
        // missing.
        if first && self.shared.fault.get() != Some(FaultWord::BUS) {
            self.shared.fault.clear();
        }
        let queue = &self.shared.queues[index];
        if let Some(kick) = kick
            && let Err(e) = queue.watch(kick.as_fd())
        {
            self.log.warn(format_args!("ring {index}: can't watch the kick descriptor: {e}"));
        }
        let areas = layout.written(packed, event_idx);
        memory.written(&areas);
        let mut running = Running::new(form, memory, areas, features);
        (running.enabled, running.kicked) = (ring.enabled, kick.is_some());
        (running.call, running.err) = (ring.call.clone(), ring.err.clone());
        *queue.close().running() = Some(running);
        (ring.running, ring.ran) = (true, true);
        debug!(guest = self.log.guest(), ring = index, packed, size = ring.size, "ring started");
        self.count_pairs();
        Ok(())
    }

    /// Stops the ring; its position is then in `base`.
    fn stop(&mut self, index: usize) {
        let (ring, queue) = (&mut self.rings[index], &self.shared.queues[index]);
        if let Some(mut running) = queue.close().running().take() {
            // Everything taken has been published: a burst ends before its lease is returned.
            ring.base = dispatch!(&mut running.ring, r => r.base());
            if let Ring::Packed(packed) = running.ring {
                ring.journal = Some(packed.into_journal());
            }
        }
        if let Some(Some(kick)) = &ring.kick {
            queue.unwatch(kick.as_fd());
        }
        ring.running = false;
        self.count_pairs();
    }

    fn stop_all(&mut self) {
        (0..self.rings.len()).for_each(|i| self.stop(i));
    }

    /// Notes that a request was answered. Once a VMM knows the position of a ring that it stopped, only this
    /// position counts, and no longer the journal.
    pub(crate) fn answered(&mut self) {
        for ring in self.rings.iter_mut().filter(|ring| ring.asked) {
            ring.asked = false;
            ring.journal.iter().for_each(Journal::end);
        }
    }

    /// Makes a change while no ring runs, then resumes those that ran, even if the change was refused.
    fn paused<E>(&mut self, change: impl FnOnce(&mut Self) -> std::result::Result<(), E>) -> Result<()>
    where
        Refused: From<E>,
    {
        let ran: Vec<usize> = (0..self.rings.len()).filter(|i| self.rings[*i].running).collect();
        ran.iter().for_each(|i| self.stop(*i));
        let changed = change(self).map_err(Refused::from);
        let resumed = ran.into_iter().try_for_each(|i| self.start(i));
        Ok(changed.and(resumed)?)
    }

    fn count_pairs(&self) {
        let up = |r: &Vring| r.running && r.enabled;
        let pairs = self.rings.chunks_exact(2).filter(|pair| pair.iter().all(up)).count();
        self.shared.pairs.store(pairs as u16, Ordering::Relaxed);
    }

    /// Applies changed descriptors or a changed enabled state to the ring, if it runs.
    fn refresh(&mut self, index: usize) {
        let ring = &self.rings[index];
        if let Some(running) = self.shared.queues[index].close().running() {
            running.enabled = ring.enabled;
            (running.call, running.err) = (ring.call.clone(), ring.err.clone());
        }
        self.count_pairs();
    }

    /// Accepts a descriptor by which the driver is told of something.
    fn bell(&self, index: u8, file: Option<File>) -> Result<Option<Arc<Bell>>> {
        let fd = file.map(|file| requests::eventfd(index.into(), file)).transpose()?;
        let bell = fd.map(|fd| Bell::new(fd, self.shared.account.clone())).transpose();
        bell.map_err(VhostError::ReqHandlerError)
    }

    fn map(&self, region: &VhostUserMemoryRegion, file: &File) -> std::result::Result<Region, Refused> {
        let spec = spec(region);
        let region = Region::map(&spec, file, &self.shared.fault, &self.shared.quota)?;
        if region.shrinkable() {
            debug!(guest = self.log.guest(), gpa = spec.gpa, "memory is not sealed against shrinking");
        }
        Ok(region)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop_all();
        self.tell_end();
        self.forget_files();
        self.shared.features.store(0, Ordering::Relaxed);
        self.shared.mtu.store(0, Ordering::Relaxed);
    }
}

/// Returns the journal of a ring, which outlives this process if it can.
fn journal(ring: &Vring, index: usize, journals: Option<&Arc<Journals>>, log: &Log) -> Journal {
    // The layout was resolved with this size.
    let size = ring.size as u16;
    let lasting = journals.map(|journals| journals.of(log.guest(), index, size)).transpose();
    let lasting = lasting.unwrap_or_else(|e| {
        log.warn(format_args!("ring {index}: the guest's interface will hang when the daemon restarts: {e}"));
        None
    });
    lasting.unwrap_or_else(|| Journal::mortal(size))
}

/// Begins a packed ring where it stopped, or where the VMM says, or where a daemon was that died.
///
/// # Safety
/// As [`Packed::new`], with the journal of this ring.
unsafe fn begin(ring: &Vring, layout: Layout, features: Features, journal: Journal) -> Packed {
    let (event_idx, in_order) = (features.has(Features::EVENT_IDX), features.has(Features::IN_ORDER));
    // SAFETY: the caller's promise.
    let mut packed = unsafe { Packed::new(layout, event_idx, in_order, ring.base, journal) };
    if let Some(at) = ring.at {
        let identity = Identity { at, size: ring.size as u16, base: ring.told as u16 };
        let published = packed.begin(&identity, !ring.ran);
        if let Some(call) = ring.call.as_ref().filter(|_| published) {
            mem::signal(call.as_fd());
        }
    }
    packed
}

fn spec(region: &VhostUserMemoryRegion) -> RegionSpec {
    RegionSpec {
        gpa: region.guest_phys_addr,
        len: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    }
}
