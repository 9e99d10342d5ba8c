//! The effects of each request of the VMM.

use super::{Backend, Refused, Vring, spec};
use crate::features::Features;
use crate::inflight::{self, Inflight};
use crate::ring::{Addresses, Journal};
use mem::{DirtyLog, FaultWord, MAX_REGIONS, Regions};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error as VhostError, GpuBackend, Result, VhostUserBackendReqHandlerMut};

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
        let bell = self.bell(index, fd)?;
        self.ring(index.into())?.call = bell;
        self.refresh(index.into());
        // Chains used while there was no call descriptor are announced now; a needless interrupt does no harm.
        if let Some(call) = &self.rings[usize::from(index)].call {
            mem::signal(call.as_fd());
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let bell = self.bell(index, fd)?;
        self.ring(index.into())?.err = bell;
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
        self.paused(|this| {
            // QEMU before 8.2 sends each region once for every queue pair: a repeated region replaces itself.
            if Arc::make_mut(&mut this.regions).remove(&spec) {
                this.forget_file(&spec);
            }
            let mapped = this.map(region, &file)?;
            Arc::make_mut(&mut this.regions).insert(mapped)?;
            this.keep_file(region, file);
            Ok::<_, Refused>(())
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
        let kept = Inflight::map(form, self.rings.len(), file, (&self.shared.fault, &self.shared.quota))
            .map_err(Refused::from)?;
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
        let dirty =
            DirtyLog::map(log.mmap_size, log.mmap_offset, &file, &self.shared.fault, &self.shared.quota);
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

/// Accepts a notification descriptor from the VMM. Only eventfds are accepted, because polling any other file
/// may have any effect. The VMM still holds the open file, so it is never read or written, only polled and
/// signalled ([`mem::signal`]).
pub(super) fn eventfd(index: usize, file: File) -> std::result::Result<OwnedFd, Refused> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if !link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]") {
        return Err(Refused::NotEventfd(index));
    }
    Ok(file.into())
}
