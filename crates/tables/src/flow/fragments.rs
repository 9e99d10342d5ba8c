//! Protocol and ports of datagrams whose first fragment was seen.

use crate::flow::lock;
use model::{FragmentKey, Seconds, Transport, VifId, Vrf};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

const SHARDS: usize = 64;
const PER_SHARD: usize = 64;
/// Most datagrams in a shard from one interface in one network.
const PER_OWNER: usize = 16;

struct Seen {
    key: FragmentKey,
    transport: Transport,
    at: Seconds,
}

/// Up to 4096 datagrams. A shard is locked for the time of some scans over 64 entries; only fragments come here.
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

    /// Returns protocol and ports of the datagram, unless its first fragment is too old.
    #[must_use]
    pub fn get(&self, key: &FragmentKey, now: Seconds) -> Option<Transport> {
        let shard = lock(self.shard(key));
        let seen = shard.iter().find(|seen| seen.key == *key)?;
        fresh(seen, now).then_some(seen.transport)
    }

    /// Remembers the protocol and ports of a datagram. If there is no room, it evicts the oldest entry of the
    /// same interface and network if these have used up their share, otherwise the oldest entry of the owner
    /// that has most.
    pub fn insert(&self, key: FragmentKey, transport: Transport, now: Seconds) {
        let mut shard = lock(self.shard(&key));
        let position = |which: &dyn Fn(&Seen) -> bool| shard.iter().position(which);
        let oldest = |which: &dyn Fn(&Seen) -> bool| {
            let among = shard.iter().enumerate().filter(|(_, seen)| which(seen));
            among.min_by_key(|(_, seen)| seen.at).map(|(at, _)| at)
        };
        let held = |of: Owner| shard.iter().filter(|seen| owner(&seen.key) == of).count();
        let own = owner(&key);
        let place = position(&|seen| seen.key == key)
            .or_else(|| position(&|seen| !fresh(seen, now)))
            .or_else(|| if held(own) >= PER_OWNER { oldest(&|seen| owner(&seen.key) == own) } else { None })
            .or_else(|| {
                let owners = shard.iter().map(|seen| owner(&seen.key)).filter(|_| shard.len() >= PER_SHARD);
                let largest = owners.max_by_key(|owner| held(*owner))?;
                oldest(&|seen| owner(&seen.key) == largest)
            });
        let new = Seen { key, transport, at: now };
        match place {
            Some(at) => shard[at] = new,
            None => shard.push(new),
        }
    }
}

type Owner = (VifId, Vrf);

const fn owner(key: &FragmentKey) -> Owner {
    (key.ingress, key.vrf)
}

fn fresh(seen: &Seen, now: Seconds) -> bool {
    now.saturating_sub(seen.at) < FragmentKey::TIMEOUT
}
