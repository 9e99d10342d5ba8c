//! Which neighbours are solicited, and when: the timers of ARP and neighbour discovery (RFC 4861, 10, simplified).

use model::{NeighbourScope, Seconds, VifId};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Solicitations, one second apart, before a neighbour counts as unreachable (RFC 4861: MAX_MULTICAST_SOLICIT,
/// RETRANS_TIMER).
pub const MAX_SOLICITATIONS: u8 = 3;
/// Seconds after which a neighbour in use that sent no ARP or ND of its own is asked again.
pub const STALE: Seconds = 60;
/// Seconds after which a neighbour that is not in use and sent no ARP or ND is forgotten.
pub const UNUSED: Seconds = 600;
/// Seconds for which packets to a neighbour that did not answer are dropped, before it is asked again.
pub const FAILED_FOR: Seconds = 3;
/// Most neighbours of one scope for which packets wait at a time.
pub const PROBES_PER_SCOPE: usize = 1024;
/// Most of these because of packets from one interface: a guest that scans leaves room for others.
pub const PROBES_PER_ASKER: usize = 128;
/// Most neighbours per second that an interface without such room still asks for, once each: among those that it scans
/// may be one that answers.
pub const SPARE_QUESTIONS: u32 = 128;

type Key = (NeighbourScope, IpAddr);

/// The fate of a packet that waits for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Hold it and send a solicitation now: as far as is known, it is the first packet to wait.
    Solicit,
    /// Hold it; the neighbour has been asked.
    Hold,
    /// Answer that the neighbour is unreachable: it was asked and did not answer.
    Failed,
    /// Drop it: too many neighbours are being asked, or were asked in this second.
    Full,
}

/// The result of a second's work.
pub(crate) struct Advanced {
    /// The neighbours to solicit now, each with whether it alone is asked.
    pub solicit: Vec<(Key, bool)>,
    /// Known neighbours that did not answer.
    pub forget: Vec<Key>,
    /// Neighbours of wires that were looked for, and now count as unreachable.
    pub failed: Vec<Key>,
}

#[derive(Clone, Copy)]
struct Probe {
    asked: u8,
    at: Seconds,
    /// The interface whose packet waits. `None` for a known neighbour, which alone is asked whether it is still there.
    asker: Option<VifId>,
}

impl Probe {
    const fn failed(self) -> bool {
        self.asked > MAX_SOLICITATIONS
    }
}

#[derive(Default)]
pub(crate) struct Resolver {
    probes: BTreeMap<Key, Probe>,
    counts: Counts,
    /// Number of spare questions in a second, by scope and interface.
    spare: HashMap<(NeighbourScope, VifId), (Seconds, u32)>,
}

/// Number of neighbours for which packets wait, by scope, and by scope and interface.
#[derive(Default)]
struct Counts(HashMap<(NeighbourScope, Option<VifId>), usize>);

impl Counts {
    fn of(&self, scope: NeighbourScope, asker: Option<VifId>) -> usize {
        self.0.get(&(scope, asker)).copied().unwrap_or(0)
    }

    fn add(&mut self, scope: NeighbourScope, asker: VifId) {
        for who in [None, Some(asker)] {
            *self.0.entry((scope, who)).or_default() += 1;
        }
    }

    fn take(&mut self, scope: NeighbourScope, asker: VifId) {
        for who in [None, Some(asker)] {
            if let Some(count) = self.0.get_mut(&(scope, who)) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&(scope, who));
                }
            }
        }
    }
}

impl Resolver {
    /// Records that a packet of `asker` waits for an unknown neighbour. Returns its fate.
    pub fn wait(&mut self, key: Key, asker: VifId, now: Seconds) -> Waiting {
        match self.probes.get(&key) {
            Some(Probe { asker: None, .. }) | None => {}
            Some(probe) if !probe.failed() => return Waiting::Hold,
            Some(probe) if now.saturating_sub(probe.at) < FAILED_FOR => return Waiting::Failed,
            Some(_) => self.found(&key),
        }
        let (scope, _) = key;
        let full = self.counts.of(scope, None) >= PROBES_PER_SCOPE
            || self.counts.of(scope, Some(asker)) >= PROBES_PER_ASKER;
        if full {
            return self.ask_once((scope, asker), now);
        }
        self.counts.add(scope, asker);
        self.probes.insert(key, Probe { asked: 1, at: now, asker: Some(asker) });
        Waiting::Solicit
    }

    /// Asks for a neighbour without recording it, so that an interface without room for more questions still
    /// reaches neighbours that answer.
    fn ask_once(&mut self, who: (NeighbourScope, VifId), now: Seconds) -> Waiting {
        let (second, asked) = self.spare.entry(who).or_default();
        if *second != now {
            (*second, *asked) = (now, 0);
        }
        if *asked >= SPARE_QUESTIONS {
            return Waiting::Full;
        }
        *asked += 1;
        Waiting::Solicit
    }

    pub fn has_failed(&self, key: &Key) -> bool {
        self.probes.get(key).is_some_and(|probe| probe.failed())
    }

    pub fn is_asked(&self, key: &Key) -> bool {
        self.probes.get(key).is_some_and(|probe| !probe.failed())
    }

    /// Records that a neighbour answered.
    pub fn found(&mut self, key: &Key) {
        if let Some(asker) = self.probes.remove(key).and_then(|probe| probe.asker) {
            self.counts.take(key.0, asker);
        }
    }

    /// Advances the timers. `stale` are the known neighbours that are due to be asked again, in order; `silent` those of
    /// wires that did not answer, which are asked again as long as that matters.
    pub fn advance(&mut self, stale: &[Key], silent: &[Key], now: Seconds) -> Advanced {
        let (mut solicit, mut forget, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for key in silent {
            self.probes.entry(*key).or_insert_with(|| {
                solicit.push((*key, false));
                Probe { asked: 1, at: now, asker: None }
            });
        }
        for key in stale {
            self.probes.entry(*key).or_insert_with(|| {
                solicit.push((*key, true));
                Probe { asked: 1, at: now, asker: None }
            });
        }
        self.spare.retain(|_, (second, _)| *second == now);
        let Self { probes, counts, .. } = self;
        probes.retain(|key, probe| {
            let waited = now.saturating_sub(probe.at);
            if probe.failed() {
                let stays = waited < FAILED_FOR;
                if let Some(asker) = probe.asker.filter(|_| !stays) {
                    counts.take(key.0, asker);
                }
                return stays;
            }
            if waited < 1 {
                return true;
            }
            (probe.asked, probe.at) = (probe.asked + 1, now);
            if !probe.failed() {
                solicit.push((*key, probe.asker.is_none()));
                return true;
            }
            // A known neighbour may have moved: the next packet makes us ask everybody.
            if probe.asker.is_none() {
                forget.push(*key);
            } else if matches!(key.0, NeighbourScope::Wire(_)) {
                failed.push(*key);
            }
            probe.asker.is_some()
        });
        Advanced { solicit, forget, failed }
    }

    /// Returns the neighbours being asked, for display.
    pub fn asked(&self) -> impl Iterator<Item = &Key> {
        self.probes.iter().filter(|(_, probe)| !probe.failed()).map(|(key, _)| key)
    }
}
