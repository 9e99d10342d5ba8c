//! Which queue pairs there are on this host: the way between applications that does not leave it.

use crate::atomics::Turn;
use crate::budget::{Account, Stock};
use crate::client::monotonic;
use crate::counters::Counters;
use crate::crew::{Crew, Crews};
use crate::direct::is_trusting;
use crate::groups::Groups;
use crate::holders::{HolderDescription, Holders};
use crate::inbox::Inbox;
use crate::random;
use crate::registered::Registered;
use crate::shaper::{Rate, Shaper};
use crate::wire::{self, WireErrors};
use packet::Mac;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Queue pair numbers below are special (0, 1) or left alone.
const FIRST_QPN: u32 = 16;

/// Limits of a guest's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of all memory regions.
    pub registered: u64,
    /// Bytes of queues and tables of regions, of those shared with applications and of the daemon's own.
    pub queues: u64,
    /// Applications at a time; the guest's processes.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { qps: 4096, mrs: 65_536, registered: 1 << 40, queues: 512 << 20, connections: 256 }
    }
}

impl Limits {
    /// Completion queues, and completion channels.
    pub(crate) const fn cqs(&self) -> u32 {
        self.qps.saturating_mul(2)
    }

    /// Address handles: a UD queue pair has many peers.
    pub(crate) fn ahs(&self) -> u32 {
        self.qps.saturating_mul(16).max(16 << 10)
    }
}

/// What a guest's device is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The guest's name.
    pub guest: String,
    /// Its network: devices of the same reach each other.
    pub vrf: u32,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Limits.
    pub limits: Limits,
    /// Guests of the same, applications of the same user may share memory.
    pub trust: Option<String>,
    /// What it sends to guests of this host goes through the vRouter too: it is mirrored, or has a rate.
    pub is_watched: bool,
    /// Its rate.
    pub rate: Option<Rate>,
}

impl DeviceSpec {
    /// Its GIDs: the link-local address of its MAC first (RFC 4291, appendix A), then its addresses, IPv4's mapped.
    #[must_use]
    pub fn gids(&self) -> Vec<Ipv6Addr> {
        let mapped = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        };
        std::iter::once(Mac(self.mac).link_local()).chain(self.addresses.iter().map(mapped)).collect()
    }

    /// Addresses of both of the same IP version, if there are.
    fn pair(&self, other: &Self) -> Option<(Ipv6Addr, Ipv6Addr)> {
        let (own, others) = (self.gids(), other.gids());
        let pairs = own.iter().skip(1).flat_map(|a| others.iter().skip(1).map(move |b| (*a, *b)));
        pairs.into_iter().find(|(a, b)| a.to_ipv4_mapped().is_some() == b.to_ipv4_mapped().is_some())
    }

    /// EUI-64 of its MAC.
    #[must_use]
    pub fn guid(&self) -> u64 {
        u128::from(Mac(self.mac).link_local()) as u64
    }
}

const fn is_link_local(gid: Ipv6Addr) -> bool {
    gid.segments()[0] == 0xfe80
}

/// A guest's device, as others see it.
#[derive(Debug)]
pub(crate) struct Adapter {
    spec: RwLock<DeviceSpec>,
    /// Who has which queue pair.
    qps: RwLock<HashMap<u32, Arc<Inbox>>>,
    /// Who is attached to which multicast group.
    pub groups: Groups,
    pub errors: WireErrors,
    /// Memory that applications have registered.
    pub registered: Arc<Registered>,
    /// What applications counted that are gone.
    kept: Mutex<Counters>,
    /// The device is being closed.
    closing: AtomicBool,
    /// What its applications have together.
    pub account: Arc<Account>,
    /// How many threads its applications have.
    pub crew: Crew,
    /// Of atomic operations.
    pub turn: Turn,
    /// Processes that got memory of its applications.
    pub holders: Holders,
    /// The number of its port, once it has one.
    port: OnceLock<u16>,
    shaper: Shaper,
}

impl Adapter {
    pub fn new(spec: DeviceSpec, fabric: &Fabric) -> Self {
        let shaper = Shaper::default();
        shaper.set(spec.rate);
        let account = Arc::new(Account::new(fabric.stock.clone(), spec.limits.queues));
        Self {
            spec: RwLock::new(spec),
            qps: RwLock::default(),
            groups: Groups::default(),
            errors: WireErrors::default(),
            registered: Arc::new(Registered::new(account.clone())),
            kept: Mutex::default(),
            closing: AtomicBool::new(false),
            account,
            crew: Crew::new(fabric.crews.clone()),
            turn: Turn::default(),
            holders: Holders::default(),
            port: OnceLock::new(),
            shaper,
        }
    }

    pub fn spec(&self) -> RwLockReadGuard<'_, DeviceSpec> {
        self.spec.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_spec(&self, spec: DeviceSpec) {
        self.shaper.set(spec.rate);
        self.account.set_queues(spec.limits.queues);
        *self.spec.write().unwrap_or_else(PoisonError::into_inner) = spec;
    }

    fn qps(&self) -> RwLockWriteGuard<'_, HashMap<u32, Arc<Inbox>>> {
        self.qps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has the queue pair of the connection manager.
    pub fn set_manager(&self, owner: &Arc<Inbox>) {
        self.qps().insert(crate::cm::QPN, owner.clone());
    }

    /// A number for a new queue pair, where there may be one more. Numbers are not used again soon: they are random.
    pub fn add_qp(&self, owner: &Arc<Inbox>) -> Option<u32> {
        let limit = self.spec().limits.qps as usize;
        let mut qps = self.qps();
        // One is the connection manager's.
        if qps.len() > limit {
            return None;
        }
        loop {
            let qpn = random::number() >> 8;
            if (FIRST_QPN..0xff_ffff).contains(&qpn) && !qps.contains_key(&qpn) {
                qps.insert(qpn, owner.clone());
                return Some(qpn);
            }
        }
    }

    /// Processes that may have memory of its applications.
    pub fn describe_holders(&self, fabric: &Fabric) -> Vec<HolderDescription> {
        let own = self.spec().clone();
        let trusts =
            |spec: &DeviceSpec, trust: &str| is_trusting(spec) && spec.trust.as_deref() == Some(trust);
        let others: Vec<_> = {
            let all = fabric.by_address.read().unwrap_or_else(PoisonError::into_inner);
            all.iter()
                .filter(|((vrf, _), _)| *vrf == own.vrf)
                .map(|(_, adapter)| adapter.spec().clone())
                .collect()
        };
        self.holders.describe(|guest, trust| {
            trusts(&own, trust) && others.iter().any(|spec| spec.guest == guest && trusts(spec, trust))
        })
    }

    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub fn set_port(&self, port: u16) {
        // A device has one port as long as it is there.
        let _ = self.port.set(port);
    }

    fn port(&self) -> Option<u16> {
        self.port.get().copied()
    }

    /// How many frames of so many bytes may leave now, at most `most`.
    pub fn room(&self, now: Duration, frame: u64, most: usize) -> usize {
        self.shaper.room(now, frame, most)
    }

    /// How long until a frame of so many bytes may leave.
    pub fn wait(&self, now: Duration, frame: u64) -> Duration {
        self.shaper.wait(now, frame)
    }

    /// A frame left.
    pub fn spend(&self, bytes: u64) {
        self.shaper.spend(monotonic, bytes);
    }

    pub fn keep_counters(&self, counters: &Counters) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }

    /// What applications counted that are gone, and what the device itself did.
    pub fn counters(&self) -> Counters {
        let mut counters = *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.errors.count_into(&mut counters);
        counters
    }

    pub fn remove_qp(&self, qpn: u32) {
        self.qps().remove(&qpn);
        self.groups.remove(qpn);
    }

    /// Who has this queue pair.
    pub fn owner(&self, qpn: u32) -> Option<Arc<Inbox>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }
}

/// Whoever knows what becomes of packets.
pub trait Rules: Send + Sync {
    /// Whether a frame that the device with port `from` sends gets to the one with port `to`, and nobody looks on.
    fn lets(&self, from: u16, frame: &[u8], to: u16) -> bool;
}

/// All devices of this host.
pub struct Fabric {
    by_address: RwLock<HashMap<(u32, Ipv6Addr), Arc<Adapter>>>,
    rules: Box<dyn Rules>,
    stock: Arc<Stock>,
    crews: Arc<Crews>,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// A host without devices. They have half of the descriptors and mappings that this process may have.
    #[must_use]
    pub fn new(rules: Box<dyn Rules>) -> Self {
        Self::with_stock(rules, Stock::of_process())
    }

    /// A fabric whose devices have at most so many descriptors and mappings together.
    #[must_use]
    pub fn limited(rules: Box<dyn Rules>, descriptors: u64, mappings: u64) -> Self {
        Self::with_stock(rules, Stock::new(descriptors, mappings))
    }

    fn with_stock(rules: Box<dyn Rules>, stock: Stock) -> Self {
        Self { by_address: RwLock::default(), rules, stock: Arc::new(stock), crews: Arc::default() }
    }

    /// Descriptors and mappings that are set aside for what applications of all devices have.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        let taken = self.stock.taken();
        (taken.descriptors, taken.mappings)
    }

    /// Whether two devices may talk without anybody in between, by these addresses: both ways.
    pub(crate) fn lets(&self, one: (&Adapter, Ipv6Addr), other: (&Adapter, Ipv6Addr)) -> bool {
        self.lets_one_way(one, other) && self.lets_one_way(other, one)
    }

    fn lets_one_way(
        &self,
        (from, source): (&Adapter, Ipv6Addr),
        (to, destination): (&Adapter, Ipv6Addr),
    ) -> bool {
        let (Some(own), Some(others)) = (from.port(), to.port()) else { return false };
        let (sender, receiver) = (from.spec().clone(), to.spec().clone());
        // Where guests use the addresses of their MACs, what is said of their others is meant.
        let pair = if is_link_local(source) || is_link_local(destination) {
            sender.pair(&receiver)
        } else {
            Some((source, destination))
        };
        pair.is_some_and(|pair| self.rules.lets(own, &wire::example(sender.mac, pair), others))
    }

    /// Has the device found by its addresses, and by no others.
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

    /// The device with this address in a network.
    pub(crate) fn find(&self, vrf: u32, gid: Ipv6Addr) -> Option<Arc<Adapter>> {
        self.by_address.read().unwrap_or_else(PoisonError::into_inner).get(&(vrf, gid)).cloned()
    }
}
