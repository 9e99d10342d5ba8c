//! The ports of the host: their specifications, and the trait that opens them.

use crate::compile::{made_up_mac, ovs_side, verbs_vif, way_out};
use crate::host_side::HostSide;
use crate::rdma::{RdmaSpec, RdmaStatus};
use crate::sockets::SocketsSpec;
use crate::underlay::{RemoteStatus, TunnelTraffic, Underlay};
use crate::windows::WindowSpec;
use api::v1;
use config::{
    Connection, Document, Guest, Host, Index, Item, Mode, Network, Object, Role, TapDevice, Way, Wire,
    WireTunnel,
};
use ipnet::IpNet;
use model::{VifId, Vrf};
use packet::{Mac, TunnelKind};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub type PortError = Box<dyn std::error::Error + Send + Sync>;

pub trait Ports: Send + Sync {
    /// Opens a port.
    ///
    /// # Errors
    /// The reason why it can't be opened, and what would help.
    fn open(&self, spec: &PortSpec) -> Result<mem::Opened, PortError>;
    /// Follows the kernel's routes and neighbours for these remotes, and looks whether it leaves the wires alone.
    fn keep_underlay(&self, _wanted: Underlay) {}
    /// Returns what is wrong with wires and the kernel, as pairs of an object and what is wrong.
    fn underlay_problems(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Returns the remotes of tunnels that are watched by BFD.
    fn remotes(&self) -> Vec<RemoteStatus> {
        Vec::new()
    }
    /// Is true if a port can't be opened because of what is at the path of its socket. Whoever may write
    /// there decides about that.
    fn is_of_place(&self, why: &PortError) -> bool;
    /// Checks a port as far as possible before its place is free: that the users it names exist.
    ///
    /// # Errors
    /// The reason why it can't be opened.
    fn check(&self, spec: &PortSpec) -> Result<(), PortError>;
    /// Gives the executor the port of an interface.
    fn attach(&self, vif: VifId, port: mem::Opened);
    /// Takes the port of an interface away again; when this returns, the executor has let go of it.
    fn detach(&self, vif: VifId);
    /// Tells that the tables changed, so earlier answers from them may be out of date.
    fn tables_changed(&self);
    /// Gives an open port a new specification that needs no new port.
    fn update(&self, spec: &PortSpec);
    /// Returns the status of the open verbs devices, by name.
    fn rdma(&self) -> Vec<RdmaStatus>;
    /// Removes all windows except `wanted`.
    fn keep_windows(&self, wanted: &BTreeSet<PathBuf>);
    /// Opens the sockets of these guests' programs, and closes all others.
    fn keep_sockets(&self, _wanted: &[SocketsSpec]) {}
    /// Has the services of networks answer guests by this plan.
    fn keep_services(&self, _plan: services::Plan) {}
    /// Has the host say this by BGP; `None`: nothing.
    fn keep_speech(&self, _speech: Option<crate::Speech>) {}
    /// Returns the state of BGP, if the host speaks it.
    fn bgp(&self) -> Option<v1::BgpReply> {
        None
    }
    /// Returns prefixes of a network that BGP peers sent: at most so many, behind one of them.
    fn bgp_prefixes(&self, _vrf: u16, _after: Option<IpNet>, _most: usize) -> Vec<IpNet> {
        Vec::new()
    }
    /// Returns the paths to a prefix that BGP peers sent, without the network's name.
    fn bgp_paths(&self, _vrf: u16, _prefix: IpNet) -> Vec<v1::BgpPath> {
        Vec::new()
    }
    /// Returns MAC addresses of a network that BGP peers or this host announce, behind one of them: about so many, and
    /// none only if there are none. Without the network's name.
    fn bgp_macs(&self, _vrf: u16, _after: Option<packet::Mac>, _most: usize) -> Vec<v1::BgpEvpnEntry> {
        Vec::new()
    }
    /// Returns the hosts to which floods of a network go by BGP, without the network's name.
    fn bgp_floods(&self, _vrf: u16) -> Vec<v1::BgpEvpnEntry> {
        Vec::new()
    }
    /// Returns what the host announces by BGP of a network, or of all, and what it can't.
    fn bgp_announcements(&self, _vrf: Option<u16>) -> Vec<v1::BgpAnnouncement> {
        Vec::new()
    }
    /// Has BGP peers avoid the host, or no more.
    fn drain_bgp(&self, _drains: bool) {}
    /// Returns the MACs of guests that had none and asked a service, by the guests' names.
    fn learnt_macs(&self) -> Vec<(String, packet::Mac)> {
        Vec::new()
    }
    /// Forgets such a MAC, which the guest may not have.
    fn forget_mac(&self, _guest: &str) {}
    /// Returns what guests asked these services.
    fn services(&self) -> services::Counts {
        services::Counts::default()
    }
    /// Notes that a capture begins or ends, at this interface or at all: it shall see all packets.
    fn note_capture(&self, _at: Option<VifId>, _begins: bool) {}
    /// Returns the connections that programs have moved to memory in common.
    fn sockets(&self) -> matchmaker::Status {
        matchmaker::Status::default()
    }
    /// Returns the guests whose sockets are not open, with the reasons.
    fn sockets_problems(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Removes sockets that an earlier daemon made for guests that are gone, unless somebody listens there.
    fn remove_sockets(&self, left: &BTreeSet<PathBuf>);
    /// Returns the problems of windows while all ports are open, as pairs of an object and what is wrong.
    fn window_problems(&self) -> Vec<(String, String)>;

    /// Returns a warning if guests' memory takes nearly as much as it may.
    fn memory_problem(&self) -> Option<String> {
        None
    }
    /// Returns the drivers of Open vSwitch, and the ports that they can open.
    fn ovs(&self) -> ovs::Status;
    /// Returns the flows that the drivers made, the oldest first.
    fn ovs_flows(&self) -> Vec<ovs::FlowStatus>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    pub name: String,
    pub device: Device,
    /// Number of queue pairs.
    pub queues: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

impl PortSpec {
    /// Is true if a port opened with the other specification serves this one too; otherwise the port has to
    /// be closed and opened again. A new MTU or MAC of a TAP needs no new port, because closing the TAP would
    /// take it from its container; the device is told instead.
    pub(crate) fn is_same_port(&self, other: &Self) -> bool {
        let same = match (&self.device, &other.device) {
            (Device::Verbs(a), Device::Verbs(b)) => a.is_same_device(b),
            (Device::Tap { device: a, host: x, .. }, Device::Tap { device: b, host: y, .. }) => {
                a == b && x == y
            }
            (a, b) => a == b,
        };
        same && self.queues == other.queues
    }
}

#[allow(clippy::large_enum_variant, reason = "ports are few")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    Vhost {
        socket: PathBuf,
        /// Who listens on the socket.
        role: Role,
        /// `user` or `user:group` that shall own the socket.
        owner: Option<String>,
        mode: u32,
        /// Whether the VMM may migrate the guest.
        migrates: bool,
    },
    /// A TAP device, which is created.
    Tap {
        device: String,
        /// Link-layer address of the kernel's end.
        mac: Option<Mac>,
        /// The host's side, if it is an interface of the host itself.
        host: Option<HostSide>,
    },
    /// A packet socket on a network device.
    AfPacket {
        device: String,
        /// The packets that we take, if the kernel keeps the device.
        tunnels: Option<TunnelTraffic>,
    },
    /// An AF_XDP socket on a network device.
    AfXdp {
        device: String,
        /// Addresses whose traffic we take; the rest is left to the kernel.
        addresses: Vec<IpAddr>,
        /// Whether we take all traffic, because networks are attached.
        all: bool,
    },
    /// No device: a tunnel, as a port of an Open vSwitch.
    Tunnel(WireTunnel),
    /// A verbs device of our own.
    Verbs(Box<RdmaSpec>),
    /// The OVS side of a guest or wire that an Open vSwitch programs.
    Ovs { of: String },
}

impl Device {
    /// Returns the thing that only one port can have: a device's name, or the path of a socket.
    pub(crate) fn place(&self) -> Option<(&'static str, PathBuf)> {
        match self {
            Self::Vhost { socket, .. } => Some(("socket", socket.clone())),
            Self::Verbs(spec) => Some(("socket", spec.socket.clone())),
            Self::Tap { device, .. } => Some(("tap", device.into())),
            Self::AfXdp { device, .. } => Some(("af-xdp", device.into())),
            Self::Ovs { of } => Some(("ovs", of.into())),
            Self::AfPacket { device, tunnels: Some(_) } => Some(("shared", device.into())),
            Self::AfPacket { .. } | Self::Tunnel(_) => None,
        }
    }

    /// Returns the name of its device if it is a tap.
    pub(crate) fn tap(&self) -> Option<&str> {
        match self {
            Self::Tap { device, .. } => Some(device),
            _ => None,
        }
    }

    /// Returns the paths of its sockets, whichever end listens.
    fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        let (first, second) = match self {
            Self::Vhost { socket, .. } => (Some(socket.clone()), None),
            Self::Verbs(spec) => (Some(spec.socket.clone()), spec.window.as_ref().map(WindowSpec::socket)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Is true for a network device of the host, with its own link-layer address.
    pub(crate) const fn is_netdev(&self) -> bool {
        matches!(self, Self::AfPacket { .. } | Self::AfXdp { .. })
    }

    /// Returns the link-layer address that the device shall have.
    pub(crate) const fn mac(&self) -> Option<Mac> {
        match self {
            Self::Tap { mac, .. } => *mac,
            _ => None,
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vhost { socket, .. } => write!(f, "vhost-user {}", socket.display()),
            Self::Tap { device, .. } => write!(f, "tap {device}"),
            Self::AfPacket { device, tunnels: None } => write!(f, "af-packet {device}"),
            Self::AfPacket { device, tunnels: Some(tunnels) } => {
                write!(f, "af-packet {device} of the kernel for {tunnels}")
            }
            Self::AfXdp { device, .. } => write!(f, "af-xdp {device}"),
            Self::Tunnel(WireTunnel { remote, vni, .. }) => write!(f, "tunnel to {remote} with vni {vni}"),
            Self::Verbs(spec) => write!(f, "verbs {}", spec.socket.display()),
            Self::Ovs { of } => write!(f, "ovs {of}"),
        }
    }
}

/// Default mode of a vhost-user socket.
const SOCKET_MODE: u32 = 0o660;

/// Returns the ports that the guests and wires of `index` ask for, by name.
pub(crate) fn wanted(host: &Host, run_dir: &Path, index: &Index) -> BTreeMap<String, PortSpec> {
    let workers = u16::try_from(host.workers.len().max(1)).unwrap_or(u16::MAX);
    let guests = index.guests().values().flat_map(|guest| of_guest(guest, run_dir, index));
    let wires = index.wires().iter().flat_map(|wire| {
        let own = PortSpec {
            name: wire.name.clone(),
            device: match wire_device(wire, run_dir, wire.mode == Mode::Ovs || is_attached(wire, index)) {
                Device::AfPacket { device, .. } if wire.shared => {
                    Device::AfPacket { device, tunnels: Some(TunnelTraffic::of(host, index)) }
                }
                device => device,
            },
            queues: workers,
            mtu: wire.mtu,
        };
        std::iter::once(own).chain(of_ovs(wire.mode, &wire.name, wire.mtu))
    });
    let ways_out = index.networks().values().filter(|network| network.leaves_by_host());
    let ways_out = ways_out.map(|network| {
        let name = way_out(&network.name);
        let device = Device::Tap {
            device: way_out_device(run_dir, &network.name),
            mac: Some(made_up_mac(&host.name, &name)),
            host: Some(HostSide::way_out(network, index)),
        };
        PortSpec { name, device, queues: workers, mtu: index.network_mtu(&network.name) }
    });
    guests.chain(wires).chain(ways_out).map(|spec| (spec.name.clone(), spec)).collect()
}

/// Returns the name of the device by which packets of a network leave through the host. Daemons with other run-dirs
/// have others.
fn way_out_device(run_dir: &Path, network: &str) -> String {
    let mut hash = 0x811c_9dc5_u32;
    for byte in run_dir.as_os_str().as_encoded_bytes().iter().chain(&[0]).chain(network.as_bytes()) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    let plain: String = network.chars().filter(char::is_ascii_alphanumeric).take(6).collect();
    format!("vd-{plain}{:05x}", hash & 0xf_ffff)
}

pub(crate) fn windows<'a>(ports: impl Iterator<Item = &'a PortSpec>) -> BTreeSet<PathBuf> {
    let windows = |port: &'a PortSpec| match &port.device {
        Device::Verbs(spec) => [spec.window.as_ref(), spec.common.as_ref()],
        _ => [None, None],
    };
    ports.flat_map(windows).flatten().map(|window| window.path.clone()).collect()
}

/// Returns the sockets that were made for the ports of `before` and that no port has `now`.
pub(crate) fn left_sockets<'a>(
    before: &BTreeMap<String, PortSpec>,
    now: impl Iterator<Item = &'a PortSpec>,
) -> BTreeSet<PathBuf> {
    let is_ours = |port: &&PortSpec| !matches!(port.device, Device::Vhost { role: Role::Client, .. });
    let mut left: BTreeSet<_> =
        before.values().filter(is_ours).flat_map(|port| port.device.sockets()).collect();
    now.flat_map(|port| port.device.sockets()).for_each(|socket| _ = left.remove(&socket));
    left
}

#[must_use]
pub fn socket_directories(file: &Document, run_dir: &Path) -> Vec<PathBuf> {
    let device = |object: &Object| match object {
        Object::Guest(guest) => guest_device(guest, run_dir, None).map(|(device, _)| device),
        Object::Wire(wire) => Some(wire_device(wire, run_dir, false)),
        _ => None,
    };
    let directory = |item: &Item| match device(&item.object) {
        Some(Device::Vhost { socket, .. }) => socket.parent().map(Path::to_owned),
        _ => None,
    };
    file.objects.iter().filter_map(directory).collect()
}

/// Returns the ports of a guest: its own, and that of its verbs device.
fn of_guest(guest: &Guest, run_dir: &Path, index: &Index) -> impl Iterator<Item = PortSpec> {
    let mtu = index.guest_mtu(guest);
    let network = index.networks().get(&guest.network);
    let own = guest_device(guest, run_dir, network).map(|(device, queues)| PortSpec {
        name: guest.name.clone(),
        device,
        queues,
        mtu,
    });
    let vrf = Vrf(network.map_or(0, |network| network.vrf));
    let verbs = RdmaSpec::of(guest, run_dir, (vrf, mtu), index.common_windows()).map(|spec| PortSpec {
        name: verbs_vif(guest).unwrap_or_else(|| guest.name.clone()),
        device: Device::Verbs(spec.into()),
        queues: 1,
        mtu,
    });
    own.into_iter().chain(verbs).chain(of_ovs(guest.mode, &guest.name, mtu))
}

/// Returns the OVS side of a guest or wire, if it has one.
fn of_ovs(mode: Mode, name: &str, mtu: u16) -> Option<PortSpec> {
    Some(PortSpec {
        name: ovs_side(mode, name)?,
        device: Device::Ovs { of: name.to_owned() },
        queues: 1,
        mtu,
    })
}

/// Returns the device of a guest's port, and its queue pairs. A guest that has only a verbs device has no such port.
fn guest_device(guest: &Guest, run_dir: &Path, network: Option<&Network>) -> Option<(Device, u16)> {
    let of_tap = |tap: &TapDevice, host| {
        (Device::Tap { device: tap.device.clone(), mac: guest.mac, host }, tap.queues)
    };
    Some(match &guest.connection {
        Connection::Tap(tap) => of_tap(tap, None),
        Connection::Host(tap) => of_tap(tap, network.map(|network| HostSide::of_guest(guest, network))),
        Connection::Rdma => return None,
        Connection::Vhost(vhost) => {
            let mode = vhost.socket_mode.as_ref().and_then(|mode| u32::from_str_radix(mode, 8).ok());
            let device = Device::Vhost {
                socket: run_dir.join(&vhost.socket),
                role: vhost.role,
                owner: vhost.owner.clone(),
                // The contents of a window may be unable to migrate, and then programs would lose their device.
                migrates: vhost.window.is_none_or(|window| window.migrates),
                mode: mode.unwrap_or(SOCKET_MODE),
            };
            (device, vhost.queues)
        }
    })
}

fn is_attached(wire: &Wire, index: &Index) -> bool {
    index.networks().values().any(|network| network.wire.as_ref() == Some(&wire.name))
}

/// Returns the device of a wire. With `all`, we take all its traffic.
fn wire_device(wire: &Wire, run_dir: &Path, all: bool) -> Device {
    match wire.way.clone() {
        Way::Vxlan { remote, vni } => Device::Tunnel(WireTunnel { kind: TunnelKind::Vxlan, remote, vni }),
        Way::Geneve { remote, vni } => Device::Tunnel(WireTunnel { kind: TunnelKind::Geneve, remote, vni }),
        Way::AfPacket(device) => Device::AfPacket { device, tunnels: None },
        Way::AfXdp(device) => {
            Device::AfXdp { device, addresses: wire.addresses.iter().map(|net| net.addr()).collect(), all }
        }
        Way::Tap(device) => Device::Tap { device, mac: None, host: None },
        Way::Vhost(path) => Device::Vhost {
            socket: run_dir.join(path),
            role: Role::Server,
            owner: None,
            mode: SOCKET_MODE,
            migrates: true,
        },
    }
}
