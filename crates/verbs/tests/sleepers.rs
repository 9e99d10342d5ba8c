//! Descriptors that programs poll and sleep on: they are readable if there is an event, and after the device is gone.

use crate::program::two::*;
use crate::program::*;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;
use verbs::abi::*;
use verbs::{channel, completion, context, events, memory, queue_pair};

const DEVICE_FATAL: u32 = 8;

/// A value that both threads share.
struct Both<T>(T);
// SAFETY: objects of the library may be used from any thread.
unsafe impl<T> Send for Both<T> {}

fn is_readable(fd: i32) -> bool {
    is_readable_in(0, fd)
}

/// Is true if the descriptor is readable, or becomes so within this many milliseconds.
fn is_readable_in(patience: i32, fd: i32) -> bool {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&mut wanted, 1, patience) == 1 }
}

/// Waits for an event; returns its queue, or the error.
fn sleep(channel: &Both<*mut ibv_comp_channel>) -> Result<usize, i32> {
    let (mut cq, mut tag) = (null_mut(), null_mut());
    // SAFETY: the channel is the test's, and there are places for the results.
    match unsafe { channel::ibv_get_cq_event(channel.0, &mut cq, &mut tag) } {
        0 => Ok(cq as usize),
        _ => Err(errno()),
    }
}

/// Tests the end of the device. The peer survives, and may hold the descriptors through which the device reported
/// events.
fn death(way: Way) {
    let two = Two::on(way);
    let (mut own, mut there) = (Buffer::new(two.a.pd, &[0; 8]), Buffer::new(two.b.pd, &[0; 8]));
    two.exchange(&mut own, &mut there);
    two.was_direct(1);
    // SAFETY: channel and context are the test's.
    let fds = unsafe { [(*two.b.channel).fd, (*two.b.context).async_fd] };
    // SAFETY: it is a descriptor of the library's.
    assert_eq!(unsafe { libc::fcntl(fds[0], libc::F_SETFL, 0) }, 0);
    let (tell, told) = mpsc::channel();
    let sleeper = Both(two.b.channel);
    std::thread::spawn(move || (0..3).for_each(|_| tell.send(sleep(&sleeper)).unwrap()));
    assert_eq!(fds.map(is_readable), [false; 2]);
    end(two.b.index);
    let woken = [(); 3].map(|()| told.recv_timeout(Duration::from_secs(20)).unwrap());
    let mut queues = two.b.cqs.map(|cq| Ok(cq as usize));
    let mut found = [woken[0], woken[1]];
    queues.sort_unstable();
    found.sort_unstable();
    // Each descriptor is signalled by itself, perhaps one before the other.
    let readable = fds.map(|fd| is_readable_in(20_000, fd));
    assert_eq!((found, woken[2], readable), (queues, Err(libc::EIO), [true; 2]));
    let mut event = MaybeUninit::<ibv_async_event>::uninit();
    // SAFETY: the context and the queues are the test's; an event that was got is whole.
    unsafe {
        let mut kind = 0;
        // The event that the peer communicates came earlier.
        while kind != DEVICE_FATAL {
            assert_eq!(events::ibv_get_async_event(two.b.context, event.as_mut_ptr()), 0);
            kind = event.assume_init().event_type;
            events::ibv_ack_async_event(event.as_mut_ptr());
        }
        two.b.cqs.into_iter().for_each(|cq| channel::ibv_ack_cq_events(cq, 1));
    }
    forget([&mut own, &mut there]);
    two.close();
}

/// Tests that events of destroyed objects disappear with them, and other events stay.
fn destroyed(way: Way) {
    let two = Two::of(way.shares(), way.first() + 2);
    let (a, b) = (&two.a, &two.b);
    let bring = |from: &End, to: &End, armed: *mut ibv_cq| {
        assert_eq!(post_receive(to.qp, &mut receive(1, &mut [])).0, 0);
        // SAFETY: the queue is the test's, which did not destroy it.
        unsafe { completion::req_notify_cq(armed, 0) };
        assert_eq!(post_send(from.qp, &mut send(2, &mut [])).0, 0);
        assert_eq!((from.sent().status, to.received().status), (0, 0));
    };
    bring(a, b, b.cqs[1]);
    bring(b, a, b.cqs[0]);
    // An invalid key is reported at the other end.
    let mut wrong = send(3, &mut []);
    wrong.opcode = IBV_WR_RDMA_WRITE;
    wrong.wr.rdma = Rdma { remote_addr: 1, rkey: 1 };
    let mut own = Buffer::new(a.pd, &[0; 8]);
    let mut list = [own.sge()];
    (wrong.sg_list, wrong.num_sge) = (list.as_mut_ptr(), 1);
    assert_eq!(post_send(a.qp, &mut wrong).0, 0);
    assert_ne!(a.sent().status, 0);
    own.forget();
    // SAFETY: channel and context are the test's.
    let (channel, asynchronous) = unsafe { ((*b.channel).fd, (*b.context).async_fd) };
    until(|| is_readable(channel) && is_readable(asynchronous));
    // SAFETY: they are the test's, which uses them no more.
    unsafe {
        assert_eq!(queue_pair::ibv_destroy_qp(b.qp), 0);
        assert!(!is_readable(asynchronous));
        assert_eq!(completion::ibv_destroy_cq(b.cqs[1]), 0);
    }
    assert!(is_readable(channel));
    assert_eq!(b.told(), b.cqs[0]);
    assert!(!is_readable(channel) && !b.is_told());
    let Two { a, b, .. } = two;
    // SAFETY: as above.
    unsafe {
        assert_eq!(completion::ibv_destroy_cq(b.cqs[0]), 0);
        assert_eq!(channel::ibv_destroy_comp_channel(b.channel), 0);
        assert_eq!((memory::ibv_dealloc_pd(b.pd), context::ibv_close_device(b.context)), (0, 0));
    }
    a.close();
}

most_ways! { death destroyed }
