//! A socket: from its creation by a connection or a listener to its end.

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

/// How long `rclose` of a blocking socket waits until the peer has everything, unless `SO_LINGER` says how long.
const CLOSING: Duration = Duration::from_millis(100);

/// Of `poll`'s events, those of bytes to read, and of room to write.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// What a socket is.
#[derive(Debug)]
enum Phase {
    /// Neither listening nor connected.
    Idle,
    Listening,
    /// The peer was asked.
    Connecting(Option<Pair>),
    Connected,
    Failed,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    // Before the identifier.
    phase: Mutex<Phase>,
    stream: OnceLock<Stream>,
    identifier: Arc<Identifier>,
    family: c_int,
    is_nonblocking: AtomicBool,
    /// `FD_CLOEXEC`, which the descriptor has anyway.
    pub descriptor_flags: AtomicI32,
    watchers: Arc<Watchers>,
    options: Mutex<Options>,
}

impl Socket {
    /// Creates a socket of a family.
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

    /// Its descriptor.
    pub fn number(&self) -> RawFd {
        self.identifier.number()
    }

    /// Its family.
    pub const fn family(&self) -> c_int {
        self.family
    }

    /// Whether calls do not wait.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// From now on, calls wait, or not.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    /// Reads or changes its options.
    pub fn options<T>(&self, with: impl FnOnce(&mut Options) -> T) -> T {
        with(&mut lock(&self.options))
    }

    /// What the connection manager knows it by.
    pub const fn identifier(&self) -> &Arc<Identifier> {
        &self.identifier
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Listening)
    }

    fn patience(&self, is_now: bool) -> Patience {
        if is_now || self.is_nonblocking() { Patience::None } else { Patience::Open }
    }

    /// Binds it.
    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        self.identifier.bind(to)
    }

    /// Listens.
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

    /// Accepts the next connection.
    pub fn accept(&self) -> Result<Self, Errno> {
        if !self.is_listening() {
            return Err(Errno(libc::EINVAL));
        }
        loop {
            let asked = self.identifier.request()?;
            let is_none = asked.is_none();
            // Who speaks another language is refused.
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

    /// Accepts who asked; none: it is gone.
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

    /// Connects it.
    pub fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        match self.begin(to).and_then(|()| self.finish(self.patience(false))) {
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            done => {
                // The program is told now.
                self.options(|options| options.error = 0);
                done
            }
        }
    }

    /// Asks the peer for a connection, unless it was asked.
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

    /// Waits until a connection is there, or has failed.
    fn finish(&self, patience: Patience) -> Result<(), Errno> {
        loop {
            match self.advance() {
                Err(Errno(libc::EAGAIN)) if patience == Patience::Open => self.sleep()?,
                done => return done,
            }
        }
    }

    /// Goes on with what was begun; `EAGAIN`: the peer has not answered yet.
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

    /// The connection manager has something to say about a connection that was begun.
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
            // It speaks another language.
            Ok(Some(Told::Established(None))) => Errno(libc::EPROTO),
            Ok(Some(Told::Disconnected)) => Errno(libc::ECONNRESET),
            Err(error) => error,
        };
        *phase = Phase::Failed;
        self.options(|options| options.error = failure.0);
        self.watchers.wake();
        Err(failure)
    }

    /// Sleeps until the connection manager has something to say.
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

    /// Its stream, and how long a call on it waits.
    pub fn stream(&self, is_now: bool) -> Result<(&Stream, Patience), Errno> {
        let patience = self.patience(is_now);
        if self.stream.get().is_none() {
            self.finish(patience)?;
        }
        Ok((self.stream.get().ok_or(Errno(libc::ENOTCONN))?, patience))
    }

    /// Ends its reading, writing or both.
    pub fn shut(&self, reads: bool, writes: bool) -> Result<(), Errno> {
        self.stream.get().ok_or(Errno(libc::ENOTCONN))?.shut(reads, writes)
    }

    /// The program uses it no more. Returns whether the peer has all that was sent.
    pub fn close(&self) -> bool {
        self.watchers.close();
        let linger = self.options(|options| options.linger);
        let usual = if self.is_nonblocking() { Duration::ZERO } else { CLOSING };
        self.has_ended(linger.unwrap_or(usual)) || linger.is_some()
    }

    /// Whether the peer has all that was sent before it was closed, after waiting that long.
    pub fn has_ended(&self, time: Duration) -> bool {
        self.stream.get().is_none_or(|stream| stream.close(Instant::now() + time))
    }

    /// The error that nobody was told of.
    pub fn take_error(&self) -> c_int {
        let of_stream = self.stream.get().and_then(Stream::failure);
        let other = self.options(|options| std::mem::take(&mut options.error));
        if other == 0 { of_stream.map_or(0, |Errno(number)| number) } else { other }
    }

    /// Its own address, and the peer's.
    pub fn addresses(&self) -> (sockaddr_storage, sockaddr_storage) {
        let (own, peer) = self.identifier.addresses();
        let known = |address: sockaddr_storage| {
            if address.ss_family == 0 { unknown(self.family) } else { address }
        };
        (known(own), peer)
    }

    /// A thread is about to look at it, and then to sleep.
    pub fn watch(&self, waker: &Arc<Waker>) {
        self.watchers.add(waker);
    }

    /// A thread has slept.
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.watchers.remove(waker);
    }

    /// Hears what nobody polls for: that the peer is gone.
    pub fn hear(&self) {
        if let Some(stream) = self.stream.get() {
            stream.slept();
        }
    }

    /// What is readable when something has happened to it that is asked for.
    pub fn descriptors(&self, asked: c_short) -> Vec<BorrowedFd<'_>> {
        match self.stream.get() {
            Some(stream) => stream.descriptors().to_vec(),
            // Requests stay there.
            None if asked & READ == 0 && self.is_listening() => Vec::new(),
            None => vec![self.identifier.fd()],
        }
    }

    /// What `poll` says, of what is asked for.
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
            Phase::Listening if is_readable(self.identifier.fd()) => asked & READ,
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
