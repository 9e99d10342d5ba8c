//! Tests of the work that a thread does for an application that is not its own, and of what it leaves to that
//! application's own thread.

use super::*;
use crate::common::guests::Buffer;
use crate::common::{App, Cq, Host, Qp, SIGNALED, gid, next, until};
use std::any::Any;
use uverbs::qp::access;
use uverbs::{QpType, WorkRequest, work::opcode};

/// How many READs of a connection are in progress at a time, as `App::connect` sets it.
const READS: usize = 4;

/// A program with queue pairs that are connected to another program, whose thread sleeps and is kept from polling.
struct Speaker {
    _host: Host,
    app: App,
    cq: Cq,
    qps: Vec<Qp>,
    buffer: Buffer,
    /// Address and key of the memory that is written and read.
    remote: (u64, u32),
    locked: Arc<LockedClient>,
    /// The other program's.
    peer: Arc<LockedClient>,
    _kept: Box<dyn Any>,
}

fn locked(host: &Host, number: u8, qp: &Qp) -> Arc<LockedClient> {
    let adapter = host.fabric.find(1, gid(number)).unwrap();
    let substitute: Arc<dyn Any + Send + Sync> = adapter.owner(Qpn(qp.qpn)).unwrap().substitute().unwrap();
    substitute.downcast().unwrap()
}

/// Calls `with` with the application while its thread sleeps, and can't wake.
fn while_asleep<T>(locked: &LockedClient, mut with: impl FnMut(&mut Client) -> T) -> T {
    let mut done = None;
    until(|| {
        done = locked.take().as_mut().filter(|client| client.sleeps).map(&mut with);
        done.is_some()
    });
    done.unwrap()
}

impl Speaker {
    fn new(count: usize) -> Self {
        let host = Host::new();
        let guests = [host.guest(1, None), host.guest(2, None)];
        let [mut app, mut other] = guests.each_ref().map(|guest| App::join(&guest.endpoint).unwrap());
        let (cq, others) = (app.cq(64, None), other.cq(64, None));
        let mut pairs = Vec::new();
        for _ in 0..count {
            let (one, two) = (app.qp(QpType::Rc, &cq, None), other.qp(QpType::Rc, &others, None));
            app.connect(&one, QpType::Rc, gid(2), two.qpn);
            other.connect(&two, QpType::Rc, gid(1), one.qpn);
            pairs.push((one, two));
        }
        let (buffer, theirs) = (app.buffer(4096, access::ALL), other.buffer(4096, access::ALL));
        let clients = [(1, &pairs[0].0), (2, &pairs[0].1)].map(|(number, qp)| locked(&host, number, qp));
        let [locked, peer] = clients;
        until(|| peer.begin(OTHER));
        while_asleep(&peer, |_| ());
        let (qps, held): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let remote = (theirs.address, theirs.key);
        let mut speaker = Self {
            _host: host,
            app,
            cq,
            qps,
            buffer,
            remote,
            locked,
            peer,
            _kept: Box::new((guests, other, others, held, theirs)),
        };
        // Until then, it does not know whose its queue pairs' peers are.
        while_asleep(&speaker.locked.clone(), |client| speaker.speak(client, opcode::RDMA_WRITE, count, 1));
        (0..count).for_each(|_| assert_eq!(next(&mut speaker.cq).status, 0));
        speaker
    }

    /// Posts the same request on the first `count` queue pairs, `times` times, and has this thread poll the
    /// doorbells. Returns how many queue pairs are left to the application's own thread, which is woken then.
    fn speak(&mut self, client: &mut Client, opcode: u8, count: usize, times: usize) -> usize {
        let (address, rkey) = self.remote;
        for qp in &mut self.qps[..count] {
            for _ in 0..times {
                let asked = WorkRequest { opcode, address, rkey, flags: SIGNALED, ..WorkRequest::default() };
                self.app.post_send(qp, asked, &[self.buffer.segment(0, 8)]);
            }
        }
        assert!(client.work_if_rung(monotonic()));
        assert!(client.ready.is_empty() || client.context.inbox.is_woken());
        client.ready.len()
    }

    /// Returns how many requests are done.
    fn done(&mut self) -> usize {
        std::iter::from_fn(|| self.cq.queue.poll()).inspect(|done| assert_eq!(done.status, 0)).count()
    }
}

#[test]
fn who_hears_many_doorbells_leaves_the_work_to_their_thread() {
    let mut speaker = Speaker::new(FEW + 1);
    while_asleep(&speaker.locked.clone(), |client| {
        assert_eq!((speaker.speak(client, opcode::RDMA_WRITE, FEW, 1), speaker.done()), (0, FEW));
        assert_eq!((speaker.speak(client, opcode::RDMA_WRITE, FEW + 1, 1), speaker.done()), (FEW + 1, 0));
    });
    until(|| speaker.done() > 0);
}

#[test]
fn who_hears_a_long_queue_leaves_the_rest_of_it_to_its_thread() {
    let mut speaker = Speaker::new(1);
    while_asleep(&speaker.locked.clone(), |client| {
        // A turn goes on after answers, but not as long as there are any.
        let add = opcode::ATOMIC_FETCH_AND_ADD;
        assert_eq!((speaker.speak(client, add, 1, 2 * READS), speaker.done()), (0, 2 * READS));
        assert_eq!((speaker.speak(client, add, 1, 5 * READS), speaker.done()), (1, 3 * READS));
    });
    until(|| speaker.done() > 0);
}

/// Returns what both programs' devices count while the first program sends.
fn counted(speaker: &mut Speaker, client: &mut Client, opcode: u8) -> [Vec<u64>; 2] {
    let peer = speaker.peer.clone();
    let counters = |client: &Client| -> Vec<u64> { client.context.counters.iter().map(|(_, n)| n).collect() };
    let theirs = |peer: &LockedClient| while_asleep(peer, |client| counters(client));
    let before = [counters(client), theirs(&peer)];
    assert_eq!((speaker.speak(client, opcode, 1, 1), speaker.done()), (0, 1));
    let after = [counters(client), theirs(&peer)];
    let more = |(before, after): (Vec<u64>, Vec<u64>)| after.iter().zip(before).map(|(a, b)| a - b).collect();
    let [ours, its] = after;
    let [ours_before, its_before] = before;
    [(ours_before, ours), (its_before, its)].map(more)
}

#[test]
fn a_short_message_counts_as_its_packets() {
    let mut speaker = Speaker::new(1);
    while_asleep(&speaker.locked.clone(), |client| {
        for opcode in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
            let directly = counted(&mut speaker, client, opcode);
            // As while it is answered: then it hands nothing over.
            client.context.answers.open(Qpn(0));
            let in_packets = counted(&mut speaker, client, opcode);
            client.context.answers.close();
            assert_eq!(directly, in_packets);
            assert!(directly[0].iter().sum::<u64>() > 2, "packets and bytes");
        }
        // One after the other: for packets it would be too many at a time.
        assert_eq!((speaker.speak(client, opcode::RDMA_READ, 1, 5 * READS), speaker.done()), (0, 5 * READS));
    });
}

#[test]
fn of_two_threads_that_want_each_others_applications_one_leaves_both_to_the_other() {
    let speaker = Speaker::new(1);
    let (one, other) = (&speaker.locked, &speaker.peer);
    other.listener.end();
    for locked in [one, other] {
        until(|| locked.begin(OWN));
    }
    for _ in 0..2 {
        assert!(
            !one.begin_polling(other.rank()) && !other.begin_polling(one.rank()),
            "their own threads listen"
        );
    }
    let (first, second) = if one.rank() < other.rank() { (one, other) } else { (other, one) };
    assert_eq!([first, second].map(|locked| locked.listener.is_own()), [true, false]);
    second.listener.end();
    assert!(second.begin_polling(first.rank()));
    // Who listens to several applications leaves none of them to a thread that comes later.
    assert!(!second.begin(OWN) && !first.begin_polling(second.rank()) && first.listener.is_own());
}

#[test]
fn who_reads_memory_that_went_away_wakes_its_thread() {
    let mut speaker = Speaker::new(1);
    let peer = speaker.peer.clone();
    while_asleep(&speaker.locked.clone(), |client| {
        for goes_away in [false, true] {
            let fault = while_asleep(&peer, |other| {
                assert!(!other.context.inbox.is_woken());
                other.context.source.fault.clone()
            });
            assert!(!goes_away || fault.raise(1));
            assert_eq!((speaker.speak(client, opcode::RDMA_READ, 1, 1), speaker.done()), (0, 1));
        }
    });
    until(|| peer.take().is_none());
}
