//! A program that sends: a round is one operation of each kind.

use crate::parties::{Queue, connect, number, open};
use crate::program::*;
use crate::scene::{Kind, answer, commands};
use std::collections::BTreeSet;
use std::ptr::null_mut;
use verbs::abi::*;
use verbs::{context, memory, queue_pair};

/// Number of receives that a round consumes.
pub const RECEIVES: u64 = 6;
/// The length of a message that is copied in more than one piece.
const LONG: u32 = (1 << 20) + 5;
/// Bytes of memory at each end. The targets lie in whole pages of it, which can be in a file.
pub const LEN: usize = LONG as usize + 3 * PAGE as usize;
pub const PAGE: u64 = 4096;

#[derive(Clone, Copy, Default)]
struct There {
    address: u64,
    rkey: u32,
}

struct Sender {
    qp: *mut ibv_qp,
    queue: Queue,
    own: Buffer,
    there: There,
    next: u64,
}

impl Sender {
    fn part(&mut self, length: u32) -> ibv_sge {
        ibv_sge { length, ..self.own.sge() }
    }

    fn request(&mut self, opcode: u32, list: &mut [ibv_sge]) -> ibv_send_wr {
        self.next += 1;
        let mut wr = send(self.next, list);
        (wr.opcode, wr.imm_data) = (opcode, 7);
        let (remote_addr, rkey) = (self.there.address, self.there.rkey);
        if matches!(opcode, IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.atomic = Atomic { remote_addr, compare_add: 1, swap: 0, rkey };
        } else {
            wr.wr.rdma = Rdma { remote_addr, rkey };
        }
        wr
    }

    /// Executes an operation; returns whether it succeeded. Each request must have one completion.
    fn does(&mut self, opcode: u32, length: u32, count: usize) -> bool {
        let mut lists: Vec<_> = (0..count).map(|_| [self.part(length)]).collect();
        let mut wrs: Vec<_> = lists.iter_mut().map(|list| self.request(opcode, list)).collect();
        for at in (0..count - 1).rev() {
            wrs[at].next = &mut wrs[at + 1];
        }
        let mut awaited: BTreeSet<_> = wrs.iter().map(|wr| wr.wr_id).collect();
        let (error, refused) = post_send(self.qp, &mut wrs[0]);
        if let Some(first) = refused {
            awaited.retain(|id| *id < first);
        }
        let mut is_done = error == 0;
        while !awaited.is_empty() {
            for wc in self.queue.next() {
                assert!(awaited.remove(&wc.wr_id), "a completion of {} too many", wc.wr_id);
                is_done &= wc.status == 0;
            }
        }
        is_done
    }

    fn round(&mut self) -> bool {
        let operations = [
            (IBV_WR_SEND, 8, 1),
            (IBV_WR_SEND, 300, 1),
            (IBV_WR_SEND_WITH_IMM, 10_000, 1),
            (IBV_WR_RDMA_WRITE_WITH_IMM, 8, 1),
            (IBV_WR_RDMA_WRITE, 8, 1),
            (IBV_WR_RDMA_WRITE, LONG, 1),
            (IBV_WR_RDMA_READ, 5000, 1),
            (IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 1),
            (IBV_WR_SEND, 8, 2),
        ];
        operations.into_iter().all(|(opcode, length, count)| self.does(opcode, length, count))
    }
}

/// Executes commands until its standard input ends.
pub fn run(kind: Kind) {
    let (context, pd) = open();
    let queue = Queue::new(context, kind.sleeps, 32);
    let qp = create_of(16, context, pd, [queue.cq; 2], null_mut(), IBV_QPT_RC);
    let own = Buffer::new(pd, &vec![1; LEN]);
    let mut sender = Sender { qp, queue, own, there: There::default(), next: 0 };
    answer(&format!("{}", number(qp)));
    for command in commands() {
        match command.words()[..] {
            ["connect", peer, address, rkey] => {
                connect(qp, 1, peer.parse().unwrap());
                let rkey = rkey.parse().unwrap();
                sender.there = There { address: address.parse().unwrap(), rkey };
                answer("connected");
            }
            ["go", rounds] => {
                let rounds: usize = rounds.parse().unwrap();
                let done = (0..rounds).take_while(|_| sender.round()).count();
                answer(&format!("{done}"));
            }
            ["send", count] => {
                let count: usize = count.parse().unwrap();
                let done = (0..count).take_while(|_| sender.does(IBV_WR_SEND, 8, 1)).count();
                answer(&format!("{done}"));
            }
            ["close"] => break,
            ref other => panic!("{other:?}"),
        }
    }
    assert!(sender.queue.poll().is_empty(), "a completion too many");
    // SAFETY: they are ours, and nothing is left that needs them.
    unsafe {
        assert_eq!(queue_pair::ibv_destroy_qp(qp), 0);
        sender.own.forget();
        sender.queue.destroy();
        assert_eq!((memory::ibv_dealloc_pd(pd), context::ibv_close_device(context)), (0, 0));
    }
    answer("closed");
}
