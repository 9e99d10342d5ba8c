//! Which neighbours are solicited, and when: the timers of ARP and neighbour discovery (RFC 4861, 10, simplified).

use model::{NeighbourScope, Seconds};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Solicitations before a neighbour counts as gone, a second apart (RFC 4861: MAX_MULTICAST_SOLICIT, RETRANS_TIMER).
pub const MAX_SOLICITATIONS: u8 = 3;
/// Seconds after which a neighbour that did not say anything by itself is asked again.
pub const STALE: Seconds = 60;
/// Seconds for which packets to a neighbour that did not answer are dropped before it is asked again.
pub const FAILED_FOR: Seconds = 3;
/// Neighbours asked for at a time, of one scope.
const PROBES_PER_SCOPE: usize = 1024;

type Key = (NeighbourScope, IpAddr);

/// What to do with a packet that waits for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Hold it, and send a solicitation now: it is the first to wait.
    Solicit,
    /// Hold it; the neighbour has been asked.
    Hold,
    /// Drop it: the neighbour does not answer, or too many are being asked.
    Failed,
}

/// A neighbour being asked for.
#[derive(Clone, Copy)]
struct Probe {
    asked: u8,
    at: Seconds,
}

impl Probe {
    const fn failed(self) -> bool {
        self.asked > MAX_SOLICITATIONS
    }
}

/// Who is being asked.
#[derive(Default)]
pub(crate) struct Resolver(BTreeMap<Key, Probe>);

impl Resolver {
    /// A packet waits for a neighbour that is not known.
    pub fn wait(&mut self, key: Key, now: Seconds) -> Waiting {
        match self.0.get(&key) {
            Some(probe) if !probe.failed() => return Waiting::Hold,
            Some(probe) if now.saturating_sub(probe.at) < FAILED_FOR => return Waiting::Failed,
            Some(_) => {}
            None if self.probes(key.0) >= PROBES_PER_SCOPE => return Waiting::Failed,
            None => {}
        }
        self.0.insert(key, Probe { asked: 1, at: now });
        Waiting::Solicit
    }

    fn probes(&self, scope: NeighbourScope) -> usize {
        let first = (scope, IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        self.0.range(first..).take_while(|((s, _), _)| *s == scope).take(PROBES_PER_SCOPE).count()
    }

    /// A neighbour answered.
    pub fn found(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Advances the timers. `stale` are the known neighbours that are due to be asked again. Returns who is to be
    /// solicited now, and who of `stale` is to be forgotten.
    pub fn advance(&mut self, stale: &[Key], now: Seconds) -> (Vec<Key>, Vec<Key>) {
        let (mut solicit, mut forget) = (Vec::new(), Vec::new());
        for key in stale {
            self.0.entry(*key).or_insert_with(|| {
                solicit.push(*key);
                Probe { asked: 1, at: now }
            });
        }
        self.0.retain(|key, probe| {
            let waited = now.saturating_sub(probe.at);
            if probe.failed() {
                return waited < FAILED_FOR;
            }
            if waited >= 1 {
                *probe = Probe { asked: probe.asked + 1, at: now };
                if !probe.failed() {
                    solicit.push(*key);
                } else if stale.contains(key) {
                    forget.push(*key);
                }
            }
            true
        });
        (solicit, forget)
    }

    /// Those being asked for, for people.
    pub fn asked(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().filter(|(_, probe)| !probe.failed()).map(|(key, _)| key)
    }
}
