//! The queues from which a worker receives, and the order in which it polls them.
//!
//! To poll an empty queue costs cycles that packets need. Queues that had packets recently are polled in every round;
//! of the others only a few, in turn. A host has many guests, and few of them send at a time.

use crate::core::Ingress;
use crate::deliver::Ports;
use crate::patience::Patience;
use crate::shape::{Pace, Shaper, burst_len};
use mem::{Burst, RxQueue};
use model::VifId;
use rustix::event::epoll;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tables::Snapshot;

/// Cycles without packets after which a queue counts as quiet: 2 to 4 ms on x86.
const PATIENCE: u64 = 1 << 23;
/// Quiet queues that are polled in each round.
const QUIET_PER_ROUND: usize = 16;
/// The least in a round in which no active queue had a packet. Such a round is short, so that the next packet of a
/// guest waits less.
const QUIET_PER_SHORT_ROUND: usize = 4;
/// Active queues for each quiet queue that is polled in such a round. Many active queues make the round long, and quiet
/// queues should not wait for many long rounds.
const ACTIVE_PER_QUIET: usize = 4;

/// A queue and the burst that is received from it.
pub(crate) struct Receiver {
    pub queue: Box<dyn RxQueue>,
    pub burst: Burst,
    /// The origin of its packets.
    pub from: Ingress,
    /// Epoch at which `from` was looked up.
    epoch: u64,
    /// When its last packet came, in cycles.
    last: u64,
    /// Rounds in which it is not polled, because its last turn did the work of several.
    pub sits_out: u32,
    /// Whether it waits for an Open vSwitch.
    pub patience: Patience,
    /// The shaper of what its interface sends, if there is one.
    pub shaper: Option<Arc<Shaper>>,
    /// Whether the shaper held it when it was its turn last.
    is_held_back: bool,
    /// While the worker sleeps: whether the queue waits for its shaper, or for an Open vSwitch.
    rests: bool,
    /// Whether its packets wake the worker.
    is_watched: bool,
}

impl Receiver {
    pub fn new(vif: VifId, queue: Box<dyn RxQueue>) -> Self {
        let (from, patience) = (Ingress::new(vif), Patience::default());
        Self {
            queue,
            burst: Burst::new(),
            from,
            epoch: 0,
            last: 0,
            sits_out: 0,
            patience,
            shaper: None,
            is_held_back: false,
            rests: false,
            is_watched: true,
        }
    }

    /// Returns the data with which `epoll` reports it.
    pub fn event(&self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.from.vif.0) + 1)
    }

    /// Has `epoll` report its packets, except while it rests: with packets in it, some descriptors stay readable, and
    /// the worker would not sleep.
    pub fn watch(&mut self, epoll: &OwnedFd) {
        let is_watched = !self.rests;
        if is_watched != self.is_watched {
            let flags = if is_watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            if epoll::modify(epoll, self.queue.event_fd(), self.event(), flags).is_ok() {
                self.is_watched = is_watched;
            }
        }
    }

    /// Looks up the kind of its interface, if the tables changed.
    #[inline]
    pub fn look_up_kind(&mut self, snapshot: &Snapshot) {
        if self.epoch != snapshot.epoch() {
            self.epoch = snapshot.epoch();
            self.from = self.from.in_tables(snapshot);
        }
    }

    /// Begins to rest if it waits for something but packets, while the worker sleeps. Returns when its shaper lets
    /// packets go, if it waits for that.
    pub fn rest(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.shaper.as_ref().and_then(|shaper| shaper.outward.wait(now_ns));
        self.rests = due.is_some() || self.patience.waits();
        due
    }

    /// Requests events, unless it rests. True if packets are already waiting.
    pub fn arm(&mut self) -> bool {
        !self.rests && self.queue.arm()
    }

    /// Returns how many bytes may be taken from it at `now_ns`.
    pub fn pace(&mut self, now_ns: u64) -> Pace {
        let pace = self.shaper.as_ref().map_or(Pace::Go(usize::MAX), |shaper| shaper.outward.pace(now_ns));
        self.is_held_back |= matches!(pace, Pace::Wait(_));
        pace
    }

    /// Counts the packets of its burst, taken at `now_ns`, against its shaper.
    pub fn spend(&mut self, now_ns: u64) {
        let Some(shaper) = &self.shaper else { return };
        shaper.outward.spend(now_ns, burst_len(&self.burst));
        // Those that were there when the rate allowed the next one have waited for it.
        if std::mem::take(&mut self.is_held_back) {
            shaper.waited(self.burst.len());
        }
    }

    /// Returns whether it goes on waiting for an Open vSwitch.
    pub fn is_held(&mut self, ports: &Ports, now_ns: u64) -> bool {
        let has_room = self.from.side.is_none_or(|side| ports.has_room(side));
        self.patience.holds(has_room, now_ns)
    }

    /// Records that packets of its last burst went to an Open vSwitch.
    pub fn asked_ovs(&mut self, ports: &Ports, now_ns: u64) {
        if let Some(side) = self.from.side {
            self.patience.sent(ports.has_room(side), now_ns);
        }
    }
}

/// The queues; those that had packets recently come first.
#[derive(Default)]
pub(crate) struct Receivers {
    all: Vec<Receiver>,
    /// Number of queues that had packets recently.
    active: usize,
    /// The quiet queue to poll next.
    next: usize,
}

impl Receivers {
    pub fn push(&mut self, receiver: Receiver) {
        self.all.push(receiver);
    }

    /// Takes out the queues of an interface.
    pub fn remove(&mut self, vif: VifId) -> Vec<Receiver> {
        let of = |receiver: &Receiver| receiver.from.vif == vif;
        self.active -= self.all[..self.active].iter().filter(|receiver| of(receiver)).count();
        self.all.extract_if(.., |receiver| of(receiver)).collect()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Receiver> {
        self.all.iter_mut()
    }

    /// Runs a round that begins at `now`, in cycles: serves the queues whose turn it is. `serve` returns
    /// whether there was a packet. Returns whether any queue had one.
    pub fn round(&mut self, now: u64, mut serve: impl FnMut(&mut Receiver) -> bool) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.active {
            let receiver = &mut self.all[at];
            if receiver.sits_out > 0 {
                receiver.sits_out -= 1;
                busy = true;
            } else if serve(receiver) {
                (busy, receiver.last) = (true, now);
            } else if now.saturating_sub(receiver.last) > PATIENCE {
                self.active -= 1;
                self.all.swap(at, self.active);
                continue;
            }
            at += 1;
        }
        let quiet = if busy || self.active == 0 {
            QUIET_PER_ROUND
        } else {
            (self.active / ACTIVE_PER_QUIET).clamp(QUIET_PER_SHORT_ROUND, QUIET_PER_ROUND)
        };
        for _ in 0..quiet.min(self.all.len() - self.active) {
            self.next =
                if self.next + 1 < self.all.len() { (self.next + 1).max(self.active) } else { self.active };
            let receiver = &mut self.all[self.next];
            if serve(receiver) {
                (busy, receiver.last) = (true, now);
                self.all.swap(self.next, self.active);
                self.active += 1;
            }
        }
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestPort;
    use mem::Accepts;
    use std::collections::BTreeMap;

    fn receivers(count: u16) -> Receivers {
        let mut receivers = Receivers::default();
        let port = TestPort::new(Accepts::default(), 100);
        for id in 0..count {
            receivers.push(Receiver::new(VifId(id), Box::new(port.receiver())));
        }
        receivers
    }

    /// Returns how often each interface is served in these rounds, which all begin at `now`, if those in
    /// `busy` have packets.
    fn served(receivers: &mut Receivers, now: u64, rounds: u32, busy: &[u16]) -> BTreeMap<u16, u32> {
        let mut times = BTreeMap::new();
        for _ in 0..rounds {
            let any = receivers.round(now, |receiver| {
                let VifId(id) = receiver.from.vif;
                *times.entry(id).or_default() += 1;
                busy.contains(&id)
            });
            let expected = busy.iter().any(|id| times.contains_key(id));
            assert!(expected || !any);
        }
        times
    }

    #[test]
    fn few_queues_are_all_polled_in_every_round_with_packets_or_without_recent_ones() {
        let mut few = receivers(QUIET_PER_ROUND as u16);
        for (now, busy) in [(PATIENCE, &[][..]), (PATIENCE, &[3]), (PATIENCE, &[3, 15]), (3 * PATIENCE, &[])]
        {
            let times = served(&mut few, now, 100, busy);
            assert!((0..16).all(|id| times[&id].abs_diff(100) <= 1), "{times:?}");
        }
    }

    #[test]
    fn a_queue_that_had_packets_recently_is_polled_more_often_than_others() {
        let mut few = receivers(13);
        served(&mut few, 2 * PATIENCE, 1, &[3]);
        let times = served(&mut few, 3 * PATIENCE, 300, &[]);
        assert_eq!(times[&3], 300);
        assert!((0..13).filter(|id| *id != 3).all(|id| times[&id] == 100), "4 of 12 a round: {times:?}");
        let times = served(&mut few, 3 * PATIENCE + 1, 300, &[]);
        assert!((0..13).all(|id| times[&id].abs_diff(300) <= 1), "{times:?}");
    }

    /// Nobody makes others wait longer with many queues that seldom have a packet.
    #[test]
    fn many_queues_without_packets_do_not_keep_the_quiet_ones_waiting() {
        let mut many = receivers(256);
        let half: Vec<u16> = (0..128).collect();
        served(&mut many, 2 * PATIENCE, 32, &half);
        let times = served(&mut many, 3 * PATIENCE, 8, &[]);
        assert!((0..256).all(|id| times[&id] == if id < 128 { 8 } else { 1 }), "{times:?}");
    }

    #[test]
    fn of_many_queues_the_busy_ones_come_first_and_all_have_a_turn() {
        let mut many = receivers(256);
        let times = served(&mut many, PATIENCE, 16, &[]);
        assert!((0..256).all(|id| times[&id] == 1), "each once: {times:?}");
        served(&mut many, PATIENCE, 16, &[7, 200]);
        let times = served(&mut many, PATIENCE, 160, &[7, 200]);
        assert_eq!((times[&7], times[&200]), (160, 160));
        assert!((0..256).all(|id| times.get(&id).is_some_and(|times| *times >= 8)), "{times:?}");
        let all: Vec<u16> = (0..256).collect();
        served(&mut many, PATIENCE, 17, &all);
        let times = served(&mut many, PATIENCE, 10, &all);
        assert!((0..256).all(|id| times[&id] == 10), "{times:?}");
        served(&mut many, 3 * PATIENCE, 1, &[7]);
        let times = served(&mut many, 3 * PATIENCE, 160, &[7]);
        assert_eq!(times[&7], 160);
        assert!(times[&200] <= 11, "{times:?}");
    }

    #[test]
    fn who_made_much_work_sits_out_rounds_in_which_others_have_theirs() {
        let mut two = receivers(2);
        served(&mut two, 0, 2, &[0, 1]);
        let mut turns = [0, 0];
        // This holds however long the rounds take.
        for round in 0..55 {
            let busy = two.round(round * PATIENCE, |receiver| {
                let VifId(id) = receiver.from.vif;
                turns[usize::from(id)] += 1;
                receiver.sits_out = if id == 1 { 5 } else { 0 };
                true
            });
            assert!(busy);
        }
        assert_eq!(turns, [55, 10]);
        // Packets may wait in a queue that is skipped: the worker must not sleep after this round.
        two.remove(VifId(0));
        assert!(two.round(0, |_| unreachable!("it sits out")));
    }

    #[test]
    fn queues_come_and_go() {
        let mut many = receivers(40);
        served(&mut many, 0, 3, &[1, 2, 39]);
        assert_eq!(many.remove(VifId(2)).len(), 1);
        assert_eq!(many.remove(VifId(20)).len(), 1);
        assert_eq!(many.remove(VifId(20)).len(), 0);
        let times = served(&mut many, 0, 30, &[1, 39]);
        assert_eq!((times[&1], times[&39]), (30, 30));
        assert_eq!(times.len(), 38);
        (0..40).for_each(|id| drop(many.remove(VifId(id))));
        assert_eq!(served(&mut many, 0, 5, &[]).len(), 0);
        many.push(Receiver::new(VifId(7), Box::new(TestPort::new(Accepts::default(), 100).receiver())));
        assert_eq!(served(&mut many, 0, 5, &[7])[&7], 5);
    }
}
