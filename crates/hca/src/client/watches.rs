//! The applications whose doorbells a polling thread listens to: its own, and those that its own one sends to, because
//! they may answer. Their threads need not be woken then: one thread carries messages in both directions, and their
//! data stays in the cache of one CPU. A thread with much work leaves the others to their own threads.

use crate::inbox::question::Question;
use crate::inbox::{Inbox, Substitute};
use std::sync::Arc;
use std::time::Duration;

/// Most applications that a thread listens to.
const MOST: usize = 5;
/// A round of work that takes so long is much work.
const LONG_ROUND: Duration = Duration::from_micros(50);
/// For how long a thread listens to nobody else after that.
const REST: Duration = Duration::from_millis(1);
/// When it tries again to listen to an application to which another thread listens.
const AGAIN: Duration = Duration::from_micros(5);

/// The applications that a thread listens to, its own first.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// Identifiers of their inboxes, and who works for them.
    watched: Vec<(u64, Arc<dyn Substitute>)>,
    /// When it last listened.
    listened_at: Duration,
    rests_until: Duration,
}

impl Watches {
    /// Begins with the thread's own application, which it watches already, and whom that spoke to last.
    pub fn begin(&mut self, (id, own): (u64, Arc<dyn Substitute>), now: Duration) {
        self.listened_at = now;
        self.watched.push((id, own));
        self.add(0, now);
    }

    /// Works for those whose doorbells were rung. Returns whether the thread's own application was one of them: others
    /// do not keep it from sleep.
    pub fn listen(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.listened_at) > LONG_ROUND {
            self.watched.drain(1.min(self.watched.len())..).for_each(|(_, other)| other.end_watch());
            self.rests_until = now + REST;
        }
        self.listened_at = now;
        let (mut is_own, mut stranger) = (false, None);
        for (at, (_, substitute)) in self.watched.iter().enumerate() {
            let Some(to) = substitute.listen(now) else { continue };
            is_own |= at == 0;
            if to != 0 && self.watched.iter().all(|(id, _)| *id != to) {
                stranger = Some(at);
            }
        }
        if let Some(at) = stranger {
            self.add(at, now);
        }
        is_own
    }

    /// Listens to whom one of them spoke: it may answer.
    #[cold]
    fn add(&mut self, at: usize, now: Duration) {
        if now < self.rests_until {
            return;
        }
        let [Some((_, own)), Some((_, speaker))] = [0, at].map(|at| self.watched.get(at)) else { return };
        let is_new = |to: &Arc<Inbox<Question>>| self.watched.iter().all(|(id, _)| *id != to.id());
        let Some(inbox) = speaker.spoken_to().filter(is_new) else { return };
        // Its own thread may have more weight.
        let rank = own.rank();
        let may =
            |other: &Arc<dyn Substitute>| rank.niceness <= other.rank().niceness && other.begin_watch(rank);
        let Some(substitute) = inbox.substitute().filter(may) else {
            self.rests_until = now + AGAIN;
            return;
        };
        if self.watched.len() >= MOST {
            self.watched.remove(1).1.end_watch();
        }
        self.watched.push((inbox.id(), substitute));
    }

    /// Ends all watches.
    pub fn end(&mut self) {
        self.watched.drain(..).for_each(|(_, substitute)| substitute.end_watch());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::{DeviceBudget, HostBudget};
    use crate::inbox::Rank;
    use crate::inbox::handed::{Handed, HandedAnswers, HandedBrief};
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
    use std::sync::{Mutex, Weak};

    /// Speaks to the same inbox each time.
    #[derive(Debug, Default)]
    struct Sleeper {
        is_watched: AtomicBool,
        listened: AtomicU32,
        niceness: AtomicI32,
        spoken_to: Mutex<Option<Arc<Inbox<Question>>>>,
    }

    impl Substitute for Sleeper {
        fn handle_packets(&self) -> bool {
            unreachable!()
        }

        fn handle_now(&self, _: &Handed<'_>, _: &mut HandedAnswers) -> bool {
            unreachable!()
        }

        fn serve(&self, _: &mut HandedBrief<'_>) -> bool {
            unreachable!()
        }

        fn rank(&self) -> Rank {
            Rank { niceness: self.niceness.load(Ordering::Relaxed), id: 0 }
        }

        fn begin_watch(&self, _: Rank) -> bool {
            !self.is_watched.swap(true, Ordering::Relaxed)
        }

        fn listen(&self, _: Duration) -> Option<u64> {
            self.listened.fetch_add(1, Ordering::Relaxed);
            self.spoken_to().map(|inbox| inbox.id())
        }

        fn spoken_to(&self) -> Option<Arc<Inbox<Question>>> {
            self.spoken_to.lock().unwrap().clone()
        }

        fn end_watch(&self) {
            assert!(self.is_watched.swap(false, Ordering::Relaxed));
        }
    }

    type One = (Arc<Sleeper>, Arc<Inbox<Question>>);

    fn sleepers(count: usize) -> Vec<One> {
        let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(0, 0)), 0));
        let one = || {
            let sleeper = Arc::new(Sleeper::default());
            let inbox = Arc::new(Inbox::new(budget.clone()).unwrap());
            let substitute: Weak<Sleeper> = Arc::downgrade(&sleeper);
            inbox.set_substitute(substitute);
            (sleeper, inbox)
        };
        (0..count).map(|_| one()).collect()
    }

    fn speak(one: &One, to: Option<&One>) {
        *one.0.spoken_to.lock().unwrap() = to.map(|(_, inbox)| inbox.clone());
    }

    fn begin(one: &One, now: Duration) -> Watches {
        let mut watches = Watches::default();
        assert!(one.0.begin_watch(one.0.rank()));
        watches.begin((one.1.id(), one.0.clone()), now);
        watches
    }

    fn watched(all: &[One]) -> Vec<bool> {
        all.iter().map(|(sleeper, _)| sleeper.is_watched.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_thread_that_polls_listens_to_whom_its_application_speaks() {
        let (all, now) = (sleepers(MOST + 2), Duration::from_secs(1));
        let mut watches = begin(&all[0], now);
        assert!(!watches.listen(now), "it says nothing");
        for other in &all[1..=MOST] {
            speak(&all[0], Some(other));
            assert!(watches.listen(now));
        }
        assert_eq!(watched(&all), [true, false, true, true, true, true, false], "only so many");
        let listened = all[0].0.listened.load(Ordering::Relaxed);
        assert!(watches.listen(now));
        assert_eq!(all[0].0.listened.load(Ordering::Relaxed), listened + 1);
        speak(&all[0], None);
        speak(&all[2], Some(&all[0]));
        assert!(!watches.listen(now), "others do not keep it from sleep");
        let mut another = begin(&all[6], now);
        speak(&all[6], Some(&all[0]));
        another.listen(now);
        assert_eq!(another.watched.len(), 1, "one thread is enough for each");
        watches.end();
        another.end();
        assert_eq!(watched(&all), [false; MOST + 2]);
    }

    #[test]
    fn a_thread_begins_with_whom_its_application_spoke_to_last() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        speak(&all[0], Some(&all[0]));
        begin(&all[0], now).end();
        assert_eq!(watched(&all), [false; 2], "it does not listen to itself twice");
        speak(&all[0], Some(&all[1]));
        let mut watches = begin(&all[0], now);
        assert_eq!(watched(&all), [true; 2]);
        watches.end();
    }

    #[test]
    fn a_thread_listens_to_nobody_whose_thread_has_more_weight() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        speak(&all[0], Some(&all[1]));
        for (own, other, listens) in [(1, 0, false), (1, 1, true), (0, 1, true)] {
            all[0].0.niceness.store(own, Ordering::Relaxed);
            all[1].0.niceness.store(other, Ordering::Relaxed);
            let mut watches = begin(&all[0], now);
            assert_eq!(watched(&all), [true, listens]);
            watches.end();
        }
    }

    #[test]
    fn a_thread_with_much_work_leaves_others_to_their_own() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        let mut watches = begin(&all[0], now);
        speak(&all[0], Some(&all[1]));
        watches.listen(now);
        watches.listen(now + LONG_ROUND);
        assert_eq!(watched(&all), [true, true]);
        let later = now + LONG_ROUND * 3;
        watches.listen(later);
        assert_eq!(watched(&all), [true, false]);
        watches.listened_at = later + REST;
        watches.listen(later + REST);
        assert_eq!(watched(&all), [true, true]);
    }
}
