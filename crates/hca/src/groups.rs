//! Multicast groups of a device, and the queue pairs that are attached to them (IBTA 10.5).
//!
//! Whose packets get here is the vRouter's business: it floods what is sent to a group in the network.

use crate::header::NetworkHeader;
use crate::ids::Qpn;
use crate::inbox::{Inbox, Packet};
use crate::limits::{MAX_ATTACHED, MAX_GROUPS, MAX_MEMBERS, PARTITION};
use crate::question::Question;
use crate::wire_errors::WireErrors;
use packet::roce::{self, Opcode, Service};
use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// The number that datagrams to a group have for a queue pair (IBTA 10.5.1).
pub(crate) const QPN: Qpn = Qpn(rdma::cm::MULTICAST_QUEUE_PAIR);

/// What a copy of a datagram that came by a wire counts for: 200,000 are made in a second, as many as the vRouter
/// makes for what comes to a network by wires.
const COPY: Duration = Duration::from_micros(5);
/// What may be made at once: 4000 copies.
const BURST: Duration = Duration::from_millis(20);

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

/// A queue pair that is attached to a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    qpn: Qpn,
    /// The key that its datagrams must have: others make no copies for it. It looks at the key itself once more.
    queue_key: Arc<AtomicU32>,
    inbox: Arc<Inbox<Question>>,
}

/// How many copies are made in a second (the generic cell rate algorithm of ITU-T I.371).
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When those made so far would have been made, one after the other.
    until: Duration,
}

impl Pace {
    /// Whether copies may be made now: of a datagram for which that is so, all.
    pub fn may(&self, now: Duration) -> bool {
        self.until.saturating_sub(now) < BURST
    }

    pub fn spend(&mut self, now: Duration, copies: usize) {
        self.until = self.until.max(now) + COPY * copies as u32;
    }
}

/// Why a datagram is for no queue pair of a group.
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
    /// What came so, once it is checked as far as one can who does not have the queue pairs.
    pub fn new((header, is_local): (NetworkHeader, bool), bytes: &'a [u8]) -> Result<Self, Unfit> {
        let datagram = roce::parse(bytes).map_err(|_| Unfit::Malformed)?;
        let (Opcode::Of(Service::Ud, _), Some(deth)) = (datagram.bth.opcode, datagram.deth) else {
            return Err(Unfit::Malformed);
        };
        // Of the highest bit, membership, nothing depends here.
        if (datagram.bth.partition ^ PARTITION) & 0x7fff != 0 {
            return Err(Unfit::Partition);
        }
        Ok(Self { header, is_local, queue_key: deth.queue_key, bytes })
    }

    /// Gives a copy to each member but its sender. What there is no room for is lost. `gave` is called with who got
    /// copies, to announce them there. Returns how many were made, the lost ones included: they cost as much.
    pub fn give(
        &self,
        members: &[Member],
        sender: Option<Qpn>,
        (errors, spare): (&WireErrors, &mut Vec<u8>),
        mut gave: impl FnMut(&Arc<Inbox<Question>>),
    ) -> usize {
        let (mut made, mut wrong, mut lost) = (0, 0, 0);
        // Those of a program follow each other.
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

/// The groups of a device. Whoever has a datagram for one takes its list of members and needs no lock then.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<HashMap<Ipv6Addr, Arc<[Member]>>>);

impl Groups {
    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Ipv6Addr, Arc<[Member]>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is attached to a group; `None`: nobody.
    pub fn members(&self, group: Ipv6Addr) -> Option<Arc<[Member]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Attaches a queue pair to a group. One that is attached already stays so.
    pub fn attach(
        &self,
        group: Ipv6Addr,
        (qpn, queue_key): (Qpn, &Arc<AtomicU32>),
        owner: &Arc<Inbox<Question>>,
    ) -> Result<(), Full> {
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
        let new = Member { qpn, queue_key: queue_key.clone(), inbox: owner.clone() };
        let last = members.iter().rposition(|member| Arc::ptr_eq(&member.inbox, owner));
        let (before, after) = members.split_at(last.map_or(members.len(), |last| last + 1));
        groups.insert(group, before.iter().cloned().chain([new]).chain(after.iter().cloned()).collect());
        Ok(())
    }

    /// Detaches a queue pair from a group. False where it is not attached.
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

    /// Whether a queue pair is attached to any group.
    pub fn has(&self, qpn: Qpn) -> bool {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        groups.values().any(|members| members.iter().any(|member| member.qpn == qpn))
    }

    /// A queue pair is gone.
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
    use crate::budget::{Account, Stock};

    fn group(number: u32) -> Ipv6Addr {
        std::net::Ipv4Addr::from(0xe000_0000 + number).to_ipv6_mapped()
    }

    #[test]
    fn what_is_attached_is_bounded() {
        let inbox = Arc::new(Inbox::new(Arc::new(Account::new(Arc::new(Stock::new(0, 0)), 0))).unwrap());
        let (groups, key) = (Groups::default(), Arc::default());
        let attach = |group, qpn, inbox| groups.attach(group, (Qpn(qpn), &key), inbox);
        for qpn in 0..MAX_MEMBERS {
            assert_eq!(attach(group(0), qpn, &inbox), Ok(()));
            assert_eq!(attach(group(0), qpn, &inbox), Ok(()), "once more is the same");
        }
        assert_eq!(attach(group(0), MAX_MEMBERS, &inbox), Err(Full::Members));
        for number in 1..MAX_GROUPS {
            assert_eq!(attach(group(number), 0, &inbox), Ok(()));
        }
        assert_eq!(attach(group(MAX_GROUPS), 0, &inbox), Err(Full::Groups));
        let room = MAX_ATTACHED - MAX_MEMBERS - (MAX_GROUPS - 1);
        for more in 0..room {
            let number = 1 + more % (MAX_GROUPS - 1);
            assert_eq!(attach(group(number), 1 + more / (MAX_GROUPS - 1), &inbox), Ok(()));
        }
        assert_eq!(attach(group(MAX_GROUPS - 1), MAX_MEMBERS, &inbox), Err(Full::Attached));
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
