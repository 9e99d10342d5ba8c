//! Hands a connection to a VMM over to a different process, which goes on with it: the VMM and its guest
//! notice a pause.
//!
//! The other process sets up its back end with the requests that the VMM made here, and with the same checks.
//! So a version that lacks something that the VMM negotiated refuses the session. The VMM's own doings are no
//! reason to refuse: a VMM whose memory is gone has to connect again.

use super::{Backend, VhostError, spec};
use crate::control::lock;
use crate::inflight::Inflight;
use crate::ring::Addresses;
use mem::RegionSpec;
use rustix::fs::fstat;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use vhost::vhost_user::message::{
    VhostUserInflight, VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Result, VhostUserBackendReqHandlerMut};

/// The requests of the VMM so far. The descriptors are, in this order: the connection, those of the regions,
/// that of the log, that of requests in flight, and for each ring those of `kick`, `call` and `err` that it
/// has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// Features that the VMM acknowledged, and those of the protocol.
    pub(crate) features: u64,
    pub(crate) protocol: u64,
    /// The MTU that the VMM announced; zero if none.
    mtu: u16,
    /// The device status; a version without this field has not offered it to the VMM.
    #[serde(default)]
    status: u8,
    regions: Vec<Part>,
    /// The log of written pages; it has no guest-physical address.
    log: Option<Part>,
    /// Memory for requests in flight; absent from a version that does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inflight: Option<Kept>,
    rings: Vec<RingState>,
}

impl Session {
    /// Returns the number of descriptors besides the connection.
    fn descriptors(&self) -> usize {
        let of = |ring: &RingState| {
            let own = [ring.kick == Kick::Descriptor, ring.call, ring.err];
            own.into_iter().filter(|has| *has).count()
        };
        let files =
            self.regions.len() + usize::from(self.log.is_some()) + usize::from(self.inflight.is_some());
        files + self.rings.iter().map(of).sum::<usize>()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    gpa: u64,
    len: u64,
    user: u64,
    offset: u64,
}

/// The form of memory for requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    len: u64,
    offset: u64,
    queues: u16,
    size: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RingState {
    size: u32,
    /// Descriptors, driver area, device area.
    at: Option<[u64; 3]>,
    /// The position, as GET_VRING_BASE gives it.
    base: u32,
    /// The position that the VMM gave.
    told: u32,
    /// Whether the ring ran in this connection: then `base` is its position, and not only what the VMM says.
    ran: bool,
    enabled: bool,
    kick: Kick,
    call: bool,
    err: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kick {
    /// SET_VRING_KICK did not come: the ring is not started.
    None,
    /// The ring is polled.
    Polled,
    Descriptor,
}

impl From<&RegionSpec> for Part {
    fn from(spec: &RegionSpec) -> Self {
        let &RegionSpec { gpa, len, user, offset } = spec;
        Self { gpa, len, user, offset }
    }
}

/// Returns the error for a session that does not fit its descriptors.
fn malformed() -> io::Error {
    io::Error::other("the session of the VMM has other descriptors than it says")
}

impl Backend {
    /// Stops all rings, and describes the session. Also returns the session's descriptors except the
    /// connection, and the rings that ran.
    pub(crate) fn freeze(&mut self) -> io::Result<(Session, Vec<OwnedFd>, Vec<usize>)> {
        let ran: Vec<_> = (0..self.rings.len()).filter(|i| self.rings[*i].running).collect();
        self.stop_all();
        match self.describe() {
            Ok((session, descriptors)) => Ok((session, descriptors, ran)),
            Err(e) => {
                self.thaw(&ran);
                Err(e)
            }
        }
    }

    /// Starts the rings that ran.
    pub(crate) fn thaw(&mut self, ran: &[usize]) {
        for index in ran {
            if let Err(e) = self.start(*index) {
                self.log.warn(format_args!("{e}"));
            }
        }
    }

    fn describe(&self) -> io::Result<(Session, Vec<OwnedFd>)> {
        let kept = self.inflight.as_ref().map(Inflight::source);
        let files = self.files.iter().chain(&self.log_file).map(|(_, file)| file);
        let files = files.chain(kept.map(|(_, file)| file)).map(|file| file.as_fd().try_clone_to_owned());
        let mut descriptors = files.collect::<io::Result<Vec<_>>>()?;
        let mut rings = Vec::new();
        for ring in &self.rings {
            let kick = ring.kick.as_ref().and_then(Option::as_ref).map(AsFd::as_fd);
            let [call, err] = [&ring.call, &ring.err].map(|bell| bell.as_deref().map(AsFd::as_fd));
            let own = [kick, call, err];
            for descriptor in own.into_iter().flatten() {
                descriptors.push(descriptor.try_clone_to_owned()?);
            }
            rings.push(RingState {
                size: ring.size,
                at: ring.at.map(|at| [at.desc, at.driver, at.device]),
                base: ring.base,
                told: ring.told,
                ran: ring.ran,
                enabled: ring.enabled,
                kick: match (&ring.kick, kick) {
                    (None, _) => Kick::None,
                    (Some(_), None) => Kick::Polled,
                    (Some(_), Some(_)) => Kick::Descriptor,
                },
                call: ring.call.is_some(),
                err: ring.err.is_some(),
            });
        }
        use VhostUserProtocolFeatures as P;
        // Offered by a version that may not be the next one's, and never asked for by most VMMs that acknowledge it.
        let is_idle = kept.is_none() && self.rings.iter().any(|ring| ring.ran);
        let idle = if is_idle { P::INFLIGHT_SHMFD } else { P::empty() };
        let session = Session {
            features: self.features.0,
            protocol: (self.protocol - idle).bits(),
            mtu: self.shared.mtu.load(Ordering::Relaxed),
            status: self.status,
            regions: self.files.iter().map(|(spec, _)| spec.into()).collect(),
            log: self.log_file.as_ref().map(|(spec, _)| spec.into()),
            inflight: kept.map(|(form, _)| Kept {
                len: form.mmap_size,
                offset: form.mmap_offset,
                queues: form.num_queues,
                size: form.queue_size,
            }),
            rings,
        };
        Ok((session, descriptors))
    }

    /// Checks that this port has everything that a session with these descriptors needs.
    pub(crate) fn check(&self, session: &Session, descriptors: &[OwnedFd]) -> io::Result<()> {
        if session.rings.len() > self.rings.len() {
            let (theirs, ours) = (session.rings.len() / 2, self.rings.len() / 2);
            let text = format!(
                "its VMM uses {theirs} pairs of queues, and `queues` is {ours} now: \
                 make it {theirs}, or stop the VMM first"
            );
            return Err(io::Error::other(text));
        }
        match session.descriptors() == descriptors.len() {
            true => Ok(()),
            false => Err(malformed()),
        }
    }

    /// Goes on with a session that was checked; the VMM's features must be set already. Fails because of the
    /// VMM's own doings, for instance if its memory is gone.
    pub(crate) fn adopt(&mut self, session: &Session, descriptors: Vec<OwnedFd>) -> Result<()> {
        let mut files = descriptors.into_iter().map(File::from);
        let mut next = || files.next().ok_or_else(|| VhostError::ReqHandlerError(malformed()));
        let region = |part: &Part| VhostUserMemoryRegion::new(part.gpa, part.len, part.user, part.offset);
        let table: Vec<_> = session.regions.iter().map(region).collect();
        let memory = table.iter().map(|_| next()).collect::<Result<Vec<_>>>()?;
        if !table.is_empty() {
            self.set_mem_table(&table, memory, None)?;
        }
        if let Some(Part { len, offset, .. }) = session.log {
            self.set_log_base(&VhostUserLog { mmap_size: len, mmap_offset: offset }, next()?)?;
        }
        if let Some(Kept { len, offset, queues, size }) = session.inflight {
            let form = VhostUserInflight {
                mmap_size: len,
                mmap_offset: offset,
                num_queues: queues,
                queue_size: size,
            };
            self.set_inflight_fd(&form, next()?)?;
        }
        if session.mtu > 0 {
            self.set_mtu(session.mtu.into())?;
        }
        self.status = session.status;
        for (index, ring) in session.rings.iter().enumerate() {
            // At most twice `MAX_QUEUES` of them.
            let number = index as u8;
            let kick = (ring.kick == Kick::Descriptor).then(&mut next).transpose()?;
            let call = ring.call.then(&mut next).transpose()?;
            let err = ring.err.then(&mut next).transpose()?;
            let at = ring.at.map(|[desc, driver, device]| Addresses { desc, driver, device });
            let vring = &mut self.rings[index];
            (vring.size, vring.at, vring.enabled) = (ring.size, at, ring.enabled);
            // A ring that ran goes on from there, whatever is in its journal.
            (vring.base, vring.told, vring.ran) = (ring.base, ring.told, ring.ran);
            self.set_vring_call(number, call)?;
            self.set_vring_err(number, err)?;
            if ring.kick != Kick::None {
                // One that did not run before may not run now either.
                self.set_vring_kick(number, kick).unwrap_or_else(|e| self.log.warn(format_args!("{e}")));
            }
        }
        Ok(())
    }

    /// Keeps the file of a part of the guest's memory, so that a different process can map it.
    pub(super) fn keep_file(&mut self, region: &VhostUserMemoryRegion, file: File) {
        let spec = spec(region);
        self.forget_file(&spec);
        self.files.push((spec, file));
        self.tell_files();
    }

    /// Forgets the file of a part of the guest's memory.
    pub(super) fn forget_file(&mut self, spec: &RegionSpec) {
        self.files.retain(|(old, _)| (old.gpa, old.len, old.user) != (spec.gpa, spec.len, spec.user));
        self.tell_files();
    }

    pub(super) fn forget_files(&mut self) {
        self.files.clear();
        self.tell_files();
    }

    /// Lets the port's owner know which files the memory consists of.
    fn tell_files(&self) {
        let files = self.files.iter().filter_map(|(_, file)| fstat(file).ok());
        *lock(&self.shared.files) = files.map(|stat| (stat.st_dev, stat.st_ino)).collect();
    }

    /// Keeps the file of the log of written pages, so that a different process can map it.
    pub(super) fn keep_log(&mut self, log: &VhostUserLog, file: File) {
        self.log_file =
            Some((RegionSpec { gpa: 0, len: log.mmap_size, user: 0, offset: log.mmap_offset }, file));
    }
}
