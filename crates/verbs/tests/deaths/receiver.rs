//! The receiving program: a queue pair for each of two senders, one completion queue, and receives of their own or
//! from a shared queue.

use crate::parties::{Queue, connect, number, open};
use crate::program::*;
use crate::scene::{Kind, answer, commands};
use crate::sender::{LEN, PAGE, RECEIVES};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use verbs::abi::*;
use verbs::{context, memory, queue_pair, shared_receive};

/// Number of receives for each sender.
pub const EACH: u64 = 3 * RECEIVES;
/// Fills memory that nobody may write to any more.
const CANARY: u8 = 0xa5;

/// Identifiers and statuses of receives, in order of arrival.
type Seen = Arc<Mutex<Vec<(u64, u32)>>>;

struct Receiver {
    kind: Kind,
    qps: [*mut ibv_qp; 2],
    srq: *mut ibv_srq,
    /// Memory for each sender, and for receives of a shared queue.
    memory: [Buffer; 3],
    /// Whether the first memory is no longer registered.
    is_taken_away: bool,
    seen: Seen,
}

impl Receiver {
    fn new(kind: Kind, context: *mut ibv_context, pd: *mut ibv_pd, cq: *mut ibv_cq) -> Self {
        let attr = ibv_srq_attr { max_wr: 4 * EACH as u32, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = match kind.shares_receives {
            // SAFETY: the domain is ours, and the attributes are whole.
            true => unsafe { shared_receive::ibv_create_srq(pd, &mut init) },
            false => null_mut(),
        };
        let qps = [(); 2].map(|()| create_of(EACH as u32, context, pd, [cq; 2], srq, IBV_QPT_RC));
        let memory = [(); 3].map(|()| Buffer::new(pd, &vec![0; LEN]));
        Self { kind, qps, srq, memory, is_taken_away: false, seen: Seen::default() }
    }

    /// Posts receives with these identifiers, which count from 0.
    fn post(&mut self, ids: std::ops::Range<u64>) {
        for id in ids {
            let of = (id / EACH) as usize;
            let region = if self.srq.is_null() { of } else { 2 };
            let mut sge = self.memory[region].sge();
            (sge.addr, sge.length) = (sge.addr + (id % EACH) * 10_000, 10_000);
            let mut list = [sge];
            let mut wr = receive(id, &mut list);
            let error = if self.srq.is_null() {
                post_receive(self.qps[of], &mut wr).0
            } else {
                // SAFETY: the queue is ours, and the request is whole.
                unsafe { shared_receive::post_srq_recv(self.srq, &mut wr, &mut null_mut()) }
            };
            assert_eq!(error, 0, "receive {id}");
        }
    }

    /// Describes the memory to which senders write.
    fn describe(&mut self) -> String {
        let one = |(qp, memory): (&*mut ibv_qp, &mut Buffer)| {
            let sge = memory.sge();
            format!("{} {} {}", number(*qp), sge.addr.next_multiple_of(PAGE), sge.lkey)
        };
        let [first, second, _] = &mut self.memory;
        [one((&self.qps[0], first)), one((&self.qps[1], second))].join(" ")
    }

    fn seen(&self) -> Vec<(u64, u32)> {
        self.seen.lock().unwrap().clone()
    }

    /// Counts the receives posted at the start that are not completed yet.
    fn unseen(&self) -> usize {
        2 * EACH as usize - self.seen().iter().filter(|(id, _)| *id < 2 * EACH).count()
    }

    /// Deregisters the first sender's memory.
    fn take_away(&mut self) {
        self.memory[0].forget();
        self.memory[0].bytes.fill(CANARY);
        self.is_taken_away = true;
    }

    fn judge(&self) -> Option<String> {
        let mut ids: Vec<_> = self.seen().into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|two| two[0] == two[1]) {
            return Some(format!("a receive was completed twice: {ids:?}"));
        }
        let is_written = |byte: &u8| *byte != CANARY;
        let written = self.memory[0].bytes.iter().position(is_written).filter(|_| self.is_taken_away);
        written.map(|at| format!("byte {at} was written after its memory was taken away"))
    }

    /// Ends both connections. This flushes outstanding receives, except those in a shared queue.
    fn flush(&self) {
        self.qps.iter().for_each(|qp| _ = modify_to(*qp, IBV_QPS_ERR));
        // This works even if the device is gone.
        if !self.kind.shares_receives {
            until(|| self.unseen() == 0);
        }
    }

    /// Destroys all objects.
    ///
    /// # Safety
    /// Nobody may use them any more.
    unsafe fn destroy(mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.qps.into_iter().for_each(|qp| assert_eq!(queue_pair::ibv_destroy_qp(qp), 0));
            if !self.srq.is_null() {
                assert_eq!(shared_receive::ibv_destroy_srq(self.srq), 0);
            }
        }
        let first = usize::from(self.is_taken_away);
        self.memory[first..].iter_mut().for_each(Buffer::forget);
    }
}

/// Takes completions until `end` can be read.
fn collect(mut queue: Queue, seen: &Seen, end: &OwnedFd) -> Queue {
    let mut wanted = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    while unsafe { libc::poll(&mut wanted, 1, 0) } == 0 {
        let came = queue.next_or(end.as_raw_fd());
        seen.lock().unwrap().extend(came.iter().map(|wc| (wc.wr_id, wc.status)));
    }
    queue
}

/// Executes commands until its standard input ends.
pub fn run(kind: Kind) {
    let (context, pd) = open();
    let queue = Queue::new(context, kind.sleeps, 128);
    let mut receiver = Receiver::new(kind, context, pd, queue.cq);
    answer(&receiver.describe());
    let (end, ends) = rustix::pipe::pipe().unwrap();
    let seen = receiver.seen.clone();
    let collector = std::thread::spawn(move || collect(queue, &seen, &end));
    for command in commands() {
        match command.words()[..] {
            ["connect", first, second] => {
                let peers = [first, second].map(|peer| peer.parse().unwrap());
                receiver.qps.iter().zip(peers).for_each(|(qp, peer)| connect(*qp, 0, peer));
                receiver.post(0..2 * EACH);
                answer("connected");
            }
            ["dereg"] => {
                receiver.take_away();
                answer("deregistered");
            }
            // Waits until this many of a sender's receives were successful: no other event shows that.
            ["await", of, count] => {
                let (of, count): (u64, usize) = (of.parse().unwrap(), count.parse().unwrap());
                let is_its = |id| receiver.kind.shares_receives || id / EACH == of;
                let done = |(id, status): &(u64, u32)| *status == 0 && is_its(*id);
                until(|| receiver.seen().iter().filter(|one| done(one)).count() >= count);
                answer("came");
            }
            // Posts as many as were there before, so that their messages consume all earlier ones.
            ["more"] => {
                receiver.post(2 * EACH..4 * EACH);
                answer(&format!("{}", 2 * EACH));
            }
            ["drained"] => {
                until(|| receiver.unseen() == 0);
                answer("drained");
            }
            ["flush"] => {
                receiver.flush();
                answer(&receiver.judge().unwrap_or_else(|| "right".into()));
            }
            ["close"] => break,
            ref other => panic!("{other:?}"),
        }
    }
    drop(ends);
    let queue = collector.join().unwrap();
    // SAFETY: they are ours, and nothing is left that needs them.
    unsafe {
        receiver.destroy();
        queue.destroy();
        assert_eq!((memory::ibv_dealloc_pd(pd), context::ibv_close_device(context)), (0, 0));
    }
    answer("closed");
}
