//! Guests whose programs may move TCP connections to memory in common.

use config::{GuestKind, Index};
use model::{VifId, Vrf};
use packet::Mac;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Directory of the sockets by which programs offer connections, in the run-dir.
pub const SOCKETS_DIR: &str = "sockets";

/// A guest with `sockets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketsSpec {
    pub guest: String,
    /// Path of the socket; `None`: it is a virtual machine, whose agent comes by the verbs device.
    pub socket: Option<PathBuf>,
    pub vif: VifId,
    pub vrf: Vrf,
    pub mac: Option<Mac>,
    pub addresses: Vec<IpAddr>,
    /// Guests of the same trust may share memory.
    pub trust: Option<String>,
    /// Whether all of its packets must pass the workers: it has a rate, shapers or a mirror.
    pub is_watched: bool,
}

/// Returns the guests with `sockets`. `vif` knows the numbers of interfaces.
pub(crate) fn wanted(index: &Index, run_dir: &Path, vif: impl Fn(&str) -> Option<VifId>) -> Vec<SocketsSpec> {
    let guests = index.guests().values().filter(|guest| guest.sockets);
    let spec = |guest: &config::Guest| {
        Some(SocketsSpec {
            guest: guest.name.clone(),
            socket: (guest.kind() == GuestKind::Tap).then(|| run_dir.join(SOCKETS_DIR).join(&guest.name)),
            vif: vif(&guest.name)?,
            vrf: Vrf(index.networks().get(&guest.network)?.vrf),
            mac: guest.mac,
            addresses: guest.addresses.clone(),
            trust: guest.rdma_trust.clone(),
            is_watched: guest.rate.is_some() || guest.shape.is_some() || guest.mirror.is_some(),
        })
    };
    let mut all: Vec<_> = guests.filter_map(spec).collect();
    all.sort_by(|a, b| a.guest.cmp(&b.guest));
    all
}
