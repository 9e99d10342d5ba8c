//! Hands the port's connection over to a different process, and goes on with that of a different process.

use super::{Control, lock};
use crate::backend::{Backend, Session};
use mem::Frozen;
use rustix::io::{DupFlags, dup3};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, VhostUserBackendReqHandlerMut};

/// How long the control thread may take to rest. It has a low weight, and the VMM can delay it while it closes or maps
/// what the VMM sent; packets go on meanwhile.
const RESTS: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 5 });
/// How long stopping may take, and the control thread to obey otherwise. The VMM can delay it, and all guests' packets
/// wait meanwhile. In tests nothing waits, and a busy machine may have no CPU for the thread.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 1 });

pub(crate) enum Command {
    /// Rest, and hand out the session if there is one.
    Rest(Sender<Option<Resting>>),
    /// Go on, or begin.
    Thaw(Sender<io::Result<()>>),
    /// Begin with this session.
    Adopt(Adoption),
}

/// A session to go on with.
pub(crate) struct Adoption {
    session: Session,
    /// The session's descriptors, except the connection.
    descriptors: Vec<OwnedFd>,
    /// Is told whether the session goes on.
    answer: Sender<io::Result<()>>,
}

/// A session that its thread has left alone.
pub(crate) struct Resting {
    stream: UnixStream,
    backend: Arc<Mutex<Backend>>,
    /// The rings that ran before they were stopped.
    ran: Arc<Mutex<Vec<usize>>>,
}

impl Resting {
    /// Stops the rings, and describes the session.
    fn freeze(self) -> io::Result<Option<Frozen>> {
        let mut backend = lock(&self.backend);
        let (session, descriptors, ran) = backend.freeze()?;
        *lock(&self.ran) = ran;
        frozen(&self.stream, &session, descriptors).map(Some)
    }
}

/// A port that was told to freeze.
pub(crate) enum Freezing {
    /// The thread was told to rest, until this time at most.
    Told(Receiver<Option<Resting>>, Instant),
    /// The thread rests, or can't.
    Rests(Option<Resting>),
    /// It is being stopped.
    Stops(Receiver<io::Result<Option<Frozen>>>, Instant),
}

impl Control {
    /// Has the thread rest, as [`mem::Port::rest`] says.
    pub(crate) fn rest(&self) {
        let (answer, answered) = channel();
        *lock(&self.freezing) = Some(Freezing::Told(answered, Instant::now() + RESTS));
        self.command(Command::Rest(answer));
    }

    /// Waits until the thread rests. A VMM whose descriptor does not close holds up nobody else: its connection ends
    /// with this process, and it has to connect again.
    pub(crate) fn await_rest(&self) {
        let begun = lock(&self.freezing).take();
        let rests = match begun {
            Some(Freezing::Told(answered, until)) => {
                let resting = answered.recv_timeout(until.saturating_duration_since(Instant::now()));
                Freezing::Rests(resting.unwrap_or_else(|_| {
                    self.log
                        .warn(format_args!("the VMM has to connect again: its thread is stuck in a request"));
                    None
                }))
            }
            Some(further) => further,
            None => return,
        };
        *lock(&self.freezing) = Some(rests);
    }

    /// Begins to stop the port, as [`mem::Port::begin_freeze`] says. A thread of full weight does it, for which nobody
    /// waits long: the VMM may keep pages of its rings from it.
    pub(crate) fn begin_freeze(&self) {
        if lock(&self.freezing).is_none() {
            self.rest();
        }
        self.await_rest();
        let rests = lock(&self.freezing).take();
        let Some(Freezing::Rests(resting)) = rests else { return *lock(&self.freezing) = rests };
        let (answer, answered) = channel();
        *lock(&self.freezing) = Some(Freezing::Stops(answered, Instant::now() + PATIENCE));
        let Some(resting) = resting else { return drop(answer.send(Ok(None))) };
        let (told, name) = (answer.clone(), format!("stop-{}", self.config.name));
        let stop = move || drop(told.send(resting.freeze()));
        if let Err(e) = std::thread::Builder::new().name(name).spawn(stop) {
            let _ = answer.send(Err(e));
        }
    }

    /// Freezes the port, as [`mem::Port::freeze`] says.
    pub(crate) fn freeze(&self) -> io::Result<Option<Frozen>> {
        let begun = lock(&self.freezing).take();
        let Some(Freezing::Stops(answered, until)) = begun else {
            *lock(&self.freezing) = begun;
            self.begin_freeze();
            return self.freeze();
        };
        answered.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| {
            self.log.warn(format_args!("the VMM has to connect again: its memory takes too long"));
            Ok(None)
        })
    }

    /// Thaws the port, as [`mem::Port::thaw`] says.
    pub(crate) fn thaw(&self) {
        lock(&self.freezing).take();
        if self.ask(Command::Thaw).is_none() {
            self.log.warn(format_args!("the port does not go on yet: its thread is stuck in a request"));
        }
    }

    /// Adopts a frozen port, as [`mem::Port::adopt`] says.
    pub(crate) fn adopt(&self, frozen: Frozen) -> io::Result<()> {
        let session = serde_json::from_str(&frozen.state)?;
        let adopt = |answer| Command::Adopt(Adoption { session, descriptors: frozen.descriptors, answer });
        self.ask(adopt).unwrap_or_else(|| {
            // A VMM may keep its thread busy, and the host's daemon should be replaced all the same.
            self.log.warn(format_args!("the VMM is served later: the port takes too long to go on"));
            Ok(())
        })
    }

    /// Gives a command; returns the answer, if it comes soon.
    fn ask<T>(&self, command: impl FnOnce(Sender<io::Result<T>>) -> Command) -> Option<io::Result<T>> {
        let (answer, answered) = channel();
        self.command(command(answer));
        answered.recv_timeout(PATIENCE).ok()
    }

    fn command(&self, command: Command) {
        *lock(&self.command) = Some(command);
        mem::wake(self.wake.as_fd());
    }

    /// Takes the command that the thread was given since the last call.
    fn told(&self) -> Option<Command> {
        // The order matters: a command given after the first line wakes the thread again.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        if self.is_closing() {
            mem::wake(self.wake.as_fd());
        }
        lock(&self.command).take()
    }

    /// Obeys a command while the thread has no VMM. Returns the session with which the thread is to go on.
    pub(super) fn obey(&self) -> Option<(UnixStream, Adoption)> {
        match self.told() {
            Some(Command::Rest(answer)) => {
                let _ = answer.send(None);
                self.park()
            }
            Some(Command::Thaw(answer)) => {
                let _ = answer.send(Ok(()));
                None
            }
            Some(Command::Adopt(_)) | None => None,
        }
    }

    /// Waits for the command to go on; returns the session to go on with, if there is one.
    pub(super) fn park(&self) -> Option<(UnixStream, Adoption)> {
        self.park_until(|| {})
    }

    /// Does the same; calls `thaw` if the thread is to go on as before.
    fn park_until(&self, thaw: impl FnOnce()) -> Option<(UnixStream, Adoption)> {
        while !self.is_closing() {
            match self.told() {
                Some(Command::Thaw(answer)) => {
                    thaw();
                    let _ = answer.send(Ok(()));
                    return None;
                }
                Some(Command::Adopt(mut adoption)) if !adoption.descriptors.is_empty() => {
                    let stream = UnixStream::from(adoption.descriptors.remove(0));
                    return Some((stream, adoption));
                }
                Some(Command::Adopt(adoption)) => {
                    let _ = adoption.answer.send(Err(io::Error::other("a session without its connection")));
                }
                Some(Command::Rest(answer)) => drop(answer.send(None)),
                None => drop(self.wait(None, None)),
            }
        }
        None
    }

    /// Obeys a command while the thread serves a VMM.
    pub(super) fn obey_serving(&self, stream: &UnixStream, backend: &Arc<Mutex<Backend>>) {
        let answer = match self.told() {
            Some(Command::Rest(answer)) => answer,
            Some(Command::Thaw(answer)) => return drop(answer.send(Ok(()))),
            Some(Command::Adopt(_)) | None => return,
        };
        // The VMM of a guest that is disabled has to connect again.
        let stream = stream.try_clone().ok().filter(|_| self.shared.healthy());
        let ran: Arc<Mutex<Vec<usize>>> = Arc::default();
        let resting = |stream| Resting { stream, backend: backend.clone(), ran: ran.clone() };
        let _ = answer.send(stream.map(resting));
        let _ = self.park_until(|| {
            let mut backend = lock(backend);
            backend.thaw(&std::mem::take(&mut *lock(&ran)));
        });
    }

    /// Creates a handler of the VMM's requests that goes on with a session. The VMM's own doings may make
    /// this fail, too, and then the one that asked for the adoption does not hear of it.
    pub(super) fn handler(
        &self,
        stream: &UnixStream,
        backend: &Arc<Mutex<Backend>>,
        adoption: Adoption,
    ) -> io::Result<BackendReqHandler<Mutex<Backend>>> {
        let Adoption { session, descriptors, answer } = adoption;
        let checked = lock(backend).check(&session, &descriptors);
        let (told, handler) = match checked.and_then(|()| primed(stream, backend, &session)) {
            Ok(handler) => {
                let adopted = lock(backend).adopt(&session, descriptors);
                (Ok(()), adopted.map(|()| handler).map_err(io::Error::other))
            }
            Err(e) => (Err(io::Error::other(e.to_string())), Err(e)),
        };
        let _ = answer.send(told);
        handler
    }
}

fn frozen(stream: &UnixStream, session: &Session, descriptors: Vec<OwnedFd>) -> io::Result<Frozen> {
    let stream = stream.as_fd().try_clone_to_owned()?;
    let descriptors = std::iter::once(stream).chain(descriptors).collect();
    Ok(Frozen { state: serde_json::to_string(session)?, descriptors })
}

/// Creates a handler for which the VMM of `stream` has already negotiated what the session says. A handler
/// learns that only from requests: so these come through a different connection, which the VMM's connection
/// then replaces.
fn primed(
    stream: &UnixStream,
    backend: &Arc<Mutex<Backend>>,
    session: &Session,
) -> io::Result<BackendReqHandler<Mutex<Backend>>> {
    let offered = lock(backend).get_protocol_features().map_err(io::Error::other)?.bits();
    if session.protocol & !offered != 0 {
        let text =
            format!("its VMM uses features {:#x} of the protocol, which are not offered", session.protocol);
        return Err(io::Error::other(text));
    }
    let (mut vmm, ours) = UnixStream::pair()?;
    let mut handler = BackendReqHandler::from_stream(ours, backend.clone());
    let requests = [
        (FrontendReq::GET_FEATURES, None),
        (FrontendReq::SET_PROTOCOL_FEATURES, Some(session.protocol)),
        (FrontendReq::SET_FEATURES, Some(session.features)),
    ];
    for (request, value) in requests {
        let body = value.map(u64::to_le_bytes);
        let body = body.as_ref().map_or(&[][..], |body| &body[..]);
        vmm.write_all([request as u32, 1, body.len() as u32].map(u32::to_le_bytes).as_flattened())?;
        vmm.write_all(body)?;
        handler.handle_request().map_err(io::Error::other)?;
    }
    // SAFETY: the descriptor of `ours`, which the handler owns and keeps: it only refers to another file from now on.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) });
    dup3(stream, &mut place, DupFlags::CLOEXEC)?;
    Ok(handler)
}
