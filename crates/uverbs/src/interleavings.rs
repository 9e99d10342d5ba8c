//! Explores every interleaving, within a number of preemptions, of threads that work with shared memory. One of them
//! may die before any of its accesses. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p uverbs --lib --release interleavings`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::completion::{FORGOTTEN, bytes, opcode};
use crate::model::{explore, mortal};
use crate::sync::Ordering;
use crate::work::Shape;
use crate::{
    Arm, Completion, CompletionQueue, CompletionSink, DEVICE, DirectSession, Memory, Placement, SendSource,
    SharedSource, Unfinished, WorkQueue, WorkRequest, WorkSource, unfinished,
};
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// More accesses than any thread makes.
const ALL: u32 = u32::MAX;
const SUCCESS: u8 = 0;
const FLUSHED: u8 = 5;

/// Creates a completion queue; returns it with its file.
fn completions(entries: u32) -> (CompletionQueue, OwnedFd) {
    let (memory, file) = Memory::create("test", bytes(entries)).unwrap();
    (CompletionQueue::new(memory, entries), file)
}

fn sink(file: &OwnedFd, entries: u32) -> CompletionSink {
    CompletionSink::new(Memory::open(file, bytes(entries)).unwrap(), entries)
}

/// A sender's objects in its library.
struct Sender {
    qpn: u32,
    session: DirectSession,
    source: WorkSource,
    sink: CompletionSink,
}

struct Device {
    qpn: u32,
    session: DirectSession,
    source: WorkSource,
    sink: CompletionSink,
}

fn sessions() -> [DirectSession; 2] {
    let (memory, file) = Memory::create("test", DirectSession::BYTES).unwrap();
    [memory, Memory::open(&file, DirectSession::BYTES).unwrap()].map(DirectSession::new)
}

/// Creates a sender to a queue with this many receives, whose identifiers begin with its number. Returns the objects of
/// its library and of its peer's device.
fn sender(qpn: u32, receives: u32, file: &OwnedFd, entries: u32) -> (Sender, Device) {
    let shape = Shape::of_receives(0, receives, 0);
    let memory = Arc::new(Memory::create("test", shape.end()).unwrap().0);
    let mut queue = WorkQueue::new(memory.clone(), shape, receives).unwrap();
    for number in 0..receives {
        let id = u64::from(qpn * 10 + number);
        assert!(queue.fill(&WorkRequest { id, ..WorkRequest::default() }, &[]));
    }
    queue.publish();
    let source = || WorkSource::new(memory.clone(), shape).unwrap();
    let [session, same] = sessions();
    let sender = Sender { qpn, session, source: source(), sink: sink(file, entries) };
    (sender, Device { qpn, session: same, source: source(), sink: sink(file, entries) })
}

fn arrived(qpn: u32, id: u64, status: u8) -> Completion {
    Completion { id, qpn, status, opcode: opcode::RECV, placement: Placement::There, ..Completion::default() }
}

impl Sender {
    /// Sends a message if there is room for its completion. Returns whether the peer must be notified.
    fn send(&mut self, solicited: bool) -> bool {
        if self.sink.is_full() {
            return false;
        }
        assert!(self.session.enter());
        let note = |number, id| self.session.hold(number, id);
        let (number, receive) = self.source.take_known(&mut Vec::new(), note).unwrap().unwrap();
        let done = arrived(self.qpn, receive.id, SUCCESS);
        let pushed = self.sink.push_noting(&done, solicited, |place| self.session.note_place(place));
        if pushed.is_err() {
            self.source.put_back(number);
        }
        self.session.leave();
        pushed == Ok(true)
    }
}

impl Device {
    /// Completes the work of the sender, which died, while others are alive. The peer must be notified afterwards.
    /// Calls `wait` while others must act first.
    fn make_good(&self, others: &[&DirectSession], mut wait: impl FnMut()) {
        let is_tried = |place| {
            use crate::Hold::{Has, Tries};
            others.iter().any(|session| [Some(Tries(place)), Some(Has(place))].contains(&session.place()))
        };
        let found = loop {
            match unfinished(&self.session, &self.sink, is_tried) {
                Some(found) => break found,
                None => wait(),
            }
        };
        let held = self.session.held().filter(|(number, _)| self.source.was_taken_last(*number));
        let flushed = held.map(|(_, id)| arrived(self.qpn, id, FLUSHED));
        let nothing = Completion { status: FORGOTTEN, ..Completion::default() };
        match (found, flushed) {
            (Unfinished::Hole(at), flushed) => _ = self.sink.fill(at, &flushed.unwrap_or(nothing), true),
            (Unfinished::Nothing, Some(flushed)) => {
                while self.sink.push(&flushed, true).is_err() {
                    wait();
                }
            }
            _ => {}
        }
        self.sink.disarm();
    }

    /// Returns the identifiers of the receives that were taken.
    fn taken(&self, receives: u32) -> Vec<u64> {
        let left = self.source.waiting();
        (0..receives - left).map(|number| u64::from(self.qpn * 10 + number)).collect()
    }
}

/// Takes all completions; returns identifiers and statuses.
fn drain(queue: &mut CompletionQueue) -> Vec<(u64, u8)> {
    std::iter::from_fn(|| queue.poll()).map(|done| (done.id, done.status)).collect()
}

/// Runs a model once for each access before which a thread may die, until it survives to the end.
fn for_each_death(preemptions: usize, test: impl Fn(u32) -> bool + Copy + Sync + Send + 'static) {
    use std::sync::atomic::{AtomicBool, Ordering};
    for accesses in 0.. {
        let died = Arc::new(AtomicBool::new(false));
        let one = died.clone();
        explore(preemptions, move || {
            if !test(accesses) {
                one.store(true, Ordering::Relaxed);
            }
        });
        if !died.load(Ordering::Relaxed) {
            assert!(accesses > 5, "nobody died");
            return;
        }
    }
}

/// Two threads send, and one of them dies: each receive that was taken has one completion, and nothing is held back.
#[test]
fn a_sender_dies_while_another_sends() {
    for_each_death(2, |accesses| {
        let (mut queue, file) = completions(2);
        let (mut one, device) = sender(1, 1, &file, 2);
        let (mut other, others) = sender(2, 1, &file, 2);
        let first = thread::spawn(move || mortal(accesses, || _ = one.send(false)));
        let second = thread::spawn(move || _ = other.send(false));
        let lived = first.join().unwrap();
        if !lived {
            device.make_good(&[&others.session], thread::yield_now);
        }
        second.join().unwrap();
        let mut done = drain(&mut queue);
        done.sort_unstable();
        let ids: Vec<_> = done.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [device.taken(1), vec![20]].concat(), "{done:?}");
        assert!(done.contains(&(20, SUCCESS)) && (!lived || done.contains(&(10, SUCCESS))));
        lived
    });
}

/// Two threads send, and one of them dies, while places are taken and reused.
#[test]
fn a_sender_dies_while_the_queue_goes_round() {
    for_each_death(2, |accesses| {
        let (mut queue, file) = completions(1);
        let (mut one, device) = sender(1, 1, &file, 1);
        let (mut other, others) = sender(2, 2, &file, 1);
        let first = thread::spawn(move || mortal(accesses, || _ = one.send(false)));
        let second = thread::spawn(move || (0..2).for_each(|_| _ = other.send(false)));
        let mut done = drain(&mut queue);
        let lived = first.join().unwrap();
        done.extend(drain(&mut queue));
        if !lived {
            device.make_good(&[&others.session], || {
                done.extend(drain(&mut queue));
                thread::yield_now();
            });
        }
        second.join().unwrap();
        done.extend(drain(&mut queue));
        let mut ids: Vec<_> = done.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [device.taken(1), others.taken(2)].concat(), "{done:?}");
        lived
    });
}

/// Checks that a thread that found nothing after arming, and therefore sleeps, is notified of later completions,
/// whoever dies.
fn sleeper(arm: Arm, accesses: u32, solicited: [bool; 2]) -> bool {
    let (mut queue, file) = completions(2);
    let (mut one, device) = sender(1, 1, &file, 2);
    let (mut other, others) = sender(2, 1, &file, 2);
    let told = Arc::new(Told::default());
    let tells = [told.clone(), told.clone()];
    let [first, second] = tells;
    let first = thread::spawn(move || {
        mortal(accesses, || {
            if one.send(solicited[0]) {
                first.tell();
            }
        })
    });
    let second = thread::spawn(move || {
        if other.send(solicited[1]) {
            second.tell();
        }
    });
    let teller = told.clone();
    let consumer = thread::spawn(move || {
        let mut seen = 0;
        let mut events = 0;
        loop {
            queue.arm(arm);
            seen += drain(&mut queue).len();
            // The thread sleeps unless it is notified.
            let now = teller.count();
            if now == events {
                return (queue, seen, now);
            }
            events = now;
        }
    });
    let lived = first.join().unwrap();
    if !lived {
        device.make_good(&[&others.session], thread::yield_now);
        told.tell();
    }
    second.join().unwrap();
    let (mut queue, _, events) = consumer.join().unwrap();
    let mut there = drain(&mut queue);
    there.retain(|(id, _)| arm == Arm::Any || solicited[*id as usize / 10 - 1]);
    assert!(there.is_empty() || told.count() != events, "nobody was told of {there:?}");
    lived
}

/// The notifications of a channel.
struct Told(AtomicU32);

impl Default for Told {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Told {
    fn tell(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

#[test]
fn who_sleeps_is_told() {
    for_each_death(1, |accesses| sleeper(Arm::Any, accesses, [false; 2]));
}

#[test]
fn who_sleeps_for_what_is_solicited_is_told() {
    explore(2, || assert!(sleeper(Arm::Solicited, ALL, [false, true])));
}

/// A completion that the library adds itself comes after those that the device added before.
#[test]
fn sends_complete_in_their_order() {
    explore(3, || {
        let (mut queue, file) = completions(2);
        let shape = Shape::new(0, 2, 0, 0);
        let memory = Arc::new(Memory::create("test", shape.end()).unwrap().0);
        let mut sends = WorkQueue::new(memory.clone(), shape, 2).unwrap();
        assert!(sends.fill(&WorkRequest { id: 1, ..WorkRequest::default() }, &[]));
        sends.publish();
        let (mut source, device) = (SendSource::new(memory, shape).unwrap(), sink(&file, 2));
        let device = thread::spawn(move || {
            let (number, request) = source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap();
            device.push(&Completion { id: request.id, ..Completion::default() }, false).unwrap();
            source.release_before(number + 1);
        });
        let library = sink(&file, 2);
        while !sends.is_idle() {
            thread::yield_now();
        }
        library.push(&Completion { id: 2, ..Completion::default() }, false).unwrap();
        assert_eq!(drain(&mut queue), [(1, SUCCESS), (2, SUCCESS)]);
        device.join().unwrap();
    });
}

/// Only threads that are waited for use withdrawn memory.
#[test]
fn memory_is_taken_away_once_nobody_is_at_work_with_it() {
    explore(3, || {
        let [library, device] = sessions();
        let memory = Arc::new((AtomicU32::new(1), loom::cell::UnsafeCell::new(0)));
        let here = memory.clone();
        let library = thread::spawn(move || {
            for _ in 0..2 {
                if library.enter() {
                    if memory.0.load(Ordering::Acquire) == 1 {
                        memory.1.with_mut(|_| ());
                    }
                    library.leave();
                }
            }
        });
        here.0.store(0, Ordering::Release);
        let awaited = device.turn();
        while awaited.is_some() && device.turn() == awaited {
            thread::yield_now();
        }
        here.1.with_mut(|_| ());
        library.join().unwrap();
    });
}

/// Two threads take from a shared queue, and one of them dies: it is known whether it took what it tried to take, and
/// nothing is taken twice.
#[test]
fn a_taker_dies_while_another_takes() {
    for_each_death(2, |accesses| {
        let shape = SharedSource::shape(1, 0);
        let memory = Arc::new(Memory::create("test", shape.end()).unwrap().0);
        let mut queue = WorkQueue::new(memory.clone(), shape, 2).unwrap();
        for id in 0..2 {
            assert!(queue.fill(&WorkRequest { id, ..WorkRequest::default() }, &[]));
        }
        queue.publish();
        let taker = |taker| SharedSource::new(memory.clone(), shape, taker).unwrap();
        let (mut first, mut second, device, mut last) = (taker(1), taker(2), taker(DEVICE), taker(DEVICE));
        let [session, same] = sessions();
        let one = thread::spawn(move || {
            mortal(accesses, || {
                assert!(session.enter());
                while let Some((number, id)) = first.peek(&mut Vec::new()).unwrap() {
                    session.hold(number, id);
                    if first.claim(number) {
                        break;
                    }
                }
            })
        });
        let other = thread::spawn(move || second.take(&mut Vec::new()).unwrap());
        let lived = one.join().unwrap();
        let held = || same.held().filter(|(number, _)| device.was_claimed(*number, 1)).map(|(_, id)| id);
        let found = held();
        let mut taken: Vec<_> = found.into_iter().chain(other.join().unwrap()).collect();
        assert_eq!(found, held());
        taken.extend(std::iter::from_fn(|| last.take(&mut Vec::new()).unwrap()));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
        lived
    });
}
