//! Read-only views of the configuration in force.

use super::State;
use crate::compile::{Desired, Ids};
use crate::owner::Objects;
use config::Host;
use executor::Executor;
use mem::{Port, PortStatus};
use model::{Names, Network, VifId, Vrf};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A state of the host. It is not changed by what happens after.
pub(crate) struct View {
    pub(crate) host: Arc<Host>,
    pub(crate) objects: Objects,
    pub(crate) tables: Desired,
    pub(crate) ids: Ids,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) started: Instant,
    /// Not held: a view that somebody keeps must not keep a device open.
    ports: Arc<BTreeMap<String, Weak<dyn Port>>>,
}

impl View {
    pub(super) fn new(state: &State, executor: Arc<dyn Executor>, started: Instant) -> Self {
        let ports = state.open.iter().map(|(name, open)| (name.clone(), Arc::downgrade(&open.port)));
        Self::of(state, executor, started, Arc::new(ports.collect()))
    }

    /// The view after a change of neither host nor ports.
    pub(super) fn after(&self, state: &State) -> Self {
        Self::of(state, self.executor.clone(), self.started, self.ports.clone())
    }

    fn of(
        state: &State,
        executor: Arc<dyn Executor>,
        started: Instant,
        ports: Arc<BTreeMap<String, Weak<dyn Port>>>,
    ) -> Self {
        Self {
            host: state.host.clone(),
            objects: state.objects.clone(),
            tables: state.desired.clone(),
            ids: state.ids.clone(),
            executor,
            started,
            ports,
        }
    }

    /// State of an interface's port.
    pub(crate) fn port(&self, name: &str) -> PortStatus {
        self.ports.get(name).and_then(Weak::upgrade).map(|port| port.status()).unwrap_or_default()
    }

    /// Name of an interface.
    pub(crate) fn vif_name(&self, id: VifId) -> String {
        self.tables.vifs.get(&id).map_or_else(|| format!("vif {id}"), |vif| vif.name.to_string())
    }

    /// Name of a network.
    pub(crate) fn network_name(&self, vrf: Vrf) -> String {
        self.tables
            .networks
            .get(&vrf)
            .map_or_else(|| format!("vrf {vrf}"), |network| network.name.to_string())
    }

    /// The network of that name.
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
