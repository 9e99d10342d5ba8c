//! Duplicate MAC addresses (RFC 7432, 15.1). One that comes up here again and again while another host has it is held
//! back: else all hosts would send elsewhere each time.

use bgp::{Change, Mobility, Speaker, VrfId};
use packet::Mac;
use std::collections::BTreeMap;
use std::time::Duration;

/// Moves in [`TIME`] after which an address is held back.
const MOST: usize = 5;
/// The time for these moves, and for which one that is held back must not move.
const TIME: Duration = Duration::from_secs(180);

/// An address of a network.
pub(super) type Place = (VrfId, Mac);

/// Addresses of this host that have moved here.
#[derive(Debug, Default)]
pub(super) struct Moves(BTreeMap<Place, Moved>);

#[derive(Debug, Default)]
struct Moved {
    /// When it moved here, for so long as that counts.
    times: Vec<Duration>,
    is_held: bool,
    /// True if it was here when announcements were made last.
    was_here: bool,
    /// True if it went while it was held back. Then the host follows its peers again.
    has_gone: bool,
}

impl Moves {
    /// Returns the number with which to announce an address that was not announced: that of its move, if another host
    /// has it; `None`: it is held back.
    pub fn number(
        &mut self,
        place: Place,
        next: Option<Mobility>,
        now: Duration,
    ) -> Option<Option<Mobility>> {
        let Some(next) = next else { return Some(None) };
        let moved = self.0.entry(place).or_default();
        if !moved.was_here {
            moved.times.retain(|time| now < *time + TIME);
            moved.times.drain(..moved.times.len().saturating_sub(MOST));
            moved.times.push(now);
        }
        if !moved.is_held && moved.times.len() >= MOST {
            moved.is_held = true;
            tracing::warn!(mac = %place.1, vrf = place.0, "{}", text());
        }
        (!moved.is_held).then_some(Some(next))
    }

    /// Notes which addresses are here.
    pub fn note(&mut self, is_here: impl Fn(&Place) -> bool) {
        for (place, moved) in &mut self.0 {
            let was_here = std::mem::replace(&mut moved.was_here, is_here(place));
            moved.has_gone |= moved.is_held && was_here && !moved.was_here;
        }
    }

    /// Returns the addresses for which the host follows its peers again: they were quiet, no other host has them, or
    /// they are no longer here.
    pub fn release(&mut self, speaker: &Speaker, now: Duration) -> Vec<Place> {
        let mut released = Vec::new();
        self.0.retain(|place, moved| {
            let is_alone = || speaker.mac(place.0, place.1).is_none();
            let is_over = moved.end().is_none_or(|end| end <= now) || (moved.is_held && is_alone());
            if (is_over && moved.is_held) || std::mem::take(&mut moved.has_gone) {
                released.push(*place);
            }
            !is_over
        });
        released
    }

    /// Returns when to look again whether addresses are held back.
    pub fn deadline(&self) -> Option<Duration> {
        self.0.values().filter(|moved| moved.is_held).filter_map(Moved::end).min()
    }

    /// Returns the addresses that are held back.
    pub fn held(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(|(_, moved)| moved.is_held).map(|(place, _)| place)
    }

    /// Returns whether a change is about an address of this host that is held back: it stays where it is.
    pub fn stops(&self, change: &Change) -> bool {
        match change {
            Change::Mac { vrf, mac, .. } => {
                self.0.get(&(*vrf, *mac)).is_some_and(|moved| moved.is_held && moved.was_here)
            }
            _ => false,
        }
    }
}

impl Moved {
    /// Returns when its last move counts no more.
    fn end(&self) -> Option<Duration> {
        self.times.last().map(|last| *last + TIME)
    }
}

/// Returns what is wrong with an address that is held back.
pub(super) fn text() -> String {
    let minutes = TIME.as_secs() / 60;
    format!(
        "the MAC came up here {MOST} times in {minutes} minutes while another host has it: give one guest another \
         `mac`. It is not announced until it has not moved for {minutes} minutes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const NEXT: Option<Mobility> = Some(Mobility { sticky: false, sequence: 1 });

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Has the address come up, and go.
    fn moves(moves: &mut Moves, at: u64) -> bool {
        let is_announced = moves.number((1, MAC), NEXT, seconds(at)).is_some();
        moves.note(|_| true);
        // A change of something else.
        assert_eq!(moves.number((1, MAC), NEXT, seconds(at)).is_some(), is_announced);
        moves.note(|_| false);
        is_announced
    }

    fn change(mac: Mac) -> Change {
        Change::Mac { vrf: 1, mac, path: None }
    }

    #[test]
    fn an_address_that_moved_five_times_is_held_back() {
        let mut all = Moves::default();
        assert_eq!(all.number((2, MAC), None, seconds(0)), Some(None), "only this host has it");
        assert!((0..4).all(|at| moves(&mut all, at)));
        assert!(!all.stops(&change(MAC)));
        assert!(!moves(&mut all, 179));
        assert!(!all.stops(&change(MAC)), "it has gone");
        all.note(|_| true);
        assert!(all.stops(&change(MAC)) && !all.stops(&change(Mac([2; 6]))));
        all.note(|_| false);
        assert_eq!(all.held().collect::<Vec<_>>(), [&(1, MAC)]);
        assert!(!moves(&mut all, 200), "it moves still");
        assert_eq!(all.deadline(), Some(seconds(380)));
    }

    #[test]
    fn one_that_no_other_host_has_is_held_back_no_more() {
        let mut all = Moves::default();
        (0..5).for_each(|at| assert_eq!(moves(&mut all, at), at < 4));
        let config = bgp::Config {
            asn: 64512,
            router_id: [192, 0, 2, 1].into(),
            own: Vec::new(),
            hold_time: 90,
            restarted: false,
            encapsulations: Vec::new(),
        };
        assert_eq!(all.release(&Speaker::new(config, 1, seconds(0)), seconds(6)), [(1, MAC)]);
        assert!(!all.stops(&change(MAC)));
        assert_eq!(all.number((1, MAC), None, seconds(7)), Some(None));
    }

    #[test]
    fn moves_of_longer_ago_do_not_count() {
        let mut all = Moves::default();
        assert!((0..20).all(|at| moves(&mut all, at * 46)));
        assert_eq!((all.held().count(), all.deadline()), (0, None));
    }
}
