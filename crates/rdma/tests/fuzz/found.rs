//! Former bugs that a peer could exploit.

use super::guarded::{ADDRESS, RKEY};
use super::transport::{Side, attributes};
use packet::roce::{self, Datagram, Operation, Reth};
use rdma::Attributes;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;

/// Returns a packet to a queue pair with these attributes.
fn packet(side: &Side, operation: Operation, psn: u32, reth: Option<Reth>, len: usize) -> Vec<u8> {
    let payload = vec![1; len];
    let mut bth = Datagram::new(side.bth(operation), &[]).bth;
    bth.psn = psn;
    let mut out = vec![0; 8192];
    let written =
        roce::write(&Datagram { reth, ..Datagram::new(bth, &payload) }, &mut out).expect("a packet");
    out.truncate(written);
    out
}

#[test]
fn acknowledgements_do_not_pile_up() {
    let mut side = Side::new(attributes(), false);
    for _ in 0..100 {
        // No receive is posted for the expected packet; the one before it came already.
        for psn in [0, 0xff_ffff] {
            let bytes = packet(&side, Operation::SendOnly, psn, None, 9);
            side.receive(&bytes, NOW);
        }
    }
    side.poll(NOW, 1000);
    assert_eq!(side.verbs.work.sent, 2);
    side.end();
}

#[test]
fn a_receive_that_was_set_aside_is_not_lost_with_a_write_that_fails() {
    let mut side = Side::new(Attributes { reliable: false, ..attributes() }, false);
    side.verbs.post_receive(10);
    let too_long = packet(&side, Operation::SendOnly, 0, None, 11);
    side.receive(&too_long, NOW);
    assert_eq!((side.verbs.taken.len(), side.verbs.work.completed), (1, 0));
    let reth = Reth { address: ADDRESS, rkey: RKEY, len: 257 };
    let first = packet(&side, Operation::WriteFirst, 1, Some(reth), 256);
    side.receive(&first, NOW);
    side.verbs.gone = true;
    let last = packet(&side, Operation::WriteLast, 2, None, 1);
    side.receive(&last, NOW);
    side.verbs.gone = false;
    let fits = packet(&side, Operation::SendOnly, 3, None, 10);
    side.receive(&fits, NOW);
    assert!(side.verbs.taken.is_empty(), "the next message is in it");
    side.end();
}
