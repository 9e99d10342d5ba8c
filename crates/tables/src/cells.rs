//! Generation cells: they tell a memoised decision that a table entry on which it depends has changed.
//!
//! A cell stands for a table entry, or for all entries that hash to it, and holds the epoch of its last change. A
//! decision records the cells of everything it looked up, hit or miss ([`Deps`]), and is stamped with the epoch of the
//! snapshot from which it was made. It holds as long as none of its cells has changed since.
use crate::sync::{AtomicU64, Ordering};
use ipnet::IpNet;
use model::ovs::FlowId;
use model::{NeighbourScope, NexthopId, Seconds, VifId, Vrf};
use packet::Mac;
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;

/// Kinds of cells, each with its range of the array: first cell, and number of cells, a power of two. The first kinds
/// have one cell each.
macro_rules! kinds {
    ($($name:ident: $first:expr, $count:expr;)*) => {$(
        const $name: (u16, u16) = ($first, $count);
        const _: () = assert!(u16::is_power_of_two($count) && $first < COUNT && $count <= COUNT - $first);
    )*};
}

const COUNT: u16 = 35840;
kinds! {
    REMOTE: 256, 256;
    NETWORK: 512, 512;
    RULES: 1024, 512;
    SHORT: 1536, 512;
    ROUTE: 2048, 4096;
    BRIDGE: 6144, 2048;
    NEXTHOP: 8192, 2048;
    VIF: 10240, 1024;
    ADDRESS: 11264, 1024;
    NEIGHBOUR: 12288, 1024;
    FLOATING: 13312, 512;
    INSIDE: 13824, 512;
    MPLS: 14336, 1024;
    VXLAN: 15360, 1024;
    OVS_FLOW: 16384, 16384;
    OVS_MISSES: 32768, 1024;
    ROUTE_TO_HOST: 33792, 2048;
}

/// Ranges of cells for routes, the finest first, each with the number of prefix bits that select a cell, for both
/// families. A prefix that is too short for all of them has the cell of its VRF. The decisions for two hosts are one
/// action only if the cells are the same, so the finest range is small.
const ROUTES: [((u16, u16), u8, u8); 2] = [(ROUTE_TO_HOST, 32, 128), (ROUTE, 16, 48)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell(u16);

/// Mixes two numbers, well enough to spread keys over cells. A collision only costs a needless second
/// look-up.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    (product >> 64) as u64 ^ product as u64
}

fn mix_addr(vrf: u64, addr: IpAddr) -> u64 {
    let bits = match addr {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    };
    mix(mix(vrf, (bits >> 64) as u64), bits as u64)
}

impl Cell {
    fn of((first, count): (u16, u16), hash: u64) -> Self {
        Self(first + (hash as u16 & (count - 1)))
    }

    pub const fn host() -> Self {
        Self(0)
    }

    pub const fn wires() -> Self {
        Self(1)
    }

    pub fn vif(id: VifId) -> Self {
        Self::of(VIF, id.0.into())
    }

    pub fn network(vrf: Vrf) -> Self {
        Self::of(NETWORK, vrf.0.into())
    }

    pub fn rules(vrf: Vrf) -> Self {
        Self::of(RULES, vrf.0.into())
    }

    pub fn nexthop(id: NexthopId) -> Self {
        Self::of(NEXTHOP, id.0.into())
    }

    pub fn remote(addr: IpAddr) -> Self {
        Self::of(REMOTE, mix_addr(0, addr))
    }

    pub fn mpls(label: u32) -> Self {
        Self::of(MPLS, label.into())
    }

    pub fn vxlan(vni: u32) -> Self {
        Self::of(VXLAN, vni.into())
    }

    pub fn address(vrf: Vrf, addr: IpAddr) -> Self {
        Self::of(ADDRESS, mix_addr(vrf.0.into(), addr))
    }

    pub fn bridge(vrf: Vrf, mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self::of(BRIDGE, mix(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), vrf.0.into()))
    }

    pub fn neighbour(scope: NeighbourScope, addr: IpAddr) -> Self {
        let scope = match scope {
            NeighbourScope::Wire(v) => u64::from(v.0) << 1,
            NeighbourScope::Network(v) => u64::from(v.0) << 1 | 1,
        };
        Self::of(NEIGHBOUR, mix_addr(scope, addr))
    }

    pub fn floating(inside_vrf: Vrf, inside: IpAddr) -> Self {
        Self::of(FLOATING, mix_addr(inside_vrf.0.into(), inside))
    }

    pub fn inside(outside_vrf: Vrf, outside: IpAddr) -> Self {
        Self::of(INSIDE, mix_addr(outside_vrf.0.into(), outside))
    }

    /// Returns the cell of a flow of Open vSwitch. It changes when the flow is removed, and only then: a
    /// packet that matches a flow goes on matching it, whatever flows are added after it.
    pub fn ovs_flow(id: FlowId) -> Self {
        FlowCell::of(id).cell()
    }

    /// Returns the cells of all flows of Open vSwitch.
    pub fn all_ovs_flows() -> impl Iterator<Item = Self> {
        (0..OVS_FLOW.1).map(|at| Self(OVS_FLOW.0 + at))
    }

    /// Returns the cell for packets that match none of a port's flows.
    pub fn ovs_misses(port: VifId) -> Self {
        Self::of(OVS_MISSES, port.0.into())
    }

    /// Returns the cells on which a route look-up depends: one for each number of first bits of the address, and that
    /// of short prefixes.
    pub fn routes(vrf: Vrf, addr: IpAddr) -> [Self; ROUTES.len() + 1] {
        std::array::from_fn(|at| match ROUTES.get(at) {
            Some(&(range, v4, v6)) => Self::of(range, first_bits(vrf, addr, v4, v6)),
            None => Self::of(SHORT, vrf.0.into()),
        })
    }

    /// Returns the cell that a change of this route bumps.
    pub fn prefix(vrf: Vrf, prefix: &IpNet) -> Self {
        let is_long = |(_, v4, v6)| match prefix {
            IpNet::V4(p) => p.prefix_len() >= v4,
            IpNet::V6(p) => p.prefix_len() >= v6,
        };
        let at = ROUTES.into_iter().position(is_long).unwrap_or(ROUTES.len());
        Self::routes(vrf, prefix.network())[at]
    }
}

/// Mixes a VRF and the first bits of an address: `v4` or `v6` of them.
fn first_bits(vrf: Vrf, addr: IpAddr, v4: u8, v6: u8) -> u64 {
    match addr {
        IpAddr::V4(a) => mix(u64::from(a.to_bits()) >> (32 - v4) | 1 << 32, vrf.0.into()),
        IpAddr::V6(a) => {
            let bits = a.to_bits() >> (128 - v6);
            mix(mix(vrf.0.into(), (bits >> 64) as u64), bits as u64)
        }
    }
}

/// The cell of a flow of Open vSwitch. The decisions of many flows depend on the same cells except for this
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCell(u16);

impl FlowCell {
    pub const BITS: u32 = OVS_FLOW.1.trailing_zeros();

    pub(crate) const fn of(id: FlowId) -> Self {
        Self::from_bits(id.0 as u16)
    }

    /// Returns the cell with the number in the lowest [`Self::BITS`] of these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & (OVS_FLOW.1 - 1))
    }

    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn cell(self) -> Cell {
        Cell(OVS_FLOW.0 + self.0)
    }
}

pub(crate) struct Touched(Box<[u64]>);

impl Touched {
    pub fn none() -> Self {
        Self(vec![0; usize::from(COUNT) / 64].into())
    }

    pub fn add(&mut self, cell: Cell) {
        self.0[usize::from(cell.0 / 64)] |= 1 << (cell.0 % 64);
    }

    #[cfg(test)]
    pub fn has(&self, cell: Cell) -> bool {
        self.0[usize::from(cell.0 / 64)] >> (cell.0 % 64) & 1 != 0
    }

    pub fn add_all(&mut self, cells: impl Iterator<Item = Cell>) {
        cells.for_each(|cell| self.add(cell));
    }
}

/// The array of all cells: 280 KiB.
pub(crate) struct Cells(Box<[AtomicU64]>);

impl Cells {
    pub fn new() -> Self {
        Self((0..COUNT).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks cells as changed at `epoch`. Must come before the snapshot of that epoch is published:
    /// publishing orders it.
    pub fn bump(&self, touched: &Touched, epoch: u64) {
        for (word, &bits) in touched.0.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                self.0[word * 64 + left.trailing_zeros() as usize].store(epoch, Ordering::Release);
                left &= left - 1;
            }
        }
    }

    pub fn bump_one(&self, cell: Cell, epoch: u64) {
        self.0[usize::from(cell.0)].store(epoch, Ordering::Release);
    }

    /// Returns whether this cell has not changed since `epoch`.
    pub fn is_unchanged(&self, Cell(cell): Cell, epoch: u64) -> bool {
        self.0[usize::from(cell)].load(Ordering::Acquire) <= epoch
    }

    /// Returns whether none of `deps` has changed since `epoch`.
    #[inline]
    pub fn unchanged(&self, deps: &Deps, epoch: u64) -> bool {
        deps.cells().is_some_and(|cells| {
            cells.iter().all(|&cell| self.0[usize::from(cell)].load(Ordering::Acquire) <= epoch)
        })
    }
}

/// When a memoised decision last sent packets to the neighbours of a cell.
pub(crate) struct Uses(Box<[AtomicU32]>);

impl Uses {
    pub fn new() -> Self {
        Self((0..NEIGHBOUR.1).map(|_| AtomicU32::new(0)).collect())
    }

    /// Records that a decision with these dependencies sent packets.
    pub fn note(&self, deps: &Deps, now: Seconds) {
        for &cell in deps.cells().unwrap_or_default() {
            if let Some(used) = cell.checked_sub(NEIGHBOUR.0).and_then(|at| self.0.get(usize::from(at))) {
                used.store(now, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    /// Returns when packets were last sent to this neighbour or to a different one of its cell; 0 if never.
    pub fn last(&self, scope: NeighbourScope, addr: IpAddr) -> Seconds {
        let Cell(cell) = Cell::neighbour(scope, addr);
        self.0[usize::from(cell - NEIGHBOUR.0)].load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The cells on which a decision depends: a cache line. A decision that depends on more is not memoised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deps {
    cells: [u16; Self::CAPACITY],
    len: u16,
}

impl Deps {
    const CAPACITY: usize = 31;
    const OVERFLOW: u16 = u16::MAX;

    /// Creates dependencies on nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { cells: [0; Self::CAPACITY], len: 0 }
    }

    /// Returns these dependencies with this flow of Open vSwitch added.
    #[must_use]
    pub fn and(mut self, flow: FlowCell) -> Self {
        self.add(flow.cell());
        self
    }

    #[must_use]
    pub const fn cacheable(&self) -> bool {
        self.len != Self::OVERFLOW
    }

    fn cells(&self) -> Option<&[u16]> {
        self.cells.get(..usize::from(self.len))
    }

    pub(crate) fn add(&mut self, Cell(cell): Cell) {
        let Some(cells) = self.cells() else { return };
        if cells.contains(&cell) {
            return;
        }
        match self.cells.get_mut(usize::from(self.len)) {
            Some(free) => {
                *free = cell;
                self.len += 1;
            }
            None => self.len = Self::OVERFLOW,
        }
    }
}
