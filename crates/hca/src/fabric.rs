//! All devices of this host, and which of them reach each other without leaving it.

use crate::adapter::Adapter;
use crate::budget::Stock;
use crate::crew::Crews;
use crate::holders::HolderDescription;
use crate::spec::DeviceSpec;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, PoisonError, RwLock};

/// RoCE packets from one device to another, by what rules see of all of them. Both addresses are of the same IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceFlow {
    /// MAC of the device that sends.
    pub mac: [u8; 6],
    /// Its address.
    pub source: IpAddr,
    /// Address of the device that receives.
    pub destination: IpAddr,
}

/// The rules of the vRouter.
pub trait Rules: Send + Sync {
    /// Whether packets that the device with port `from` sends reach the one with port `to`, and nobody watches them.
    fn lets(&self, from: u16, flow: &RoceFlow, to: u16) -> bool;
}

const fn is_link_local(gid: Ipv6Addr) -> bool {
    gid.segments()[0] == 0xfe80
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

    /// A new device. It is found by its addresses once it is placed ([`Self::place`]).
    pub(crate) fn adapter(&self, spec: DeviceSpec) -> Arc<Adapter> {
        Arc::new(Adapter::new(spec, &self.stock, &self.crews))
    }

    /// Processes that may have memory of a device's applications.
    pub(crate) fn describe_holders(&self, adapter: &Adapter) -> Vec<HolderDescription> {
        let own = adapter.spec().clone();
        let others: Vec<_> = {
            let all = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
            let its = all.iter().filter(|((vrf, _), _)| *vrf == own.vrf);
            its.map(|(_, adapter)| adapter.spec().clone()).collect()
        };
        adapter.holders.describe(|guest, trust| {
            own.trusts(trust) && others.iter().any(|spec| spec.guest == guest && spec.trusts(trust))
        })
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
        pair.is_some_and(|(source, destination)| {
            let (source, destination) =
                (IpAddr::V6(source).to_canonical(), IpAddr::V6(destination).to_canonical());
            self.rules.lets(own, &RoceFlow { mac: sender.mac, source, destination }, others)
        })
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
