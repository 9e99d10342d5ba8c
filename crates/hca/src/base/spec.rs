//! The specification of a guest's device.

use crate::base::limits::{
    Limits, MAX_ATTACHED, MAX_COMPLETIONS, MAX_GROUPS, MAX_INLINE, MAX_MEMBERS, MAX_PDS, MAX_READS,
    MAX_SEGMENTS, MAX_WORK,
};
use crate::base::shaper::Rate;
use packet::Mac;
use std::net::{IpAddr, Ipv6Addr};
use uverbs::DeviceInfo;

/// Most bytes of a packet besides its payload: IPv6, UDP, BTH, RETH, immediate data or AETH, ICRC.
const HEADERS: u16 = 40 + 8 + 12 + 16 + 4 + 4;

/// The specification of a guest's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The guest's name.
    pub guest: String,
    /// The VRF of its network. Devices in the same VRF reach each other.
    pub vrf: u32,
    /// The MAC of the guest's port.
    pub mac: [u8; 6],
    /// The addresses of the guest, without the link-local one.
    pub addresses: Vec<IpAddr>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// How much its applications may take.
    pub limits: Limits,
    /// If two guests have the same word here, their applications may share memory when they run as the same user.
    pub trust: Option<String>,
    /// True if packets to guests of this host go through the vRouter too, because the guest is mirrored or has a
    /// rate.
    pub is_watched: bool,
    /// How much the guest may send; `None`: as much as it likes.
    pub rate: Option<Rate>,
}

impl DeviceSpec {
    /// Returns the GIDs: the addresses, IPv4 ones mapped, with the first one twice, then the link-local address derived
    /// from the MAC (RFC 4291, appendix A). Programs take index 0 if nobody tells them another, and a link-local address
    /// does not leave the host.
    #[must_use]
    pub fn gids(&self) -> Vec<Ipv6Addr> {
        let addresses = self.mapped();
        let first = addresses.first().copied();
        first.into_iter().chain(addresses).chain([Mac(self.mac).link_local()]).collect()
    }

    fn mapped(&self) -> Vec<Ipv6Addr> {
        let mapped = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        };
        self.addresses.iter().map(mapped).collect()
    }

    /// Returns an address of this device and one of the other device, both of the same IP version.
    pub(crate) fn pair(&self, other: &Self) -> Option<(Ipv6Addr, Ipv6Addr)> {
        let (own, others) = (self.mapped(), other.mapped());
        let pairs = own.iter().flat_map(|a| others.iter().map(move |b| (*a, *b)));
        pairs.into_iter().find(|(a, b)| a.to_ipv4_mapped().is_some() == b.to_ipv4_mapped().is_some())
    }

    /// Returns the EUI-64 of the MAC.
    #[must_use]
    pub fn guid(&self) -> u64 {
        u128::from(Mac(self.mac).link_local()) as u64
    }

    /// Is true if the device shares memory at all: it has a trust, and nobody watches its packets.
    pub(crate) const fn shares_memory(&self) -> bool {
        self.trust.is_some() && !self.is_watched
    }

    /// Is true if the device shares memory in this trust.
    pub(crate) fn trusts(&self, trust: &str) -> bool {
        self.shares_memory() && self.trust.as_deref() == Some(trust)
    }

    /// Returns the code (`ibv_mtu`) of the longest payload that fits a packet of the guest.
    pub(crate) fn active_mtu(&self) -> u32 {
        let fits = |code: &u32| 128_u16 << code <= self.mtu.saturating_sub(HEADERS);
        (1..=5).rev().find(fits).unwrap_or(1)
    }

    /// Returns the capabilities that are reported to applications.
    pub(crate) fn info(&self) -> DeviceInfo {
        let qps = self.limits.qps;
        DeviceInfo {
            name: self.guest.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            node_guid: self.guid(),
            max_mr_size: self.limits.registered,
            max_qp: qps,
            max_qp_wr: MAX_WORK,
            max_sge: MAX_SEGMENTS,
            max_inline_data: MAX_INLINE,
            max_cq: self.limits.cqs(),
            max_cqe: MAX_COMPLETIONS,
            max_mr: self.limits.mrs,
            max_mw: self.limits.mrs,
            max_pd: MAX_PDS,
            max_ah: self.limits.ahs(),
            max_srq: qps,
            max_srq_wr: MAX_WORK,
            max_srq_sge: MAX_SEGMENTS,
            max_rd_atomic: MAX_READS,
            max_mcast_grp: MAX_GROUPS,
            max_mcast_qp_attach: MAX_MEMBERS,
            max_total_mcast_qp_attach: MAX_ATTACHED,
            doorbells: qps,
            is_trusting: self.shares_memory(),
            program: 0,
            suspects: Vec::new(),
        }
    }
}
