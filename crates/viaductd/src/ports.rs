//! Opens ports of every kind and gives them to the executor.

use crate::forwarder::Forwarder;
use crate::users;
use crate::verbs::{EngineRules, Verbs};
use api::v1::{RdmaReply, RdmaTable};
use control::{Device, PortSpec, Ports};
use mem::Opened;
use model::VifId;
use std::error::Error;

/// The executor's ports.
pub struct ExecutorPorts {
    forwarder: Forwarder,
    verbs: Verbs,
}

impl ExecutorPorts {
    /// Ports for this executor.
    pub fn new(forwarder: Forwarder) -> Self {
        let verbs = Verbs::new(Box::new(EngineRules(forwarder.engine().clone())));
        Self { forwarder, verbs }
    }
}

impl Ports for ExecutorPorts {
    fn open(&self, spec: &PortSpec) -> Result<Opened, Box<dyn Error + Send + Sync>> {
        let PortSpec { queues, mtu, .. } = *spec;
        let offload = self.forwarder.finishes();
        let opened = match spec.device.clone() {
            Device::Vhost { socket, role, owner, mode } => {
                let role = match role {
                    config::Role::Server => virtio::Role::Server,
                    config::Role::Client => virtio::Role::Client,
                };
                let owner = owner.map(|owner| users::lookup(&owner)).transpose()?;
                let name = spec.name.clone();
                virtio::open(&virtio::GuestPort { name, socket, role, queues, mtu, owner, mode, offload })?
            }
            Device::Tap { device, mac } => {
                wire::open_tap(&wire::TapPort { device, queues, mtu, mac: mac.map(|mac| mac.0), offload })?
            }
            Device::AfPacket { device } => wire::open_packet(&wire::PacketPort { device, queues })?,
            Device::AfXdp { device, addresses, all } => {
                wire::open_xdp(&wire::XdpPort { device, addresses, all })?
            }
            Device::Verbs(device) => self.verbs.open(&device)?,
        };
        Ok(opened)
    }

    fn attach(&self, vif: VifId, port: Opened) {
        self.verbs.attached(vif, &port.port);
        if let Err(e) = self.forwarder.attach(vif, port) {
            tracing::error!("{e}");
        }
    }

    fn detach(&self, vif: VifId) {
        self.forwarder.detach(vif);
    }

    fn tables_changed(&self) {
        self.verbs.review();
    }

    fn update(&self, spec: &PortSpec) {
        if let Device::Verbs(device) = &spec.device
            && let Err(e) = self.verbs.update(device)
        {
            tracing::error!("verbs device of {}: {e}", device.guest);
        }
    }

    fn rdma(&self, table: RdmaTable) -> RdmaReply {
        self.verbs.describe(table)
    }
}
