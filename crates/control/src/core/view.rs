use super::State;
use super::inherited::{Before, Inherited};
use super::open_ports::SlotState;
use super::plugged::Plugged;
use crate::compile::{Desired, Ids};
use crate::owner::Objects;
use config::Host;
use executor::{Executor, FlowUse, VifCounters};
use mem::{Port, PortStatus};
use model::{Names, Network, VifId, Vrf};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A state of the host. Later changes don't affect it.
pub(crate) struct View {
    pub(crate) host: Arc<Host>,
    pub(crate) objects: Objects,
    pub(crate) tables: Desired,
    pub(crate) ids: Ids,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) started: Instant,
    pub(crate) revision: u64,
    /// Whether there are guests on standby, and those of them that are away.
    pub(crate) standby: bool,
    pub(crate) away: BTreeSet<String>,
    ports: Arc<BTreeMap<String, ViewedPort>>,
    inherited: Inherited,
    plugged: Plugged,
}

enum ViewedPort {
    /// A weak reference: a view that somebody keeps must not keep a device open.
    Open(Weak<dyn Port>),
    Fault(String),
}

impl View {
    pub(super) fn new(state: &State, executor: Arc<dyn Executor>, started: Instant) -> Self {
        let ports = state.slots.iter().map(|(name, slot)| {
            let port = match &slot.state {
                SlotState::Open { port, .. } => ViewedPort::Open(Arc::downgrade(port)),
                SlotState::Fault(fault) => ViewedPort::Fault(fault.reason.clone()),
            };
            (name.clone(), port)
        });
        Self::of(state, executor, started, Arc::new(ports.collect()))
    }

    /// Returns the view after a change of neither host nor ports.
    pub(super) fn after(&self, state: &State) -> Self {
        Self::of(state, self.executor.clone(), self.started, self.ports.clone())
    }

    fn of(
        state: &State,
        executor: Arc<dyn Executor>,
        started: Instant,
        ports: Arc<BTreeMap<String, ViewedPort>>,
    ) -> Self {
        Self {
            host: state.host.clone(),
            objects: state.objects.clone(),
            tables: state.desired.clone(),
            ids: state.ids.clone(),
            executor,
            started,
            revision: state.revision,
            standby: state.standby,
            away: state.away.clone(),
            ports,
            inherited: state.inherited.clone(),
            plugged: state.plugged.clone(),
        }
    }

    /// Returns the files that hold the memory of a guest's virtual machine, as device and inode number.
    pub(crate) fn memory_files(&self, name: &str) -> Vec<(u64, u64)> {
        match self.ports.get(name) {
            Some(ViewedPort::Open(port)) => {
                port.upgrade().map(|port| port.memory_files()).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn port(&self, name: &str) -> PortStatus {
        match self.ports.get(name) {
            Some(ViewedPort::Open(port)) => port.upgrade().map(|port| port.status()).unwrap_or_default(),
            Some(ViewedPort::Fault(reason)) => {
                PortStatus { fault: Some(format!("can't be opened: {reason}")), ..PortStatus::default() }
            }
            None => PortStatus::default(),
        }
    }

    /// Looks which taps are in other namespaces, and returns the names of their guests.
    pub(super) fn look_at_taps(&self) -> BTreeSet<String> {
        self.plugged.look(self)
    }

    /// Returns whether a guest's tap was in another namespace, and is new in the daemon's own.
    pub(crate) fn has_lost_tap(&self, name: &str, port: impl FnOnce() -> PortStatus) -> bool {
        self.plugged.has_lost(name, port)
    }

    pub(crate) fn vif_counters(&self, id: VifId) -> VifCounters {
        let now = self.executor.vif_counters(id);
        let Some(Before { counters: before, .. }) = self.inherited.of(id) else { return now };
        now.less(before)
    }

    /// Returns drops at an interface, by the number of their reason.
    pub(crate) fn drops_at(&self, id: VifId) -> Vec<u64> {
        let before = self.inherited.of(id).map(|before| before.drops.as_slice()).unwrap_or_default();
        let before = before.iter().chain(std::iter::repeat(&0));
        self.executor.drops_at(id).iter().zip(before).map(|(now, before)| now.wrapping_sub(*before)).collect()
    }

    pub(crate) fn flow_use(&self, id: VifId) -> FlowUse {
        let now = self.executor.flow_use(id);
        let Some(Before { flows: before, .. }) = self.inherited.of(id) else { return now };
        FlowUse {
            refused: now.refused.wrapping_sub(before.refused),
            displaced: now.displaced.wrapping_sub(before.displaced),
            ..now
        }
    }

    pub(crate) fn vif_name(&self, id: VifId) -> String {
        self.tables.vifs.get(&id).map_or_else(|| format!("vif {id}"), |vif| vif.name.to_string())
    }

    pub(crate) fn network_name(&self, vrf: Vrf) -> String {
        self.tables
            .networks
            .get(&vrf)
            .map_or_else(|| format!("vrf {vrf}"), |network| network.name.to_string())
    }

    pub(crate) fn network(&self, name: &str) -> Option<&Network> {
        self.tables.networks.values().find(|network| &*network.name == name)
    }
}

impl Names for View {
    fn vif(&self, id: VifId) -> String {
        self.vif_name(id)
    }

    fn network(&self, vrf: Vrf) -> String {
        self.network_name(vrf)
    }
}
