//! Counters of flows, as drivers read them.

use super::{State, Tables};
use crate::heritage::add;
use crate::protocol::Answer;
use executor::Counters;
use std::time::{Duration, Instant};

/// Counters that are read and written at a time, so that they fit the cache.
const PUBLISHED: usize = 1024;
/// Counters are brought up to date at most this often, and for at most one in `COUNT_SHARE` of the time.
const COUNT_EVERY: Duration = Duration::from_millis(5);
const COUNT_SHARE: u32 = 4;
impl State {
    /// Publishes the present value of a flow's counter, and returns what it has counted itself, and that
    /// value, which includes what it has taken over from removed flows.
    pub(crate) fn begin_to_count(&mut self, counter: u32) -> (Counters, Counters) {
        let Some(own) = self.tables.counts(&[counter]).and_then(|all| all.first().copied()) else {
            return Default::default();
        };
        let all = add(own, self.heritage.of(counter, &counts_of(&*self.tables)));
        self.page.set(counter, all);
        (own, all)
    }

    pub(super) fn publish(&mut self, counters: &[u32]) {
        // Zeros would look as if all had gone backwards.
        let Some(counts) = self.tables.counts(counters) else { return };
        let inherited = !self.heritage.is_empty();
        for (index, mut own) in counters.iter().zip(counts) {
            if inherited {
                own = add(own, self.heritage.of(*index, &counts_of(&*self.tables)));
            }
            self.page.set(*index, own);
        }
    }

    pub(super) fn publish_all(&mut self) {
        for some in self.flows.counters().chunks(PUBLISHED) {
            self.publish(some);
        }
    }

    /// Brings the counters of flows up to date, unless that was done a moment ago.
    pub(super) fn count(&mut self, now: Instant) -> Answer {
        let started = Instant::now();
        if self.next_count.is_some_and(|next| started < next) {
            return Answer::default();
        }
        self.tables.settle();
        self.heritage.settle(Some(now), now, &counts_of(&*self.tables));
        self.publish_all();
        let took = started.elapsed();
        self.next_count = Some(started + took + COUNT_EVERY.max(took * COUNT_SHARE));
        Answer::default()
    }
}

/// Reads single counters of the tables.
pub(crate) fn counts_of(tables: &dyn Tables) -> impl Fn(u32) -> Counters + '_ {
    |counter| tables.counts(&[counter]).and_then(|all| all.first().copied()).unwrap_or_default()
}
