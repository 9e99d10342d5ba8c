//! Which connection is removed for a new one.
//!
//! While there is room an account may have what its limit allows. A full table is divided: each account with
//! connections has an equal share, and half of that is its reserve ([`Share`]). Accounts within their reserve have at
//! most half of the table together, so at least every second entry, of every shard since the hash spreads them, belongs
//! to somebody who has more; a connection within the reserve takes the place of one of those. Nothing of an account
//! within its reserve gives way to anybody, and an established TCP connection of one within its share to nobody beyond
//! his own.
//!
//! Of what may give way, the first to go has timed out; then comes what belongs to accounts beyond their share, then to
//! the newcomer's own, then to accounts beyond their reserve; among these, single exchanges and unanswered ones,
//! then connections that are closing, ICMP and UDP, established TCP; among these the one longest idle.

use super::account::{Account, Share};
use super::entry::{New, Read};
use super::{FlowRef, Flows, NONE, Shard, WAYS, entry_of};
use model::{DropReason, FlowState, Seconds};
use packet::proto;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that are looked at for one to evict, besides those of the two buckets.
const CANDIDATES: u32 = 64;
/// Entries after which the best found so far will do.
const ENOUGH: usize = 24;
/// They lie this far apart: neighbours were often made together and are alike. A prime, so that each comes up in turn.
const STRIDE: u64 = 0x9e37_79b1;

/// What a connection is worth, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Not answered yet, or a packet each way: a ping, a query, a probe.
    Single,
    /// A TCP connection that is being closed.
    Ending,
    /// Any other that is established.
    Datagrams,
    /// An established TCP connection.
    Tcp,
}

/// Whose connections give way, first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Expired,
    BeyondShare,
    Own,
    BeyondReserve,
}

/// An account that wants room, and how much it may have.
struct Claim {
    account: Account,
    /// Connections it has, with the one to come.
    held: u64,
    share: Share,
    /// Whether only one of its own helps: it has as many as it may.
    own_only: bool,
    now: Seconds,
}

impl Claim {
    /// Whether, and when, a connection of this worth gives way to this claim. `held`: what its account has.
    fn turn(&self, account: Account, held: u64, worth: Worth) -> Option<Turn> {
        let Share { fair, reserve } = self.share;
        let (within_reserve, within_share) = (self.held <= reserve, self.held <= fair);
        if account == self.account {
            let may = worth < Worth::Tcp && (self.own_only || !within_reserve);
            return may.then_some(if within_share { Turn::Own } else { Turn::BeyondShare });
        }
        if self.own_only {
            return None;
        }
        if held > fair {
            let may = within_share || worth < Worth::Tcp && held > self.held;
            return may.then_some(Turn::BeyondShare);
        }
        (within_reserve && held > reserve).then_some(Turn::BeyondReserve)
    }
}

impl Flows {
    /// Fills an entry of the locked shard `at` with a new connection, where one may be had for it.
    ///
    /// # Errors
    /// `FlowQuota`, `FlowTableFull`.
    pub(super) fn admit(&self, shard: &mut Shard, at: usize, new: &New) -> Result<FlowRef, DropReason> {
        let accounts = &self.accounts;
        if !accounts.open(new.charged, new.now) {
            return Err(DropReason::FlowQuota);
        }
        if !accounts.take(new.charged) {
            let claim = Claim { own_only: true, ..self.claim(new) };
            let own = self.spread(shard, at);
            if !self.evict(shard, own, &claim) || !accounts.take(new.charged) {
                return Err(DropReason::FlowQuota);
            }
        }
        let flow = self.fill(shard, at, new);
        if flow.is_none() {
            accounts.give_back(new.charged);
        }
        flow.ok_or(DropReason::FlowTableFull)
    }

    fn fill(&self, shard: &mut Shard, at: usize, new: &New) -> Option<FlowRef> {
        let numbers = self.bucket_numbers(new.hash);
        let buckets = self.buckets(new.hash);
        let neighbours = || buckets.into_iter().flatten().filter_map(entry_of);
        if free_slot(buckets).is_none()
            && !numbers.into_iter().any(|bucket| self.relocate(bucket))
            && !self.evict(shard, neighbours(), &self.claim(new))
        {
            return None;
        }
        if shard.free == NONE && shard.used as usize == self.per_shard {
            let candidates = neighbours().chain(self.spread(shard, at));
            if !self.evict(shard, candidates, &self.claim(new)) {
                return None;
            }
        }
        let index = self.free_entry(shard, at);
        let seq = self.entry(index).fill(new);
        if let Some(slot) = free_slot(buckets) {
            slot.store(Self::slot(new.hash, index), Ordering::Release);
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        self.created.fetch_add(1, Ordering::Relaxed);
        Some(FlowRef { index, seq })
    }

    /// Takes a free entry of a shard that has one.
    fn free_entry(&self, shard: &mut Shard, at: usize) -> u32 {
        if shard.free == NONE {
            shard.used += 1;
            self.used[at].store(shard.used, Ordering::Release);
            (at * self.per_shard) as u32 + shard.used - 1
        } else {
            let index = shard.free;
            shard.free = self.entry(index).next_free();
            index
        }
    }

    /// Moves an entry out of a full bucket into the second of its own two, if one can be. It goes from the first to the
    /// second only: who looks for it meanwhile reads them in this order, and finds it in one of them.
    fn relocate(&self, bucket: usize) -> bool {
        self.index.records()[bucket].iter().any(|slot| {
            let Some(index) = entry_of(slot) else { return false };
            let hash = self.entry(index).hash();
            let [first, second] = self.bucket_numbers(hash);
            let free = |slot: &&AtomicU64| slot.load(Ordering::Relaxed) == 0;
            let room = self.index.records()[second].iter().find(free);
            let Some(room) = room.filter(|_| first == bucket) else { return false };
            room.store(Self::slot(hash, index), Ordering::Release);
            slot.store(0, Ordering::Release);
            true
        })
    }

    /// Entries all over what is used of a shard, others with each call.
    fn spread(&self, shard: &mut Shard, at: usize) -> impl Iterator<Item = u32> + use<> {
        let first = (at * self.per_shard) as u32;
        let (hand, used) = (u64::from(shard.hand), u64::from(shard.used.max(1)));
        shard.hand = shard.hand.wrapping_add(CANDIDATES);
        (hand..hand + u64::from(CANDIDATES)).map(move |n| first + (n * STRIDE % used) as u32)
    }

    fn claim(&self, new: &New) -> Claim {
        let (account, now) = (new.charged, new.now);
        let (held, share) = (self.accounts.held(account), self.accounts.share());
        Claim { account, held, share, own_only: false, now }
    }

    /// Removes the first of these entries to give way to a claim. Returns whether there was one.
    fn evict(&self, shard: &mut Shard, candidates: impl Iterator<Item = u32>, claim: &Claim) -> bool {
        let mut best = None;
        for (looked_at, candidate) in candidates.enumerate() {
            if looked_at >= ENOUGH && best.is_some() {
                break;
            }
            best = best.into_iter().chain(self.gives_way(candidate, claim)).min();
        }
        let Some((turn, .., victim)) = best else { return false };
        if turn > Turn::Expired {
            self.accounts.displace(self.entry(victim).charged());
        }
        self.remove(shard, victim);
        true
    }

    /// When an entry gives way to a claim, if it does.
    fn gives_way(&self, index: u32, claim: &Claim) -> Option<(Turn, Worth, Seconds, u32)> {
        let entry = self.entry(index);
        let read = entry.read()?;
        let (account, worth) = (entry.charged(), worth(&read, entry.is_single()));
        let turn = if read.expired(claim.now) && (!claim.own_only || account == claim.account) {
            Turn::Expired
        } else {
            claim.turn(account, self.accounts.held(account), worth)?
        };
        Some((turn, worth, read.last, index))
    }
}

fn worth(read: &Read, single: bool) -> Worth {
    match (read.connection.state, read.connection.original.protocol) {
        (FlowState::New, _) => Worth::Single,
        (FlowState::Closing | FlowState::Closed, _) => Worth::Ending,
        (FlowState::Established, proto::TCP) => Worth::Tcp,
        (FlowState::Established, _) if single => Worth::Single,
        (FlowState::Established, _) => Worth::Datagrams,
    }
}

/// A free slot in the emptier of two buckets.
fn free_slot(buckets: [&[AtomicU64; WAYS]; 2]) -> Option<&AtomicU64> {
    let free = |bucket: &[AtomicU64; WAYS]| bucket.iter().filter(|s| s.load(Ordering::Relaxed) == 0).count();
    let [a, b] = buckets;
    let emptier = if free(a) >= free(b) { a } else { b };
    emptier.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)
}

#[cfg(all(test, not(loom)))]
mod tests;
