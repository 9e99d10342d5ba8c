//! How often Viaduct answers with an error (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f): limited for each receiver of errors,
//! and for all behind one interface of a guest or in one network behind wires.

use crate::storms::Flooder;
use model::{Asker, ReplyKind, Seconds};
use packet::IcmpError;
use std::hash::{BuildHasher, RandomState};

/// Limit for all addresses of a guest together, or for all hosts of a network behind wires, as a multiple of
/// the limit of one address.
const TOGETHER: u32 = 10;
/// Limit for "packet too big" errors as a multiple of the limit for others; they are counted apart from the
/// others. Without them a connection hangs, and each makes the packets fit.
const TOO_BIG: u32 = 10;
/// Receivers that a worker distinguishes within a second: sets, and receivers in each.
const SETS: usize = 1024;
const WAYS: usize = 4;

/// Errors in a second: the second in the upper half, their number in the lower.
type Sent = u64;

/// Errors sent to a receiver, which is identified by a hash.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    asker: u64,
    sent: Sent,
}

/// The errors that a worker sent, and their limits.
#[derive(Debug)]
pub(crate) struct ReplyLimits {
    per_second: u32,
    askers: Vec<[Bucket; WAYS]>,
    /// Errors by interface, then by network. All of that is there twice, the second time for packets too big.
    together: Vec<Sent>,
    hash: RandomState,
}

impl ReplyLimits {
    pub fn new(per_second: u32) -> Self {
        Self {
            per_second,
            askers: vec![[Bucket::default(); WAYS]; SETS],
            together: vec![0; 2 * Flooder::COUNT],
            hash: RandomState::new(),
        }
    }

    /// Returns whether an answer of this kind may be sent to `asker`, behind `sender`.
    pub fn allow(&mut self, sender: Flooder, asker: Option<Asker>, kind: &ReplyKind, now: Seconds) -> bool {
        let too_big = match kind {
            ReplyKind::IcmpError { error: IcmpError::TooBig { .. }, .. } => true,
            ReplyKind::IcmpError { .. } | ReplyKind::TcpReset => false,
            ReplyKind::Arp { .. } | ReplyKind::NeighbourAdvertisement { .. } | ReplyKind::Echo { .. } => {
                return true;
            }
        };
        let most = self.per_second.saturating_mul(if too_big { TOO_BIG } else { 1 });
        let asker = self.hash.hash_one((too_big, asker));
        let at = sender.index().map(|index| index + usize::from(too_big) * Flooder::COUNT);
        let Some(together) = at.and_then(|at| self.together.get_mut(at)) else { return false };
        // A receiver over its own limit takes nothing of the others' share, and a sender with many addresses gets no
        // more buckets than errors.
        let may = count(*together, now) < most.saturating_mul(TOGETHER)
            && bucket(&mut self.askers, asker, now).is_none_or(|sent| take(sent, most, now));
        may && take(together, u32::MAX, now)
    }
}

/// Returns the number of errors sent to a receiver. `None` if other receivers of this second occupy its set:
/// then only the limit of the network applies.
fn bucket(askers: &mut [[Bucket; WAYS]], asker: u64, now: Seconds) -> Option<&mut Sent> {
    let set = &mut askers[asker as usize % SETS];
    let is_free = |bucket: &Bucket| bucket.sent >> 32 != u64::from(now);
    let known = set.iter().position(|bucket| bucket.asker == asker);
    let at = known.or_else(|| set.iter().position(is_free))?;
    set[at].asker = asker;
    Some(&mut set[at].sent)
}

/// Returns the number of errors in the second `now`.
const fn count(sent: Sent, now: Seconds) -> u32 {
    if sent >> 32 == now as u64 { sent as u32 } else { 0 }
}

/// Counts one more, unless the limit `most` is reached.
const fn take(sent: &mut Sent, most: u32, now: Seconds) -> bool {
    let before = count(*sent, now);
    let may = before < most;
    if may {
        *sent = (now as u64) << 32 | (before as u64 + 1);
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{VifId, Vrf};
    use std::net::Ipv4Addr;

    const EXPIRED: ReplyKind = ReplyKind::IcmpError {
        src: std::net::IpAddr::V4(Ipv4Addr::LOCALHOST),
        error: IcmpError::TimeExceeded,
    };
    const LONG: ReplyKind = ReplyKind::IcmpError {
        src: std::net::IpAddr::V4(Ipv4Addr::LOCALHOST),
        error: IcmpError::TooBig { mtu: 1400 },
    };

    fn sent(limits: &mut ReplyLimits, vrf: u16, host: u32, kind: &ReplyKind, n: usize) -> usize {
        let asker = Asker { vrf: Vrf(vrf), addr: Ipv4Addr::from(host).into() };
        (0..n).filter(|_| limits.allow(Flooder::Wires(Vrf(vrf)), Some(asker), kind, 7)).count()
    }

    #[test]
    fn askers_have_their_own_share() {
        let mut limits = ReplyLimits::new(100);
        assert_eq!(sent(&mut limits, 1, 1, &EXPIRED, 300), 100);
        assert_eq!(sent(&mut limits, 1, 2, &EXPIRED, 300), 100, "another host of the network");
        assert_eq!(sent(&mut limits, 2, 1, &EXPIRED, 300), 100, "the same address in another network");
        let asker = Asker { vrf: Vrf(1), addr: Ipv4Addr::from(1).into() };
        assert!(limits.allow(Flooder::Wires(Vrf(1)), Some(asker), &EXPIRED, 8), "another second");
        let echo = ReplyKind::Echo { src: Ipv4Addr::LOCALHOST.into() };
        assert!(limits.allow(Flooder::Guest(VifId(1)), None, &echo, 7), "no error");
    }

    #[test]
    fn packets_too_big_are_told_of_all_the_same() {
        let mut limits = ReplyLimits::new(100);
        for host in 0..100 {
            sent(&mut limits, 1, host, &EXPIRED, 300);
        }
        assert_eq!(sent(&mut limits, 1, 1, &LONG, 2000), 1000);
        assert_eq!(sent(&mut limits, 1, 1, &EXPIRED, 1), 0);
    }

    #[test]
    fn many_addresses_are_bounded_together_and_leave_other_networks_theirs() {
        let mut limits = ReplyLimits::new(100);
        let all: usize = (0..100_000).map(|host| sent(&mut limits, 1, host, &EXPIRED, 1)).sum();
        assert_eq!(all, 1000);
        let all: usize = (0..100_000).map(|host| sent(&mut limits, 1, host, &LONG, 1)).sum();
        assert_eq!(all, 10_000, "these fill the buckets");
        assert!(sent(&mut limits, 2, 1, &EXPIRED, 300) >= 100, "another network");
    }
}
