//! The entries of tables with two choices: flows, MACs, IPv6 routes.
use crate::cuckoo::Entry;
use crate::hash::Words;
use crate::registers::{Bridge, Flow4, Flow6, FlowKind, Route6, Table};
use crate::step::{LINE, Line};

/// First line of the IPv6 part of the route memory: its upper half.
pub const ROUTE6: u32 = 1 << 26;

/// Splits a number into its lower and its upper half.
fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEntry {
    /// An IPv4 flow: half a bucket.
    V4(Flow4),
    /// An IPv6 flow: a whole bucket.
    V6(Flow6),
}

impl FlowEntry {
    /// Returns the action for the flow's packets, to be changed.
    pub const fn action_mut(&mut self) -> &mut u8 {
        match self {
            Self::V4(flow) => &mut flow.action,
            Self::V6(flow) => &mut flow.action,
        }
    }
}

/// An IPv6 flow is written in two halves. The card finds it only if both match. Its action is in one of them, so it
/// changes atomically.
impl Entry for FlowEntry {
    const TABLE: Table = Table::Flow;
    const SLOTS: usize = 2;
    const LINES: usize = 2;

    fn ways(_bits: u32) -> [u32; 2] {
        [0, 1 << 31]
    }

    fn key(&self) -> Words {
        let (src, dst, rest) = match self {
            Self::V4(flow) => (
                halves(flow.src.into()),
                halves(flow.dst.into()),
                (
                    flow.sport,
                    flow.dport,
                    flow.protocol,
                    flow.vrf,
                    flow.path,
                    flow.from_tunnel,
                    false,
                    flow.zone,
                ),
            ),
            Self::V6(flow) => (
                halves(flow.src),
                halves(flow.dst),
                (
                    flow.sport,
                    flow.dport,
                    flow.protocol,
                    flow.vrf,
                    flow.path,
                    flow.from_tunnel,
                    true,
                    flow.zone,
                ),
            ),
        };
        let (sport, dport, protocol, vrf, path, from_tunnel, v6, zone) = rest;
        let rest = u64::from(sport)
            | u64::from(dport) << 16
            | u64::from(protocol) << 32
            | u64::from(vrf) << 40
            | u64::from(path) << 52
            | u64::from(from_tunnel) << 54
            | u64::from(v6) << 55
            | u64::from(zone) << 56;
        [src[0], src[1], rest, dst[0], dst[1]]
    }

    fn whole(&self) -> bool {
        matches!(self, Self::V6(_))
    }

    fn encode(bucket: [Option<&Self>; 2], version: u8) -> [Line; 2] {
        let mut lines = [[0; LINE]; 2];
        for (slot, flow) in bucket.into_iter().enumerate() {
            match flow {
                None => {}
                Some(Self::V4(flow)) => {
                    lines[slot] = Flow4 { v6: false, kind: FlowKind::V4 as u8, ..*flow }.encode();
                }
                Some(Self::V6(flow)) => {
                    let whole = Flow6 {
                        v6: true,
                        version,
                        version_high: version,
                        kind: FlowKind::V6Low as u8,
                        kind_high: FlowKind::V6High as u8,
                        ..*flow
                    };
                    let whole = whole.encode();
                    lines[0].copy_from_slice(&whole[..LINE]);
                    lines[1].copy_from_slice(&whole[LINE..]);
                }
            }
        }
        lines
    }
}

impl Entry for Bridge {
    const TABLE: Table = Table::Bridge;
    const SLOTS: usize = 2;
    const LINES: usize = 1;

    fn ways(bits: u32) -> [u32; 2] {
        [0, 1 << bits]
    }

    fn key(&self) -> Words {
        [self.mac | u64::from(self.vrf) << 48, 0, 0, 0, 0]
    }

    fn encode(bucket: [Option<&Self>; 2], _version: u8) -> [Line; 2] {
        let mut line = [0; LINE];
        for (half, entry) in line.chunks_mut(Self::SIZE).zip(bucket) {
            if let Some(entry) = entry {
                half.copy_from_slice(&Self { valid: true, ..*entry }.encode());
            }
        }
        [line, [0; LINE]]
    }
}

impl Entry for Route6 {
    const TABLE: Table = Table::Route;
    const SLOTS: usize = 1;
    const LINES: usize = 1;

    fn ways(_bits: u32) -> [u32; 2] {
        [ROUTE6, ROUTE6 | 1 << 25]
    }

    fn key(&self) -> Words {
        let [low, high] = halves(self.prefix);
        [low, high, u64::from(self.vrf) | u64::from(self.length) << 12, 0, 0]
    }

    fn encode([entry, _]: [Option<&Self>; 2], _version: u8) -> [Line; 2] {
        let line = entry.map_or([0; LINE], |entry| Self { valid: true, ..*entry }.encode());
        [line, [0; LINE]]
    }
}
