//! The origin of a burst, and its consequences for the burst's packets.

use crate::contexts::Looks;
use model::{VifId, VifKind};
use tables::Snapshot;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ingress {
    pub vif: VifId,
    /// Whether tunnels may end there.
    pub wire: bool,
    /// The fields at which flows of Open vSwitch look there.
    pub looks: Looks,
    /// If the interface is an OVS side: the port by which all its packets leave, unchanged and without a
    /// look-up.
    pub port: Option<VifId>,
    /// If the interface is a guest: the OVS side to which packets go that match no flow. The guest's queues
    /// wait while that side has no room.
    pub side: Option<VifId>,
}

impl Ingress {
    /// Creates the origin for an interface about which nothing is known yet.
    pub fn new(vif: VifId) -> Self {
        Self { vif, wire: false, looks: Looks::default(), port: None, side: None }
    }

    /// Returns the same interface as these tables describe it.
    pub fn in_tables(self, snapshot: &Snapshot) -> Self {
        let vif = snapshot.vif(self.vif);
        let flows = vif.filter(|vif| vif.takes_flows());
        let wire = flows.is_none() && vif.is_some_and(|vif| vif.kind == VifKind::Wire);
        let looks = match (flows, wire) {
            (Some(port), _) => Looks::of_port(port, snapshot),
            (None, true) => Looks::of_wire(snapshot),
            (None, false) => Looks::default(),
        };
        // If the port has rules or a tunnel, every packet must be looked at.
        let side = vif.filter(|vif| vif.kind == VifKind::Ovs);
        let port = side.and_then(|side| snapshot.vif(side.ovs?));
        let port = port.filter(|port| port.rules.is_none() && port.tunnel().is_none()).map(|port| port.id);
        let guest = flows.filter(|vif| matches!(vif.kind, VifKind::Vhost | VifKind::Tap));
        Self { wire, looks, port, side: guest.and_then(|guest| guest.ovs), ..self }
    }
}
