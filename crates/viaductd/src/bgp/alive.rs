//! Whether BGP peers are there (RFC 5882): their BFD sessions, on a thread of its own, which no change of routes delays.

use bfd::{Change, Config, Held, LEN, MULTIHOP_PORT, PORT, Packet, Session, Status};
use config::{Bfd as Way, Bgp, BgpPeer};
use control::Missing;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packets that are read from a socket at once: the sessions have their turn after these.
const READ: usize = 64;

/// Lines in the log about a peer, and the time for so many: it may change its session with each packet.
const LINES: (Duration, u32) = (Duration::from_secs(10), 10);

/// Names that both daemons use for the receiving sockets: of each family, on a link and behind routers.
const NAMES: [(&str, bool, Way); 4] = [
    ("bfd-4", false, Way::Link),
    ("bfd-6", true, Way::Link),
    ("bfd-4-multihop", false, Way::Multihop),
    ("bfd-6-multihop", true, Way::Multihop),
];

const fn port(way: Way) -> u16 {
    if matches!(way, Way::Multihop) { MULTIHOP_PORT } else { PORT }
}

/// A session that is up, on its way to the daemon that takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSession {
    peer: IpAddr,
    own: u32,
    other: u32,
    multiplier: u8,
    sends: u32,
    takes: u32,
}

impl HeldSession {
    pub fn new(peer: IpAddr, held: Held) -> Self {
        let Held { own, other, multiplier, sends, takes } = held;
        Self { peer, own, other, multiplier, sends, takes }
    }

    pub const fn peer(&self) -> IpAddr {
        self.peer
    }

    pub const fn held(&self) -> Held {
        let Self { own, other, multiplier, sends, takes, .. } = *self;
        Held { own, other, multiplier, sends, takes }
    }
}

/// A socket that receives, with the way of its packets.
struct Receiver {
    name: &'static str,
    way: Way,
    socket: UdpSocket,
}

/// The sockets of all sessions.
#[derive(Default)]
pub struct Sockets {
    receivers: Vec<Receiver>,
    senders: BTreeMap<IpAddr, (Way, UdpSocket)>,
}

impl Sockets {
    /// Opens the sockets while the process may. A peer whose sockets can't be opened has no session.
    pub fn open(bgp: Option<&Bgp>, shared: &mut BTreeMap<String, OwnedFd>, missing: &Missing) -> Self {
        let mut sockets = Self::default();
        let Some(bgp) = bgp else { return sockets };
        for (name, v6, way) in NAMES {
            let is_its = |peer: &&BgpPeer| peer.bfd == way && peer.address.is_ipv6() == v6;
            let peers: Vec<_> = bgp.peers.iter().filter(is_its).collect();
            let shared = shared.remove(name);
            if peers.is_empty() {
                continue;
            }
            if let Err(e) = sockets.open_one((name, v6, way), shared, bgp, &peers) {
                let message =
                    format!("[bgp] bfd, port {}: {e}; peers have no BFD before the next start", port(way));
                tracing::error!("{message}");
                missing.add(message);
            }
        }
        sockets
    }

    fn open_one(
        &mut self,
        (name, v6, way): (&'static str, bool, Way),
        shared: Option<OwnedFd>,
        bgp: &Bgp,
        peers: &[&BgpPeer],
    ) -> io::Result<()> {
        let socket = shared.map_or_else(|| wire::bfd_receiver(v6, port(way)), |shared| Ok(shared.into()))?;
        let addresses: Vec<_> = peers.iter().map(|peer| peer.address).collect();
        wire::bfd_hear(&socket, &addresses, way == Way::Link)?;
        let source = bgp.listen.iter().find(|address| address.is_ipv6() == v6).copied();
        for address in addresses {
            let begin = RandomState::new().hash_one(address) as u16;
            self.senders.insert(address, (way, wire::bfd_sender(address, source, begin)?));
        }
        self.receivers.push(Receiver { name, way, socket });
        Ok(())
    }

    /// Returns whether no peer has a session.
    pub(super) const fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Returns copies of the receiving sockets for a new daemon.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn copies(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let copy = |receiver: &Receiver| Ok((receiver.name, receiver.socket.try_clone()?.into()));
        self.receivers.iter().map(copy).collect()
    }
}

/// The sessions, while they run.
pub(super) struct Bfd {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    sessions: Mutex<BTreeMap<IpAddr, Session>>,
    wake: OwnedFd,
    is_stopping: AtomicBool,
    began: Instant,
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bfd {
    /// Starts the thread. Sessions that the daemon before `held` go on. `fell` is told of each peer whose path broke.
    ///
    /// # Errors
    /// The process is out of descriptors, or of threads.
    pub(super) fn start(
        sockets: Sockets,
        held: &[HeldSession],
        fell: impl Fn(IpAddr) + Send + 'static,
    ) -> io::Result<Self> {
        let random = RandomState::new();
        let session = |(peer, (way, _)): (&IpAddr, &(Way, UdpSocket))| {
            let config = Config { multihop: *way == Way::Multihop, ..Config::default() };
            let (seed, now) = (random.hash_one(peer), Duration::ZERO);
            let held = held.iter().find(|held| held.peer == *peer).map(HeldSession::held);
            let resumed = held.and_then(|held| Session::resume(config, &held, seed, now));
            (*peer, resumed.unwrap_or_else(|| Session::new(config, seed, now)))
        };
        let shared = Arc::new(Shared {
            sessions: Mutex::new(sockets.senders.iter().map(session).collect()),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::default(),
            began: Instant::now(),
        });
        let thread = Thread { shared: shared.clone(), sockets, fell };
        let thread = std::thread::Builder::new().name("bfd".into()).spawn(move || thread.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Tells the peers that the sessions end, and ends the thread.
    pub(super) fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Returns the sessions that are up, for a daemon that takes over.
    pub(super) fn held(&self) -> Vec<HeldSession> {
        let sessions = self.shared.sessions();
        let held =
            sessions.iter().filter_map(|(peer, session)| Some(HeldSession::new(*peer, session.held()?)));
        held.collect()
    }

    /// Returns the session of a peer, if it has one.
    pub(super) fn status(&self, peer: IpAddr) -> Option<Status> {
        self.shared.sessions().get(&peer).map(Session::status)
    }
}

fn log(peer: IpAddr, change: Change) {
    match change {
        Change::Up => tracing::info!(%peer, "the BFD session is up"),
        Change::AdminDown => tracing::info!(%peer, "the peer's operator ended the BFD session"),
        Change::Down(why) => tracing::warn!(%peer, "the BFD session is down: {}", why.name()),
    }
}

struct Thread<F> {
    shared: Arc<Shared>,
    sockets: Sockets,
    fell: F,
}

impl<F: Fn(IpAddr)> Thread<F> {
    fn run(self) {
        let mut lines = BTreeMap::new();
        while !self.shared.is_stopping.load(Ordering::Relaxed) {
            self.wait();
            for (peer, change) in self.turn() {
                let (since, count) = lines.entry(peer).or_insert((Instant::now(), 0));
                if since.elapsed() >= LINES.0 {
                    (*since, *count) = (Instant::now(), 0);
                }
                *count += 1;
                if *count <= LINES.1 {
                    log(peer, change);
                }
                if matches!(change, Change::Down(_)) {
                    (self.fell)(peer);
                }
            }
        }
        let now = self.shared.began.elapsed();
        for session in self.shared.sessions().values_mut() {
            session.stop(now);
        }
        self.turn();
    }

    /// Waits until packets are there, or something is due.
    fn wait(&self) {
        let deadline = self.shared.sessions().values().filter_map(Session::deadline).min();
        let patience = deadline.map(|deadline| deadline.saturating_sub(self.shared.began.elapsed()));
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let receivers =
            self.sockets.receivers.iter().map(|receiver| PollFd::new(&receiver.socket, PollFlags::IN));
        let mut polled: Vec<_> =
            std::iter::once(PollFd::new(&self.shared.wake, PollFlags::IN)).chain(receivers).collect();
        let _ = poll(&mut polled, timeout.as_ref());
    }

    /// Hears what came, before anybody is given up, and says what is due. Returns what has changed.
    fn turn(&self) -> Vec<(IpAddr, Change)> {
        let mut sessions = self.shared.sessions();
        let mut changes = Vec::new();
        let now = self.shared.began.elapsed();
        for receiver in &self.sockets.receivers {
            let mut bytes = [0; 2 * LEN];
            for _ in 0..READ {
                let Ok((length, from)) = receiver.socket.recv_from(&mut bytes) else { break };
                let peer = from.ip();
                let is_its = self.sockets.senders.get(&peer).is_some_and(|(way, _)| *way == receiver.way);
                let Some(session) = sessions.get_mut(&peer).filter(|_| is_its) else { continue };
                if let Ok(packet) = Packet::parse(&bytes[..length]) {
                    changes.extend(session.received(&packet, now).map(|change| (peer, change)));
                }
            }
        }
        for (peer, session) in &mut *sessions {
            changes.extend(session.tick(now).map(|change| (*peer, change)));
            let Some((way, socket)) = self.sockets.senders.get(peer) else { continue };
            while let Some(packet) = session.output(now) {
                // Whether the kernel can send it now, does not matter: the next one follows.
                let _ = socket.send_to(&packet, (*peer, port(*way)));
            }
        }
        changes
    }
}
