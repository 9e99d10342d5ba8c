//! Remotes of tunnels. BGP says which ones its routes name, so that they are watched even while no tunnel leads there.
//! It learns which ones are down or out of the kernel's reach, and prefers routes to others.

use crate::remotes::{Named, Remotes};
use bgp::Speaker;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks at what routes name: a peer may change that without end.
const PAUSE: Duration = Duration::from_secs(1);
/// Most remotes that are told of, besides those that are watched.
const MOST: usize = 4096;

/// The remotes as the speaker and those who watch know them.
pub(super) struct Known {
    remotes: Arc<Remotes>,
    /// Remotes that the speaker knows to be down.
    down: BTreeSet<IpAddr>,
    /// The remotes that were told of, if any were.
    named: Option<Named>,
    /// The time of the next look.
    next: Option<Duration>,
    looked: Duration,
    /// Remotes that are up again, and since when: the speaker gets to know of those that stay up.
    risen: BTreeMap<IpAddr, Duration>,
}

impl Known {
    pub(super) const fn new(remotes: Arc<Remotes>) -> Self {
        Self {
            remotes,
            down: BTreeSet::new(),
            named: None,
            next: Some(Duration::ZERO),
            looked: Duration::ZERO,
            risen: BTreeMap::new(),
        }
    }

    /// Notes that another speaker begins.
    pub(super) fn begin_again(&mut self) {
        self.down.clear();
        self.risen.clear();
        self.next = Some(self.looked);
    }

    /// Tells the speaker which remotes are down, if that has changed. The speaker then looks at all routes, so it
    /// learns that a remote is up only after the remote has been so for a second.
    pub(super) fn tell(&mut self, speaker: &mut Speaker, down: &BTreeSet<IpAddr>, now: Duration) {
        self.risen.retain(|remote, _| self.down.contains(remote) && !down.contains(remote));
        for remote in self.down.difference(down) {
            self.risen.entry(*remote).or_insert(now);
        }
        let fell = down.difference(&self.down).map(|remote| (*remote, true));
        let rose = self.risen.iter().filter(|(_, since)| now >= **since + PAUSE);
        let changed: Vec<_> = fell.chain(rose.map(|(remote, _)| (*remote, false))).collect();
        if changed.is_empty() {
            return;
        }
        speaker.set_down(&changed);
        for (remote, is_down) in changed {
            if is_down {
                self.down.insert(remote);
            } else {
                self.down.remove(&remote);
                self.risen.remove(&remote);
            }
        }
    }

    /// Tells those who watch which remotes routes name, now or once it is time, because that may have changed.
    pub(super) fn name(&mut self, speaker: Option<&Speaker>, now: Duration) {
        let next = *self.next.get_or_insert(self.looked + PAUSE);
        if now < next {
            return;
        }
        (self.looked, self.next) = (now, None);
        let named = match speaker {
            Some(speaker) => {
                let watched = self.remotes.watched();
                let watched = watched.iter().filter(|remote| speaker.names(remote)).copied();
                let remotes = speaker.remotes().take(MOST).chain(watched).collect();
                Named { remotes, is_all: speaker.is_synchronized() }
            }
            None => Named { remotes: BTreeSet::new(), is_all: true },
        };
        if self.named.as_ref() != Some(&named) {
            self.remotes.name(named.clone());
            self.named = Some(named);
        }
    }

    /// Returns when [`Self::name`] or [`Self::tell`] has something to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let risen = self.risen.values().map(|since| *since + PAUSE);
        risen.chain(self.next).min()
    }
}
