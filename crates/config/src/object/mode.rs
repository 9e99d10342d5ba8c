//! The switch that decides about a port's packets.

use super::connection::{self, GuestKind};
use super::{Guest, Wire, rdma};
use crate::reader::Reader;
use crate::value::names;

/// The switch that decides about a port's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Viaduct, by networks, routes and rules.
    #[default]
    Vrouter,
    /// An Open vSwitch, whose flows Viaduct carries out.
    Ovs,
}

names!(Mode { Vrouter = "vrouter", Ovs = "ovs" });

impl Mode {
    /// Returns whether the mode is the one that a file without the key has.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Largest IP packet of a guest that an Open vSwitch programs, bytes, if the file does not give one.
pub(crate) const OVS_MTU: u16 = 1500;

/// Checks that a guest which an Open vSwitch programs has no keys of networks.
pub(super) fn check_guest(guest: &Guest, port: &connection::Keys, verbs: &rdma::Keys, r: &Reader<'_>) {
    if guest.mode != Mode::Ovs {
        return;
    }
    if guest.kind() == GuestKind::Rdma {
        r.problem(Some("mode"), "an Open vSwitch programs ports, and a guest of kind \"rdma\" has none");
    }
    match (guest.policy, guest.network.is_empty()) {
        (true, true) => {
            let message = "with mode = \"ovs\", `policy` needs a `network`, whose rules the guest obeys \
                           beside the flows";
            r.problem(Some("policy"), message);
        }
        (false, false) => {
            let message = "with mode = \"ovs\", a guest is in no network; add policy = true to have it obey the rules of \
                           this one, or leave `network` out";
            r.problem(Some("network"), message);
        }
        _ => {}
    }
    let of_networks = [
        ("mac", guest.mac.is_some()),
        ("macs", !guest.macs.is_empty()),
        ("addresses", !guest.addresses.is_empty()),
        ("vlans", !guest.vlans.is_empty()),
        ("label", guest.label.is_some()),
        ("shape", guest.shape.is_some()),
        ("dscp", guest.dscp.is_some()),
        ("mirror", guest.mirror.is_some()),
        ("allowed", !guest.allowed.is_empty()),
        ("router", guest.router),
        ("dhcp_server", guest.dhcp_server),
        ("standby", port.standby),
        ("sockets", guest.sockets),
    ];
    for (key, _) in of_networks.iter().filter(|(_, used)| *used) {
        r.problem(Some(key), not_with_ovs(key));
    }
    let is_port = guest.kind() != GuestKind::Rdma;
    for (key, _) in verbs.all(guest, port).iter().filter(|(_, used)| *used && is_port) {
        let message = format!(
            "`{key}` is of a verbs device, which takes its addresses from a network, and a port of Open vSwitch is in \
             none; leave it out, and give the device to another guest"
        );
        r.problem(Some(key), message);
    }
}

/// Checks that a wire which an Open vSwitch programs has no keys of networks.
pub(super) fn check_wire(wire: &Wire, r: &Reader<'_>) {
    if wire.mode != Mode::Ovs {
        if wire.tunnel().is_some() {
            let message = "a tunnel is a wire only for Open vSwitch (mode = \"ovs\"); networks have their tunnels in \
                           [[flood]], [[mac]] and [[route]]";
            r.problem(Some("driver"), message);
        }
        return;
    }
    for (key, used) in [("addresses", !wire.addresses.is_empty()), ("gateway", !wire.gateway.is_empty())] {
        if used {
            r.problem(Some(key), not_with_ovs(key));
        }
    }
}

fn not_with_ovs(key: &str) -> String {
    format!("`{key}` has no meaning with mode = \"ovs\": there, Open vSwitch alone decides; leave it out")
}
