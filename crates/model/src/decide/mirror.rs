//! Copies for mirrors on other hosts.

use super::{Stop, Walk, entropy_of};
use crate::{Encap, Lookup, RemoteMirror, Tunnel, VifId, VifKind};
use arrayvec::ArrayVec;

impl<T: Lookup> Walk<'_, T> {
    /// Finds the ways to the mirrors among the effects that are on other hosts, and asks for a neighbour that is not
    /// known on one of them. Past the capacity they get no copies.
    pub(super) fn find_mirrors(&mut self) {
        let effects = &self.effects;
        if effects.mirror_in.is_empty() && effects.mirror_out.is_empty() {
            return;
        }
        let mirrors: ArrayVec<VifId, 8> =
            effects.mirror_in.iter().chain(&effects.mirror_out).copied().collect();
        for mirror in mirrors {
            let Some(VifKind::Mirror(tunnel)) = self.tables.vif(mirror).map(|vif| vif.kind) else { continue };
            if self.effects.remote_mirrors.iter().any(|found| found.mirror == mirror) {
                continue;
            }
            let way = match self.way_to(&tunnel) {
                Ok(way) => Some(way),
                Err(Stop::Hold { scope, addr }) => {
                    self.effects.solicit.get_or_insert((scope, addr));
                    None
                }
                Err(_) => None,
            };
            if self.effects.remote_mirrors.try_push(RemoteMirror { mirror, way }).is_err() {
                self.effects.mirror_in.retain(|copy| *copy != mirror);
                self.effects.mirror_out.retain(|copy| *copy != mirror);
            }
        }
    }

    /// The wire and the encapsulation of whole frames through a tunnel.
    fn way_to(&self, tunnel: &Tunnel) -> Result<(VifId, Encap), Stop> {
        let path = self.path(tunnel.remote)?;
        let encap = Encap {
            kind: tunnel.kind,
            id: tunnel.id,
            src: path.src,
            dst: tunnel.remote,
            src_mac: path.src_mac,
            dst_mac: self.neighbour_mac(path.scope(), path.hop)?,
            entropy: entropy_of(&self.packet.headers),
            tos: 0,
        };
        Ok((path.wire.id, encap))
    }
}
