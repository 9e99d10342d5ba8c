//! Copies for mirrors, including those on other hosts.

use crate::underlay::underlay_path;
use crate::{Cut, Forward, Lookup, NeighbourScope, Tunnel, VifId, VifKind, entropy_of};
use packet::Headers;
use std::net::IpAddr;

/// Returns the delivery of a copy of an incoming packet with these headers to a mirror, if the packet itself
/// leaves as in `base`. A copy to another host loses the tag of a guest's VLAN. `None` if the mirror can't be
/// reached.
#[must_use]
pub fn copy_to<T: Lookup>(tables: &T, headers: &Headers, mirror: VifId, base: &Forward) -> Option<Forward> {
    let cut = base.cut.filter(|cut| matches!(cut, Cut::Packet(_)));
    let Some(tunnel) = remote(tables, mirror) else {
        return Some(Forward { port: mirror, encap: None, cut, ..base.clone() });
    };
    let entropy = entropy_of(headers);
    let path = underlay_path(tables, tunnel.remote, entropy)?;
    let encap = path.encap(&tunnel, path.hop_mac(tables)?, entropy, 0);
    Some(Forward { port: path.wire.id, encap: Some(encap), push_vlan: None, cut, ..base.clone() })
}

/// Returns the unknown neighbour on the path of copies of a packet with these headers to one of these mirrors.
pub(crate) fn missing<'m, T: Lookup>(
    tables: &T,
    headers: &Headers,
    mirrors: impl IntoIterator<Item = &'m VifId>,
) -> Option<(NeighbourScope, IpAddr)> {
    mirrors.into_iter().find_map(|mirror| {
        // The kernel asks for the neighbours of its wires.
        let path = underlay_path(tables, remote(tables, *mirror)?.remote, entropy_of(headers))
            .filter(|path| path.kernels.is_none())?;
        let (scope, hop) = (path.scope(), path.hop);
        let asked = tables.neighbour(scope, hop).is_none() && !tables.is_unreachable(scope, hop);
        asked.then_some((scope, hop))
    })
}

/// Returns the tunnel to a mirror, if it is on another host.
fn remote<T: Lookup>(tables: &T, mirror: VifId) -> Option<Tunnel> {
    match tables.vif(mirror)?.kind {
        VifKind::Mirror(tunnel) => Some(tunnel),
        _ => None,
    }
}
