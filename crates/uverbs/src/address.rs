//! Addresses of packets, as the control messages describe them.

use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// The destination of packets (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // `ibv_ah_attr`'s names
pub struct AddressVector {
    pub dgid: Ipv6Addr,
    pub sgid_index: u32,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port_num: u8,
    /// Whether the address has a global route. Addresses without one are refused, because Ethernet has no LIDs.
    pub is_global: bool,
}

impl Default for AddressVector {
    fn default() -> Self {
        Self {
            dgid: Ipv6Addr::UNSPECIFIED,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
            sl: 0,
            port_num: 0,
            is_global: false,
        }
    }
}
