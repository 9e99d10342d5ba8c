//! Code that the programs of a scene share.

use crate::program::{attributes, errno, gid, poll};
use std::ffi::c_int;
use std::ptr::null_mut;
use verbs::abi::*;
use verbs::{channel, completion, context, device, memory, modify};

/// Opens the only device, and allocates a protection domain.
pub fn open() -> (*mut ibv_context, *mut ibv_pd) {
    // SAFETY: the list has one device, which lives on when it is freed.
    unsafe {
        let mut count = 0;
        let list = device::ibv_get_device_list(&mut count);
        assert_eq!(count, 1);
        let context = context::ibv_open_device(*list);
        device::ibv_free_device_list(list);
        assert!(!context.is_null());
        (context, memory::ibv_alloc_pd(context))
    }
}

pub fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is ours, and not destroyed.
    unsafe { (*qp).qp_num }
}

/// Changes a queue pair to the state in which it sends; its peer is on the device with this index.
pub fn connect(qp: *mut ibv_qp, peer: usize, dest_qp_num: u32) {
    for state in [1, IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mask) = attributes(IBV_QPT_RC, state, peer, dest_qp_num);
        (attr.timeout, attr.retry_cnt) = (13, 7);
        assert_eq!(attr.ah_attr.grh.dgid.raw, gid(peer).raw);
        // SAFETY: the queue pair is ours, and the attributes are whole.
        let error = unsafe { modify::ibv_modify_qp(qp, &mut attr, mask as c_int) };
        assert_eq!(error, 0, "to {state}");
    }
}

/// A completion queue that the program polls or sleeps for.
pub struct Queue {
    pub cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    sleeps: bool,
    is_armed: bool,
}

// SAFETY: objects of the library may be used from any thread.
unsafe impl Send for Queue {}

impl Queue {
    pub fn new(context: *mut ibv_context, sleeps: bool, entries: c_int) -> Self {
        // SAFETY: the context is open.
        unsafe {
            let channel = channel::ibv_create_comp_channel(context);
            assert_eq!(libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let cq = completion::ibv_create_cq(context, entries, null_mut(), channel, 0);
            assert!(!cq.is_null());
            Self { cq, channel, sleeps, is_armed: false }
        }
    }

    /// Returns all completions that are in the queue now.
    pub fn poll(&self) -> Vec<ibv_wc> {
        let polls = std::iter::repeat_with(|| poll(self.cq)).take_while(|found| !found.is_empty());
        polls.flatten().collect()
    }

    /// Waits for completions and returns them; none if the wake-up was spurious.
    pub fn next(&mut self) -> Vec<ibv_wc> {
        self.next_or(-1)
    }

    /// Waits like [`Self::next`], or until `other` becomes readable.
    pub fn next_or(&mut self, other: c_int) -> Vec<ibv_wc> {
        if !self.sleeps {
            return self.poll();
        }
        // Without a notification the program does not poll: it would not know that there is something.
        if !self.is_armed {
            // SAFETY: the queue is ours.
            unsafe { completion::req_notify_cq(self.cq, 0) };
            self.is_armed = true;
            return self.poll();
        }
        let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the channel is ours, and there are places for the results.
        unsafe {
            let mut both = [wanted((*self.channel).fd), wanted(other)];
            libc::poll(both.as_mut_ptr(), 2, -1);
            let (mut cq, mut tag) = (null_mut(), null_mut());
            match channel::ibv_get_cq_event(self.channel, &mut cq, &mut tag) {
                0 => {
                    channel::ibv_ack_cq_events(cq, 1);
                    self.is_armed = false;
                }
                // The device is gone, and the channel reported that before.
                _ => self.is_armed = errno() == libc::EAGAIN,
            }
        }
        Vec::new()
    }

    /// Destroys the queue.
    ///
    /// # Safety
    /// Nobody may need it any more.
    pub unsafe fn destroy(&self) {
        // SAFETY: the caller's promise.
        let errors =
            unsafe { (completion::ibv_destroy_cq(self.cq), channel::ibv_destroy_comp_channel(self.channel)) };
        assert_eq!(errors, (0, 0));
    }
}
