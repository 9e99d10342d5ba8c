//! Multicast groups of a device, and the queue pairs that are attached to them (IBTA 10.5).
//!
//! Whose packets get here is the vRouter's business: it floods what is sent to a group in the network.

use crate::inbox::{Inbox, Packet};
use crate::path::Network;
use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

pub(crate) use rdma::cm::MULTICAST_QUEUE_PAIR as QPN;

/// Groups of a device.
pub(crate) const MAX_GROUPS: u32 = 1024;
/// Queue pairs that are attached to a group: as many copies are made of a datagram.
pub(crate) const MAX_MEMBERS: u32 = 128;
/// Queue pairs that are attached to all groups, together.
pub(crate) const MAX_ATTACHED: u32 = 4096;

/// There are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("the device has {MAX_GROUPS} multicast groups, the most it may have")]
    Groups,
    #[error("{MAX_MEMBERS} queue pairs are attached to the group, the most there may be")]
    Members,
    #[error("{MAX_ATTACHED} times queue pairs are attached to groups, the most there may be")]
    Attached,
}

/// Whether a GID is that of a group: an IPv6 multicast address, or a mapped IPv4 one.
pub(crate) fn is_group(gid: Ipv6Addr) -> bool {
    gid.to_ipv4_mapped().map_or(gid.is_multicast(), |v4| v4.is_multicast())
}

#[derive(Clone, Debug)]
struct Member {
    qpn: u32,
    inbox: Arc<Inbox>,
}

/// The groups of a device. Whoever has a datagram for one takes its list of members and needs no lock then.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<HashMap<Ipv6Addr, Arc<[Member]>>>);

impl Groups {
    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Ipv6Addr, Arc<[Member]>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self, group: Ipv6Addr) -> Option<Arc<[Member]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Attaches a queue pair to a group. One that is attached already stays so.
    pub fn attach(&self, group: Ipv6Addr, qpn: u32, owner: &Arc<Inbox>) -> Result<(), Full> {
        let mut groups = self.write();
        let members = groups.get(&group).cloned().unwrap_or_default();
        if members.iter().any(|member| member.qpn == qpn) {
            return Ok(());
        }
        if members.is_empty() && groups.len() >= MAX_GROUPS as usize {
            return Err(Full::Groups);
        }
        if members.len() >= MAX_MEMBERS as usize {
            return Err(Full::Members);
        }
        if groups.values().map(|members| members.len()).sum::<usize>() >= MAX_ATTACHED as usize {
            return Err(Full::Attached);
        }
        let new = Member { qpn, inbox: owner.clone() };
        groups.insert(group, members.iter().cloned().chain([new]).collect());
        Ok(())
    }

    /// Detaches a queue pair from a group. False where it is not attached.
    pub fn detach(&self, group: Ipv6Addr, qpn: u32) -> bool {
        let mut groups = self.write();
        let Some(members) = groups.get(&group) else { return false };
        let left: Arc<[Member]> = members.iter().filter(|member| member.qpn != qpn).cloned().collect();
        let was_member = left.len() < members.len();
        if left.is_empty() {
            groups.remove(&group);
        } else if was_member {
            groups.insert(group, left);
        }
        was_member
    }

    /// Whether a queue pair is attached to any group.
    pub fn has(&self, qpn: u32) -> bool {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        groups.values().any(|members| members.iter().any(|member| member.qpn == qpn))
    }

    /// A queue pair is gone.
    pub fn remove(&self, qpn: u32) {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_it = |members: &Arc<[Member]>| members.iter().any(|member| member.qpn == qpn);
        let its: Vec<_> = groups.iter().filter(|(_, members)| of_it(members)).map(|(gid, _)| *gid).collect();
        drop(groups);
        its.into_iter().for_each(|group| _ = self.detach(group, qpn));
    }

    /// Gives a copy of a datagram to each member but its sender. What there is no room for is lost. Returns the bytes of
    /// copies that were taken.
    pub fn give(
        &self,
        (network, is_local): (Network, bool),
        bytes: &[u8],
        sender: Option<u32>,
        spare: &mut Vec<u8>,
    ) -> u64 {
        let Some(members) = self.members(network.destination) else { return 0 };
        let mut copied = 0;
        for member in members.iter().filter(|member| Some(member.qpn) != sender) {
            spare.clear();
            spare.extend_from_slice(bytes);
            let packet = Packet { qpn: member.qpn, network, is_local, bytes: std::mem::take(spare) };
            copied += u64::from(member.inbox.put(packet, spare)) * bytes.len() as u64;
        }
        copied
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::budget::{Account, Stock};

    fn group(number: u32) -> Ipv6Addr {
        std::net::Ipv4Addr::from(0xe000_0000 + number).to_ipv6_mapped()
    }

    #[test]
    fn what_is_attached_is_bounded() {
        let inbox = Arc::new(Inbox::new(Arc::new(Account::new(Arc::new(Stock::new(0, 0)), 0))).unwrap());
        let groups = Groups::default();
        for qpn in 0..MAX_MEMBERS {
            assert_eq!(groups.attach(group(0), qpn, &inbox), Ok(()));
            assert_eq!(groups.attach(group(0), qpn, &inbox), Ok(()), "once more is the same");
        }
        assert_eq!(groups.attach(group(0), MAX_MEMBERS, &inbox), Err(Full::Members));
        for number in 1..MAX_GROUPS {
            assert_eq!(groups.attach(group(number), 0, &inbox), Ok(()));
        }
        assert_eq!(groups.attach(group(MAX_GROUPS), 0, &inbox), Err(Full::Groups));
        let room = MAX_ATTACHED - MAX_MEMBERS - (MAX_GROUPS - 1);
        for more in 0..room {
            let number = 1 + more % (MAX_GROUPS - 1);
            assert_eq!(groups.attach(group(number), 1 + more / (MAX_GROUPS - 1), &inbox), Ok(()));
        }
        assert_eq!(groups.attach(group(MAX_GROUPS - 1), MAX_MEMBERS, &inbox), Err(Full::Attached));
        assert!(
            groups.detach(group(0), 1) && !groups.detach(group(0), 1) && !groups.detach(group(MAX_GROUPS), 1)
        );
        assert_eq!(groups.attach(group(0), MAX_MEMBERS, &inbox), Ok(()));
        assert!(groups.has(0));
        (0..=MAX_MEMBERS).for_each(|qpn| groups.remove(qpn));
        assert!(!groups.has(0) && groups.0.read().unwrap().is_empty());
    }

    #[test]
    fn groups_are_known_by_their_addresses() {
        for (gid, is) in [("::ffff:224.0.0.1", true), ("::ffff:239.1.2.3", true), ("ff0e::1", true)] {
            assert_eq!(is_group(gid.parse().unwrap()), is);
        }
        for gid in ["::ffff:10.0.0.1", "::ffff:255.255.255.255", "fe80::1", "::", "::e000:1"] {
            assert!(!is_group(gid.parse().unwrap()), "{gid}");
        }
    }
}
