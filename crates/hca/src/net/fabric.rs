//! All devices of this host, and which of them reach each other within it.

use crate::base::budget::HostBudget;
use crate::base::spec::DeviceSpec;
use crate::base::threads::HostThreads;
use crate::net::adapter::Adapter;
use crate::program::grants::HolderDescription;
use crate::program::who::Who;
use crate::streams::reception::Reception;
use crate::streams::sockets_service::SocketsService;
use crate::window::Window;
use crate::window::notes::ProgramNote;
use crate::window::program_pages::Programs;
use crate::window::rings::Users;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use uverbs::Uuid;

/// RoCE packets from one device to another, as rules see them. Both addresses are of the same IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceFlow {
    /// MAC of the sending device.
    pub mac: [u8; 6],
    /// The sending device's address.
    pub source: IpAddr,
    /// Address of the receiving device.
    pub destination: IpAddr,
}

/// The rules of the vRouter.
pub trait Rules: Send + Sync {
    /// Is true if packets from the device with port `from` reach the one with port `to`, and nobody watches them.
    fn lets(&self, from: u16, flow: &RoceFlow, to: u16) -> bool;
}

/// A device, and one of its addresses.
#[derive(Clone, Copy)]
pub(crate) struct DeviceAddress<'a> {
    pub adapter: &'a Adapter,
    pub gid: Ipv6Addr,
}

const fn is_link_local(gid: Ipv6Addr) -> bool {
    gid.segments()[0] == 0xfe80
}

/// All devices of this host.
pub struct Fabric {
    by_address: RwLock<HashMap<(u32, Ipv6Addr), Arc<Adapter>>>,
    rules: Box<dyn Rules>,
    host_budget: Arc<HostBudget>,
    threads: Arc<HostThreads>,
    /// Accepts the streams of programs in virtual machines.
    pub(crate) reception: Reception,
    pub(crate) programs: Programs,
    /// Serves sockets of programs in virtual machines.
    pub(crate) sockets: OnceLock<Arc<dyn SocketsService>>,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// Creates a host without devices. Devices may use half of the descriptors and mappings of this process.
    #[must_use]
    pub fn new(rules: Box<dyn Rules>) -> Self {
        Self::with_budget(rules, HostBudget::of_process())
    }

    /// Creates a host whose devices may use this many descriptors and mappings together.
    #[must_use]
    pub fn limited(rules: Box<dyn Rules>, descriptors: u64, mappings: u64) -> Self {
        Self::with_budget(rules, HostBudget::new(descriptors, mappings))
    }

    fn with_budget(rules: Box<dyn Rules>, host_budget: HostBudget) -> Self {
        Self {
            by_address: RwLock::default(),
            rules,
            host_budget: Arc::new(host_budget),
            threads: Arc::default(),
            reception: Reception::default(),
            programs: Programs::default(),
            sockets: OnceLock::new(),
        }
    }

    /// Returns the descriptors and mappings that applications of all devices use now.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        let taken = self.host_budget.taken();
        (taken.descriptors, taken.mappings)
    }

    /// Accepts streams of programs in virtual machines from a listening socket for all of them (`AF_VSOCK`): each names
    /// the window of its device.
    ///
    /// # Errors
    /// If the thread that does it can't be started.
    pub fn listen_streams(&self, listener: OwnedFd) -> std::io::Result<()> {
        self.reception.listen(listener, None)
    }

    /// Passes on programs in virtual machines whose agents offer their sockets. Only the first service counts.
    pub fn serve_sockets(&self, service: Arc<dyn SocketsService>) {
        let _ = self.sockets.set(service);
    }

    /// Has programs wait at the sockets of all devices, until [`Self::accept`]: another process may accept them
    /// there.
    pub fn hold(&self) {
        self.reception.hold(true);
    }

    /// Accepts programs, within some tenths of a second.
    pub fn accept(&self) {
        self.reception.hold(false);
    }

    /// Creates a device. Others find it by its addresses after [`Self::place`].
    pub(crate) fn adapter(&self, spec: DeviceSpec) -> Arc<Adapter> {
        Arc::new(Adapter::new(spec, &self.host_budget, &self.threads))
    }

    /// Describes the processes that may have memory of a device's applications.
    pub(crate) fn describe_holders(&self, adapter: &Adapter) -> Vec<HolderDescription> {
        let own = adapter.spec().clone();
        let others: Vec<_> = {
            let all = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
            let its = all.iter().filter(|((vrf, _), _)| *vrf == own.vrf);
            its.map(|(_, adapter)| adapter.spec().clone()).collect()
        };
        adapter.grants.describe(|guest, trust| {
            own.trusts(trust) && others.iter().any(|spec| spec.guest == guest && spec.trusts(trust))
        })
    }

    /// Is true if two devices with these addresses may exchange packets, in both directions, without the vRouter.
    pub(crate) fn lets(&self, one: DeviceAddress<'_>, other: DeviceAddress<'_>) -> bool {
        self.lets_one_way(one, other) && self.lets_one_way(other, one)
    }

    fn lets_one_way(&self, from: DeviceAddress<'_>, to: DeviceAddress<'_>) -> bool {
        let DeviceAddress { adapter: from, gid: source } = from;
        let DeviceAddress { adapter: to, gid: destination } = to;
        let (Some(own), Some(others)) = (from.port(), to.port()) else { return false };
        let (sender, receiver) = (from.spec().clone(), to.spec().clone());
        // Rules know guests by their configured addresses, not by the link-local addresses derived from their MACs.
        let pair = if is_link_local(source) || is_link_local(destination) {
            sender.pair(&receiver)
        } else {
            Some((source, destination))
        };
        pair.is_some_and(|(source, destination)| {
            let (source, destination) =
                (IpAddr::V6(source).to_canonical(), IpAddr::V6(destination).to_canonical());
            self.rules.lets(own, &RoceFlow { mac: sender.mac, source, destination }, others)
        })
    }

    /// Makes others find the device by its current addresses, and no longer by older ones.
    pub(crate) fn place(&self, adapter: &Arc<Adapter>) {
        let (vrf, gids) = {
            let spec = adapter.spec();
            (spec.vrf, spec.gids())
        };
        let mut all = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, other| !Arc::ptr_eq(other, adapter));
        all.extend(gids.into_iter().map(|gid| ((vrf, gid), adapter.clone())));
    }

    pub(crate) fn remove(&self, adapter: &Arc<Adapter>) {
        let mut all = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, other| !Arc::ptr_eq(other, adapter));
    }

    /// Finds the device with this address in a VRF.
    pub(crate) fn find(&self, vrf: u32, gid: Ipv6Addr) -> Option<Arc<Adapter>> {
        self.by_address.read().unwrap_or_else(PoisonError::into_inner).get(&(vrf, gid)).cloned()
    }
}

impl Users for Fabric {
    fn note(&self, window: &Arc<Window>, guest: &str, user: u32, pid: i32) -> Option<ProgramNote> {
        let all = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let adapter = all.values().find(|adapter| adapter.spec().guest == guest)?;
        let has_window = adapter.common_window().is_some_and(|its| Arc::ptr_eq(&its, window));
        let may_have = has_window && adapter.is_for(user) && !adapter.is_closing();
        may_have.then(|| Who::Local { pid, uid: user }.note(guest, Uuid::default(), 0))
    }
}
