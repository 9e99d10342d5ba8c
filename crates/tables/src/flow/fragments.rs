//! The ports of datagrams whose first fragment was seen.

use crate::flow::lock;
use model::{FragmentKey, Seconds};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

const SHARDS: usize = 64;
/// Datagrams of a shard.
const PER_SHARD: usize = 64;
/// Of these, at most from one interface.
const PER_INGRESS: usize = 16;

struct Seen {
    key: FragmentKey,
    ports: (u16, u16),
    at: Seconds,
}

/// Up to 4096 datagrams. Shards are locked for the time of a scan of 64 entries; only fragments come here.
pub struct Fragments {
    shards: Box<[Mutex<Vec<Seen>>]>,
    hash: RandomState,
}

impl Fragments {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Vec::with_capacity(PER_SHARD))).collect();
        Self { shards, hash: RandomState::new() }
    }

    fn shard(&self, key: &FragmentKey) -> &Mutex<Vec<Seen>> {
        &self.shards[self.hash.hash_one(key) as usize % SHARDS]
    }

    /// The ports of the datagram, unless its first fragment is too old.
    #[must_use]
    pub fn get(&self, key: &FragmentKey, now: Seconds) -> Option<(u16, u16)> {
        let shard = lock(self.shard(key));
        let seen = shard.iter().find(|seen| seen.key == *key)?;
        fresh(seen, now).then_some(seen.ports)
    }

    /// Remembers the ports of a datagram. Where there is no room the interface's own oldest gives way if it has its
    /// share, else the oldest of all.
    pub fn insert(&self, key: FragmentKey, ports: (u16, u16), now: Seconds) {
        let mut shard = lock(self.shard(&key));
        let position = |which: &dyn Fn(&Seen) -> bool| shard.iter().position(which);
        let oldest = |which: &dyn Fn(&Seen) -> bool| {
            let among = shard.iter().enumerate().filter(|(_, seen)| which(seen));
            among.min_by_key(|(_, seen)| seen.at).map(|(at, _)| at)
        };
        let own = |seen: &Seen| seen.key.ingress == key.ingress;
        let has_share = shard.iter().filter(|seen| own(seen)).count() >= PER_INGRESS;
        let place = position(&|seen| seen.key == key)
            .or_else(|| position(&|seen| !fresh(seen, now)))
            .or_else(|| if has_share { oldest(&own) } else { None })
            .or_else(|| if shard.len() >= PER_SHARD { oldest(&|_| true) } else { None });
        let new = Seen { key, ports, at: now };
        match place {
            Some(at) => shard[at] = new,
            None => shard.push(new),
        }
    }
}

fn fresh(seen: &Seen, now: Seconds) -> bool {
    now.saturating_sub(seen.at) < FragmentKey::TIMEOUT
}
