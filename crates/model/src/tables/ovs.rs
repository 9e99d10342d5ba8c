//! The flows of Open vSwitch.

use super::Tables;
use crate::VifId;
use crate::ovs::{Change, Flow, FlowId};

impl Tables {
    /// Returns the flows of a port, by their numbers.
    pub fn ovs_flows_of(&self, port: VifId) -> impl Iterator<Item = &Flow> {
        let all = (port, FlowId(0))..=(port, FlowId(u64::MAX));
        self.ovs_flows.range(all).map(|(_, flow)| &**flow)
    }

    /// Changes flows. Ignores flows for ports that do not exist or that no Open vSwitch programs.
    pub fn apply_ovs(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Add(flow) if self.takes_flows(flow.port) => {
                    self.ovs_flows.insert((flow.port, flow.id), flow.clone());
                }
                Change::Add(_) => {}
                Change::Remove { port, id } => drop(self.ovs_flows.remove(&(*port, *id))),
                Change::Flush { port } => self.ovs_flows.retain(|(of, _), _| of != port),
            }
        }
    }

    fn takes_flows(&self, port: VifId) -> bool {
        self.vifs.get(&port).is_some_and(crate::Vif::takes_flows)
    }

    /// Forgets the flows of ports that are gone.
    pub(super) fn forget_flows(&mut self) {
        let vifs = &self.vifs;
        self.ovs_flows.retain(|(port, _), _| vifs.get(port).is_some_and(crate::Vif::takes_flows));
    }
}
