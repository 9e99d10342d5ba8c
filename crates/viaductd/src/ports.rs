//! Opens ports of every kind and gives them to the executor.

use crate::bgp::Bgp;
use crate::forwarder::Forwarder;
use crate::inherit::Inheritance;
use crate::machines::Machines;
use crate::matchmaking::Matchmaker;
use crate::privileges::Privileges;
use crate::remotes::Remotes;
use crate::serving;
use crate::underlay::Follower;
use crate::verbs::{EngineRules, Verbs, Windows};
use api::v1;
use control::{
    Device, PortError, PortSpec, Ports, RdmaStatus, RemoteStatus, SocketsSpec, Speech, TunnelTraffic,
    Underlay,
};
use ipnet::IpNet;
use mem::{HostQuota, Opened};
use model::VifId;
use ovs::OvsPort;
use packet::Mac;
use rustix::net::SocketType;
use services::Services;
use sockets::{Place, Sockets};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use virtio::Journals;

/// A tunnel as a port. The tables hold it, and its packets come and go by wires. Its link is always up.
struct TunnelPort;

impl mem::Port for TunnelPort {
    fn status(&self) -> mem::PortStatus {
        mem::PortStatus { up: true, ..mem::PortStatus::default() }
    }
}

pub struct ExecutorPorts {
    forwarder: Forwarder,
    verbs: Arc<Verbs>,
    ovs: Arc<ovs::Service>,
    pub matchmaker: Arc<Matchmaker>,
    services: Arc<Services>,
    underlay: Follower,
    bgp: Arc<Bgp>,
    remotes: Arc<Remotes>,
    privileges: Privileges,
    journals: Option<Arc<Journals>>,
    inherited: Option<Inheritance>,
    /// Limits of guests' memory.
    memory: Arc<HostQuota>,
}

impl ExecutorPorts {
    /// Makes ports for this executor. They are opened with `privileges`, and with the descriptors in
    /// `inherited` that the old daemon shares. Packed rings of guests use `journals`, `windows` exist
    /// already, `ovs` serves drivers of Open vSwitch, `bgp` speaks with peers, and `remotes` watches those of tunnels.
    pub fn new(
        forwarder: Forwarder,
        (ovs, bgp, remotes): (Arc<ovs::Service>, Arc<Bgp>, Arc<Remotes>),
        privileges: Privileges,
        journals: Option<Arc<Journals>>,
        inherited: Option<Inheritance>,
        (windows, machines): (Windows, Arc<Machines>),
        host: &config::Host,
    ) -> Self {
        let rules = Box::new(EngineRules(Arc::downgrade(forwarder.engine())));
        let late = inherited.as_ref().map_or_else(|| privileges.clone(), |from| from.late(&privileges));
        let verbs = Arc::new(Verbs::new(rules, late, windows, machines));
        if inherited.is_some() {
            verbs.hold();
        }
        let matchmaker = Arc::new(Matchmaker::start(&forwarder));
        verbs.serve_sockets(&matchmaker);
        let services = serving::start(&forwarder, &privileges);
        let opener = privileges.opener.clone();
        let underlay = Follower::new(&forwarder.executor(), remotes.clone(), opener, inherited.is_none());
        Self {
            forwarder,
            matchmaker,
            underlay,
            services,
            bgp,
            remotes,
            verbs,
            ovs,
            privileges,
            journals,
            inherited,
            memory: memory_limits(host),
        }
    }

    /// Accepts programs on verbs devices, and claims wires, because this daemon has the host now.
    pub fn succeed(&self) {
        self.verbs.accept();
        self.underlay.succeed();
        self.remotes.succeed();
    }
}

/// Returns the limits of guests' memory: files of memory may be longer than the memory that they take.
fn memory_limits(host: &config::Host) -> Arc<HostQuota> {
    let machine = rustix::system::sysinfo();
    let all = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
    let bytes = |mb: Option<u32>, default| mb.map_or(default, |mb| u64::from(mb) << 20);
    let (guest, guests) =
        (bytes(host.guest_memory_mb, all), bytes(host.guests_memory_mb, all.saturating_mul(8)));
    Arc::new(HostQuota::new(guest, guests))
}

/// Opens the journals of packed rings in this run-dir, while the daemon may open files.
pub fn journals(run_dir: &Path) -> Option<Arc<Journals>> {
    match Journals::open(run_dir) {
        Ok(journals) => Some(Arc::new(journals)),
        Err(error) => {
            tracing::warn!(%error, "interfaces of guests with packed rings will hang when the daemon restarts");
            None
        }
    }
}

/// Converts what makes a tap an interface of the host.
fn host_side(host: control::HostSide) -> wire::HostSide {
    let subnet = |addr, len| wire::Subnet { addr, len };
    let addresses = host.addresses.iter().map(|net| subnet(net.addr(), net.prefix_len()));
    let routes = host.routes.iter();
    let routes =
        routes.map(|(to, via)| wire::HostRoute { to: subnet(to.addr(), to.prefix_len()), via: *via });
    let forwards = host.forwards.iter().map(|forward| wire::HostForward {
        protocol: forward.protocol,
        outside: forward.outside,
        to: forward.to,
    });
    wire::HostSide {
        addresses: addresses.collect(),
        routes: routes.collect(),
        router: host.router.map(|mac| mac.0),
        masquerade: host.masquerade,
        forwards: forwards.collect(),
    }
}

fn tunnel_traffic(traffic: TunnelTraffic) -> wire::TunnelTraffic {
    let TunnelTraffic { addresses, geneve, fragments, bfd, bfd_of_peers } = traffic;
    wire::TunnelTraffic { addresses, geneve, fragments, bfd, bfd_of_peers }
}

impl Ports for ExecutorPorts {
    fn open(&self, spec: &PortSpec) -> Result<Opened, PortError> {
        let PortSpec { queues, mtu, .. } = *spec;
        let offload = self.forwarder.finishes();
        let inherit =
            |from: &Inheritance| from.privileges(&spec.name, &spec.device.to_string(), &self.privileges);
        let privileges = self.inherited.as_ref().map_or_else(|| self.privileges.clone(), inherit);
        let waits = self.inherited.as_ref().is_some_and(Inheritance::waits);
        let Privileges { opener, sockets, .. } = &privileges;
        let opened = match spec.device.clone() {
            Device::Vhost { socket, role, owner, mode, migrates } => {
                let role = match role {
                    config::Role::Server => virtio::Role::Server,
                    config::Role::Client => virtio::Role::Client,
                };
                let owner = owner.map(|owner| self.privileges.owner("owner", &owner)).transpose()?;
                let name = spec.name.clone();
                let port = virtio::GuestPort {
                    name,
                    socket,
                    role,
                    queues,
                    mtu,
                    owner,
                    mode,
                    offload,
                    migrates,
                    memory: self.memory.clone(),
                    waits,
                };
                // The thread that serves a VMM may outlive its port, and must keep nothing else of the daemon
                // alive.
                let (verbs, guest) = (Arc::downgrade(&self.verbs), spec.name.clone());
                let watch: virtio::Watch =
                    Arc::new(move |event| _ = verbs.upgrade().map(|verbs| verbs.vmm(&guest, event)));
                virtio::open_by(&port, sockets.clone(), self.journals.clone(), Some(watch))?
            }
            Device::Tap { device, mac, host } => {
                let (mac, host) = (mac.map(|mac| mac.0), host.map(host_side));
                wire::open_tap(&wire::TapPort { device, queues, mtu, mac, offload, host }, opener)?
            }
            Device::AfPacket { device, tunnels } => {
                let tunnels = tunnels.map(tunnel_traffic);
                wire::open_packet(&wire::PacketPort { device, queues, tunnels }, opener)?
            }
            Device::AfXdp { device, addresses, all } => {
                wire::open_xdp(&wire::XdpPort { device, addresses, all }, opener)?
            }
            Device::Tunnel(_) => Opened { port: Arc::new(TunnelPort), rx: Vec::new(), tx: Vec::new() },
            Device::Verbs(device) => self.verbs.open(&device, &**sockets)?,
            Device::Ovs { of } => self.ovs.open(OvsPort { name: of, mtu })?,
        };
        Ok(opened)
    }

    fn is_of_place(&self, why: &PortError) -> bool {
        matches!(why.downcast_ref(), Some(virtio::Error::Socket(e)) if e.is_of_place())
    }

    fn check(&self, spec: &PortSpec) -> Result<(), PortError> {
        match &spec.device {
            Device::Vhost { owner: Some(owner), .. } => drop(self.privileges.owner("owner", owner)?),
            Device::Verbs(device) => self.verbs.check(device)?,
            _ => {}
        }
        Ok(())
    }

    fn attach(&self, vif: VifId, port: Opened) {
        self.verbs.attached(vif, &port.port);
        self.verbs.carry_sockets(&self.matchmaker);
        let device = port.port.clone();
        if let Err(e) = self.forwarder.attach(vif, port) {
            tracing::error!("{e}");
        }
        self.ovs.attached(vif, &device);
    }

    fn detach(&self, vif: VifId) {
        self.forwarder.detach(vif);
    }

    fn tables_changed(&self) {
        self.verbs.review();
        self.matchmaker.review();
    }

    fn update(&self, spec: &PortSpec) {
        if let Device::Verbs(device) = &spec.device
            && let Err(e) = self.verbs.update(device)
        {
            tracing::error!("verbs device of {}: {e}", device.adapter.guest);
        }
    }

    fn keep_windows(&self, wanted: &BTreeSet<PathBuf>) {
        // The old daemon may go on, and has windows, too.
        let waits = self.inherited.as_ref().is_some_and(Inheritance::waits);
        self.verbs.keep_windows(wanted, !waits);
    }

    fn remove_sockets(&self, left: &BTreeSet<PathBuf>) {
        // The old daemon may go on with these sockets.
        if self.inherited.as_ref().is_some_and(Inheritance::waits) {
            return;
        }
        remove_left(left, &*self.privileges.sockets);
    }

    fn keep_sockets(&self, wanted: &[SocketsSpec]) {
        self.matchmaker.keep(wanted, self.privileges.sockets.clone());
        self.verbs.carry_sockets(&self.matchmaker);
    }

    fn keep_services(&self, plan: services::Plan) {
        self.services.follow(plan);
    }

    fn keep_speech(&self, speech: Option<Speech>) {
        self.bgp.keep(speech);
    }

    fn keep_underlay(&self, wanted: Underlay) {
        self.remotes.keep(wanted.watched.clone());
        self.underlay.keep(wanted);
    }

    fn underlay_problems(&self) -> Vec<(String, String)> {
        // The daemon that is being replaced has the wires, too.
        let waits = self.inherited.as_ref().is_some_and(Inheritance::waits);
        if waits {
            Vec::new()
        } else {
            [self.underlay.problems(), self.remotes.problems(), self.bgp.problems()].concat()
        }
    }

    fn remotes(&self) -> Vec<RemoteStatus> {
        self.remotes.list()
    }

    fn bgp(&self) -> Option<v1::BgpReply> {
        self.bgp.status()
    }

    fn bgp_prefixes(&self, vrf: u16, after: Option<IpNet>, most: usize) -> Vec<IpNet> {
        self.bgp.prefixes(vrf, after, most)
    }

    fn bgp_paths(&self, vrf: u16, prefix: IpNet) -> Vec<v1::BgpPath> {
        self.bgp.paths(vrf, prefix)
    }

    fn bgp_macs(&self, vrf: u16, after: Option<Mac>, most: usize) -> Vec<v1::BgpEvpnEntry> {
        self.bgp.macs(vrf, after, most)
    }

    fn bgp_floods(&self, vrf: u16) -> Vec<v1::BgpEvpnEntry> {
        self.bgp.floods(vrf)
    }

    fn bgp_announcements(&self, vrf: Option<u16>) -> Vec<v1::BgpAnnouncement> {
        self.bgp.announcements(vrf)
    }

    fn drain_bgp(&self, drains: bool) {
        self.bgp.drain(drains);
    }

    fn learnt_macs(&self) -> Vec<(String, packet::Mac)> {
        self.services.learnt()
    }

    fn forget_mac(&self, guest: &str) {
        self.services.forget(guest);
    }

    fn services(&self) -> services::Counts {
        self.services.counts()
    }

    fn note_capture(&self, at: Option<VifId>, begins: bool) {
        self.matchmaker.note_capture(at, begins);
    }

    fn sockets(&self) -> matchmaker::Status {
        self.matchmaker.status()
    }

    fn sockets_problems(&self) -> Vec<(String, String)> {
        self.matchmaker.problems()
    }

    fn memory_problem(&self) -> Option<String> {
        let (used, most) = self.memory.usage();
        (used / 4 >= most / 5).then(|| {
            format!(
                "VMs have {} of {} MB that all of them may have (`guests_memory_mb` of [host]): more are refused soon",
                used >> 20,
                most >> 20
            )
        })
    }

    fn window_problems(&self) -> Vec<(String, String)> {
        self.verbs.window_problems()
    }

    fn rdma(&self) -> Vec<RdmaStatus> {
        self.verbs.describe()
    }

    fn ovs(&self) -> ovs::Status {
        self.ovs.status()
    }

    fn ovs_flows(&self) -> Vec<ovs::FlowStatus> {
        self.ovs.flows()
    }
}

/// Removes the files of sockets on which nobody listens any more.
fn remove_left(left: &BTreeSet<PathBuf>, sockets: &dyn Sockets) {
    // A daemon that was stopped in order left none.
    let is_gone = |path: &PathBuf| {
        std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    for path in left.iter().filter(|path| !is_gone(path)) {
        let place = Place { path: path.clone(), owner: None, mode: 0o600 };
        // A new socket replaces one on which nobody listens, and takes the file away when it closes.
        match sockets.listen(&place, SocketType::STREAM, 1) {
            Ok(_) => tracing::info!("no guest has this socket any more: {}", path.display()),
            Err(e) => tracing::warn!("a socket that no guest has any more stays: {e}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::time::SystemTime;

    #[test]
    fn only_sockets_where_nobody_listens_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(path("stale")).unwrap());
        let _listening = UnixListener::bind(path("used")).unwrap();
        std::fs::write(path("precious"), "").unwrap();
        drop(UnixListener::bind(path("target")).unwrap());
        symlink(path("target"), path("link")).unwrap();
        let left = ["stale", "used", "precious", "link", "gone", "no-such-dir/gone"].map(path).into();
        remove_left(&left, &sockets::Here);
        let is_there = |name: &str| path(name).symlink_metadata().is_ok();
        assert!(["used", "precious", "target", "link"].into_iter().all(is_there) && !is_there("stale"));

        // A file that is gone is not created for a moment.
        let opened = File::open(dir.path()).unwrap();
        opened.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        remove_left(&[path("gone")].into(), &sockets::Here);
        assert_eq!(opened.metadata().unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    }
}
