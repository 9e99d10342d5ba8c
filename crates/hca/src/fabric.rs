//! Which queue pairs there are on this host: the way between applications that does not leave it.

use crate::client::monotonic;
use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::memory::Registered;
use crate::random;
use crate::shaper::{Rate, Shaper};
use crate::wire::{self, WireErrors};
use packet::Mac;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Requests that the send queues of a device have room for together: each may take 1.6 KB of the daemon's memory.
const MAX_SLOTS: u32 = 512 << 10;
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

/// A send queue's share of the requests that a device may have under way.
#[derive(Debug)]
pub(crate) struct Slots {
    count: u32,
    all: Arc<AtomicU32>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.all.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A guest's device, as others see it.
#[derive(Debug)]
pub(crate) struct Adapter {
    spec: RwLock<DeviceSpec>,
    /// Who has which queue pair.
    qps: RwLock<HashMap<u32, Arc<Inbox>>>,
    pub errors: WireErrors,
    /// Memory that applications have registered.
    pub registered: Arc<Registered>,
    /// What applications counted that are gone.
    kept: Mutex<Counters>,
    /// Requests that its send queues have room for together.
    slots: Arc<AtomicU32>,
    /// The number of its port, once it has one.
    port: OnceLock<u16>,
    shaper: Shaper,
}

impl Adapter {
    pub fn new(spec: DeviceSpec) -> Self {
        let shaper = Shaper::default();
        shaper.set(spec.rate);
        Self {
            spec: RwLock::new(spec),
            qps: RwLock::default(),
            errors: WireErrors::default(),
            registered: Arc::default(),
            kept: Mutex::default(),
            slots: Arc::default(),
            port: OnceLock::new(),
            shaper,
        }
    }

    pub fn spec(&self) -> RwLockReadGuard<'_, DeviceSpec> {
        self.spec.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_spec(&self, spec: DeviceSpec) {
        self.shaper.set(spec.rate);
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

    /// Room for requests that are under way: the daemon keeps their lists. `None` where there is not so much.
    pub fn take_slots(&self, requests: u32) -> Option<Slots> {
        let count = requests.max(1).next_power_of_two();
        let taken = Slots { count, all: self.slots.clone() };
        let sum = self.slots.fetch_add(count, Ordering::Relaxed) + count;
        // What is too much is given back with it.
        (sum <= MAX_SLOTS).then_some(taken)
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
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// A host without devices.
    #[must_use]
    pub fn new(rules: Box<dyn Rules>) -> Self {
        Self { by_address: RwLock::default(), rules }
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
