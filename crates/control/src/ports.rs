//! The ports of the host: what is to be opened, and who opens it.

use crate::compile::verbs_vif;
use crate::rdma::RdmaSpec;
use api::v1::{RdmaReply, RdmaTable};
use config::{Document, Driver, Guest, GuestKind, Host, Object, Role, Wire};
use model::{VifId, Vrf};
use packet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Opens ports, and gives them to the executor.
pub trait Ports: Send + Sync {
    /// Opens a port.
    ///
    /// # Errors
    /// Why it can't be opened, and what would help.
    fn open(&self, spec: &PortSpec) -> Result<mem::Opened, Box<dyn std::error::Error + Send + Sync>>;
    /// Gives the executor the port of an interface.
    fn attach(&self, vif: VifId, port: mem::Opened);
    /// Takes it away again; when this returns the executor has let go of it.
    fn detach(&self, vif: VifId);
    /// The tables changed: what was asked of them may have another answer now.
    fn tables_changed(&self);
    /// Tells an open port of another specification that needs no other port.
    fn update(&self, spec: &PortSpec);
    /// What the open verbs devices know of one of the tables: of themselves, what changes while they run; the rest of
    /// an [`api::v1::RdmaDevice`] but its name is filled in.
    fn rdma(&self, table: RdmaTable) -> RdmaReply;
}

/// A port to be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Name of the interface.
    pub name: String,
    /// What it is connected to.
    pub device: Device,
    /// Queue pairs.
    pub queues: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

impl PortSpec {
    /// Whether a port opened by the other specification serves this one too; else it is closed and opened again. The
    /// MTU alone is no reason: closing a TAP takes it away from its container. It is enforced by the tables at once,
    /// and told to the device when that is next opened.
    pub(crate) fn is_same_port(&self, other: &Self) -> bool {
        let same = match (&self.device, &other.device) {
            (Device::Verbs(a), Device::Verbs(b)) => a.is_same_device(b),
            (a, b) => a == b,
        };
        same && self.queues == other.queues
    }
}

/// What a port is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A vhost-user socket.
    Vhost {
        /// Its path.
        socket: PathBuf,
        /// Who listens.
        role: Role,
        /// `user` or `user:group` that shall own it.
        owner: Option<String>,
        /// Its mode.
        mode: u32,
    },
    /// A TAP device that is created.
    Tap {
        /// Its name.
        device: String,
        /// Link-layer address of the kernel's end.
        mac: Option<Mac>,
    },
    /// A packet socket.
    AfPacket {
        /// The network device.
        device: String,
    },
    /// An AF_XDP socket.
    AfXdp {
        /// The network device.
        device: String,
        /// Addresses whose traffic is ours; the rest is left to the kernel.
        addresses: Vec<IpAddr>,
        /// Whether all traffic is ours: networks are attached.
        all: bool,
    },
    /// A DPDK device. No build has them, and opening one is an error.
    Dpdk {
        /// Device arguments.
        device: String,
    },
    /// A verbs device of our own.
    Verbs(RdmaSpec),
}

/// Mode of a vhost-user socket unless told otherwise.
const SOCKET_MODE: u32 = 0o660;

/// The ports that objects ask for, by name. `mtu_of` tells a guest's MTU.
pub(crate) fn wanted(
    host: &Host,
    run_dir: &Path,
    objects: &[&Object],
    mtu_of: &dyn Fn(&Guest) -> u16,
) -> BTreeMap<String, PortSpec> {
    let workers = u16::try_from(host.workers.len().max(1)).unwrap_or(u16::MAX);
    let vrf_of = |name: &str| {
        let network = objects.iter().find_map(|object| match object {
            Object::Network(network) if network.name == name => Some(network.vrf),
            _ => None,
        });
        Vrf(network.unwrap_or_default())
    };
    let mut specs = Vec::new();
    for object in objects {
        match object {
            Object::Guest(guest) => {
                let mtu = mtu_of(guest);
                specs.extend(of_guest(guest, run_dir, mtu));
                if let Some(spec) = RdmaSpec::of(guest, run_dir, vrf_of(&guest.network), mtu) {
                    let name = verbs_vif(guest).unwrap_or_else(|| guest.name.clone());
                    specs.push(PortSpec { name, device: Device::Verbs(spec), queues: 1, mtu });
                }
            }
            Object::Wire(wire) => specs.push(of_wire(wire, run_dir, workers, objects)),
            _ => {}
        }
    }
    specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect()
}

/// The directories of vhost-user sockets that a file names.
#[must_use]
pub fn socket_directories(file: &Document, run_dir: &Path) -> Vec<PathBuf> {
    let objects: Vec<_> = file.objects.iter().map(|item| &item.object).collect();
    let ports = wanted(&file.host, run_dir, &objects, &|_| 0);
    let socket = |port: PortSpec| match port.device {
        Device::Vhost { socket, .. } => socket.parent().map(Path::to_owned),
        _ => None,
    };
    ports.into_values().filter_map(socket).collect()
}

/// The port of a guest. One that has a verbs device alone has no other.
fn of_guest(guest: &Guest, run_dir: &Path, mtu: u16) -> Option<PortSpec> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let device = match guest.kind {
        GuestKind::Tap => Device::Tap { device: text(&guest.device), mac: guest.mac },
        GuestKind::Rdma => return None,
        GuestKind::Vhost => Device::Vhost {
            socket: run_dir.join(text(&guest.socket)),
            role: guest.role,
            owner: guest.owner.clone(),
            mode: guest
                .socket_mode
                .as_ref()
                .map_or(SOCKET_MODE, |mode| u32::from_str_radix(mode, 8).unwrap_or(SOCKET_MODE)),
        },
    };
    Some(PortSpec { name: guest.name.clone(), device, queues: guest.queues, mtu })
}

fn of_wire(wire: &Wire, run_dir: &Path, queues: u16, objects: &[&Object]) -> PortSpec {
    let attached =
        |object: &&Object| matches!(object, Object::Network(n) if n.wire.as_ref() == Some(&wire.name));
    let device = wire.device.clone();
    let device = match wire.driver {
        Driver::AfPacket => Device::AfPacket { device },
        Driver::Dpdk => Device::Dpdk { device },
        Driver::AfXdp => Device::AfXdp {
            device,
            addresses: wire.addresses.iter().map(|net| net.addr()).collect(),
            all: objects.iter().any(attached),
        },
        Driver::Tap => Device::Tap { device, mac: None },
        Driver::Vhost => {
            Device::Vhost { socket: run_dir.join(device), role: Role::Server, owner: None, mode: SOCKET_MODE }
        }
    };
    PortSpec { name: wire.name.clone(), device, queues, mtu: wire.mtu }
}
