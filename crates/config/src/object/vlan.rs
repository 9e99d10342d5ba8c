//! VLANs of a guest: a trunk.

use super::{Guest, VlanId};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, describe};
use ipnet::IpNet;
use serde::Serialize;
use std::net::IpAddr;

/// Most VLANs of a guest.
const MAX_VLANS: usize = 64;

/// A VLAN of a guest, in a network of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestVlan {
    /// VLAN identifier of the C-tags.
    pub tag: u16,
    /// The network of the VLAN.
    pub network: String,
    /// The guest's addresses there.
    pub addresses: Vec<IpAddr>,
    /// More source prefixes that the guest may use besides its addresses.
    pub allowed: Vec<IpNet>,
}

impl Value for GuestVlan {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let (tag, network) = (r.require("tag").map(VlanId::short), r.require("network"));
        let addresses = r.list("addresses");
        let allowed = r.list::<Prefix>("allowed").into_iter().map(|prefix| prefix.0).collect();
        r.finish();
        Some(Self { tag: tag?, network: network?, addresses, allowed })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ tag = N, network = \"NAME\" }}, found {}", describe(value)))
    }
}

/// Checks the VLANs of a guest by themselves.
pub(super) fn check(guest: &Guest, r: &Reader<'_>) {
    if guest.vlans.len() > MAX_VLANS {
        r.problem(Some("vlans"), format!("{} VLANs; use {MAX_VLANS} at most", guest.vlans.len()));
    }
    for (index, vlan) in guest.vlans.iter().enumerate() {
        let before = &guest.vlans[..index];
        if before.iter().any(|other| other.tag == vlan.tag) {
            r.problem(Some("vlans"), format!("tag {} is there twice", vlan.tag));
        }
        if vlan.network == guest.network || before.iter().any(|other| other.network == vlan.network) {
            let message =
                format!("network \"{}\" is there twice: a guest is in a network once", vlan.network);
            r.problem(Some("vlans"), message);
        }
    }
}
