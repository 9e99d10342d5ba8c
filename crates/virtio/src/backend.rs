//! The vhost-user back end of one connection: from the VMM's messages to running rings.
//!
//! It lives on the port's control thread and is dropped with the connection. Before a change to a ring or to the
//! guest's memory, it closes the leases of the affected rings, so no worker ever uses what changes.

mod in_use;
mod session;

pub(crate) use session::Session;

use crate::control::Watch;
use crate::features::Features;
use crate::inflight::{self, Inflight, InflightError};
use crate::journals::Journals;
use crate::log::Log;
use crate::queue::{Running, Shared};
use crate::ring::{
    Addresses, Identity, Journal, Layout, LayoutError, Memory, Packed, Ring, Split, Virtqueue, dispatch,
};
use mem::{DirtyLog, FaultWord, MAX_REGIONS, Region, RegionError, RegionSpec, Regions};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::debug;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error as VhostError, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// Smallest MTU an IPv4 link may have (RFC 791).
const MIN_MTU: u64 = 68;

/// Why a request from the VMM was refused.
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
    /// Memory for rings to go on can't be used.
    #[error("memory for requests in flight refused: {0}")]
    Inflight(#[from] InflightError),
    /// A ring can't be used.
    #[error("ring {index}: {source}")]
    Ring { index: usize, source: LayoutError },
    /// A descriptor that is not an eventfd could block a worker.
    #[error("ring {0}: the notification descriptor is not an eventfd")]
    NotEventfd(usize),
    /// No MTU.
    #[error("VMM announced an MTU of {0}")]
    Mtu(u64),
    /// A request that was not negotiated.
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
    /// The `base` that the VMM gave; the other one is ours after a stop.
    told: u32,
    /// Whether it ran in this connection, so that `base` is where it is.
    ran: bool,
    /// The journal of a packed ring that is stopped.
    journal: Option<Journal>,
    /// Whether the VMM asked for the position of the stopped ring: it knows it once it has the answer.
    asked: bool,
    /// Outer: whether SET_VRING_KICK came, which starts the ring. Inner: `None` if the ring is polled instead.
    kick: Option<Option<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    err: Option<Arc<OwnedFd>>,
    enabled: bool,
    running: bool,
}

/// The state of one connection.
pub(crate) struct Backend {
    log: Arc<Log>,
    shared: Arc<Shared>,
    journals: Option<Arc<Journals>>,
    watch: Option<Watch>,
    /// Whether who watches was told that the guest's memory may be written.
    is_in_use: bool,
    offered: Features,
    max_mtu: u16,
    features: Features,
    protocol: VhostUserProtocolFeatures,
    /// The device status as the VMM last said it (VIRTIO 1.2, 2.1).
    status: u8,
    regions: Arc<Regions>,
    /// Where pages written are marked, if features say that they are.
    dirty: Option<DirtyLog>,
    /// The files of `regions`, and that of `dirty`, for a process that goes on here.
    files: Vec<(RegionSpec, File)>,
    log_file: Option<(RegionSpec, File)>,
    /// Where the VMM keeps what packed rings need to go on.
    inflight: Option<Inflight>,
    rings: Vec<Vring>,
}

impl Backend {
    /// A connection just made.
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

    /// Where messages about this guest are logged.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Whether replies to requests without a reply of their own were negotiated.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK)
    }

    /// GET_STATUS.
    pub(crate) const fn status(&self) -> u8 {
        self.status
    }

    /// SET_STATUS. What the driver is to do yet is known from the rings; zero stops them. They keep their positions:
    /// before version 8.0, QEMU asks for these afterwards, when it saves or migrates a VM.
    pub(crate) fn set_status(&mut self, status: u8) {
        self.status = status;
        if status == 0 {
            self.stop_all();
            self.rings.iter_mut().for_each(|ring| ring.kick = None);
        }
    }

    /// NET_SET_MTU. The VMM decides; if the network carries less, that is worth a warning.
    pub(crate) fn set_mtu(&mut self, mtu: u64) -> std::result::Result<(), Refused> {
        let valid = u16::try_from(mtu).ok().filter(|_| mtu >= MIN_MTU).ok_or(Refused::Mtu(mtu))?;
        if valid > self.max_mtu {
            let max = self.max_mtu;
            self.log.warn(format_args!("VMM announces an MTU of {mtu}, larger than the network's {max}"));
        }
        self.shared.mtu.store(valid, Ordering::Relaxed);
        Ok(())
    }

    /// SEND_RARP. The guest arrived here by migration, and its driver does not announce it; `mac` is its MAC, with the
    /// first byte lowest.
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
        let mut running = Running::new(form, memory, layout.written(packed, event_idx), features);
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

    /// A request was answered. What a VMM was told of a ring that it stopped is all that counts from then on.
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

    fn map(&self, region: &VhostUserMemoryRegion, file: &File) -> std::result::Result<Region, Refused> {
        let spec = spec(region);
        let region = Region::map(&spec, file, &self.shared.fault)?;
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

/// The journal of a ring, which outlives this process if it can.
fn journal(ring: &Vring, index: usize, journals: Option<&Arc<Journals>>, log: &Log) -> Journal {
    // As the layout was resolved.
    let size = ring.size as u16;
    let lasting = journals.map(|journals| journals.of(log.guest(), index, size)).transpose();
    let lasting = lasting.unwrap_or_else(|e| {
        log.warn(format_args!("ring {index}: the guest's interface will hang when the daemon restarts: {e}"));
        None
    });
    lasting.unwrap_or_else(|| Journal::mortal(size))
}

/// A packed ring that starts where it stopped, or where the VMM says, or where a daemon was that died.
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

/// A notification descriptor from the VMM. Only eventfds are accepted, because polling any other file may have any
/// effect. The VMM still holds the open file, so it is never read or written, only polled and signalled
/// ([`mem::signal`]).
fn eventfd(index: usize, file: File) -> std::result::Result<OwnedFd, Refused> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if !link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]") {
        return Err(Refused::NotEventfd(index));
    }
    Ok(file.into())
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated; the specification recommends disabling all rings.
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        for ring in &mut self.rings {
            ring.journal.iter().for_each(Journal::end);
            *ring = Vring { call: ring.call.take(), err: ring.err.take(), ran: ring.ran, ..Vring::default() };
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered.0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if !self.offered.has(Features(features)) {
            return Err(Refused::Features(features & !self.offered.0).into());
        }
        let features = Features(features);
        self.paused(|this| {
            if !features.has(Features::LOG_ALL) && this.features.has(Features::LOG_ALL) {
                (this.dirty, this.log_file) = (None, None);
            }
            this.features = features;
            // Without protocol features there is no SET_VRING_ENABLE, and rings start enabled.
            if !features.has(Features::PROTOCOL_FEATURES) {
                this.rings.iter_mut().for_each(|r| r.enabled = true);
            }
            this.shared.features.store(features.0, Ordering::Relaxed);
            Ok::<_, Refused>(())
        })
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.paused(|this| {
            // Memory that disappeared is removed with the old table.
            this.regions = Arc::default();
            this.forget_files();
            if this.shared.fault.get() == Some(FaultWord::BUS) {
                this.shared.fault.clear();
            }
            let mut regions = Regions::default();
            for (region, file) in table.iter().zip(&files) {
                regions.insert(this.map(region, file)?)?;
            }
            this.regions = Arc::new(regions);
            table.iter().zip(files).for_each(|(region, file)| this.keep_file(region, file));
            Ok::<_, Refused>(())
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index)?.size = num;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        // Whether this ring is logged, and its used ring's guest-physical address: features say the one, and the other
        // follows from where the ring is.
        _: VhostUserVringAddrFlags,
        desc: u64,
        device: u64,
        driver: u64,
        _: u64,
    ) -> Result<()> {
        let ring = self.ring(index)?;
        let (at, index) = (Some(Addresses { desc, driver, device }), index as usize);
        if ring.at == at && ring.running {
            return Ok(());
        }
        ring.at = at;
        if ring.running {
            self.stop(index);
        }
        Ok(self.start(index)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let ring = self.ring(index)?;
        (ring.base, ring.told) = (base, base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        self.stop(index as usize);
        self.tell_use();
        let ring = self.ring(index)?;
        (ring.kick, ring.asked) = (None, true);
        Ok(VhostUserVringState::new(index, ring.base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let (at, index) = (self.ring(index.into())?.running, usize::from(index));
        if at {
            self.stop(index);
        }
        self.rings[index].kick = None;
        self.rings[index].kick = Some(fd.map(|f| eventfd(index, f)).transpose()?);
        Ok(self.start(index)?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(index.into())?.call = fd.map(|f| eventfd(index.into(), f)).transpose()?.map(Arc::new);
        self.refresh(index.into());
        // Chains used while there was no call descriptor are announced now; a needless interrupt does no harm.
        if let Some(call) = &self.rings[usize::from(index)].call {
            mem::signal(call.as_fd());
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(index.into())?.err = fd.map(|f| eventfd(index.into(), f)).transpose()?.map(Arc::new);
        self.refresh(index.into());
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as P;
        let network = P::MQ | P::RARP | P::MTU;
        let log = if self.offered.has(Features::LOG_ALL) { P::LOG_SHMFD } else { P::empty() };
        let memory = log | P::CONFIGURE_MEM_SLOTS;
        Ok(network | memory | P::REPLY_ACK | P::RESET_DEVICE | P::STATUS | P::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let offered = self.get_protocol_features()?;
        self.protocol = offered & VhostUserProtocolFeatures::from_bits_truncate(features);
        match features & !offered.bits() {
            0 => Ok(()),
            others => Err(Refused::ProtocolFeatures(others).into()),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // The number of queue pairs, for a network device.
        Ok(self.rings.len() as u64 / 2)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        self.refresh(index as usize);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let spec = spec(region);
        let mapped = self.map(region, &file)?;
        self.paused(|this| {
            let regions = Arc::make_mut(&mut this.regions);
            // QEMU before 8.2 sends each region once for every queue pair: a repeated region replaces itself.
            regions.remove(&spec);
            regions.insert(mapped)?;
            this.keep_file(region, file);
            Ok::<_, RegionError>(())
        })?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let spec = spec(region);
        self.paused(|this| {
            // A missing region was removed for another queue pair.
            Arc::make_mut(&mut this.regions).remove(&spec);
            this.forget_file(&spec);
            Ok::<_, Refused>(())
        })
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        inflight::create(asked, self.rings.len()).map_err(|e| {
            self.log.warn(format_args!("memory for requests in flight: {e}"));
            // As in `set_log_base`.
            VhostError::InvalidParam
        })
    }

    fn set_inflight_fd(&mut self, form: &VhostUserInflight, file: File) -> Result<()> {
        let kept = Inflight::map(form, self.rings.len(), file, &self.shared.fault).map_err(Refused::from)?;
        self.paused(|this| {
            this.inflight = Some(kept);
            Ok::<_, Refused>(())
        })
    }

    // Requests of other devices, or of protocol features that are not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Refused::Unsupported.into())
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Refused::Unsupported.into())
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Refused::Unsupported.into())
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Refused::Unsupported.into())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Refused::Unsupported.into())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Refused::Unsupported.into())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Refused::Unsupported.into())
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let dirty = DirtyLog::map(log.mmap_size, log.mmap_offset, &file, &self.shared.fault);
        // The VMM waits for an answer that has no room for a refusal: the end of the connection is one.
        let dirty = dirty.map_err(|e| {
            self.log.warn(format_args!("log of pages written refused: {e}"));
            VhostError::InvalidParam
        })?;
        self.paused(|this| {
            this.dirty = Some(dirty);
            this.keep_log(log, file);
            Ok::<_, Refused>(())
        })?;
        self.tell_use();
        Ok(())
    }
}
