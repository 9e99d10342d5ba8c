//! Hands the port's connection over to a different process, and goes on with that of a different process.

use super::{Control, lock};
use crate::backend::{Backend, Session};
use mem::{Frozen, signal};
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

/// How long the control thread may take to obey. The VMM can delay it while it closes or maps what the VMM
/// sent, and all guests' packets wait meanwhile. In tests nothing waits, and a busy machine may have no CPU
/// for the thread.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 1 });

pub(crate) enum Command {
    /// Stop, and describe the session if there is one.
    Freeze(Sender<io::Result<Option<Frozen>>>),
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

/// A port that was told to freeze.
pub(crate) struct Freezing {
    answered: Receiver<io::Result<Option<Frozen>>>,
    until: Instant,
}

impl Control {
    /// Begins to freeze the port, as [`mem::Port::begin_freeze`] says.
    pub(crate) fn begin_freeze(&self) {
        let (answer, answered) = channel();
        *lock(&self.freezing) = Some(Freezing { answered, until: Instant::now() + PATIENCE });
        self.command(Command::Freeze(answer));
    }

    /// Freezes the port, as [`mem::Port::freeze`] says. A VMM whose descriptor does not close holds up nobody
    /// else: its connection ends with this process, and it has to connect again.
    pub(crate) fn freeze(&self) -> io::Result<Option<Frozen>> {
        let begun = lock(&self.freezing).take();
        let Some(Freezing { answered, until }) = begun else {
            self.begin_freeze();
            return self.freeze();
        };
        answered.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| {
            self.log.warn(format_args!("the VMM has to connect again: its thread is stuck in a request"));
            Ok(None)
        })
    }

    /// Thaws the port, as [`mem::Port::thaw`] says.
    pub(crate) fn thaw(&self) {
        if let Err(e) = self.ask(Command::Thaw) {
            self.log.warn(format_args!("the port does not go on yet: {e}"));
        }
    }

    /// Adopts a frozen port, as [`mem::Port::adopt`] says.
    pub(crate) fn adopt(&self, frozen: Frozen) -> io::Result<()> {
        let session = serde_json::from_str(&frozen.state)?;
        self.ask(|answer| Command::Adopt(Adoption { session, descriptors: frozen.descriptors, answer }))
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<io::Result<T>>) -> Command) -> io::Result<T> {
        let (answer, answered) = channel();
        self.command(command(answer));
        let stuck = || io::Error::other("the thread that serves the VMM is stuck in a request");
        answered.recv_timeout(PATIENCE).map_err(|_| stuck())?
    }

    fn command(&self, command: Command) {
        *lock(&self.command) = Some(command);
        signal(self.wake.as_fd());
    }

    /// Takes the command that the thread was given since the last call.
    fn told(&self) -> Option<Command> {
        // The order matters: a command given after the first line wakes the thread again.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        if self.is_closing() {
            signal(self.wake.as_fd());
        }
        lock(&self.command).take()
    }

    /// Obeys a command while the thread has no VMM. Returns the session with which the thread is to go on.
    pub(super) fn obey(&self) -> Option<(UnixStream, Adoption)> {
        match self.told() {
            Some(Command::Freeze(answer)) => {
                let _ = answer.send(Ok(None));
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
                Some(Command::Freeze(answer)) => drop(answer.send(Ok(None))),
                None => drop(self.wait(None, None)),
            }
        }
        None
    }

    /// Obeys a command while the thread serves a VMM.
    pub(super) fn obey_serving(&self, stream: &UnixStream, backend: &Mutex<Backend>) {
        let answer = match self.told() {
            Some(Command::Freeze(answer)) => answer,
            Some(Command::Thaw(answer)) => return drop(answer.send(Ok(()))),
            Some(Command::Adopt(_)) | None => return,
        };
        // The VMM of a guest that is disabled has to connect again.
        if !self.shared.healthy() {
            let _ = answer.send(Ok(None));
            return drop(self.park());
        }
        let (frozen, ran) = match lock(backend).freeze() {
            Ok((session, descriptors, ran)) => (frozen(stream, &session, descriptors).map(Some), ran),
            Err(e) => (Err(e), Vec::new()),
        };
        let _ = answer.send(frozen);
        let _ = self.park_until(|| lock(backend).thaw(&ran));
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
