//! Executing posted requests: by ourselves if memory is shared with the peer, otherwise by the device.

use crate::abi::{IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED};
use crate::direct::{Bytes, Direct, Sender};
use crate::queue_pair::Qp;
use crate::send_queue::SendQueue;
use std::sync::atomic::Ordering;
use uverbs::{Request, Segment, WorkQueue, WorkRequest};

/// Largest number of posts between two requests to share memory.
const LONGEST_PAUSE: u32 = 1024;

/// Number of posts after which we check, with a system call, whether the device is gone. Without it no peer is
/// reachable.
const LOOK: u32 = 4096;

pub(crate) enum Sharing {
    /// Memory is never shared.
    No,
    /// Memory is not shared yet: we request it after `posts` posts, and then again after `pause` more.
    NotYet { posts: u32, pause: u32 },
    /// Memory has been shared for `posts` posts.
    Yes { direct: Box<Direct>, posts: u32 },
}

impl Sharing {
    pub fn new(qp_type: u32, is_trusting: bool) -> Self {
        if qp_type == IBV_QPT_RC && is_trusting { Self::NotYet { posts: 1, pause: 1 } } else { Self::No }
    }

    /// Counts a post, and returns the shared memory, if there is any by now. Requests it when it is time.
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

/// Executes all filled requests, those that it can without the device; the device gets the rest.
pub(crate) fn publish(qp: &Qp, send: &mut SendQueue) {
    let SendQueue { queue, sharing, list, .. } = send;
    if let Some(direct) = direct(qp, queue, sharing) {
        let mut done = 0;
        while done < queue.unpublished() {
            list.clear();
            let (request, inline) = queue.peek(done, list);
            // SAFETY: inline bytes are in our queue; the program promises that registered memory exists.
            if !unsafe { perform(qp, direct, &request, list, &[(inline.as_ptr(), inline.len())]) } {
                break;
            }
            done += 1;
        }
        queue.take_back(done);
    }
    hand_over(qp, send);
}

/// Executes a request without the device, before it is put into a slot, if possible. Returns whether it did.
///
/// # Safety
/// The bytes of an inline message, and registered memory, must exist.
pub(crate) unsafe fn at_once(
    qp: &Qp,
    queue: &WorkQueue,
    sharing: &mut Sharing,
    request: &WorkRequest,
    list: &[Segment],
    inline: &[Bytes],
) -> bool {
    let Some(direct) = direct(qp, queue, sharing) else { return false };
    // SAFETY: the caller's promise.
    unsafe { perform(qp, direct, request, list, inline) }
}

/// Hands all filled requests to the device.
pub(crate) fn hand_over(qp: &Qp, send: &mut SendQueue) {
    if send.queue.unpublished() > 0 {
        send.queue.publish();
        if !send.queue.is_spared_doorbell() {
            qp.context().link.ring(qp.doorbell);
        }
        send.queue.prefetch();
    }
}

/// Returns the memory shared with the peer, if requests may be executed without the device. The device must have no
/// request of this queue left at the moment, so that requests keep their order.
#[inline]
fn direct<'a>(qp: &Qp, queue: &WorkQueue, sharing: &'a mut Sharing) -> Option<&'a mut Direct> {
    let may =
        !matches!(sharing, Sharing::No) && queue.is_idle() && qp.state.load(Ordering::Acquire) == IBV_QPS_RTS;
    if may { sharing.get(qp) } else { None }
}

/// Executes a request without the device. Returns false if that is not possible.
///
/// # Safety
/// The same as for [`at_once`].
#[inline]
unsafe fn perform(
    qp: &Qp,
    direct: &mut Direct,
    request: &WorkRequest,
    list: &[Segment],
    inline: &[Bytes],
) -> bool {
    let signaled = qp.sq_sig_all || u32::from(request.flags) & IBV_SEND_SIGNALED != 0;
    let sender = Sender { qpn: qp.number(), pd: qp.pd(), signaled };
    // SAFETY: the caller's promise.
    let mut done = unsafe { direct.perform(&sender, request, list, inline) };
    let link = &qp.context().link;
    let has_more = direct.open_window(link, qp.number()) | direct.open_memory(link, qp.number());
    if has_more && done.is_none() {
        // SAFETY: the caller's promise; nothing of it was executed.
        done = unsafe { direct.perform(&sender, request, list, inline) };
    }
    if std::mem::take(&mut direct.is_untold) {
        // The device keeps the notification until there is room.
        let _ = link.ask(&Request::TellPeer { qpn: qp.number() });
    }
    let Some(done) = done else { return false };
    if done.tells {
        // The device notifies threads that wait for our own completions: it has the sending end of the channel.
        let _ = link.ask(&Request::TellChannel { cq: qp.send_cq() });
    }
    if done.is_low {
        let _ = link.ask(&Request::PeerIsLow { qpn: qp.number() });
    }
    true
}
