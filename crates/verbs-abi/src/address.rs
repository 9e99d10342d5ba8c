//! GIDs, and the addresses of packets.

use super::{ibv_context, ibv_pd};
use std::net::Ipv6Addr;
use uverbs::AddressVector;

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `ibv_gid_entry::gid_type` of RoCE v2.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// RoCE v2 in the numbering of the private `ibv_query_gid_type`.
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// The 40 bytes before a datagram. They may be at any alignment in the application's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}

#[repr(C)]
#[derive(Debug)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

impl From<Ipv6Addr> for ibv_gid {
    fn from(address: Ipv6Addr) -> Self {
        Self { raw: address.octets() }
    }
}

impl From<ibv_gid> for Ipv6Addr {
    fn from(gid: ibv_gid) -> Self {
        gid.raw.into()
    }
}

impl From<&ibv_ah_attr> for AddressVector {
    fn from(of: &ibv_ah_attr) -> Self {
        Self {
            dgid: of.grh.dgid.into(),
            sgid_index: of.grh.sgid_index.into(),
            flow_label: of.grh.flow_label,
            hop_limit: of.grh.hop_limit,
            traffic_class: of.grh.traffic_class,
            sl: of.sl,
            port_num: of.port_num,
            is_global: of.is_global != 0,
        }
    }
}

impl From<&AddressVector> for ibv_ah_attr {
    fn from(of: &AddressVector) -> Self {
        let grh = ibv_global_route {
            dgid: of.dgid.into(),
            flow_label: of.flow_label,
            sgid_index: u8::try_from(of.sgid_index).unwrap_or(u8::MAX),
            hop_limit: of.hop_limit,
            traffic_class: of.traffic_class,
        };
        Self { grh, sl: of.sl, is_global: of.is_global.into(), port_num: of.port_num, ..Self::default() }
    }
}
