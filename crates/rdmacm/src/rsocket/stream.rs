//! A connected stream: a queue pair, with flow control.

use super::flow::{Flow, Grant, Sizes, Violation};
use super::identifier::Told;
use super::pair::{Completed, INLINE, Pair};
use super::parts::{Parts, PartsMut};
use super::waiting::{SPIN, Waker, Watchers, sleep};
use super::wire::{Buffer, Hello, Message, TABLE};
use crate::device::lock;
use crate::error::Errno;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use verbs_abi::IBV_WC_SUCCESS;

/// Bytes of the first piece of a long message: it is short, so that the peer begins to read early. Each next piece is
/// twice as long.
const FIRST: u32 = 2048;
/// Bytes of the longest piece.
const LONGEST: u32 = 1 << 16;
/// `IBV_WC_RETRY_EXC_ERR`: the peer does not answer.
const NO_ANSWER: u32 = 12;

/// The time for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The call does not wait.
    None,
    /// The call waits until the socket is closed.
    Open,
    /// The call waits until this time, although the socket is closed.
    Closing(Instant),
}

#[derive(Debug)]
pub struct Stream {
    pair: Pair,
    state: Mutex<State>,
    watchers: Arc<Watchers>,
}

#[derive(Debug)]
struct State {
    flow: Flow,
    /// The entry of our table that the peer writes next.
    entry: u32,
    is_armed: bool,
    /// Whether this end may still read, and write.
    reads: bool,
    writes: bool,
    /// A message that reports the end of `reads` and `writes` to the peer, once there is a place for it.
    farewell: Option<Message>,
    /// Whether the peer was told that this end neither reads nor writes.
    has_left: bool,
    failure: Option<Errno>,
}

impl State {
    fn is_readable(&self) -> bool {
        self.flow.has_data() || !self.flow.peer_sends || !self.reads || self.failure.is_some()
    }

    fn is_writable(&self) -> bool {
        self.may_send().is_err() || self.flow.can_send()
    }

    fn may_send(&self) -> Result<(), Errno> {
        match self.failure {
            _ if !self.writes => Err(Errno(libc::EPIPE)),
            Some(failure) => Err(failure),
            None if !self.flow.peer_receives => Err(Errno(libc::ECONNRESET)),
            None => Ok(()),
        }
    }

    const fn is_over(&self) -> bool {
        self.failure.is_some() || !self.flow.peer_receives
    }

    /// Notes a failure, after which nothing can be sent or received. Ignores one that is expected, because one end has
    /// left.
    const fn fail(&mut self, failure: Errno) {
        let is_expected = self.has_left || !self.flow.peer_receives;
        if self.failure.is_none() && !is_expected {
            self.failure = Some(failure);
        }
    }

    fn hear(&mut self, pair: &Pair, number: Option<u32>) -> Result<(), Violation> {
        let message = number.and_then(Message::from_number).ok_or(Violation)?;
        self.flow.hear(message)?;
        if let Message::Credits(_) = message {
            while let Some(buffer) = pair.take_entry(self.entry) {
                self.entry = (self.entry + 1) % TABLE;
                self.flow.announce(buffer)?;
            }
        }
        Ok(())
    }

    fn happened(&mut self, pair: &Pair, what: Completed) {
        match what {
            Completed::Received(number) => {
                if self.hear(pair, number).is_err() {
                    if self.failure.is_none() {
                        pair.fail();
                    }
                    self.fail(Errno(libc::ECONNRESET));
                }
            }
            Completed::Sent(message, IBV_WC_SUCCESS) => self.flow.done(message),
            Completed::Sent(message, status) => {
                self.flow.done(message);
                self.fail(Errno(if status == NO_ANSWER { libc::ETIMEDOUT } else { libc::ECONNRESET }));
            }
            Completed::Failed => self.fail(Errno(libc::ECONNRESET)),
        }
    }
}

impl Stream {
    /// Creates a stream from a queue pair that is connected.
    pub fn new(pair: Pair, sizes: Sizes, peer: Hello, watchers: Arc<Watchers>) -> Self {
        let state = State {
            flow: Flow::new(sizes, peer),
            entry: 1,
            is_armed: true,
            reads: true,
            writes: true,
            farewell: None,
            has_left: false,
            failure: None,
        };
        let stream = Self { pair, state: Mutex::new(state), watchers };
        stream.progress(&mut lock(&stream.state));
        stream
    }

    /// Handles all completions, and sends the messages that the peer should get now.
    fn progress(&self, state: &mut State) {
        let (mut has_changed, mut receives) = (false, 0_u32);
        let polled = self.pair.completed(|what| {
            has_changed = true;
            receives += u32::from(matches!(what, Completed::Received(_)));
            state.happened(&self.pair, what);
        });
        let mut done = polled;
        while receives > 0 && done.is_ok() && !state.is_over() {
            done = self.pair.post_receive();
            receives -= 1;
        }
        if done.is_ok()
            && !state.is_over()
            && let Some(message) = state.farewell
            && state.flow.control()
        {
            state.farewell = None;
            done = self.pair.send_inline(&[], message, Buffer::default());
            state.has_left = done.is_ok() && message == Message::Disconnect;
        }
        while done.is_ok()
            && !state.is_over()
            && !state.has_left
            && let Some(grant) = state.flow.grant()
        {
            done = self.tell(state, grant);
        }
        if let Err(error) = done {
            state.fail(error);
        }
        if has_changed {
            self.watchers.wake();
        }
    }

    /// Tells the peer of credits, and perhaps of a buffer.
    fn tell(&self, state: &State, Grant { message, half }: Grant) -> Result<(), Errno> {
        let Some((at, entry)) = half else { return self.pair.send_inline(&[], message, Buffer::default()) };
        let bytes = self.pair.half(at).in_memory(state.flow.peer_is_big_endian());
        self.pair.send_inline(&bytes, message, entry)
    }

    /// Handles the connection manager's events.
    fn hear_manager(&self, state: &mut State) {
        loop {
            let failure = match self.pair.identifier().next() {
                Ok(None) => return,
                Ok(Some(Told::Disconnected)) => Errno(libc::ECONNRESET),
                Ok(Some(_)) => continue,
                Err(error) => error,
            };
            // The peer's last messages come first. If the peer has ended its sending, its departure is a failure
            // only for a program that still writes.
            self.progress(state);
            if state.flow.peer_sends || state.writes {
                state.fail(failure);
                self.watchers.wake();
            }
            return;
        }
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        patience: Patience,
        until: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let mut begun = None;
        loop {
            self.progress(&mut state);
            if patience == Patience::None && !until(&state) {
                self.hear_manager(&mut state);
            }
            if until(&state) {
                return Ok(state);
            }
            match patience {
                Patience::None => return Err(Errno(libc::EAGAIN)),
                Patience::Open if self.watchers.is_closed() => return Err(Errno(libc::EBADF)),
                _ => {}
            }
            if begun.get_or_insert_with(Instant::now).elapsed() < SPIN {
                drop(state);
                std::hint::spin_loop();
                state = lock(&self.state);
                continue;
            }
            state = self.sleep(state, patience, &until)?;
        }
    }

    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        patience: Patience,
        until: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let waker = Waker::of_thread()?;
        self.watchers.add(&waker);
        self.arm(&mut state);
        let is_closed = patience == Patience::Open && self.watchers.is_closed();
        let mut slept = Ok(());
        if !is_closed && !until(&state) {
            drop(state);
            let deadline = if let Patience::Closing(deadline) = patience { Some(deadline) } else { None };
            slept = sleep(&self.fds(), &waker, deadline);
            state = lock(&self.state);
        }
        self.watchers.remove(&waker);
        self.awake(&mut state);
        slept.map(|()| state)
    }

    /// Makes the next completion cause an event, before a thread sleeps.
    fn arm(&self, state: &mut State) {
        if !state.is_armed {
            if let Err(error) = self.pair.arm() {
                state.fail(error);
            }
            state.is_armed = true;
        }
        self.progress(state);
    }

    /// Takes the events, after a thread has slept.
    fn awake(&self, state: &mut State) {
        self.pair.take_events();
        state.is_armed = false;
        self.progress(state);
        self.hear_manager(state);
    }

    /// Returns the descriptors that become readable when something has happened.
    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.pair.fd(), self.pair.identifier().fd()]
    }

    /// Sends as many bytes as `patience` allows.
    pub fn send(&self, mut parts: Parts<'_>, patience: Patience) -> Result<usize, Errno> {
        let (mut sent, mut most) = (0, FIRST);
        let mut state = lock(&self.state);
        let result = loop {
            if let Err(error) = state.may_send() {
                break Err(error);
            }
            let left = parts.len().min(most as usize) as u32;
            if left == 0 {
                break Ok(());
            }
            let Some(write) = state.flow.send(left, self.pair.inline()) else {
                match self.wait(state, patience, State::is_writable) {
                    Ok(waited) => state = waited,
                    Err(error) => break Err(error),
                }
                continue;
            };
            let message = Message::Data(write.len);
            let posted = if write.len <= self.pair.inline() {
                let mut bytes = [0; INLINE];
                let bytes = &mut bytes[..write.len as usize];
                parts.take(bytes.len(), |at, part| bytes[at..at + part.len()].copy_from_slice(part));
                self.pair.send_inline(bytes, message, write.remote)
            } else {
                parts.take(write.len as usize, |at, part| self.pair.put(write.at as usize + at, part));
                self.pair.send_put(write.at, write.len, message, write.remote)
            };
            if let Err(error) = posted {
                state.fail(error);
                break Err(error);
            }
            sent += write.len as usize;
            most = (most * 2).min(LONGEST);
        };
        if sent > 0 { Ok(sent) } else { result.map(|()| 0) }
    }

    /// Receives the bytes that are there or, if `wants_all`, as many as fit. Returns 0 if the peer sends no more.
    pub fn receive(
        &self,
        mut parts: PartsMut<'_>,
        patience: Patience,
        wants_all: bool,
    ) -> Result<usize, Errno> {
        let mut got = 0;
        let mut state = lock(&self.state);
        let result = loop {
            while !parts.is_empty() && state.flow.has_data() && state.reads {
                let (at, len) = state.flow.readable();
                let read = parts.take(len as usize, |offset, part| self.pair.read(at + offset as u32, part));
                state.flow.read(read as u32);
                got += read;
            }
            let is_enough = parts.is_empty() || got > 0 && !wants_all;
            let is_end = !state.flow.peer_sends || !state.reads;
            if is_enough || is_end {
                break Ok(());
            }
            if let Some(failure) = state.failure {
                break Err(failure);
            }
            match self.wait(state, patience, State::is_readable) {
                Ok(waited) => state = waited,
                Err(error) => return if got > 0 { Ok(got) } else { Err(error) },
            }
        };
        self.progress(&mut state);
        if got > 0 { Ok(got) } else { result.map(|()| 0) }
    }

    /// Copies bytes that have arrived, and does not remove them.
    pub fn peek(&self, mut parts: PartsMut<'_>, patience: Patience) -> Result<usize, Errno> {
        let mut state = lock(&self.state);
        if !state.is_readable() {
            state = self.wait(state, patience, State::is_readable)?;
        }
        let mut got = 0;
        for (at, len) in state.flow.all_readable() {
            got += parts.take(len as usize, |offset, part| self.pair.read(at + offset as u32, part));
        }
        match state.failure {
            Some(failure) if got == 0 && state.flow.peer_sends => Err(failure),
            _ => Ok(got),
        }
    }

    pub fn shut(&self, reads: bool, writes: bool) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        if state.failure.is_some() {
            return Err(Errno(libc::ENOTCONN));
        }
        let had_writes = state.writes;
        state.reads &= !reads;
        state.writes &= !writes;
        self.watchers.wake();
        let message = match (state.writes, had_writes) {
            (true, _) => return Ok(()),
            (false, true) if state.reads && state.flow.peer_sends => Message::Shutdown,
            (false, false) if state.reads => return Ok(()),
            _ => Message::Disconnect,
        };
        if !state.has_left {
            state.farewell = Some(message);
            self.progress(&mut state);
        }
        Ok(())
    }

    /// Ends the stream. Waits until the peer has everything that was sent, or until this time; returns whether it has.
    pub fn close(&self, until: Instant) -> bool {
        let patience = Patience::Closing(until);
        let _ = self.shut(true, true);
        let is_done = |state: &State| state.farewell.is_none() && state.flow.is_done() || state.is_over();
        self.wait(lock(&self.state), patience, is_done).is_ok()
    }

    /// Returns the error that ended the stream.
    pub fn failure(&self) -> Option<Errno> {
        lock(&self.state).failure
    }

    /// Returns the stream's state for `poll`. If a thread is about to sleep, makes the next completion cause an event.
    pub fn polled(&self, sleeps: bool) -> Polled {
        let mut state = lock(&self.state);
        if sleeps {
            self.arm(&mut state)
        } else {
            self.progress(&mut state)
        }
        Polled {
            is_readable: state.is_readable(),
            is_writable: state.is_writable(),
            has_failed: state.failure.is_some(),
            is_over: !state.writes && !state.flow.peer_sends,
        }
    }

    /// Takes the events, after a thread has slept.
    pub fn slept(&self) {
        self.awake(&mut lock(&self.state));
    }

    /// Returns the descriptors that become readable when something has happened.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        self.fds()
    }
}

/// The state of a stream for `poll`.
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    /// Whether there are bytes, an end, or an error to read.
    pub is_readable: bool,
    /// Whether bytes can be sent, or sending would return an error.
    pub is_writable: bool,
    pub has_failed: bool,
    /// Whether neither end sends any more.
    pub is_over: bool,
}
