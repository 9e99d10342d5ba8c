//! The path of packets to their destination.

use crate::base::header::{NetworkHeader, is_group, same_version};
use crate::net::adapter::Adapter;
use crate::net::fabric::{DeviceAddress, Fabric};
use std::net::Ipv6Addr;
use std::sync::Arc;
use uverbs::AddressVector;

/// The hop limit if the application chooses none.
const HOPS: u8 = 64;

/// A path from a GID of the device to another GID.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub header: NetworkHeader,
    /// The MAC of the device.
    pub mac: [u8; 6],
    pub way: Way,
}

/// How packets travel.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// From thread to thread: both guests are on this host, in one network.
    Local(Arc<Adapter>),
    /// As packets of the guest, through the vRouter.
    Wire,
    /// To a multicast group: to queue pairs of the device itself, and through the vRouter to others.
    Group,
}

/// Why there is no such path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPath {
    #[error("an address needs a global route (is_global), as there are no LIDs on Ethernet")]
    NotGlobal,
    #[error("there is no GID with index {0}")]
    NoSource(u32),
    #[error("the device has one port, 1")]
    NoPort,
    #[error("{0} is not an address that anybody can have")]
    Nobody(Ipv6Addr),
    #[error("connections are with one peer, not with a multicast group")]
    Group,
    #[error("{0} and {1} are of different IP versions")]
    Mixed(Ipv6Addr, Ipv6Addr),
}

impl Path {
    /// Finds the path to the single peer that an address vector describes.
    pub fn to_peer(vector: &AddressVector, adapter: &Adapter, fabric: &Fabric) -> Result<Self, NoPath> {
        let path = Self::find(vector, adapter, fabric)?;
        if matches!(path.way, Way::Group) { Err(NoPath::Group) } else { Ok(path) }
    }

    /// Finds the path that an address vector describes.
    pub fn find(vector: &AddressVector, adapter: &Adapter, fabric: &Fabric) -> Result<Self, NoPath> {
        // A copy: another device's specification is read below, and a writer waiting for either lock would block that.
        let spec = adapter.spec().clone();
        if !vector.is_global {
            return Err(NoPath::NotGlobal);
        }
        if vector.port_num > 1 {
            return Err(NoPath::NoPort);
        }
        let gids = spec.gids();
        let source = gids.get(vector.sgid_index as usize).ok_or(NoPath::NoSource(vector.sgid_index))?;
        let destination = vector.dgid;
        let is_nobodys = |gid: Ipv6Addr| match gid.to_ipv4_mapped() {
            Some(v4) => v4.is_broadcast() || v4.is_unspecified(),
            None => gid.is_unspecified(),
        };
        if is_nobodys(destination) {
            return Err(NoPath::Nobody(destination));
        }
        if !same_version(*source, destination) {
            return Err(NoPath::Mixed(*source, destination));
        }
        let peer = fabric.find(spec.vrf, destination);
        let way = match peer {
            _ if is_group(destination) => Way::Group,
            Some(peer) if std::ptr::eq(&raw const *peer, adapter) => Way::Local(peer),
            Some(peer)
                if !(spec.is_watched || peer.spec().is_watched)
                    && fabric.lets(
                        DeviceAddress { adapter, gid: *source },
                        DeviceAddress { adapter: &peer, gid: destination },
                    ) =>
            {
                Way::Local(peer)
            }
            _ => Way::Wire,
        };
        let header = NetworkHeader {
            source: *source,
            destination,
            traffic_class: vector.traffic_class,
            hop_limit: if vector.hop_limit <= 1 { HOPS } else { vector.hop_limit },
            flow_label: vector.flow_label & 0xf_ffff,
        };
        Ok(Self { header, mac: spec.mac, way })
    }
}
