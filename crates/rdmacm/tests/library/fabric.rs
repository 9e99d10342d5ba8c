//! Queue pairs whose RDMA WRITEs with immediate data arrive, for the mock `libibverbs`: memory is that of the process.

use libc::{c_int, c_void};
use rdmacm::abi::{CompChannel, Context, Cq, Mr, Pd, Qp, QpAttr, QpInitAttr, RecvWr, SendWr, Wc};
use rustix::event::EventfdFlags;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use uverbs::QpState;
use verbs_abi::{IBV_SEND_INLINE, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_WRITE_WITH_IMM};

const NO_ACCESS: u32 = 10;
const NO_ANSWER: u32 = 12;

/// A request that waits for its receiver.
struct Request {
    id: u64,
    bytes: Vec<u8>,
    to: u64,
    key: u32,
    immediate: u32,
}

#[derive(Default)]
struct Pair {
    state: u32,
    peer: u32,
    send_cq: usize,
    recv_cq: usize,
    receives: VecDeque<u64>,
    requests: VecDeque<Request>,
}

#[derive(Default)]
struct Queue {
    entries: usize,
    found: VecDeque<Wc>,
    is_armed: bool,
    channel: usize,
    told: u32,
    acknowledged: u32,
}

#[derive(Default)]
struct Fabric {
    pairs: BTreeMap<u32, Pair>,
    queues: BTreeMap<usize, Queue>,
    channels: BTreeMap<usize, OwnedFd>,
    /// Start and length of registered memory, by key.
    regions: BTreeMap<u32, (u64, u64)>,
    next: u32,
}

static FABRIC: Mutex<Fabric> = Mutex::new(Fabric {
    pairs: BTreeMap::new(),
    queues: BTreeMap::new(),
    channels: BTreeMap::new(),
    regions: BTreeMap::new(),
    next: 17,
});

/// Sets the operations that a device's context offers.
pub fn offer(context: &mut Context) {
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
}

impl Fabric {
    fn complete(&mut self, cq: usize, wc: Wc) {
        let Some(queue) = self.queues.get_mut(&cq) else { return };
        queue.found.push_back(wc);
        assert!(queue.found.len() <= queue.entries, "the completion queue overflows");
        if std::mem::take(&mut queue.is_armed)
            && let Some(fd) = self.channels.get(&queue.channel)
        {
            rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    fn sent(&mut self, number: u32, id: u64, status: u32) {
        let cq = self.pairs[&number].send_cq;
        self.complete(cq, Wc { wr_id: id, status, qp_num: number, ..Wc::default() });
        if status != IBV_WC_SUCCESS {
            self.fail(number);
        }
    }

    /// Flushes a queue pair's requests.
    fn fail(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.state = QpState::Error as u32;
        let (send_cq, recv_cq) = (pair.send_cq, pair.recv_cq);
        let (requests, receives) = (std::mem::take(&mut pair.requests), std::mem::take(&mut pair.receives));
        let flushed = |id| Wc { wr_id: id, status: IBV_WC_WR_FLUSH_ERR, qp_num: number, ..Wc::default() };
        requests.iter().for_each(|request| self.complete(send_cq, flushed(request.id)));
        receives.iter().for_each(|id| self.complete(recv_cq, flushed(*id)));
    }

    /// Carries the requests of a queue pair, as far as its peer receives.
    fn carry(&mut self, number: u32) {
        loop {
            let Some(pair) = self.pairs.get(&number).filter(|pair| !pair.requests.is_empty()) else { return };
            if pair.state != QpState::ReadyToSend as u32 {
                return;
            }
            let to = pair.peer;
            let Some(peer) = self.pairs.get_mut(&to).filter(|peer| peer.state != QpState::Error as u32)
            else {
                let request = self.pairs.get_mut(&number).unwrap().requests.pop_front().unwrap();
                self.sent(number, request.id, NO_ANSWER);
                return;
            };
            let is_ready = peer.peer == number && peer.state >= QpState::ReadyToReceive as u32;
            let Some(receive) = peer.receives.front().copied().filter(|_| is_ready) else { return };
            let request = self.pairs.get_mut(&number).unwrap().requests.pop_front().unwrap();
            if !self.may_write(&request) {
                self.sent(number, request.id, NO_ACCESS);
                self.fail(to);
                return;
            }
            // SAFETY: a region of the test is there.
            unsafe {
                let place = request.to as *mut u8;
                std::ptr::copy_nonoverlapping(request.bytes.as_ptr(), place, request.bytes.len());
            }
            let peer = self.pairs.get_mut(&to).unwrap();
            peer.receives.pop_front();
            let cq = peer.recv_cq;
            let mut wc = Wc { wr_id: receive, qp_num: to, wc_flags: 2, ..Wc::default() };
            (wc.imm_data, wc.byte_len) = (request.immediate, request.bytes.len() as u32);
            self.complete(cq, wc);
            self.sent(number, request.id, IBV_WC_SUCCESS);
        }
    }

    fn may_write(&self, request: &Request) -> bool {
        let len = request.bytes.len() as u64;
        len == 0
            || self.regions.get(&request.key).is_some_and(|(at, size)| {
                request.to >= *at && request.to.saturating_add(len) <= at.saturating_add(*size)
            })
    }
}

fn number(fabric: &mut Fabric) -> u32 {
    fabric.next += 1;
    fabric.next
}

pub fn create_qp(qp: &mut Qp, attr: &QpInitAttr) {
    let mut fabric = FABRIC.lock().unwrap();
    qp.qp_num = number(&mut fabric);
    let (send_cq, recv_cq) = (attr.send_cq as usize, attr.recv_cq as usize);
    fabric.pairs.insert(qp.qp_num, Pair { send_cq, recv_cq, ..Pair::default() });
}

pub fn modify_qp(number: u32, attr: &QpAttr) {
    let mut fabric = FABRIC.lock().unwrap();
    if attr.qp_state == QpState::Error as u32 {
        return fabric.fail(number);
    }
    let pair = fabric.pairs.get_mut(&number).unwrap();
    pair.state = attr.qp_state;
    if attr.qp_state == QpState::ReadyToReceive as u32 {
        pair.peer = attr.dest_qp_num;
    }
    let peer = pair.peer;
    fabric.carry(number);
    fabric.carry(peer);
}

pub fn destroy_qp(number: u32) {
    let mut fabric = FABRIC.lock().unwrap();
    let pair = fabric.pairs.remove(&number).unwrap();
    for cq in [pair.send_cq, pair.recv_cq] {
        fabric.queues.get_mut(&cq).into_iter().for_each(|queue| queue.found.retain(|wc| wc.qp_num != number));
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
    let fd = rustix::event::eventfd(0, flags).unwrap();
    let channel = CompChannel { context, fd: fd.as_raw_fd(), refcnt: 0 };
    let channel = Box::into_raw(Box::new(channel));
    FABRIC.lock().unwrap().channels.insert(channel as usize, fd);
    channel
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    FABRIC.lock().unwrap().channels.remove(&(channel as usize)).unwrap();
    // SAFETY: it was made above.
    drop(unsafe { Box::from_raw(channel) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    // SAFETY: numbers and pointers, which may all be zero.
    let mut cq: Cq = unsafe { std::mem::zeroed() };
    cq.context = context;
    let cq = Box::into_raw(Box::new(cq));
    let entries = usize::try_from(entries).unwrap();
    let queue = Queue { entries, channel: channel as usize, ..Queue::default() };
    FABRIC.lock().unwrap().queues.insert(cq as usize, queue);
    cq
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    let queue = FABRIC.lock().unwrap().queues.remove(&(cq as usize)).unwrap();
    assert_eq!(queue.told, queue.acknowledged, "events that nobody acknowledged");
    // SAFETY: it was made above.
    drop(unsafe { Box::from_raw(cq) });
    0
}

/// Takes an event. Does not return the queue: each channel of the library has only one.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_cq_event(channel: *mut CompChannel, _: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    // SAFETY: it was made above, and its descriptor is open.
    let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    if let Err(error) = rustix::io::read(fd, &mut [0; 8]) {
        // SAFETY: it is the thread's own.
        unsafe { *libc::__errno_location() = error.raw_os_error() };
        return -1;
    }
    let mut fabric = FABRIC.lock().unwrap();
    let queue = fabric.queues.values_mut().find(|queue| queue.channel == channel as usize);
    queue.unwrap().told += 1;
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut Cq, events: u32) {
    FABRIC.lock().unwrap().queues.get_mut(&(cq as usize)).unwrap().acknowledged += events;
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    assert_eq!(access & !3, 0);
    let mut fabric = FABRIC.lock().unwrap();
    let key = number(&mut fabric);
    fabric.regions.insert(key, (addr as u64, length as u64));
    // SAFETY: the library gives a domain that is there.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(Mr { context, pd, addr, length, handle: key, lkey: key, rkey: key }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: it was made above.
    let mr = unsafe { Box::from_raw(mr) };
    FABRIC.lock().unwrap().regions.remove(&mr.rkey).unwrap();
    0
}

unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    // SAFETY: the library gives whole requests, which name memory that is there.
    let (number, request) = unsafe {
        let wr = &*wr;
        assert_eq!(wr.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
        let list = std::slice::from_raw_parts(wr.sg_list, usize::try_from(wr.num_sge).unwrap());
        let mut bytes = Vec::new();
        for part in list {
            assert!(part.lkey != 0 || wr.send_flags & IBV_SEND_INLINE != 0);
            bytes.extend_from_slice(std::slice::from_raw_parts(part.addr as *const u8, part.length as usize));
        }
        let (to, key) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
        ((*qp).qp_num, Request { id: wr.wr_id, bytes, to, key, immediate: wr.imm_data })
    };
    let mut fabric = FABRIC.lock().unwrap();
    let pair = fabric.pairs.get_mut(&number).unwrap();
    if pair.state == QpState::Error as u32 {
        fabric.sent(number, request.id, IBV_WC_WR_FLUSH_ERR);
    } else {
        pair.requests.push_back(request);
        fabric.carry(number);
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    // SAFETY: the library gives whole requests.
    let (number, id) = unsafe { ((*qp).qp_num, (*wr).wr_id) };
    let mut fabric = FABRIC.lock().unwrap();
    let pair = fabric.pairs.get_mut(&number).unwrap();
    pair.receives.push_back(id);
    let peer = pair.peer;
    fabric.carry(peer);
    0
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, entries: c_int, found: *mut Wc) -> c_int {
    let mut fabric = FABRIC.lock().unwrap();
    let queue = fabric.queues.get_mut(&(cq as usize)).unwrap();
    let count = queue.found.len().min(usize::try_from(entries).unwrap());
    for (at, wc) in queue.found.drain(..count).enumerate() {
        // SAFETY: there is room for as many.
        unsafe { found.add(at).write(wc) };
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    FABRIC.lock().unwrap().queues.get_mut(&(cq as usize)).unwrap().is_armed = true;
    0
}
