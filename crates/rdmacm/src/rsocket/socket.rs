//! A socket, from its creation to its end: it connects, or a listener accepts it.

use super::identifier::{Asked, Identifier, Told, unknown};
use super::options::Options;
use super::pair::Pair;
use super::stream::{Patience, Stream};
use super::waiting::{Waker, Watchers, sleep};
use super::wire::Hello;
use crate::device::lock;
use crate::error::Errno;
use libc::{c_int, c_short, sockaddr_storage};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Time for which `rclose` of a blocking socket waits until the peer has everything, unless `SO_LINGER` sets it.
const CLOSING: Duration = Duration::from_millis(100);

/// Events of `poll` for bytes to read, and for room to write.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

#[derive(Debug)]
enum Phase {
    /// The socket neither listens nor is connected.
    Idle,
    Listening,
    /// The peer was asked for a connection.
    Connecting(Option<Pair>),
    Connected,
    Failed,
}

#[derive(Debug)]
pub struct Socket {
    // `phase` and `stream` must be dropped before the identifier.
    phase: Mutex<Phase>,
    stream: OnceLock<Stream>,
    identifier: Arc<Identifier>,
    family: c_int,
    is_nonblocking: AtomicBool,
    /// `FD_CLOEXEC` as the program set it; the descriptor has it anyway.
    pub descriptor_flags: AtomicI32,
    watchers: Arc<Watchers>,
    options: Mutex<Options>,
}

impl Socket {
    pub fn new(family: c_int) -> Result<Self, Errno> {
        Ok(Self::of(Identifier::new()?, family, Options::default()))
    }

    fn of(identifier: Arc<Identifier>, family: c_int, options: Options) -> Self {
        Self {
            phase: Mutex::new(Phase::Idle),
            stream: OnceLock::new(),
            identifier,
            family,
            is_nonblocking: AtomicBool::new(false),
            descriptor_flags: AtomicI32::new(0),
            watchers: Arc::default(),
            options: Mutex::new(options),
        }
    }

    /// Returns the socket's descriptor.
    pub fn number(&self) -> RawFd {
        self.identifier.number()
    }

    pub const fn family(&self) -> c_int {
        self.family
    }

    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    /// Reads or changes the socket's options.
    pub fn options<T>(&self, with: impl FnOnce(&mut Options) -> T) -> T {
        with(&mut lock(&self.options))
    }

    pub const fn identifier(&self) -> &Arc<Identifier> {
        &self.identifier
    }

    pub fn is_listening(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Listening)
    }

    fn patience(&self, is_now: bool) -> Patience {
        if is_now || self.is_nonblocking() { Patience::None } else { Patience::Open }
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        self.identifier.bind(to)
    }

    pub fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        let mut phase = lock(&self.phase);
        match *phase {
            Phase::Idle => self.identifier.listen(backlog)?,
            Phase::Listening => return Ok(()),
            _ => return Err(Errno(libc::EINVAL)),
        }
        *phase = Phase::Listening;
        Ok(())
    }

    pub fn accept(&self) -> Result<Self, Errno> {
        if !self.is_listening() {
            return Err(Errno(libc::EINVAL));
        }
        loop {
            let asked = self.identifier.request()?;
            let is_none = asked.is_none();
            // A peer that does not speak rsockets is refused: its request is dropped.
            if let Some(Asked { request, said: Some(hello) }) = asked
                && let Some(accepted) = self.admit(request, hello)?
            {
                return Ok(accepted);
            }
            if self.is_nonblocking() {
                return Err(Errno(libc::EAGAIN));
            }
            if is_none {
                self.sleep()?;
            }
        }
    }

    /// Accepts a request; returns `None` if the peer is gone.
    fn admit(&self, identifier: Arc<Identifier>, hello: Hello) -> Result<Option<Self>, Errno> {
        let options = self.options(|options| options.inherited());
        let (sizes, inline) = options.sizes();
        let pair = Pair::new(identifier.clone(), sizes, inline)?;
        if matches!(identifier.accept(pair.hello()), Err(_) | Ok(Some(Told::Disconnected))) {
            return Ok(None);
        }
        let socket = Self::of(identifier, self.family, options);
        socket.connected(&mut lock(&socket.phase), pair, hello);
        Ok(Some(socket))
    }

    fn connected(&self, phase: &mut Phase, pair: Pair, hello: Hello) {
        let (sizes, _) = self.options(|options| options.sizes());
        let stream = Stream::new(pair, sizes, hello, self.watchers.clone());
        let _ = self.stream.set(stream);
        *phase = Phase::Connected;
    }

    /// Connects the socket; if it is non-blocking, the connection may come later.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        match self.begin(to).and_then(|()| self.finish(self.patience(false))) {
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            done => {
                // The program learns of the error now.
                self.options(|options| options.error = 0);
                done
            }
        }
    }

    /// Asks the peer for a connection, unless it was asked before.
    fn begin(&self, to: SocketAddr) -> Result<(), Errno> {
        let mut phase = lock(&self.phase);
        match *phase {
            Phase::Idle => {}
            Phase::Connecting(_) | Phase::Connected => return Ok(()),
            Phase::Listening => return Err(Errno(libc::EISCONN)),
            Phase::Failed => return Err(Errno(libc::ECONNABORTED)),
        }
        self.identifier.resolve(to)?;
        let (sizes, inline) = self.options(|options| options.sizes());
        let pair = Pair::new(self.identifier.clone(), sizes, inline)?;
        let told = self.identifier.connect(pair.hello());
        *phase = Phase::Connecting(Some(pair));
        match self.go_on(&mut phase, told) {
            Err(Errno(libc::EAGAIN)) => Ok(()),
            done => done,
        }
    }

    /// Waits until the connection exists, or has failed.
    fn finish(&self, patience: Patience) -> Result<(), Errno> {
        loop {
            match self.advance() {
                Err(Errno(libc::EAGAIN)) if patience == Patience::Open => self.sleep()?,
                done => return done,
            }
        }
    }

    /// Handles the connection manager's next event for a connection that was begun. `EAGAIN` if the peer has not
    /// answered yet.
    fn advance(&self) -> Result<(), Errno> {
        let mut phase = lock(&self.phase);
        match *phase {
            Phase::Connecting(_) => {
                let told = self.identifier.next();
                self.go_on(&mut phase, told)
            }
            Phase::Connected => Ok(()),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Changes the state of a connection that was begun, according to the connection manager's answer.
    fn go_on(&self, phase: &mut Phase, told: Result<Option<Told>, Errno>) -> Result<(), Errno> {
        let failure = match told {
            Ok(None | Some(Told::Other)) => return Err(Errno(libc::EAGAIN)),
            Ok(Some(Told::Established(Some(hello)))) => {
                if let Phase::Connecting(pair) = phase
                    && let Some(pair) = pair.take()
                {
                    self.connected(phase, pair, hello);
                }
                self.watchers.wake();
                return Ok(());
            }
            // The peer does not speak rsockets.
            Ok(Some(Told::Established(None))) => Errno(libc::EPROTO),
            Ok(Some(Told::Disconnected)) => Errno(libc::ECONNRESET),
            Err(error) => error,
        };
        *phase = Phase::Failed;
        self.options(|options| options.error = failure.0);
        self.watchers.wake();
        Err(failure)
    }

    /// Sleeps until the connection manager has an event.
    fn sleep(&self) -> Result<(), Errno> {
        let waker = Waker::of_thread()?;
        self.watchers.add(&waker);
        let slept = if self.watchers.is_closed() {
            Err(Errno(libc::EBADF))
        } else {
            sleep(&[self.identifier.fd()], &waker, None)
        };
        self.watchers.remove(&waker);
        slept
    }

    /// Returns the stream, and the time for which a call on it waits.
    pub fn stream(&self, is_now: bool) -> Result<(&Stream, Patience), Errno> {
        let patience = self.patience(is_now);
        if self.stream.get().is_none() {
            self.finish(patience)?;
        }
        Ok((self.stream.get().ok_or(Errno(libc::ENOTCONN))?, patience))
    }

    pub fn shut(&self, reads: bool, writes: bool) -> Result<(), Errno> {
        self.stream.get().ok_or(Errno(libc::ENOTCONN))?.shut(reads, writes)
    }

    /// Ends the socket for the program. Returns false if the peer has not got everything yet, and `SO_LINGER` is
    /// not set.
    pub fn close(&self) -> bool {
        self.watchers.close();
        let linger = self.options(|options| options.linger);
        let usual = if self.is_nonblocking() { Duration::ZERO } else { CLOSING };
        self.has_ended(linger.unwrap_or(usual)) || linger.is_some()
    }

    /// Ends the stream, and waits at most this long until the peer has everything. Returns whether it has.
    pub fn has_ended(&self, time: Duration) -> bool {
        self.stream.get().is_none_or(|stream| stream.close(Instant::now() + time))
    }

    /// Takes the error that was not reported to the program yet.
    pub fn take_error(&self) -> c_int {
        let of_stream = self.stream.get().and_then(Stream::failure);
        let other = self.options(|options| std::mem::take(&mut options.error));
        if other == 0 { of_stream.map_or(0, |Errno(number)| number) } else { other }
    }

    /// Returns the socket's own address, and the peer's.
    pub fn addresses(&self) -> (sockaddr_storage, sockaddr_storage) {
        let (own, peer) = self.identifier.addresses();
        let known = |address: sockaddr_storage| {
            if address.ss_family == 0 { unknown(self.family) } else { address }
        };
        (known(own), peer)
    }

    /// Registers a thread that is about to check the socket, and then to sleep.
    pub fn watch(&self, waker: &Arc<Waker>) {
        self.watchers.add(waker);
    }

    /// Removes a thread that has slept.
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.watchers.remove(waker);
    }

    /// Handles events that nobody polls for: the peer may be gone.
    pub fn hear(&self) {
        if let Some(stream) = self.stream.get() {
            stream.slept();
        }
    }

    /// Is true if a request waits at a listener.
    fn has_request(&self) -> bool {
        let may = is_readable(self.identifier.fd());
        if may {
            self.identifier.settle();
        }
        may && is_readable(self.identifier.fd())
    }

    /// Returns the descriptors that become readable when one of the events `asked` may have happened.
    pub fn descriptors(&self, asked: c_short) -> Vec<BorrowedFd<'_>> {
        match self.stream.get() {
            Some(stream) => stream.descriptors().to_vec(),
            // Requests would keep the listener's descriptor readable, although the program does not ask for them.
            None if asked & READ == 0 && self.is_listening() => Vec::new(),
            None => vec![self.identifier.fd()],
        }
    }

    /// Returns the events of the socket for `poll`, as far as they are asked for.
    pub fn polled(&self, asked: c_short, sleeps: bool) -> c_short {
        if self.watchers.is_closed() {
            return libc::POLLNVAL;
        }
        if self.stream.get().is_none() {
            let _ = self.advance();
        }
        if let Some(stream) = self.stream.get() {
            let found = stream.polled(sleeps);
            let part = |is: bool, bits: c_short| if is { bits } else { 0 };
            return asked & (part(found.is_readable, READ) | part(found.is_writable, WRITE))
                | part(found.has_failed, libc::POLLERR)
                | part(found.is_over, libc::POLLHUP);
        }
        match *lock(&self.phase) {
            Phase::Listening if self.has_request() => asked & READ,
            Phase::Failed => asked & (READ | WRITE) | libc::POLLERR | libc::POLLHUP,
            _ => 0,
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut one = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut one, Some(&now)).is_ok_and(|count| count > 0)
}
