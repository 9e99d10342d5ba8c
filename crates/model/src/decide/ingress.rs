//! Packets from a guest: anti-spoofing, metering, mirroring, learning and marking, then the switch.

use super::{Frame, Origin, Outcome, Walk, foreign_tags, guard, push_new, spoof};
use crate::{BridgeTarget, DropReason, GATEWAY_MAC, Learn, Lookup, Network, Vif, VifKind};
use packet::{Mac, Tag};

impl<'a, T: Lookup> Walk<'a, T> {
    /// Takes the first step for every packet, according to the kind of its ingress.
    pub(super) fn enter(&mut self) -> Outcome {
        let vif = self.tables.vif(self.ingress).ok_or(DropReason::NoNetwork)?;
        match (vif.kind, vif.ovs) {
            (_, Some(other)) => self.enter_ovs(vif, other),
            (VifKind::Wire, None) => self.wire(vif),
            (VifKind::Vhost | VifKind::Tap | VifKind::Rdma, None) => self.guest(vif),
            (VifKind::Mirror(_) | VifKind::Tunnel(_) | VifKind::Ovs, None) => {
                Err(DropReason::NoNetwork.into())
            }
        }
    }

    fn guest(&mut self, port: &'a Vif) -> Outcome {
        let (vif, foreign_tags) = self.vlan_of(port)?;
        let network = vif.vrf.and_then(|vrf| self.tables.network(vrf)).ok_or(DropReason::NoNetwork)?;
        let headers = &self.packet.headers;
        let eth = headers.eth.as_ref().ok_or(DropReason::EthernetTruncated)?;
        spoof::check(self.tables, vif, network, self.packet)?;
        guard::check(vif, self.packet)?;
        if let Some(meter) = vif.meter {
            let _ = self.effects.meters.try_push((meter, DropReason::RateLimited));
        }
        if let Some(mirror) = vif.mirror {
            push_new(&mut self.effects.mirror_in, mirror);
        }
        if vif.mac != Some(eth.src) {
            self.learn(network, eth.src, BridgeTarget::Vif(vif.id));
        }
        let tos = headers.ip().map_or(0, |ip| vif.marked(ip.tos));
        let frame = Frame {
            headers: headers.clone(),
            end: self.packet.len as usize,
            origin: Origin::Guest(vif),
            network,
            tos,
            foreign_tags,
        };
        self.tenant(&frame)
    }

    /// Returns the guest's interface for a frame's VLAN, and how many of the frame's tags are removed. A
    /// guest with VLANs may use only those. A guest without VLANs may send no tags of its own: other guests
    /// might take them for tags of their VLANs.
    fn vlan_of(&self, port: &'a Vif) -> Result<(&'a Vif, u8), DropReason> {
        let headers = &self.packet.headers;
        let tags = headers.eth.as_ref().map_or(&[][..], |eth| &eth.tags);
        let priorities = foreign_tags(headers, 0);
        let Some(tag) = tags.get(usize::from(priorities)).filter(|_| !port.vlans.is_empty()) else {
            return Ok((port, priorities));
        };
        let vlan = |tag: &&Tag| priorities == 0 && !tag.service;
        let id =
            Some(tag).filter(vlan).and_then(|tag| port.vlans.iter().find(|(vlan, _)| *vlan == tag.vlan()));
        let vif = id.and_then(|(_, id)| self.tables.vif(*id)).ok_or(DropReason::VlanUnexpected)?;
        Ok((vif, foreign_tags(headers, 1)))
    }

    /// Learns the location of a MAC, unless that is configured. The gateway's MAC is everywhere, so it is
    /// never learned.
    pub(super) fn learn(&mut self, network: &Network, mac: Mac, at: BridgeTarget) {
        let learnable = network.learning && !mac.is_group() && !mac.is_zero() && mac != GATEWAY_MAC;
        if learnable && !self.tables.bridge(network.vrf, mac).is_some_and(|entry| entry.is_static) {
            self.effects.learn = Some(Learn { vrf: network.vrf, mac, at });
        }
    }
}
