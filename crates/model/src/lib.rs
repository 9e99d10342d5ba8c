//! The forwarding model: Viaduct's tables and [`decide()`], the one place where "what happens to this packet" is
//! defined.
//!
//! Owns: the types of every table, the [`Lookup`] trait through which they are read, `decide()` (written to be read:
//! start in `decide.rs`), [`explain()`], the naive [`Tables`] with which tests compare every faster table, and the
//! reference [`rewrite`] of a packet by a [`Decision`].
//!
//! For tests of executors: conformance vectors (`vectors/`, feature `vectors`), written in the language of [`text`],
//! and random tables and packets (feature `generate`).
//!
//! Must not know: I/O, threads, guest memory, how executors optimise it.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod announce;
mod change;
mod decide;
mod decision;
mod drop;
mod explain;
mod flow;
#[cfg(feature = "generate")]
pub mod generate;
mod ids;
mod lookup;
mod mirror;
mod network;
mod nexthop;
pub mod ovs;
pub mod rewrite;
mod routing;
mod rule;
pub mod snat;
mod solicit;
mod tables;
pub mod tcp;
pub mod text;
mod transport;
mod underlay;
#[cfg(feature = "vectors")]
pub mod vectors;
mod view;
mod vif;

pub use announce::{Announcement, Unasked, announce, answer, reflect, report, to_remote};
pub use change::{ApplyError, Change};
pub use decide::{decide, entropy_of};
pub use decision::{
    Asker, Crossing, Crossings, Cut, Decision, Effects, Encap, EthernetRewrite, Flood, Forward, Learn, Nat,
    NeighbourFound, PathMtu, Reply, ReplyKind, Service, Verdict,
};
pub use drop::DropReason;
pub use explain::{Explanation, Names, Numbers, Step, Traced, explain};
pub use flow::{Connection, Endpoint, FlowChange, FlowKey, FlowState, Follow, FragmentKey, Seconds};
pub use ids::{MeterId, NexthopId, RuleId, VifId, Vrf};
pub use lookup::{Lookup, RuleMatch, RuleQuery};
pub use mirror::copy_to;
pub use network::{
    BridgeEntry, BridgeTarget, FloatingAddress, GATEWAY_MAC, Host, L2Gateway, Midstream, NeighbourScope,
    Network, Overlay, RouteEntry, Services, TcpPaths, WireAttachment,
};
pub use nexthop::{Nexthop, Tunnel, weights};
pub use packet::{IcmpError, TunnelKind};
pub use routing::{Destination, ecmp_member};
pub use rule::{Action, Meter, MeterConfig, Modifier, PortRange, Rule, RuleAction};
pub use snat::{Binding, Mapping, OutsidePort, Sharing};
pub use solicit::{Question, Solicitation, solicit};
pub use tables::Tables;
pub use tcp::{Segment, Tcp};
pub use transport::Transport;
pub use underlay::{KernelPath, UnderlayPath, underlay_path, underlay_paths};
pub use view::PacketView;
pub use vif::{Roles, Shape, Vif, VifKind, WireAttributes};
