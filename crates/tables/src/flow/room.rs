//! Eviction: which connection is removed from a full table so that a new one finds room.
//!
//! While the table has room, an account may have as many connections as its limit allows. A full table is divided. Each
//! account that has connections gets an equal share, and half of the share is its reserve ([`Share`]). All accounts
//! that are within their reserve have at most half of the table together. So at least half of the entries belong to
//! accounts beyond their reserve, in every shard, since the hash spreads connections over the shards. A new connection
//! of an account within its reserve can therefore always evict one of those.
//!
//! Two rules protect connections. Nobody evicts a connection of an account that is within its reserve, but that account
//! itself. An account beyond its share does not evict an established TCP connection of an account within its share.
//!
//! Candidates are evicted in this order:
//!
//! 1. connections that have timed out;
//! 2. connections of accounts beyond their share;
//! 3. connections of the account that wants room;
//! 4. connections of accounts beyond their reserve.
//!
//! Within one of these groups, unanswered connections and single exchanges go first, then closing TCP connections, then
//! ICMP and UDP, then established TCP connections. Among equals, the connection that was idle for longest goes first.

use super::account::{Account, Share};
use super::entry::{New, Read};
use super::{FlowRef, Flows, NONE, Shard, WAYS, entry_of};
use model::{DropReason, FlowState, Seconds};
use packet::proto;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// Candidates that are examined, besides the entries of the new connection's two buckets.
const CANDIDATES: u32 = 64;
/// The search ends after this many candidates, if it has found one that may be evicted.
const ENOUGH: usize = 24;
/// Distance between two candidates, in entries. Entries next to each other were often made at the same time and are
/// alike. It is a prime, so that all entries are examined in turn.
const STRIDE: u64 = 0x9e37_79b1;

/// Classes of connections, the first to be evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Not answered yet, or one packet in each direction: a ping, a query, a probe.
    Single,
    /// A TCP connection that is being closed.
    Ending,
    /// Any other established connection: ICMP, UDP.
    Datagrams,
    /// An established TCP connection.
    Tcp,
}

/// Groups of candidates, the first to be evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Expired,
    BeyondShare,
    Own,
    BeyondReserve,
}

/// The account that wants room for a connection.
struct Claim {
    account: Account,
    /// Connections it has, the new one included.
    held: u64,
    share: Share,
    /// Whether it may only evict its own connections, since it has as many as its limit allows.
    own_only: bool,
    now: Seconds,
}

impl Claim {
    /// Returns the group of a candidate of this account and class, or `None` if it may not be evicted for
    /// this claim. The account has `held` connections.
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
    /// Enters a new connection in the locked shard `at`, and evicts a different one for it if necessary.
    ///
    /// # Errors
    /// `FlowQuota`: its account has as many as its limit allows, or opened too many in this second.
    /// `FlowTableFull`: no connection may be evicted for it. `SnatPorts`: its port outside is taken.
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
        if flow.is_err() {
            accounts.give_back(new.charged);
        }
        flow
    }

    fn fill(&self, shard: &mut Shard, at: usize, new: &New) -> Result<FlowRef, DropReason> {
        let numbers = self.bucket_numbers(new.hash);
        let buckets = self.buckets(new.hash);
        let neighbours = || buckets.into_iter().flatten().filter_map(entry_of);
        if free_slot(buckets).is_none()
            && !numbers.into_iter().any(|bucket| self.relocate(bucket))
            && !self.evict(shard, neighbours(), &self.claim(new))
        {
            return Err(DropReason::FlowTableFull);
        }
        if shard.free == NONE && shard.used as usize == self.per_shard {
            let candidates = neighbours().chain(self.spread(shard, at));
            if !self.evict(shard, candidates, &self.claim(new)) {
                return Err(DropReason::FlowTableFull);
            }
        }
        let index = self.free_entry(shard, at).ok_or(DropReason::FlowTableFull)?;
        let seq = self.entry(index).fill(new);
        if let Err(reason) = self.bind(&new.connection, index) {
            self.entry(index).clear(shard.free);
            shard.free = index;
            return Err(reason);
        }
        if let Some(slot) = free_slot(buckets) {
            slot.store(Self::slot(new.hash, index), Ordering::Release);
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        self.created.fetch_add(1, Ordering::Relaxed);
        Ok(FlowRef { index, seq })
    }

    /// Takes a free entry of a shard, which must have one. `None` if the host has no memory for it.
    fn free_entry(&self, shard: &mut Shard, at: usize) -> Option<u32> {
        if shard.free != NONE {
            let index = shard.free;
            shard.free = self.entry(index).next_free();
            return Some(index);
        }
        let index = (at * self.per_shard) as u32 + shard.used;
        let reserved = self.entries.reserve(index as usize);
        self.lack.store(reserved.err().map_or(0, Errno::raw_os_error), Ordering::Relaxed);
        reserved.ok()?;
        shard.used += 1;
        self.used[at].store(shard.used, Ordering::Release);
        Some(index)
    }

    /// Makes room in a full bucket: moves one of its entries to that entry's other bucket. An entry is moved only from
    /// its first bucket to its second. Readers look at the first bucket before the second, so they find the entry at
    /// any time. Returns whether an entry was moved.
    fn relocate(&self, bucket: usize) -> bool {
        self.index.records()[bucket].iter().any(|slot| {
            let Some(index) = entry_of(slot) else { return false };
            let hash = self.hash(&self.entry(index).original());
            let [first, second] = self.bucket_numbers(hash);
            let free = |slot: &&AtomicU64| slot.load(Ordering::Relaxed) == 0;
            let room = self.index.records()[second].iter().find(free);
            let Some(room) = room.filter(|_| first == bucket) else { return false };
            room.store(Self::slot(hash, index), Ordering::Release);
            slot.store(0, Ordering::Release);
            true
        })
    }

    /// Chooses candidates from all used parts of a shard. Each call yields different ones.
    fn spread(&self, shard: &mut Shard, at: usize) -> impl Iterator<Item = u32> + use<> {
        let first = (at * self.per_shard) as u32;
        let (hand, used) = (u64::from(shard.hand), u64::from(shard.used));
        shard.hand = shard.hand.wrapping_add(CANDIDATES);
        let candidates = if used == 0 { 0 } else { u64::from(CANDIDATES) };
        (hand..hand + candidates).map(move |n| first + (n * STRIDE % used) as u32)
    }

    fn claim(&self, new: &New) -> Claim {
        let (account, now) = (new.charged, new.now);
        let (held, share) = (self.accounts.held(account), self.accounts.share());
        Claim { account, held, share, own_only: false, now }
    }

    /// Evicts the best of these candidates for a claim. Returns whether there was one.
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

    /// Returns the rank of an entry in the order of eviction for a claim: the lowest goes first. `None` if it
    /// may not be evicted.
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

/// Returns a free slot in the emptier of two buckets.
fn free_slot(buckets: [&[AtomicU64; WAYS]; 2]) -> Option<&AtomicU64> {
    let free = |bucket: &[AtomicU64; WAYS]| bucket.iter().filter(|s| s.load(Ordering::Relaxed) == 0).count();
    let [a, b] = buckets;
    let emptier = if free(a) >= free(b) { a } else { b };
    emptier.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)
}

#[cfg(all(test, not(loom)))]
mod tests;
