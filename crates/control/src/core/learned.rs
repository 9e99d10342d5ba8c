//! Learned neighbours, by the names of interfaces and networks, so that a new daemon on this host can take
//! them over.

use super::Core;
use model::{NeighbourFound, NeighbourScope, VifId, Vrf};
use packet::Mac;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    pub place: Place,
    pub addr: IpAddr,
    pub mac: [u8; 6],
    /// The interface from which its packet came.
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    Wire(String),
    Network(String),
}

impl Core {
    /// Returns the neighbours learned so far whose interfaces and networks have names.
    pub fn learned(&self) -> Vec<Learned> {
        let state = self.lock();
        let numbered = state.slots.keys().filter_map(|name| Some((state.ids.vif(name)?, name.clone())));
        let names: HashMap<VifId, String> = numbered.collect();
        let networks = state.desired.networks.values().map(|network| (network.vrf, network.name.to_string()));
        let networks: HashMap<Vrf, String> = networks.collect();
        drop(state);
        let learned = |(found, by): (NeighbourFound, VifId)| {
            let place = match found.scope {
                NeighbourScope::Wire(wire) => Place::Wire(names.get(&wire)?.clone()),
                NeighbourScope::Network(vrf) => Place::Network(networks.get(&vrf)?.clone()),
            };
            let by = names.get(&by)?.clone();
            Some(Learned { place, addr: found.addr, mac: found.mac.0, by })
        };
        self.executor.found_neighbours().into_iter().filter_map(learned).collect()
    }

    /// Takes neighbours that the old daemon learned, if their interfaces and networks exist here.
    pub fn learn(&self, learned: &[Learned]) {
        let state = self.lock();
        let networks = state.desired.networks.values().map(|network| (network.name.to_string(), network.vrf));
        let networks: HashMap<String, Vrf> = networks.collect();
        let found = |Learned { place, addr, mac, by }: &Learned| {
            let scope = match place {
                Place::Wire(wire) => NeighbourScope::Wire(state.ids.vif(wire)?),
                Place::Network(network) => NeighbourScope::Network(*networks.get(network)?),
            };
            let found = NeighbourFound { scope, addr: *addr, mac: Mac(*mac) };
            Some((found, state.ids.vif(by)?))
        };
        let found: Vec<_> = learned.iter().filter_map(found).collect();
        drop(state);
        self.executor.enter_neighbours(&found);
    }
}
