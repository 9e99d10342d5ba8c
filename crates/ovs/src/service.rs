//! The socket on which drivers connect, and the thread that serves them.

use crate::port::{self, OvsPort, Shared};
use crate::protocol::{AHEAD, BadMessage, Create, LONGEST, Request, TOGETHER, is_of_one_flow, requests};
use crate::state::{Reply, State, Tables, Times};
use crate::status::{FlowStatus, Status};
use mem::{Opened, Port, PortStatus};
use model::VifId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, accept_with, sendmsg};
use sockets::{Places, Untrusted};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Most drivers at a time.
const DRIVERS: usize = 16;
/// How often drivers are told counters and links.
const TICK: Duration = Duration::from_millis(250);
/// Requests of a turn; the last message may add more. The answers are sent once all are carried out, and
/// meanwhile the driver sends more requests.
const TURN: usize = AHEAD as usize / 2;
/// Bytes for the messages of a turn, which ends early if the longest message might have no room. A message
/// about a flow has some 250 bytes.
const ROOM: usize = 8 * LONGEST;
/// How long the thread sleeps so that requests gather, while a driver does not wait for answers: waking up
/// for each request would take longer than the request itself.
const GATHER: Duration = Duration::from_micros(100);
/// How long nobody is accepted after the kernel ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("counters of flows: {0}")]
    Memory(#[from] uverbs::MemoryError),
    #[error("{0}")]
    Kernel(#[from] Errno),
}

/// State that the thread shares with others.
struct Common {
    state: Mutex<State>,
    /// Written to make the thread check `gone` and `stop`.
    event: OwnedFd,
    /// Ports that are gone. They are only noted here, because whoever drops one may hold the lock of the
    /// state.
    gone: Mutex<Vec<Arc<Shared>>>,
    /// Whether the thread is to end.
    stop: AtomicBool,
}

impl Common {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// Open ports, each with the state that its queues and the service share.
type Ports = Vec<(Weak<dyn Port>, Arc<Shared>)>;

/// Serves drivers, until it is dropped.
pub struct Service {
    common: Arc<Common>,
    ports: Mutex<Ports>,
}

impl Service {
    /// Starts without serving drivers. Ports can be opened.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn new(tables: Arc<dyn Tables>, times: Times) -> Result<Self, ServiceError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(State::new(tables, times)?);
        let common = Common { state, event, gone: Mutex::default(), stop: AtomicBool::new(false) };
        Ok(Self { common: Arc::new(common), ports: Mutex::default() })
    }

    /// Serves drivers that connect to this socket from now on. Must be called only once.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn serve(&self, listener: OwnedFd) -> io::Result<()> {
        let common = self.common.clone();
        let waker = Arc::downgrade(&common);
        let places = Places::new(DRIVERS, move || waker.upgrade().iter().for_each(|common| common.wake()));
        let thread = Thread { common, listener, sockets: BTreeMap::new(), places, last: 0, pause: None };
        std::thread::Builder::new().name("ovs".into()).spawn(move || thread.run()).map(drop)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the OVS side of a guest or wire. Drivers can open it until the port is dropped.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn open(&self, spec: OvsPort) -> io::Result<Opened> {
        let (shared, opened) = port::open(spec)?;
        self.common.state().add_port(shared.clone(), Instant::now());
        let port: Arc<dyn Port> =
            Arc::new(Side { port: opened.port, shared: shared.clone(), common: self.common.clone() });
        let mut ports = self.ports();
        ports.retain(|(port, _)| port.strong_count() > 0);
        ports.push((Arc::downgrade(&port), shared));
        Ok(Opened { port, ..opened })
    }

    /// Notes that the executor now has the port of an interface, which may be an OVS side.
    pub fn attached(&self, vif: VifId, port: &Arc<dyn Port>) {
        let weak = Arc::downgrade(port);
        let shared = self.ports().iter().find(|(its, _)| its.ptr_eq(&weak)).map(|(_, shared)| shared.clone());
        self.common.state().attached(vif, port, shared.as_ref());
        self.common.wake();
    }

    #[must_use]
    pub fn status(&self) -> Status {
        self.common.state().status(Instant::now())
    }

    #[must_use]
    pub fn flows(&self) -> Vec<FlowStatus> {
        self.common.state().flows(Instant::now())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::Relaxed);
        self.common.wake();
    }
}

/// The port of an OVS side. Drivers lose it when it is dropped.
struct Side {
    port: Arc<dyn Port>,
    shared: Arc<Shared>,
    common: Arc<Common>,
}

impl Port for Side {
    fn status(&self) -> PortStatus {
        self.port.status()
    }

    fn is_up(&self) -> bool {
        self.port.is_up()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.common.gone().push(self.shared.clone());
        self.common.wake();
    }
}

struct Thread {
    common: Arc<Common>,
    listener: OwnedFd,
    /// Sockets of sessions, with the users of the drivers.
    sockets: BTreeMap<u64, (u32, Untrusted)>,
    places: Places,
    /// Number of the last session.
    last: u64,
    /// Nobody is accepted before this time.
    pause: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        let mut buffer = vec![0; ROOM];
        let mut due = Instant::now();
        while let Ok((comes, ready)) = self.wait(due) {
            if self.common.stop.load(Ordering::Relaxed) {
                return;
            }
            self.lose_ports();
            if comes {
                self.accept();
            }
            let mut gathers = false;
            for id in ready {
                gathers |= self.serve(id, &mut buffer);
            }
            let now = Instant::now();
            if now >= due {
                self.common.state().tick(now);
                due = now + TICK;
            } else if gathers {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Takes ports that are gone from their drivers.
    fn lose_ports(&mut self) {
        let gone = std::mem::take(&mut *self.common.gone());
        let ended = {
            let mut state = self.common.state();
            gone.iter().for_each(|port| state.remove_port(port, Instant::now()));
            state.take_ended()
        };
        for id in ended {
            tracing::info!(
                session = id,
                "a driver of Open vSwitch is to connect again: a port of it is gone"
            );
            self.end(id);
        }
    }

    /// Waits for something to do. Returns whether somebody connects, and which sessions have messages.
    fn wait(&mut self, due: Instant) -> rustix::io::Result<(bool, Vec<u64>)> {
        let now = Instant::now();
        self.pause = self.pause.filter(|end| *end > now);
        let idle = self.common.state().is_idle() && self.pause.is_none();
        let left = due.min(self.pause.unwrap_or(due)).saturating_duration_since(now);
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let accepts = self.pause.is_none() && self.places.may_come(self.sockets.len());
        let waiting = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut wanted =
            vec![PollFd::new(&self.common.event, PollFlags::IN), PollFd::new(&self.listener, waiting)];
        wanted.extend(self.sockets.values().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut wanted, (!idle).then_some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let mut is_ready = wanted.iter().map(|one| !one.revents().is_empty());
        let (woken, comes) = (is_ready.next() == Some(true), is_ready.next() == Some(true));
        let ready =
            self.sockets.keys().zip(is_ready).filter(|(_, ready)| *ready).map(|(id, _)| *id).collect();
        if woken {
            let _ = rustix::io::read(&self.common.event, &mut [0_u8; 8][..]);
        }
        Ok((comes && accepts, ready))
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::warn!(%error, "a driver of Open vSwitch is not accepted");
                self.pause = Some(Instant::now() + PAUSE);
                return;
            }
        };
        let Ok(peer) = uverbs::peer(&socket) else { return };
        let users = self.sockets.values().map(|(user, _)| *user);
        let (closing, refused) = self.places.of(peer.uid, users);
        let Ok(socket) = Untrusted::new(socket, &closing) else { return };
        if refused {
            tracing::warn!(
                pid = peer.pid,
                uid = peer.uid,
                "a driver of Open vSwitch is refused: its user has others"
            );
            return;
        }
        self.last += 1;
        tracing::info!(
            session = self.last,
            pid = peer.pid,
            uid = peer.uid,
            "a driver of Open vSwitch connects"
        );
        self.common.state().begin(self.last, peer, Instant::now());
        self.sockets.insert(self.last, (peer.uid, socket));
    }

    /// Carries out the messages of a session, at most those of a turn, so that other sessions get their
    /// turns. Returns whether to let requests gather: all that were there are done, and the driver waits for
    /// no answer.
    fn serve(&mut self, id: u64, buffer: &mut [u8]) -> bool {
        let Some((_, socket)) = self.sockets.get(&id) else { return false };
        let Received { requests, mut end, is_all } = receive(socket, buffer);
        let mut ahead = false;
        let requests = requests.iter().map_while(|message| match Request::decode(message) {
            Ok(request) => {
                ahead = matches!(&request, Request::FlowCreate(Create { ahead: true, .. }));
                Some(request)
            }
            Err(error) => {
                end = Some(End::Bad(error));
                None
            }
        });
        let (replies, together) = {
            let mut state = self.common.state();
            (state.handle_all(id, requests, Instant::now()), state.answers(id))
        };
        let gathers = ahead && is_all;
        let answered = answer_all(socket, &replies, together);
        match (end, answered) {
            (None, Ok(())) => return gathers,
            (Some(End::Gone), _) => {
                tracing::info!(session = id, "a driver of Open vSwitch is gone; its flows go on without it");
            }
            (Some(End::Bad(error)), _) => {
                tracing::warn!(session = id, "a driver of Open vSwitch is disconnected: {error}");
            }
            (None, Err(error)) => {
                tracing::warn!(session = id, %error, "a driver of Open vSwitch does not take answers");
            }
        }
        self.end(id);
        false
    }

    fn end(&mut self, id: u64) {
        self.common.state().end(id, Instant::now());
        self.sockets.remove(&id);
    }
}

enum End {
    Gone,
    Bad(BadMessage),
}

struct Received<'a> {
    /// Requests of a turn, with none after one that may concern all flows.
    requests: Vec<&'a [u8]>,
    /// The reason why the session ends after these, if it does.
    end: Option<End>,
    /// Whether there are no more requests yet.
    is_all: bool,
}

/// Receives the requests of a turn that are there. Descriptors end the session, because a driver has no
/// reason to send any.
fn receive<'a>(socket: &Untrusted, mut room: &'a mut [u8]) -> Received<'a> {
    let mut received =
        Received { requests: Vec::with_capacity(TURN + TOGETHER as usize), end: None, is_all: false };
    while received.requests.len() < TURN && room.len() > LONGEST {
        let len = match receive_one(socket, &mut room[..=LONGEST]) {
            Ok(Some(len)) => len,
            Ok(None) => {
                received.is_all = true;
                break;
            }
            Err(end) => {
                received.end = Some(end);
                break;
            }
        };
        let (message, rest) = room.split_at_mut(len);
        room = rest;
        received.requests.extend(requests(message));
        if received.requests.last().is_some_and(|request| !is_of_one_flow(request)) {
            break;
        }
    }
    received
}

/// Receives a message and returns its length; `None` if there is none yet.
fn receive_one(socket: &Untrusted, room: &mut [u8]) -> Result<Option<usize>, End> {
    match socket.receive(room) {
        Ok(len @ 1..) => Ok(Some(len)),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        Err(Errno::BADMSG) => Err(End::Bad(BadMessage::Files)),
        Ok(0) | Err(_) => Err(End::Gone),
    }
}

/// Sends answers, at most `together` in a message. An answer with files is sent alone.
fn answer_all(socket: &impl AsFd, replies: &[Reply], together: usize) -> rustix::io::Result<()> {
    let mut runs = replies.chunk_by(|one, next| one.files.is_empty() && next.files.is_empty());
    runs.try_for_each(|run| run.chunks(together).try_for_each(|some| answer(socket, some)))
}

/// Sends answers in one message, without waiting for the driver.
fn answer(socket: &impl AsFd, replies: &[Reply]) -> rustix::io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = replies.iter().flat_map(|reply| &reply.files).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let bytes: Vec<_> = replies.iter().map(|reply| reply.answer.encode()).collect();
    let bytes = bytes.as_flattened();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::protocol::Answer;
    use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, socketpair};

    #[test]
    fn answers_go_together_as_a_driver_takes_them() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, driver) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let file = || vec![eventfd(0, EventfdFlags::CLOEXEC).unwrap()];
        let reply = |flow| Reply {
            answer: Answer { flow, ..Answer::default() },
            files: if flow == 3 { file() } else { vec![] },
        };
        let replies: Vec<_> = (0..6).map(reply).collect();
        for (together, wanted) in [(1, vec![1; 6]), (2, vec![2, 1, 1, 2]), (64, vec![3, 1, 2])] {
            answer_all(&socket, &replies, together).unwrap();
            let (mut counts, mut flows) = (vec![], vec![]);
            let mut buffer = [0; 8 * Answer::LEN];
            while let Ok((_, len)) = recv(&driver, &mut buffer[..], RecvFlags::DONTWAIT) {
                counts.push(len / Answer::LEN);
                flows.extend(buffer[..len].chunks(Answer::LEN).map(|answer| answer[40]));
            }
            assert_eq!((counts, flows), (wanted, (0..6).collect()));
        }
    }
}
