//! The applications whose doorbells a polling thread polls: its own one, and those to which its own one sends,
//! because they may answer. Their threads need not be woken then: one thread carries messages in both directions,
//! and their data stays in the cache of one CPU. A thread with much work leaves the others to their own threads.

use crate::inbox::message::Message;
use crate::inbox::{Inbox, Substitute};
use std::sync::Arc;
use std::time::Duration;

/// Most applications whose doorbells a thread polls.
const MOST: usize = 5;
/// From this time on, a round of work counts as much work.
const LONG_ROUND: Duration = Duration::from_micros(50);
/// How long a thread polls for nobody else after a round of much work.
const REST: Duration = Duration::from_millis(1);
/// When it tries again to poll for an application for which another thread polls.
const AGAIN: Duration = Duration::from_micros(5);

/// The applications whose doorbells a thread polls, its own first.
#[derive(Debug, Default)]
pub(crate) struct PollSet {
    /// The inbox identifier of each application, and the substitute that works for it.
    members: Vec<(u64, Arc<dyn Substitute>)>,
    /// When the thread last polled.
    listened_at: Duration,
    rests_until: Duration,
}

impl PollSet {
    /// Begins with the thread's own application, for which the thread polls already, and with the one to which it
    /// sent last.
    pub fn begin(&mut self, id: u64, own: Arc<dyn Substitute>, now: Duration) {
        self.listened_at = now;
        self.members.push((id, own));
        self.add(0, now);
    }

    /// Works for the applications whose doorbells were rung. Returns whether the thread's own application was one
    /// of them: others do not keep it from sleep.
    pub fn listen(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.listened_at) > LONG_ROUND {
            self.members.drain(1.min(self.members.len())..).for_each(|(_, other)| other.end_polling());
            self.rests_until = now + REST;
        }
        self.listened_at = now;
        let (mut is_own, mut stranger) = (false, None);
        for (at, (_, substitute)) in self.members.iter().enumerate() {
            let Some(to) = substitute.listen(now) else { continue };
            is_own |= at == 0;
            if to != 0 && self.members.iter().all(|(id, _)| *id != to) {
                stranger = Some(at);
            }
        }
        if let Some(at) = stranger {
            self.add(at, now);
        }
        is_own
    }

    /// Adds the application to which the member at index `at` sent last: it may answer.
    #[cold]
    fn add(&mut self, at: usize, now: Duration) {
        if now < self.rests_until {
            return;
        }
        let [Some((_, own)), Some((_, speaker))] = [0, at].map(|at| self.members.get(at)) else { return };
        let is_new = |to: &Arc<Inbox<Message>>| self.members.iter().all(|(id, _)| *id != to.id());
        let Some(inbox) = speaker.spoken_to().filter(is_new) else { return };
        // The application's own thread may have more weight: then that thread polls.
        let rank = own.rank();
        let may =
            |other: &Arc<dyn Substitute>| rank.niceness <= other.rank().niceness && other.begin_polling(rank);
        let Some(substitute) = inbox.substitute().filter(may) else {
            self.rests_until = now + AGAIN;
            return;
        };
        if self.members.len() >= MOST {
            self.members.remove(1).1.end_polling();
        }
        self.members.push((inbox.id(), substitute));
    }

    /// Removes all applications, and leaves their doorbells to their own threads.
    pub fn end(&mut self) {
        self.members.drain(..).for_each(|(_, substitute)| substitute.end_polling());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::{DeviceBudget, HostBudget};
    use crate::inbox::Rank;
    use crate::inbox::sync_delivery::{SyncAnswers, SyncMessage, SyncPacket};
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
    use std::sync::{Mutex, Weak};

    /// A substitute that sends to the same inbox each time.
    #[derive(Debug, Default)]
    struct Sleeper {
        is_polled: AtomicBool,
        listened: AtomicU32,
        niceness: AtomicI32,
        spoken_to: Mutex<Option<Arc<Inbox<Message>>>>,
    }

    impl Substitute for Sleeper {
        fn handle_packets(&self) -> bool {
            unreachable!()
        }

        fn handle_now(&self, _: &SyncPacket<'_>, _: &mut SyncAnswers) -> bool {
            unreachable!()
        }

        fn serve(&self, _: &mut SyncMessage<'_>) -> bool {
            unreachable!()
        }

        fn rank(&self) -> Rank {
            Rank { niceness: self.niceness.load(Ordering::Relaxed), id: 0 }
        }

        fn begin_polling(&self, _: Rank) -> bool {
            !self.is_polled.swap(true, Ordering::Relaxed)
        }

        fn listen(&self, _: Duration) -> Option<u64> {
            self.listened.fetch_add(1, Ordering::Relaxed);
            self.spoken_to().map(|inbox| inbox.id())
        }

        fn spoken_to(&self) -> Option<Arc<Inbox<Message>>> {
            self.spoken_to.lock().unwrap().clone()
        }

        fn end_polling(&self) {
            assert!(self.is_polled.swap(false, Ordering::Relaxed));
        }
    }

    type One = (Arc<Sleeper>, Arc<Inbox<Message>>);

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

    fn begin(one: &One, now: Duration) -> PollSet {
        let mut poll_set = PollSet::default();
        assert!(one.0.begin_polling(one.0.rank()));
        poll_set.begin(one.1.id(), one.0.clone(), now);
        poll_set
    }

    fn polled(all: &[One]) -> Vec<bool> {
        all.iter().map(|(sleeper, _)| sleeper.is_polled.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_thread_that_polls_listens_to_whom_its_application_speaks() {
        let (all, now) = (sleepers(MOST + 2), Duration::from_secs(1));
        let mut poll_set = begin(&all[0], now);
        assert!(!poll_set.listen(now), "it says nothing");
        for other in &all[1..=MOST] {
            speak(&all[0], Some(other));
            assert!(poll_set.listen(now));
        }
        assert_eq!(polled(&all), [true, false, true, true, true, true, false], "only so many");
        let listened = all[0].0.listened.load(Ordering::Relaxed);
        assert!(poll_set.listen(now));
        assert_eq!(all[0].0.listened.load(Ordering::Relaxed), listened + 1);
        speak(&all[0], None);
        speak(&all[2], Some(&all[0]));
        assert!(!poll_set.listen(now), "others do not keep it from sleep");
        let mut another = begin(&all[6], now);
        speak(&all[6], Some(&all[0]));
        another.listen(now);
        assert_eq!(another.members.len(), 1, "one thread is enough for each");
        poll_set.end();
        another.end();
        assert_eq!(polled(&all), [false; MOST + 2]);
    }

    #[test]
    fn a_thread_begins_with_whom_its_application_spoke_to_last() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        speak(&all[0], Some(&all[0]));
        begin(&all[0], now).end();
        assert_eq!(polled(&all), [false; 2], "it does not listen to itself twice");
        speak(&all[0], Some(&all[1]));
        let mut poll_set = begin(&all[0], now);
        assert_eq!(polled(&all), [true; 2]);
        poll_set.end();
    }

    #[test]
    fn a_thread_listens_to_nobody_whose_thread_has_more_weight() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        speak(&all[0], Some(&all[1]));
        for (own, other, listens) in [(1, 0, false), (1, 1, true), (0, 1, true)] {
            all[0].0.niceness.store(own, Ordering::Relaxed);
            all[1].0.niceness.store(other, Ordering::Relaxed);
            let mut poll_set = begin(&all[0], now);
            assert_eq!(polled(&all), [true, listens]);
            poll_set.end();
        }
    }

    #[test]
    fn a_thread_with_much_work_leaves_others_to_their_own() {
        let (all, now) = (sleepers(2), Duration::from_secs(1));
        let mut poll_set = begin(&all[0], now);
        speak(&all[0], Some(&all[1]));
        poll_set.listen(now);
        poll_set.listen(now + LONG_ROUND);
        assert_eq!(polled(&all), [true, true]);
        let later = now + LONG_ROUND * 3;
        poll_set.listen(later);
        assert_eq!(polled(&all), [true, false]);
        poll_set.listened_at = later + REST;
        poll_set.listen(later + REST);
        assert_eq!(polled(&all), [true, true]);
    }
}
