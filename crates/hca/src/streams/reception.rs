//! The thread that accepts the streams of programs in virtual machines, for all devices of the host. It has
//! programs prove that they can read their device's window, and hands the streams to the devices. It never waits
//! for a program.

use crate::base::clock::monotonic;
use crate::base::refusal::refuse;
use crate::streams::tickets::{Origin, Purpose, Tickets};
use crate::window::{Challenge, Window};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sockets::{Closing, Untrusted};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use uverbs::{
    Claim, Connection, Opening, Refusal, SocketError, Stream, Uuid, VERSION, Welcome, is_privileged, machine,
};

/// How long a stream may take to say what it is for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a stream may ask to be let in: a program asks again only if another program got in its way.
const ATTEMPTS: u32 = 4;
/// Most streams from one origin that have not said what they are for, and from all origins together. A new stream
/// takes the place of the oldest. As many from one origin can be closed at a time by threads of their own;
/// meanwhile no more are accepted there.
const UNPROVEN: usize = 64;
const ALL_UNPROVEN: usize = 512;
/// The time for which no streams are accepted after the kernel ran out of descriptors or memory. While another
/// process accepts them, the time between two checks whether it still does.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a program is refused for now.
pub(crate) const HALTED: &str = "the host's daemon sees that the virtual machine stands still, or that its VMM copies \
                                 its memory to migrate it (`window_migrates`); try again once it goes on";

/// Why a program is refused whose window does not move with its machine.
pub(crate) const VIRTIO: &str = "the window is a virtio-pmem device, whose contents do not migrate, and its guest may \
                                 (`window_migrates`); give the VM its window as an NVDIMM";

/// A device, as the reception sees it.
pub(crate) trait Door: std::fmt::Debug + Send + Sync {
    /// Returns the device's own window, which programs must be able to read.
    fn window(&self) -> Option<Arc<Window>>;

    /// Is true if it accepts nobody any more.
    fn is_closed(&self) -> bool;

    /// Checks whether a program with this claim may come now.
    ///
    /// # Errors
    /// The refusal for the program.
    fn look_at(&self, claim: &Claim) -> Result<(), Refusal>;

    /// Lets in a program that proved itself, and tells it so.
    fn admit(self: Arc<Self>, socket: Arc<Untrusted>, claim: Claim, origin: Origin) -> Result<(), Refusal>;

    /// Lets in an agent for a program with this claim, and tells it so.
    fn admit_agent(self: Arc<Self>, socket: Arc<Untrusted>, claim: Claim) -> Result<(), Refusal>;
}

/// The service that a stream asks for before it proves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Verbs,
    Sockets,
}

/// A socket on which streams come.
#[derive(Debug)]
struct Listener {
    id: u64,
    socket: sockets::Listener,
    /// Streams that came on it, while other threads close them.
    closing: Arc<Closing>,
    /// The device to which all its streams belong; `None`: each stream names its device's window.
    door: Option<Weak<dyn Door>>,
}

#[derive(Debug, Default)]
struct State {
    added: Vec<Listener>,
    doors: HashMap<Uuid, Weak<dyn Door>>,
    last_listener: u64,
    is_running: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    tickets: Arc<Tickets>,
    wake: OwnedFd,
    stops: AtomicBool,
    /// Whether no streams are accepted for now.
    is_held: Arc<AtomicBool>,
}

/// The handle of the thread, which ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Reception {
    shared: Mutex<Option<Arc<Shared>>>,
    is_held: Arc<AtomicBool>,
}

impl Reception {
    /// Returns the state that is shared with the thread. Creates it first if there is none.
    fn shared(&self) -> rustix::io::Result<Arc<Shared>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &*shared {
            return Ok(shared.clone());
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (state, tickets, stops) = (Mutex::default(), Arc::default(), AtomicBool::new(false));
        let is_held = self.is_held.clone();
        Ok(shared.insert(Arc::new(Shared { state, tickets, wake, stops, is_held })).clone())
    }

    /// Stops accepting programs at all sockets, including those of devices; or accepts them again, after [`PAUSE`]
    /// at most.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
    }

    /// Is true while no programs are accepted.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Accepts the streams of a listening socket.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn listen(&self, socket: OwnedFd, door: Option<Weak<dyn Door>>) -> std::io::Result<()> {
        // The thread must not wait for a stream that was withdrawn.
        rustix::io::ioctl_fionbio(&socket, true)?;
        let shared = self.shared()?;
        let mut state = shared.state();
        state.last_listener += 1;
        let id = state.last_listener;
        if !state.is_running {
            let running = shared.clone();
            std::thread::Builder::new()
                .name("verbs-streams".into())
                .spawn(move || Desk::new(running).run())?;
            state.is_running = true;
        }
        let waker = Arc::downgrade(&shared);
        let closing = Closing::telling(move || waker.upgrade().iter().for_each(|shared| shared.wake()));
        state.added.push(Listener { id, socket: socket.into(), closing, door });
        drop(state);
        shared.wake();
        Ok(())
    }

    /// Lets programs that can read this window find its device, instead of programs that can read the old window.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn set_door(
        &self,
        old: Option<Uuid>,
        new: Option<Uuid>,
        door: &Weak<dyn Door>,
    ) -> rustix::io::Result<()> {
        let shared = self.shared()?;
        let mut state = shared.state();
        if let Some(old) = old
            && state.doors.get(&old).is_some_and(|there| there.ptr_eq(door))
        {
            state.doors.remove(&old);
        }
        state.doors.extend(new.map(|new| (new, door.clone())));
        Ok(())
    }

    /// Makes the thread check which devices are closed.
    pub fn look(&self) {
        if let Some(shared) = &*self.shared.lock().unwrap_or_else(PoisonError::into_inner) {
            shared.wake();
        }
    }

    /// Returns the tickets of programs whose streams come here.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn tickets(&self) -> rustix::io::Result<Arc<Tickets>> {
        Ok(self.shared()?.tickets.clone())
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        let shared = self.shared.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = shared {
            shared.stops.store(true, Ordering::Relaxed);
            shared.wake();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn door(&self, window: Uuid) -> Option<Arc<dyn Door>> {
        self.state().doors.get(&window).and_then(Weak::upgrade)
    }
}

/// A stream that has not said what it is for, or has not proved that it may be used for that.
#[derive(Debug)]
struct Unproven {
    connection: Connection,
    socket: Arc<Untrusted>,
    origin: Origin,
    door: Option<Weak<dyn Door>>,
    until: Duration,
    /// How often it asked to be let in.
    attempts: u32,
    /// The challenge that it must meet, its claim, and the device that it wants to use.
    challenge: Option<(Challenge, Claim, Arc<dyn Door>)>,
    wanted: Wanted,
    /// Whether it was not told yet where the challenge is.
    is_untold: bool,
}

/// An answer to a stream.
enum Said {
    Now(Welcome),
    /// Once its challenge is in the window.
    Later,
    /// Nothing: somebody else has it.
    Nothing,
}

/// Whether a stream stays with the reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// More is expected.
    Stays,
    /// Somebody else owns it now, or it is to be closed.
    Leaves,
}

impl Unproven {
    fn new(socket: OwnedFd, listener: &Listener, now: Duration) -> rustix::io::Result<Self> {
        let machine = if listener.door.is_none() { machine(&socket) } else { None };
        let socket = Arc::new(Untrusted::new(socket, &listener.closing)?);
        Ok(Self {
            connection: Connection::Stream(Stream::serving(socket.clone())),
            socket,
            origin: Origin { listener: listener.id, machine },
            door: listener.door.clone(),
            until: now + PATIENCE,
            attempts: 0,
            challenge: None,
            wanted: Wanted::Verbs,
            is_untold: false,
        })
    }

    /// Handles at most two messages, so that others need not wait long.
    fn hear(&mut self, shared: &Arc<Shared>) -> Next {
        for _ in 0..2 {
            if self.is_untold {
                return self.tell();
            }
            let answer = match self.connection.receive_now::<Opening>() {
                Ok(None) => return Next::Stays,
                Ok(Some((opening, _))) => self.answer(opening, shared),
                Err(SocketError::Malformed(why)) => refuse(Errno::PROTO, why),
                Err(_) => return Next::Leaves,
            };
            if self.say(answer) == Next::Leaves {
                return Next::Leaves;
            }
        }
        Next::Stays
    }

    /// Tells where its challenge is, once it is in the window.
    fn tell(&mut self) -> Next {
        let written =
            self.challenge.as_ref().map(|(challenge, ..)| (challenge.is_written(), challenge.offset()));
        match written {
            Some((None, _)) => Next::Stays,
            Some((Some(true), offset)) => {
                self.is_untold = false;
                self.say(Ok(Said::Now(Welcome::Challenge { offset })))
            }
            _ => self.say(refuse(Errno::NODEV, "the device's window is not there")),
        }
    }

    fn say(&mut self, answer: Result<Said, Refusal>) -> Next {
        match answer {
            Ok(Said::Now(welcome)) => match self.connection.send(&Ok::<_, Refusal>(welcome), &[]) {
                Ok(()) => Next::Stays,
                Err(_) => Next::Leaves,
            },
            Ok(Said::Later) => Next::Stays,
            Ok(Said::Nothing) => Next::Leaves,
            Err(refusal) => {
                let _ = self.connection.send(&Err::<Welcome, _>(refusal), &[]);
                Next::Leaves
            }
        }
    }

    /// Returns whether there is something to tell.
    fn is_due(&self) -> bool {
        self.is_untold
            && self.challenge.as_ref().is_none_or(|(challenge, ..)| challenge.is_written().is_some())
    }

    /// Has a program prove that it can read its device's window.
    fn ask(
        &mut self,
        wanted: Wanted,
        window: Uuid,
        claim: Claim,
        shared: &Arc<Shared>,
    ) -> Result<Said, Refusal> {
        self.attempts += 1;
        let door = match &self.door {
            Some(door) => door.upgrade(),
            None => shared.door(window),
        };
        door.as_ref().map_or(Ok(()), |door| door.look_at(&claim))?;
        let its = door.as_ref().and_then(|door| door.window()).filter(|its| its.uuid() == window);
        let (Some(door), Some(its)) = (door, its) else {
            return refuse(Errno::NODEV, "no device of the host has this window");
        };
        // One at a time.
        self.challenge = None;
        let waker = shared.clone();
        let Some(challenge) = its.challenge(move || waker.wake()) else {
            return refuse(Errno::AGAIN, "too many programs want to use the device at the same time");
        };
        (self.challenge, self.is_untold) = (Some((challenge, claim, door)), true);
        self.wanted = wanted;
        Ok(Said::Later)
    }

    /// Finds the answer to a message.
    fn answer(&mut self, opening: Opening, shared: &Arc<Shared>) -> Result<Said, Refusal> {
        match opening {
            Opening::Program { version, .. } | Opening::Sockets { version, .. } if version != VERSION => {
                refuse(
                    Errno::PROTONOSUPPORT,
                    format!(
                        "the library speaks version {version} of the protocol, the host's daemon version {VERSION}; \
                     use the library of its release"
                    ),
                )
            }
            Opening::Program { .. } | Opening::Sockets { .. } if self.attempts >= ATTEMPTS => refuse(
                Errno::PROTO,
                format!("the program asked {ATTEMPTS} times on this stream and proved nothing"),
            ),
            Opening::Program { window, claim, .. } => self.ask(Wanted::Verbs, window, claim, shared),
            Opening::Sockets { .. } if !is_privileged(&*self.socket) => {
                refuse(Errno::PERM, "an agent of sockets is root, with a port below 1024")
            }
            Opening::Sockets { window, claim, .. } => self.ask(Wanted::Sockets, window, claim, shared),
            Opening::Proof { nonce } => match self.challenge.take() {
                Some((challenge, claim, door)) if challenge.is_met_by(&nonce) => {
                    drop(challenge);
                    let socket = self.socket.clone();
                    match self.wanted {
                        Wanted::Verbs => door.admit(socket, claim, self.origin),
                        Wanted::Sockets => door.admit_agent(socket, claim),
                    }
                    .map(|()| Said::Nothing)
                }
                _ => refuse(Errno::PERM, "the program does not know what is in the window"),
            },
            Opening::Ticket { ticket } => {
                let Some(purpose) = shared.tickets.redeem(ticket, self.origin) else {
                    return refuse(Errno::PERM, "the ticket is not good");
                };
                let welcome = Ok::<_, Refusal>(Welcome::Accepted { common: None });
                let is_told = self.connection.send(&welcome, &[]).is_ok() && !self.connection.has_unsent();
                match purpose {
                    // Otherwise its bytes would come between others.
                    _ if !is_told => {}
                    Purpose::Events(attached) => attached.set(self.socket.clone()),
                    Purpose::Wake(inbox) => drop(inbox.wake_by(self.socket.clone())),
                }
                Ok(Said::Nothing)
            }
        }
    }
}

/// The state of the thread.
struct Desk {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    unproven: Vec<Unproven>,
    /// No stream is accepted before this time.
    pause: Option<Duration>,
}

impl Desk {
    const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, listeners: Vec::new(), unproven: Vec::new(), pause: None }
    }

    fn run(mut self) {
        while !self.shared.stops.load(Ordering::Relaxed) {
            let added = std::mem::take(&mut self.shared.state().added);
            self.listeners.extend(added);
            let is_closed = |door: &Weak<dyn Door>| door.upgrade().is_none_or(|door| door.is_closed());
            self.listeners.retain(|listener| !listener.door.as_ref().is_some_and(is_closed));
            let now = monotonic();
            self.unproven.retain(|stream| stream.until > now);
            self.pause = self.pause.filter(|end| now < *end);
            if self.shared.is_held.load(Ordering::Relaxed) {
                self.pause = Some(now + PAUSE);
            }
            self.turn(now);
        }
    }

    /// Waits for something to happen, and handles it.
    fn turn(&mut self, now: Duration) {
        let accepts = |it: &Listener| match self.pause {
            None if it.closing.count() < UNPROVEN => PollFlags::IN,
            _ => PollFlags::empty(),
        };
        let speaks = |it: &Unproven| match it.connection.has_unsent() {
            true => PollFlags::OUT,
            false if it.is_untold => PollFlags::empty(),
            false => PollFlags::IN,
        };
        let mut wanted = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        wanted.extend(self.listeners.iter().map(|it| PollFd::new(&it.socket, accepts(it))));
        wanted.extend(self.unproven.iter().map(|it| PollFd::from_borrowed_fd(it.socket.as_fd(), speaks(it))));
        let until = self.unproven.iter().map(|stream| stream.until).chain(self.pause).min();
        let limit = until.map(|until| {
            let left = until.saturating_sub(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        if poll(&mut wanted, limit.as_ref()).is_err() {
            return;
        }
        let ready: Vec<_> = wanted.iter().map(|it| !it.revents().is_empty()).collect();
        drop(wanted);
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        // It may have waited long.
        let now = monotonic();
        let (listeners, streams) = ready[1..].split_at(self.listeners.len());
        let mut streams = streams.iter();
        let shared = &self.shared;
        self.unproven.retain_mut(|stream| {
            // Also one that hung up while the thread waits for its challenge.
            let is_ready = streams.next().is_some_and(|ready| *ready);
            match stream.is_untold {
                false => !is_ready || stream.hear(shared) == Next::Stays,
                true => !is_ready && (!stream.is_due() || stream.hear(shared) == Next::Stays),
            }
        });
        for at in (0..self.listeners.len()).filter(|at| listeners[*at]) {
            if self.pause.is_none() {
                self.accept(at, now);
            }
        }
    }

    fn accept(&mut self, at: usize, now: Duration) {
        let listener = &self.listeners[at];
        let socket = match accept_with(&listener.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::debug!(%error, "verbs: no stream can be accepted");
                self.pause = Some(now + PAUSE);
                return;
            }
        };
        let Ok(stream) = Unproven::new(socket, listener, now) else { return };
        let origin = stream.origin;
        let its = self.unproven.iter().filter(|other| other.origin == origin).count();
        let oldest = if its >= UNPROVEN {
            self.unproven.iter().position(|other| other.origin == origin)
        } else {
            (self.unproven.len() >= ALL_UNPROVEN).then_some(0)
        };
        oldest.into_iter().for_each(|oldest| drop(self.unproven.remove(oldest)));
        self.unproven.push(stream);
    }
}
