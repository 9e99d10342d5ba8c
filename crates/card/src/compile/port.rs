//! Lines of ports.

use super::{Compiler, address_bits, is_port, mac_bits};
use crate::registers::Port;
use model::{Lookup, Shape, Vif, VifId, VifKind};
use std::net::IpAddr;

impl<T: Lookup> Compiler<'_, T> {
    /// Returns the port and the line of an interface, if it is attached.
    #[must_use]
    pub fn port(&self, id: VifId) -> Option<(u16, Port)> {
        let at = self.attached(id)?;
        let vif = self.tables.vif(id)?;
        let is_wire = vif.kind == VifKind::Wire;
        let line = match (vif.takes_flows(), is_wire) {
            (true, _) => crate::ovs::port(vif, at),
            (false, true) => self.wire_port(vif),
            (false, false) => self.guest_port(vif),
        };
        Some((at.port, line.unwrap_or(Port { valid: true, is_wire, host: true, ..Default::default() })))
    }

    /// Makes the line of a guest's port. The host handles all packets of guests with meters, shapers, a DSCP, mirrors
    /// or VLANs, and of guests without a MAC of their own on a network with a wire, whose MAC they may not use. If a
    /// guest has a verbs device beside its port, the host handles its fragments: the card can't tell them from the
    /// device's. Connections of such a guest are therefore tracked.
    fn guest_port(&self, vif: &Vif) -> Option<Port> {
        let vrf = self.vrf(vif.vrf?)?;
        // If the network learns MACs, it does not learn the wire's.
        let attached = || {
            self.tables
                .network(vif.vrf?)?
                .wire
                .filter(|_| vif.vrf.and_then(|vrf| self.learning(vrf)) == Some(false))
        };
        let is_anybody = vif.mac.is_none() && attached().is_some();
        let is_simple = vif.meter.is_none()
            && vif.shape == Shape::default()
            && vif.dscp.is_none()
            && vif.mirror.is_none()
            && !vif.is_tagged();
        let plain = is_port(vif.kind) && is_simple && !is_anybody;
        let port = Port {
            valid: true,
            policy: vif.policy || vif.rdma.is_some(),
            check_mac: vif.mac.is_some(),
            check_addresses: !vif.addresses.is_empty(),
            vrf,
            mac: vif.mac.map_or(0, mac_bits),
            ..addresses(vif.addresses.iter().copied())
        };
        plain.then_some(port)
    }

    /// Makes the line of a wire's port. A wire accepts tunnels to any address of this host; the line has as many
    /// addresses as fit.
    fn wire_port(&self, vif: &Vif) -> Option<Port> {
        let own = vif.wire.as_ref()?.addresses.iter().map(|subnet| subnet.addr());
        let sources = self.tables.host().tunnel_source.iter().copied();
        Some(Port { valid: true, is_wire: true, mac: mac_bits(vif.mac?), ..addresses(sources.chain(own)) })
    }
}

/// Makes a line with the first two addresses of each family.
fn addresses(all: impl Iterator<Item = IpAddr>) -> Port {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for addr in all {
        let list = if addr.is_ipv4() { &mut v4 } else { &mut v6 };
        if list.len() < 2 && !list.contains(&address_bits(addr)) {
            list.push(address_bits(addr));
        }
    }
    let at = |list: &[u128], n: usize| list.get(n).copied().unwrap_or_default();
    Port {
        addresses4: v4.len() as u8,
        addresses6: v6.len() as u8,
        address4_0: at(&v4, 0) as u32,
        address4_1: at(&v4, 1) as u32,
        address6_0: at(&v6, 0),
        address6_1: at(&v6, 1),
        ..Default::default()
    }
}
