//! Which queue pairs there are on this host: the way between applications that does not leave it.

use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::random;
use crate::wire::WireErrors;
use packet::Mac;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

    /// EUI-64 of its MAC.
    #[must_use]
    pub fn guid(&self) -> u64 {
        u128::from(Mac(self.mac).link_local()) as u64
    }
}

/// A guest's device, as others see it.
#[derive(Debug)]
pub(crate) struct Adapter {
    spec: RwLock<DeviceSpec>,
    /// Who has which queue pair.
    qps: RwLock<HashMap<u32, Arc<Inbox>>>,
    pub errors: WireErrors,
    /// What applications counted that are gone.
    kept: Mutex<Counters>,
}

impl Adapter {
    pub fn new(spec: DeviceSpec) -> Self {
        Self {
            spec: RwLock::new(spec),
            qps: RwLock::default(),
            errors: WireErrors::default(),
            kept: Mutex::default(),
        }
    }

    pub fn spec(&self) -> RwLockReadGuard<'_, DeviceSpec> {
        self.spec.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_spec(&self, spec: DeviceSpec) {
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

/// All devices of this host.
#[derive(Debug, Default)]
pub struct Fabric {
    by_address: RwLock<HashMap<(u32, Ipv6Addr), Arc<Adapter>>>,
}

impl Fabric {
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
