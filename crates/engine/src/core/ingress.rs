//! Where a burst comes from, and what that says about its packets.

use crate::contexts::Looks;
use model::{VifId, VifKind};
use tables::Snapshot;

/// The origin of a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ingress {
    /// Interface.
    pub vif: VifId,
    /// Whether tunnels may end there.
    pub wire: bool,
    /// What flows of Open vSwitch look at there.
    pub looks: Looks,
    /// The port by which everything from there leaves as it is, without being looked up: the interface is its OVS side.
    pub port: Option<VifId>,
    /// Of a guest: the OVS side to which packets go that match no flow. Its queues wait while that has no room.
    pub side: Option<VifId>,
}

impl Ingress {
    /// An interface, about which nothing is known yet.
    pub fn new(vif: VifId) -> Self {
        Self { vif, wire: false, looks: Looks::default(), port: None, side: None }
    }

    /// The same interface in these tables.
    pub fn in_tables(self, snapshot: &Snapshot) -> Self {
        let vif = snapshot.vif(self.vif);
        let flows = vif.filter(|vif| vif.takes_flows());
        let wire = flows.is_none() && vif.is_some_and(|vif| vif.kind == VifKind::Wire);
        let looks = match (flows, wire) {
            (Some(port), _) => Looks::of_port(port, snapshot),
            (None, true) => Looks::of_wire(snapshot),
            (None, false) => Looks::default(),
        };
        // Rules and tunnels look at the packet.
        let side = vif.filter(|vif| vif.kind == VifKind::Ovs);
        let port = side.and_then(|side| snapshot.vif(side.ovs?));
        let port = port.filter(|port| port.rules.is_none() && port.tunnel().is_none()).map(|port| port.id);
        let guest = flows.filter(|vif| matches!(vif.kind, VifKind::Vhost | VifKind::Tap));
        Self { wire, looks, port, side: guest.and_then(|guest| guest.ovs), ..self }
    }
}
