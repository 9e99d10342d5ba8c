//! What was posted is done: by ourselves, where memory is shared with the peer, else by the device.

use crate::abi::{IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED};
use crate::direct::{Direct, Sender};
use crate::queue_pair::Qp;
use crate::work_request::SendQueue;
use std::sync::atomic::Ordering;
use uverbs::Request;

/// The peer is asked again after at most so many posts.
const LONGEST_PAUSE: u32 = 1024;

/// Posts after which it is asked whether the device is gone, without which no peer is to be reached: a system call.
const LOOK: u32 = 4096;

/// Whether memory is shared with the peer.
pub(crate) enum Sharing {
    /// Never.
    No,
    /// Not yet: after so many posts it is asked for, and then after so many.
    NotYet { posts: u32, pause: u32 },
    /// For so many posts.
    Yes { direct: Box<Direct>, posts: u32 },
}

impl Sharing {
    /// What it is at first.
    pub fn new(qp_type: u32, is_trusting: bool) -> Self {
        if qp_type == IBV_QPT_RC && is_trusting { Self::NotYet { posts: 1, pause: 1 } } else { Self::No }
    }

    /// What is shared, if anything is by now.
    fn get(&mut self, qp: &Qp) -> Option<&mut Direct> {
        let link = &qp.context().link;
        if let Self::Yes { direct, posts } = self {
            *posts = posts.wrapping_add(1);
            if posts.is_multiple_of(LOOK) {
                link.look();
                direct.close_windows();
            }
            if link.is_dead() {
                *self = Self::No;
            } else if direct.is_closed() {
                *self = Self::NotYet { posts: 1, pause: 1 };
            }
        }
        if let Self::NotYet { posts, pause } = self {
            *posts -= 1;
            if *posts > 0 {
                return None;
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            *posts = *pause;
            match Direct::open(link, qp.number()) {
                Ok(direct) => *self = Self::Yes { direct: Box::new(direct), posts: 0 },
                Err(libc::EAGAIN) => {}
                Err(_) => *self = Self::No,
            }
        }
        if let Self::Yes { direct, .. } = self { Some(direct) } else { None }
    }
}

/// Has everything done that was filled.
pub(crate) fn publish(qp: &Qp, send: &mut SendQueue) {
    if !matches!(send.sharing, Sharing::No) {
        perform(qp, send);
    }
    if send.queue.unpublished() > 0 {
        send.queue.publish();
        if !send.queue.is_spared_doorbell() {
            qp.context().link.ring(qp.doorbell);
        }
    }
}

/// Does what can be done without the device, which has nothing to do with this queue at the moment: requests keep their order.
fn perform(qp: &Qp, send: &mut SendQueue) {
    if !send.queue.is_idle() || qp.state.load(Ordering::Acquire) != IBV_QPS_RTS {
        return;
    }
    let SendQueue { queue, sharing, list, .. } = send;
    let Some(direct) = sharing.get(qp) else { return };
    let count = queue.unpublished();
    let (mut done, mut tells, mut is_low) = (0, false, false);
    while done < count {
        list.clear();
        let (request, inline) = queue.peek(done, list);
        let signaled = qp.sq_sig_all || u32::from(request.flags) & IBV_SEND_SIGNALED != 0;
        let sender = Sender { qpn: qp.number(), pd: qp.pd(), signaled };
        // SAFETY: inline bytes are in our queue; memory that is registered is there, says the program.
        let Some(performed) = (unsafe { direct.perform(&sender, &request, list, inline) }) else { break };
        tells |= performed.tells;
        is_low |= performed.is_low;
        done += 1;
    }
    queue.take_back(done);
    direct.open_window(&qp.context().link, qp.number());
    if std::mem::take(&mut direct.is_untold) {
        // The device keeps it until there is room.
        let _ = qp.context().link.ask(&Request::TellPeer { qpn: qp.number() });
    }
    if tells {
        // Who waits for our own completions is told by the device, whose end of the channel it is.
        let _ = qp.context().link.ask(&Request::TellChannel { cq: qp.send_cq() });
    }
    if is_low {
        let _ = qp.context().link.ask(&Request::PeerIsLow { qpn: qp.number() });
    }
}
