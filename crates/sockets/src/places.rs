//! Limits on the number of connections to a socket, of each user and together.

use crate::Closing;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most refused connections on which something came that is not closed yet. The kernel tells who connects
/// only once the connection is accepted, so nobody is accepted meanwhile.
const REFUSED: usize = 64;

/// Counts the places that connections have, and those that closing descriptors still occupy.
pub struct Places {
    /// Most connections at a time. A connection that ended counts until everything that came by it is closed,
    /// however long that takes.
    most: usize,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Descriptors of connections that ended, by user.
    closing: BTreeMap<u32, Arc<Closing>>,
    refused: Arc<Closing>,
}

impl Places {
    /// Starts without connections, of which there may be `most` at a time. `wake` is called each time that
    /// something is closed.
    pub fn new(most: usize, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(wake);
        Self { most, refused: closing(&wake), wake, closing: BTreeMap::new() }
    }

    /// Is true if one more may connect, which may then still be refused. `connections`: how many there are.
    #[must_use]
    pub fn may_come(&self, connections: usize) -> bool {
        let closing: usize = self.closing.values().map(|closing| closing.count()).sum();
        connections + closing < self.most && self.refused.count() < REFUSED
    }

    /// Returns the counter for a connection of this user once it ends, and whether it is refused.
    /// `connections` are the users of those that there are. A user may have half of the places that other
    /// users leave, so that others can come, too.
    pub fn of(&mut self, user: u32, connections: impl Iterator<Item = u32>) -> (Arc<Closing>, bool) {
        let (mut its, mut others) = (0, 0);
        connections.for_each(|other| *if other == user { &mut its } else { &mut others } += 1);
        self.closing.retain(|_, closing| closing.count() > 0 || Arc::strong_count(closing) > 1);
        for (other, closing) in &self.closing {
            *if *other == user { &mut its } else { &mut others } += closing.count();
        }
        if its >= self.most.saturating_sub(others).div_ceil(2) {
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
        let mut places = Places::new(16, || ());
        let mut connections = Vec::new();
        for user in [1, 2, 3, 4, 5] {
            while places.may_come(connections.len()) && !places.of(user, connections.iter().copied()).1 {
                connections.push(user);
            }
        }
        let has = |user| connections.iter().filter(|other| **other == user).count();
        assert_eq!([1, 2, 3, 4, 5].map(has), [8, 4, 2, 1, 1]);
    }
}
