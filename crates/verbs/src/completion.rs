//! Completion queues.

use crate::abi::*;
use crate::channel::Channel;
use crate::context::Context;
use crate::errno::{Outcome, code, pointer, set};
use crate::events::{About, forget};
use crate::link::{Link, only};
use crate::lock::{Guard, Lock, wait_for_acknowledgements};
use crate::queue_pair::Qp;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uverbs::completion::opcode::RECV;
use uverbs::completion::{INLINE, INLINE_SHARED};
use uverbs::{
    Arm, Completion, CompletionQueue, Given, Placement, Reply, Request, Segment, WorkQueue, WorkRequest,
};

/// Empty polls, some microseconds, after which the thread yields the CPU.
const YIELD: u32 = 256;
/// Empty polls after which the thread yields the CPU if another thread recently wanted it.
const YIELD_CROWDED: u32 = 1;
/// A yield that takes this long shows that another thread used the CPU.
const CROWDED: Duration = Duration::from_micros(5);
/// Empty polls after which the thread checks, with a system call, whether the device is gone.
const LOOK: u32 = 4096;
/// Number of queue pairs that are found without a search.
const RECENT: usize = 16;

/// A completion queue. Every one has the fields of the extended interface.
#[repr(C)]
pub struct Cq {
    c: UnsafeCell<ibv_cq_ex>,
    pub(crate) state: Lock<State>,
    /// Number of completion events delivered to the program.
    pub(crate) told: AtomicU32,
    /// Number of asynchronous events delivered to the program.
    pub(crate) told_async: AtomicU32,
    /// Whether the queue's channel reported that the device is gone.
    pub(crate) told_of_death: AtomicBool,
    /// The thread ([`this_thread`]) whose code runs between two calls of an iteration of the extended interface, during
    /// which the state stays locked; 0 for none.
    reader: AtomicUsize,
    /// Whether to check that memory is still registered before a message is copied to it: the queue may hold a message
    /// for a deregistered region.
    is_strict: AtomicBool,
    /// Whether other threads recently wanted the CPU: the awaited completions may have to come from them.
    is_crowded: AtomicBool,
}

/// Returns a number that identifies this thread; never 0.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

// SAFETY: the C part belongs to the program as well, and its events are counted under its mutex; the rest has locks.
unsafe impl Sync for Cq {}
// SAFETY: as above.
unsafe impl Send for Cq {}

pub(crate) struct State {
    queue: CompletionQueue,
    /// The completion that the extended interface reads.
    pub(crate) current: Completion,
    /// Consecutive polls that found nothing.
    empty: u32,
    /// Completions that [`Cq::settle`] took before the program polled for them.
    settled: VecDeque<Completion>,
    /// Completions for requests that a device left undone when it went.
    flushed: VecDeque<Completion>,
    /// The segments of the current receive.
    list: Vec<Segment>,
    /// The queue pairs used last, indexed by the low bits of their numbers. They exist until [`Self::forget`].
    recent: [Option<(u32, NonNull<Qp>)>; RECENT],
}

// SAFETY: the queue pair may be used from any thread.
unsafe impl Send for State {}

impl State {
    /// Drops the queue pair's completions that nobody took.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.queue.forget(qpn);
        self.recent = Default::default();
        for others in [&mut self.settled, &mut self.flushed] {
            others.retain(|completion| completion.qpn != qpn);
        }
    }
}

/// Copies a message to the segments of a list.
///
/// # Safety
/// The list must name writable memory.
unsafe fn scatter(mut message: &[u8], list: &[Segment]) {
    for segment in list {
        let (part, rest) = message.split_at(message.len().min(segment.len as usize));
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), segment.address as *mut u8, part.len()) };
        message = rest;
    }
}

/// Copies a message from a queue pair's message ring to the segments of a list.
///
/// # Safety
/// The same as for [`scatter`].
unsafe fn unpack(qp: &Qp, position: u32, len: usize, list: &[Segment]) {
    let Some(message_ring) = &qp.message_ring else { return };
    if let Some(place) = message_ring.get(position, len) {
        // SAFETY: the peer has finished with it; the caller's promise.
        unsafe { scatter(std::slice::from_raw_parts(place.as_ptr(), len), list) };
    }
    message_ring.give_back(position, len);
}

impl Cq {
    /// Returns the completion queue behind a pointer of the C interface.
    ///
    /// # Safety
    /// The queue must be one of ours, and not destroyed yet.
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: the caller's promise; the C part comes first.
        unsafe { &*cq.cast() }
    }

    /// Returns the pointer that programs use.
    pub fn c(&self) -> *mut ibv_cq {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn context(&self) -> &Context {
        // SAFETY: its context, which outlives it.
        unsafe { Context::of((*self.c()).context) }
    }

    pub(crate) fn take(&self, state: &mut State) -> Option<Completion> {
        if !state.settled.is_empty() {
            return state.settled.pop_front();
        }
        self.take_new(state)
    }

    /// Copies all messages that came with their completions to their destination, and keeps the completions for the
    /// next poll. Afterwards nothing is written to memory that was deregistered before the call.
    pub(crate) fn settle(&self) {
        loop {
            if let Some(mut state) = self.state.try_lock() {
                return self.settle_in(&mut state);
            }
            let reader = self.reader.load(Ordering::Acquire);
            if reader == this_thread() {
                // SAFETY: this thread has had the lock since `start_poll`, and is not in another call that uses the
                // state.
                return self.settle_in(unsafe { self.state.held() });
            }
            if reader != 0 {
                // The reader's iteration may wait for this thread. The reader's next call sees the flag (`resume`).
                self.is_strict.store(true, Ordering::SeqCst);
                if self.reader.load(Ordering::SeqCst) == reader {
                    return;
                }
            }
            std::thread::yield_now();
        }
    }

    fn settle_in(&self, state: &mut State) {
        while let Some(completion) = self.take_new(state) {
            state.settled.push_back(completion);
        }
    }

    /// Notes that an iteration of the extended interface returns to the program's code.
    pub(crate) fn pause(&self) {
        self.reader.store(this_thread(), Ordering::Release);
    }

    /// Notes that the program's code continues or ends its iteration, and does the work that [`Self::settle`] left to
    /// it.
    pub(crate) fn resume(&self, state: &mut State) {
        self.reader.swap(0, Ordering::SeqCst);
        if self.is_strict.load(Ordering::SeqCst) {
            self.settle_in(state);
            self.is_strict.store(false, Ordering::SeqCst);
        }
    }

    /// Empties a list whose memory is no longer registered, so that the message is not copied.
    fn keep_registered(&self, list: &mut Vec<Segment>) {
        if !self.may_write(list) {
            list.clear();
        }
    }

    /// Is true if a message may be copied to the segments of this list.
    fn may_write(&self, list: &[Segment]) -> bool {
        if !self.is_strict.load(Ordering::SeqCst) {
            return true;
        }
        let regions = self.context().regions();
        let is_within = |part: &Segment| {
            let end = part.address.checked_add(part.len.into());
            regions
                .values()
                .any(|it| it.address <= part.address && end.is_some_and(|end| end <= it.address + it.len))
        };
        list.iter().filter(|part| part.len > 0).all(is_within)
    }

    fn take_new(&self, state: &mut State) -> Option<Completion> {
        loop {
            let mut completion = state.queue.poll().or_else(|| state.flushed.pop_front())?;
            if self.is_wanted(&mut completion, state) {
                return Some(completion);
            }
        }
    }

    /// Does the work that belongs to a completion. Returns whether the program should see the completion.
    fn is_wanted(&self, completion: &mut Completion, state: &mut State) -> bool {
        state.empty = 0;
        match completion.placement {
            Placement::Done if completion.opcode & RECV == 0 => {
                if let Some(qp) = self.qp(completion.qpn, state) {
                    // SAFETY: as `qp` says.
                    unsafe { qp.as_ref() }.retire(completion.number);
                }
            }
            Placement::Done => {}
            Placement::At(address, message) => {
                let len = INLINE_SHARED.min(completion.byte_len as usize);
                if self.may_write(&[Segment { address, len: len as u32, lkey: 0 }]) {
                    // SAFETY: the peer checked that there is registered memory of that length.
                    unsafe {
                        std::ptr::copy_nonoverlapping(message.as_ptr().cast(), address as *mut u8, len)
                    };
                }
            }
            _ => return self.receive(completion, state),
        }
        true
    }

    /// Returns the queue pair with this number. It exists while the lock is held: destruction first removes a queue
    /// pair from the table, and then drops its completions under this lock.
    #[inline]
    fn qp(&self, qpn: u32, state: &mut State) -> Option<NonNull<Qp>> {
        let recent = &mut state.recent[qpn as usize % RECENT];
        if recent.is_none_or(|(other, _)| other != qpn) {
            *recent = self.context().objects().qps.get(qpn).map(|qp| (qpn, NonNull::from(qp)));
        }
        recent.map(|(_, qp)| qp)
    }

    /// Returns a message's receive, and copies the message to the receive's memory. Returns false if the receive was
    /// flushed before because the device is gone: peers that share memory may not know that yet.
    fn receive(&self, completion: &mut Completion, state: &mut State) -> bool {
        let Some(qp) = self.qp(completion.qpn, state) else { return true };
        // SAFETY: as `qp` says.
        let qp = unsafe { qp.as_ref() };
        let len = completion.byte_len as usize;
        let list = &mut state.list;
        list.clear();
        let mut receive = qp.receive.as_ref().map(Lock::lock);
        let is_flushed =
            |receive: &mut Guard<'_, WorkQueue>| receive.is_idle() && self.context().link.is_dead();
        if receive.as_mut().is_some_and(is_flushed) {
            return false;
        }
        match (completion.placement, &receive) {
            (Placement::MessageRingAt(address, position), _) => {
                list.push(Segment { address, len: completion.byte_len, lkey: 0 });
                self.keep_registered(list);
                // SAFETY: the peer checked that there is registered memory of that length.
                unsafe { unpack(qp, position, len, list) };
            }
            (Placement::MessageRing(position), Some(receive)) => {
                completion.id = receive.oldest(list);
                self.keep_registered(list);
                // SAFETY: the peer checked that the list is of registered memory with room for it.
                unsafe { unpack(qp, position, len, list) };
            }
            (Placement::Here(message), Some(receive)) => {
                completion.id = receive.oldest(list);
                self.keep_registered(list);
                // SAFETY: as above.
                unsafe {
                    scatter(std::slice::from_raw_parts(message.as_ptr().cast(), INLINE.min(len)), list)
                };
            }
            _ => {}
        }
        if let Some(receive) = &mut receive {
            receive.give_back();
        }
        true
    }

    /// Counts a poll that found nothing. Returns whether to yield the CPU ([`Self::give_way`]) once the state is
    /// unlocked.
    pub(crate) fn idle(&self, state: &mut State) -> bool {
        let link = &self.context().link;
        state.empty = state.empty.wrapping_add(1);
        if state.empty.is_multiple_of(LOOK) {
            link.look();
        }
        if link.is_dead() {
            self.flush(state);
        }
        // The awaited thread may have a CPU of its own or need this one; there is no way to tell.
        let is_crowded = self.is_crowded.load(Ordering::Relaxed);
        state.empty.is_multiple_of(if is_crowded { YIELD_CROWDED } else { YIELD })
    }

    /// Yields the CPU. Call it with the state unlocked: other threads may wait for the lock.
    pub(crate) fn give_way(&self) {
        let began = Instant::now();
        std::thread::yield_now();
        self.is_crowded.store(began.elapsed() >= CROWDED, Ordering::Relaxed);
    }

    /// Completes the requests that the device had not finished when it went.
    fn flush(&self, state: &mut State) {
        for qp in self.context().objects().qps.all() {
            qp.flush(self, |qp, request, opcode| state.flushed.push_back(flushed(qp, request, opcode)));
        }
    }
}

fn flushed(qp: &Qp, request: &WorkRequest, opcode: u8) -> Completion {
    let status = IBV_WC_WR_FLUSH_ERR as u8;
    let (id, number) = (request.id, request.number);
    Completion { id, status, opcode, qpn: qp.number(), number, ..Completion::default() }
}

pub(crate) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    timestamps: bool,
) -> Outcome<*mut ibv_cq> {
    // SAFETY: a context of ours, and, where there is one, a channel of it.
    let (ours, handle) =
        unsafe { (Context::of(context), (!channel.is_null()).then(|| Channel::of(channel).handle())) };
    if cqe == 0 || vector >= ours.completion_vectors() {
        return Err(libc::EINVAL);
    }
    let request = Request::CreateCq { entries: cqe, channel: handle, timestamps };
    let (Reply::Cq { cq, entries }, given) = ours.link.ask_for(&request)? else {
        return Err(libc::EIO);
    };
    let queue = queue(&ours.link, entries, given)?;
    let base = ibv_cq {
        context,
        channel,
        cq_context,
        handle: cq,
        cqe: c_int::try_from(entries).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let made = Box::into_raw(Box::new(Cq {
        c: UnsafeCell::new(crate::completion_ex::extended(base)),
        state: Lock::new(State {
            queue,
            current: Completion::default(),
            empty: 0,
            settled: VecDeque::new(),
            flushed: VecDeque::new(),
            list: Vec::new(),
            recent: Default::default(),
        }),
        told: AtomicU32::new(0),
        told_async: AtomicU32::new(0),
        told_of_death: AtomicBool::new(false),
        reader: AtomicUsize::new(0),
        is_strict: AtomicBool::new(false),
        is_crowded: AtomicBool::new(false),
    }));
    let mut objects = ours.objects();
    if handle.is_some() {
        // SAFETY: a channel of ours; counted under the lock.
        unsafe { (*channel).refcnt += 1 };
    }
    objects.cqs.insert(cq, made);
    Ok(made.cast())
}

fn queue(link: &Link, entries: u32, given: Vec<Given>) -> Outcome<CompletionQueue> {
    if !entries.is_power_of_two() {
        return Err(libc::EIO);
    }
    let memory = link.map(only(given)?, uverbs::completion::bytes(entries))?;
    Ok(CompletionQueue::new(memory, entries))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let (Ok(cqe), Ok(vector)) = (u32::try_from(cqe), u32::try_from(vector)) else {
        return pointer(Err(libc::EINVAL));
    };
    // SAFETY: a context of ours, and, where there is one, a channel of it.
    pointer(unsafe { create(context, cqe, cq_context, channel, vector, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a completion queue of ours.
    let (ours, handle) = unsafe { (Cq::of(cq), (*cq).handle) };
    let Some(entries) = u32::try_from(cqe).ok().filter(|cqe| *cqe > 0) else { return set(libc::EINVAL) };
    // Nobody may take completions while the device moves them.
    let mut state = ours.state.lock();
    let resized = ours.context().link.ask_for(&Request::ResizeCq { cq: handle, entries }).and_then(|reply| {
        let (Reply::Cq { entries, .. }, given) = reply else { return Err(libc::EIO) };
        state.queue = queue(&ours.context().link, entries, given)?;
        // SAFETY: a completion queue of ours.
        unsafe { (*cq).cqe = c_int::try_from(entries).unwrap_or(c_int::MAX) };
        Ok(())
    });
    code(resized)
}

unsafe fn destroy(cq: *mut ibv_cq) -> Outcome<()> {
    // SAFETY: a completion queue of ours, which the program gives back.
    unsafe {
        let ours = Cq::of(cq);
        let context = ours.context();
        context.link.take_away(&Request::DestroyCq { cq: (*cq).handle })?;
        let _nobody_settles = context.settling();
        context.objects().cqs.remove((*cq).handle, ours);
        if !(*cq).channel.is_null() {
            Channel::of((*cq).channel).forget((*cq).handle);
        }
        forget(context, &About::Cq, (*cq).handle);
        let (mutex, condition) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
        let told = ours.told.load(Ordering::Acquire);
        wait_for_acknowledgements(mutex, condition, &raw const (*cq).comp_events_completed, told);
        let told = ours.told_async.load(Ordering::Acquire);
        wait_for_acknowledgements(mutex, condition, &raw const (*cq).async_events_completed, told);
        if !(*cq).channel.is_null() {
            let _objects = context.objects();
            (*(*cq).channel).refcnt -= 1;
        }
        drop(Box::from_raw(cq.cast::<Cq>()));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a completion queue of ours.
    code(unsafe { destroy(cq) })
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: a completion queue of ours.
    let ours = unsafe { Cq::of(cq) };
    let mut state = ours.state.lock();
    let mut taken = 0;
    while taken < room {
        let Some(completion) = ours.take(&mut state) else { break };
        // SAFETY: the program promises that there is room for that many.
        unsafe { to.add(taken as usize).write(completion.into()) };
        taken += 1;
    }
    let gives_way = taken == 0 && ours.idle(&mut state);
    drop(state);
    if gives_way {
        ours.give_way();
    }
    taken
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a completion queue of ours.
    let state = unsafe { Cq::of(cq) }.state.lock();
    state.queue.arm(if solicited_only == 0 { Arm::Any } else { Arm::Solicited });
    0
}
