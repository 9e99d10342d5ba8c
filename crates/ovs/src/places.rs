//! Limits on the number of drivers, of each user and together.

use sockets::Closing;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most drivers at a time. A driver that left counts until everything that it sent is closed, however long
/// that takes.
const MOST: usize = 16;
/// Most refused drivers that sent something which is not closed yet. The kernel tells who connects only once
/// the connection is accepted, so nobody is accepted meanwhile.
const REFUSED: usize = 64;

/// Counts the places that drivers have, and those that closing descriptors still occupy.
pub(crate) struct Places {
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Descriptors of drivers that left, by user.
    closing: BTreeMap<u32, Arc<Closing>>,
    refused: Arc<Closing>,
}

impl Places {
    /// Starts without drivers. `wake` is called each time that something is closed.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(wake);
        Self { refused: closing(&wake), wake, closing: BTreeMap::new() }
    }

    /// Is true if one more driver may connect, which may then still be refused. `drivers`: how many are
    /// connected.
    pub fn may_come(&self, drivers: usize) -> bool {
        let closing: usize = self.closing.values().map(|closing| closing.count()).sum();
        drivers + closing < MOST && self.refused.count() < REFUSED
    }

    /// Returns the counter for a driver of this user once it leaves, and whether it is refused. `drivers` are
    /// the users of those connected. A user may have half of the places that other users leave, so that
    /// others can come, too.
    pub fn of(&mut self, user: u32, drivers: impl Iterator<Item = u32>) -> (Arc<Closing>, bool) {
        let (mut its, mut others) = (0, 0);
        drivers.for_each(|other| *if other == user { &mut its } else { &mut others } += 1);
        self.closing.retain(|_, closing| closing.count() > 0 || Arc::strong_count(closing) > 1);
        for (other, closing) in &self.closing {
            *if *other == user { &mut its } else { &mut others } += closing.count();
        }
        if its >= MOST.saturating_sub(others).div_ceil(2) {
            return (self.refused.clone(), true);
        }
        let wake = &self.wake;
        (self.closing.entry(user).or_insert_with(|| closing(wake)).clone(), false)
    }
}

fn closing(wake: &Arc<dyn Fn() + Send + Sync>) -> Arc<Closing> {
    let wake = wake.clone();
    Closing::telling(move || wake())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_has_the_places_of_all() {
        let mut places = Places::new(|| ());
        let mut drivers = Vec::new();
        for user in [1, 2, 3, 4, 5] {
            while places.may_come(drivers.len()) && !places.of(user, drivers.iter().copied()).1 {
                drivers.push(user);
            }
        }
        let has = |user| drivers.iter().filter(|other| **other == user).count();
        assert_eq!([1, 2, 3, 4, 5].map(has), [8, 4, 2, 1, 1]);
    }
}
