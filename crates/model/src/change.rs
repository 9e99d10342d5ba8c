//! Changes to the tables, from the control plane to an executor.

use crate::{
    BridgeTarget, FloatingAddress, Host, KernelPath, MeterConfig, MeterId, Network, Nexthop, NexthopId, Rule,
    RuleId, Vif, VifId, Vrf,
};
use ipnet::IpNet;
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;

/// One change. A batch is applied as a whole: no packet sees half of it. All that a change refers to must
/// exist once the whole batch is applied; all that it deletes must exist before.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant's fields are the key and the value of its table
pub enum Change {
    SetHost(Host),
    PutVif(Vif),
    DelVif(VifId),
    PutNetwork(Network),
    DelNetwork(Vrf),
    PutNexthop(NexthopId, Nexthop),
    DelNexthop(NexthopId),
    /// Host bits of the prefix are ignored, here and in `DelRoute`.
    PutRoute {
        vrf: Vrf,
        prefix: IpNet,
        nexthop: NexthopId,
    },
    DelRoute {
        vrf: Vrf,
        prefix: IpNet,
    },
    /// A static bridge entry.
    PutMac {
        vrf: Vrf,
        mac: Mac,
        target: BridgeTarget,
    },
    DelMac {
        vrf: Vrf,
        mac: Mac,
    },
    /// The MAC of an address's owner on another host: ARP and ND of guests are answered on its behalf.
    PutOwner {
        vrf: Vrf,
        addr: IpAddr,
        mac: Mac,
    },
    DelOwner {
        vrf: Vrf,
        addr: IpAddr,
    },
    PutMpls {
        label: u32,
        nexthop: NexthopId,
    },
    DelMpls {
        label: u32,
    },
    PutVxlan {
        vni: u32,
        vrf: Vrf,
    },
    DelVxlan {
        vni: u32,
    },
    PutFloating(FloatingAddress),
    DelFloating {
        outside_vrf: Vrf,
        outside: IpAddr,
    },
    PutMeter(MeterId, MeterConfig),
    DelMeter(MeterId),
    PutRule(Rule),
    DelRule {
        vrf: Vrf,
        id: RuleId,
    },
    /// The kernel's paths to a tunnel's remote, by wires that it keeps. Those by other interfaces count for nothing. An
    /// empty list removes the entry.
    PutPaths {
        remote: IpAddr,
        paths: Arc<[KernelPath]>,
    },
    /// Whether a tunnel's remote is known to be out of reach. Such entries need no nexthop that names the remote.
    SetDown {
        remote: IpAddr,
        is_down: bool,
    },
    /// Whether one of several paths to a tunnel's remote is known to be broken: the one by this wire and next hop. Such
    /// entries need no path.
    SetPathDown {
        remote: IpAddr,
        wire: VifId,
        hop: IpAddr,
        is_down: bool,
    },
    /// Whether an address counts as a tunnel's remote while no nexthop names it: BFD watches it for routes that are not
    /// in use.
    SetWatched {
        remote: IpAddr,
        is_watched: bool,
    },
}

/// Why a batch of changes was refused. No part of it was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The executor has a limit.
    #[error("{what}: this executor holds at most {limit}")]
    Limit {
        /// The limited objects, in words.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A change refers to something that does not exist.
    #[error("{0} does not exist")]
    Missing(String),
}
