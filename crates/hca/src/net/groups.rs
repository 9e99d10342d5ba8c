//! Multicast groups of a device, and the queue pairs attached to them (IBTA 10.5).
//!
//! The vRouter decides which packets get here: it floods packets to a group in the network.

use crate::base::header::NetworkHeader;
use crate::base::ids::Qpn;
use crate::base::limits::{MAX_ATTACHED, MAX_GROUPS, MAX_MEMBERS, PARTITION};
use crate::inbox::message::Message;
use crate::inbox::{Inbox, Packet};
use crate::net::wire_errors::WireErrors;
use packet::roce::{self, Opcode, Service};
use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// The queue pair number in datagrams to a group (IBTA 10.5.1).
pub(crate) const QPN: Qpn = Qpn(rdma::cm::MULTICAST_QUEUE_PAIR);

/// The time that one copy of a datagram from the wire takes of the rate: 200,000 copies a second, as many as the
/// vRouter floods into a network from wires.
const COPY: Duration = Duration::from_micros(5);
/// The burst of the rate: 4000 copies.
const BURST: Duration = Duration::from_millis(20);

/// A limit on groups is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupLimit {
    #[error("the device has {MAX_GROUPS} multicast groups, which is the limit")]
    Groups,
    #[error("{MAX_MEMBERS} queue pairs are attached to the group, which is the limit")]
    Members,
    #[error("{MAX_ATTACHED} queue pairs are attached to the device's groups, which is the limit")]
    Attached,
}

/// A queue pair that is attached to a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub qpn: Qpn,
    /// The queue key that datagrams for it must have. Other datagrams are not copied; the queue pair checks the key
    /// again.
    pub queue_key: Arc<AtomicU32>,
    pub inbox: Arc<Inbox<Message>>,
}

/// Limits the copies per second (the generic cell rate algorithm of ITU-T I.371).
#[derive(Debug, Default)]
pub(crate) struct CopyRate {
    /// When the copies so far would have been made at the rate.
    until: Duration,
}

impl CopyRate {
    /// Is true if a datagram may be copied now: to all members, or to none.
    pub fn may(&self, now: Duration) -> bool {
        self.until.saturating_sub(now) < BURST
    }

    pub fn spend(&mut self, now: Duration, copies: usize) {
        self.until = self.until.max(now) + COPY * copies as u32;
    }
}

/// Why no queue pair of a group accepts a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    Malformed,
    Partition,
}

/// A datagram for a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multicast<'a> {
    header: NetworkHeader,
    is_local: bool,
    queue_key: u32,
    bytes: &'a [u8],
}

impl<'a> Multicast<'a> {
    /// Checks a datagram as far as possible without the queue pairs.
    pub fn new(header: NetworkHeader, is_local: bool, bytes: &'a [u8]) -> Result<Self, Unfit> {
        let datagram = roce::parse(bytes).map_err(|_| Unfit::Malformed)?;
        let (Opcode::Of(Service::Ud, _), Some(deth)) = (datagram.bth.opcode, datagram.deth) else {
            return Err(Unfit::Malformed);
        };
        // The highest bit (membership) does not matter here.
        if (datagram.bth.partition ^ PARTITION) & 0x7fff != 0 {
            return Err(Unfit::Partition);
        }
        Ok(Self { header, is_local, queue_key: deth.queue_key, bytes })
    }

    /// Puts a copy into the inbox of each member except the sender. Copies for a full inbox are lost. Calls `gave` for
    /// each inbox that got copies, which the caller announces. Returns how many copies were made, including lost ones,
    /// which cost as much.
    pub fn give(
        &self,
        members: &[Member],
        sender: Option<Qpn>,
        errors: &WireErrors,
        spare: &mut Vec<u8>,
        mut gave: impl FnMut(&Arc<Inbox<Message>>),
    ) -> usize {
        let (mut made, mut wrong, mut lost) = (0, 0, 0);
        // Members of the same program follow each other.
        for its in members.chunk_by(|one, other| Arc::ptr_eq(&one.inbox, &other.inbox)) {
            let before = made - lost;
            for member in its.iter().filter(|member| Some(member.qpn) != sender) {
                if member.queue_key.load(Ordering::Relaxed) != self.queue_key {
                    wrong += 1;
                    continue;
                }
                spare.clear();
                spare.extend_from_slice(self.bytes);
                let (header, is_local, bytes) = (self.header, self.is_local, std::mem::take(spare));
                let packet = Packet { qpn: member.qpn, header, is_local, bytes };
                made += 1;
                lost += usize::from(!member.inbox.put_quietly(packet, spare));
            }
            if made - lost > before {
                gave(&its[0].inbox);
            }
        }
        errors.queue_key.fetch_add(wrong, Ordering::Relaxed);
        errors.no_room.fetch_add(lost as u64, Ordering::Relaxed);
        made
    }
}

/// The groups of a device. A sender fetches a group's list of members and then needs no lock.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<HashMap<Ipv6Addr, Arc<[Member]>>>);

impl Groups {
    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Ipv6Addr, Arc<[Member]>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the members of a group; `None` if there are none.
    pub fn members(&self, group: Ipv6Addr) -> Option<Arc<[Member]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Attaches a queue pair to a group. Attaching it again changes nothing.
    pub fn attach(&self, group: Ipv6Addr, new: Member) -> Result<(), GroupLimit> {
        let mut groups = self.write();
        let members = groups.get(&group).cloned().unwrap_or_default();
        if members.iter().any(|member| member.qpn == new.qpn) {
            return Ok(());
        }
        if members.is_empty() && groups.len() >= MAX_GROUPS as usize {
            return Err(GroupLimit::Groups);
        }
        if members.len() >= MAX_MEMBERS as usize {
            return Err(GroupLimit::Members);
        }
        if groups.values().map(|members| members.len()).sum::<usize>() >= MAX_ATTACHED as usize {
            return Err(GroupLimit::Attached);
        }
        let last = members.iter().rposition(|member| Arc::ptr_eq(&member.inbox, &new.inbox));
        let (before, after) = members.split_at(last.map_or(members.len(), |last| last + 1));
        groups.insert(group, before.iter().cloned().chain([new]).chain(after.iter().cloned()).collect());
        Ok(())
    }

    /// Detaches a queue pair from a group. False if it is not attached.
    pub fn detach(&self, group: Ipv6Addr, qpn: Qpn) -> bool {
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

    /// Is true if a queue pair is attached to any group.
    pub fn has(&self, qpn: Qpn) -> bool {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        groups.values().any(|members| members.iter().any(|member| member.qpn == qpn))
    }

    /// Detaches a queue pair from all groups.
    pub fn remove(&self, qpn: Qpn) {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_it = |members: &Arc<[Member]>| members.iter().any(|member| member.qpn == qpn);
        let its: Vec<_> = groups.iter().filter(|(_, members)| of_it(members)).map(|(gid, _)| *gid).collect();
        drop(groups);
        its.into_iter().for_each(|group| _ = self.detach(group, qpn));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::{DeviceBudget, HostBudget};

    fn group(number: u32) -> Ipv6Addr {
        std::net::Ipv4Addr::from(0xe000_0000 + number).to_ipv6_mapped()
    }

    #[test]
    fn what_is_attached_is_bounded() {
        let inbox =
            Arc::new(Inbox::new(Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0))).unwrap());
        let (groups, key) = (Groups::default(), Arc::default());
        let attach = |group, qpn, inbox: &Arc<Inbox<Message>>| {
            let (queue_key, inbox) = (Arc::clone(&key), inbox.clone());
            groups.attach(group, Member { qpn: Qpn(qpn), queue_key, inbox })
        };
        for qpn in 0..MAX_MEMBERS {
            assert_eq!(attach(group(0), qpn, &inbox), Ok(()));
            assert_eq!(attach(group(0), qpn, &inbox), Ok(()), "once more is the same");
        }
        assert_eq!(attach(group(0), MAX_MEMBERS, &inbox), Err(GroupLimit::Members));
        for number in 1..MAX_GROUPS {
            assert_eq!(attach(group(number), 0, &inbox), Ok(()));
        }
        assert_eq!(attach(group(MAX_GROUPS), 0, &inbox), Err(GroupLimit::Groups));
        let room = MAX_ATTACHED - MAX_MEMBERS - (MAX_GROUPS - 1);
        for more in 0..room {
            let number = 1 + more % (MAX_GROUPS - 1);
            assert_eq!(attach(group(number), 1 + more / (MAX_GROUPS - 1), &inbox), Ok(()));
        }
        assert_eq!(attach(group(MAX_GROUPS - 1), MAX_MEMBERS, &inbox), Err(GroupLimit::Attached));
        assert!(
            groups.detach(group(0), Qpn(1))
                && !groups.detach(group(0), Qpn(1))
                && !groups.detach(group(MAX_GROUPS), Qpn(1))
        );
        assert_eq!(attach(group(0), MAX_MEMBERS, &inbox), Ok(()));
        assert!(groups.has(Qpn(0)));
        (0..=MAX_MEMBERS).for_each(|qpn| groups.remove(Qpn(qpn)));
        assert!(!groups.has(Qpn(0)) && groups.0.read().unwrap().is_empty());
    }
}
