//! The host's BGP speaker: a thread with its sockets, which says what the control plane wants said, and gives it the
//! routes that peers sent.

mod alive;
mod held;
mod learned;
mod links;
mod moves;
mod remotes;
mod said;
mod shown;

use crate::privileges::Privileges;
use crate::remotes::Remotes;
use alive::Bfd;
pub use alive::{HeldSession, Sockets};
use bgp::{Announcement, Event, LEAVING, Nlri, Speaker};
use control::{Core, Speech};
pub use held::Held;
pub use learned::Learned;
use links::Links;
use model::Change;
use moves::Moves;
use remotes::Known;
use rib::SourceId;
use rustix::event::{EventfdFlags, eventfd};
pub use shown::session;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most changes that are taken from the speaker at once: others may change the tables between two such batches.
const BATCH: usize = 2048;
/// How long to wait before changes that are not taken are tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// The speaker, which is silent until [`Bgp::start`].
pub struct Bgp {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The BFD sessions of peers, once they have started.
    bfd: OnceLock<Bfd>,
}

struct Shared {
    /// The next speech, if it has changed.
    wanted: Mutex<Option<Option<Arc<Speech>>>>,
    /// The last speech, which the speaker was told.
    speech: Mutex<Option<Arc<Speech>>>,
    /// The speaker, while there is something to say.
    speaker: Mutex<Option<Speaker>>,
    /// MAC addresses of guests that are held back.
    held_back: Mutex<BTreeSet<moves::Place>>,
    /// Whether peers are to avoid the host.
    drains: AtomicBool,
    /// Peers that may not be called, and why.
    refused: Mutex<BTreeMap<IpAddr, String>>,
    /// Peers to which the path broke.
    cut_off: Mutex<BTreeSet<IpAddr>>,
    /// Remotes of tunnels that are down by BFD.
    down: Mutex<BTreeSet<IpAddr>>,
    /// Those that the kernel can't reach.
    unreachable: Mutex<BTreeSet<IpAddr>>,
    /// Wakes the thread.
    wake: OwnedFd,
    /// Whether the thread is to end.
    is_stopping: AtomicBool,
    began: Instant,
    /// The source of learned routes, once the thread has started.
    source: OnceLock<SourceId>,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Option<Option<Arc<Speech>>>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn speech(&self) -> MutexGuard<'_, Option<Arc<Speech>>> {
        self.speech.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<IpAddr, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn speaker(&self) -> MutexGuard<'_, Option<Speaker>> {
        self.speaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut_off(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.cut_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn down(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_back(&self) -> MutexGuard<'_, BTreeSet<moves::Place>> {
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It is full only if the thread is to wake up anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Bgp {
    /// Returns a silent speaker.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (wanted, speech, speaker, held_back, refused, cut_off, down, unreachable) = Default::default();
        let (drains, is_stopping, source) = (AtomicBool::default(), AtomicBool::default(), OnceLock::new());
        let began = Instant::now();
        let shared = Shared {
            wanted,
            speech,
            speaker,
            held_back,
            drains,
            refused,
            cut_off,
            down,
            unreachable,
            wake,
            is_stopping,
            began,
            source,
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::default(), bfd: OnceLock::new() })
    }

    /// Has the speaker say this from now on.
    pub fn keep(&self, speech: Option<Speech>) {
        *self.shared.wanted() = Some(speech.map(Arc::new));
        self.shared.wake();
    }

    /// Has peers avoid the host wherever there is another path, or no more.
    pub fn drain(&self, drains: bool) {
        self.shared.drains.store(drains, Ordering::Relaxed);
        self.shared.wake();
    }

    /// Follows changes of the tables that say which remotes of tunnels are down.
    pub fn follow_remotes(&self, changes: &[Change]) {
        let mut down = self.shared.down();
        for change in changes {
            match change {
                Change::SetDown { remote, is_down: true } => drop(down.insert(*remote)),
                Change::SetDown { remote, is_down: false } => drop(down.remove(remote)),
                _ => {}
            }
        }
        drop(down);
        self.shared.wake();
    }

    /// Follows which remotes of tunnels the kernel can't reach.
    pub fn follow_unreachable(&self, remotes: BTreeSet<IpAddr>) {
        *self.shared.unreachable() = remotes;
        self.shared.wake();
    }

    /// Ends the threads, so that nothing of the control plane is in use there. Peers keep the host's routes for a while.
    pub fn stop(&self) {
        self.bfd.get().into_iter().for_each(Bfd::stop);
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Returns the routes that are held, for a daemon that takes over.
    pub fn held(&self, core: &Core) -> Vec<Held> {
        self.shared.source.get().map(|source| held::held(core, *source)).unwrap_or_default()
    }

    /// Returns the BFD sessions that are up, for a daemon that takes over.
    pub fn held_sessions(&self) -> Vec<HeldSession> {
        self.bfd.get().map(Bfd::held).unwrap_or_default()
    }

    /// Looks at the speaker, if there is one.
    fn with<T>(&self, look: impl FnOnce(&Speaker, Duration) -> T) -> Option<T> {
        self.shared.speaker().as_ref().map(|speaker| look(speaker, self.shared.now()))
    }

    /// Starts the threads. `remotes` are told which ones learned routes name.
    ///
    /// # Errors
    /// The control plane or the system takes no more.
    pub fn start(
        &self,
        core: &Arc<Core>,
        privileges: Privileges,
        listeners: Vec<TcpListener>,
        (sockets, sessions): (Sockets, &[HeldSession]),
        (learned, remotes): (Learned, Arc<Remotes>),
    ) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        let fell = move |peer| {
            shared.cut_off().insert(peer);
            shared.wake();
        };
        if !sockets.is_empty() {
            let _ = self.bfd.set(Bfd::start(sockets, sessions, fell)?);
        }
        let shared = self.shared.clone();
        let _ = shared.source.set(learned.source());
        let thread = Thread {
            shared,
            learned,
            links: Links::new(listeners, privileges),
            said: BTreeMap::new(),
            moves: Moves::default(),
            remotes: Known::new(remotes),
            is_released: false,
            speech: None,
            drains: false,
            is_synchronized: false,
        };
        let core = Arc::downgrade(core);
        let started = std::thread::Builder::new().name("bgp".into()).spawn(move || thread.run(&core))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        Ok(())
    }
}

struct Thread {
    shared: Arc<Shared>,
    learned: Learned,
    links: Links,
    /// The last speech, and the announcements that follow from it.
    speech: Option<Arc<Speech>>,
    said: BTreeMap<Nlri, Announcement>,
    moves: Moves,
    remotes: Known,
    /// If true, there are addresses to announce that were held back.
    is_released: bool,
    /// Whether they say that the host is about to leave.
    drains: bool,
    /// Whether all peers have sent their routes, and what they did not send is still to go.
    is_synchronized: bool,
}

impl Thread {
    fn run(mut self, core: &Weak<Core>) {
        while !self.shared.is_stopping.load(Ordering::Relaxed) {
            let is_busy = {
                let Some(core) = core.upgrade() else { return };
                self.follow(&core);
                self.turn(&core)
            };
            let deadline = self.shared.speaker().as_ref().and_then(Speaker::deadline);
            let others = [self.moves.deadline(), self.remotes.deadline()];
            let deadline = deadline.into_iter().chain(others.into_iter().flatten()).min();
            let patience = deadline.map(|deadline| deadline.saturating_sub(self.shared.now()));
            let patience = match is_busy {
                true => Some(Duration::ZERO),
                false if self.learned.waits() => Some(AGAIN),
                false => patience,
            };
            self.links.wait(&self.shared, patience);
        }
    }

    /// Does what is due, and returns whether there is more to do.
    fn turn(&mut self, core: &Core) -> bool {
        let now = self.shared.now();
        let (mut events, mut changes) = (Vec::new(), Vec::new());
        let cut_off = std::mem::take(&mut *self.shared.cut_off());
        let mut down = self.shared.down().clone();
        down.extend(self.shared.unreachable().iter());
        if let Some(speaker) = &mut *self.shared.speaker() {
            cut_off.into_iter().for_each(|peer| speaker.path_down(peer, now));
            self.remotes.tell(speaker, &down, now);
            speaker.tick(now);
            events.extend(std::iter::from_fn(|| speaker.next_event()));
            for (vrf, mac) in self.moves.release(speaker, now) {
                speaker.tell_again(vrf, mac);
                self.is_released = true;
            }
            if !self.learned.waits() {
                changes = speaker.take_changes(BATCH);
            }
        }
        self.remotes.name(self.shared.speaker().as_ref(), now);
        let is_busy = !events.is_empty() || !changes.is_empty() || self.is_released;
        changes.retain(|change| !self.moves.stops(change));
        for event in events {
            self.event(event);
        }
        let is_all = changes.is_empty() && !self.learned.waits();
        self.learned.take(core, changes);
        // The tables have all that peers sent again.
        if is_all && self.is_synchronized {
            self.is_synchronized = !self.learned.complete(core);
        }
        self.links.write(&self.shared);
        is_busy
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connect { conn, to } => self.links.connect(&self.shared, conn, to),
            Event::Close { conn, last } => self.links.close(conn, &last),
            Event::PeerUp { peer } => tracing::info!(%peer, "the BGP session is up"),
            Event::PeerDown { peer, why } => tracing::warn!(%peer, "the BGP session is down: {why}"),
            Event::Synchronized => self.is_synchronized = true,
        }
    }

    /// Tells the speaker what is to be said, if that has changed.
    fn follow(&mut self, core: &Core) {
        let drains = self.shared.drains.load(Ordering::Relaxed);
        let wanted = self.shared.wanted().take().unwrap_or_else(|| self.speech.clone());
        let is_released = std::mem::take(&mut self.is_released);
        if (&wanted, drains) == (&self.speech, self.drains) && !is_released {
            return;
        }
        self.drains = drains;
        self.shared.speech().clone_from(&wanted);
        let now = self.shared.now();
        let mut speaker = self.shared.speaker();
        let identity = |speech: &Speech| (speech.bgp.asn, speech.router_id, speech.tunnel_sources.clone());
        if wanted.as_deref().map(identity) != self.speech.as_deref().map(identity) {
            // Who speaks under another name is another speaker.
            *speaker = wanted.as_ref().map(|speech| {
                let seed = RandomState::new().hash_one(std::process::id());
                Speaker::new(said::config(speech, self.learned.is_inherited()), seed, now)
            });
            self.links.clear();
            self.said.clear();
            self.moves = Moves::default();
            self.remotes.begin_again();
            if self.speech.is_some() {
                self.learned.begin_again(core);
                self.is_synchronized = wanted.is_none();
            }
            self.speech = None;
        }
        if let (Some(speech), Some(speaker)) = (&wanted, &mut *speaker) {
            let peers = |speech: &Speech| (speech.bgp.peers.clone(), speech.bgp.ranges.clone());
            if self.speech.as_deref().map(peers) != Some(peers(speech)) {
                self.links.set_peers(&self.shared, &speech.bgp);
                speaker.set_all_peers(said::peers(&speech.bgp), said::ranges(&speech.bgp), now);
            }
            let imports = said::imports(speech);
            if self.speech.as_ref().is_none_or(|before| said::imports(before) != imports) {
                speaker.set_imports(&imports, now);
            }
            let mut announcements = said::announcements(speech);
            said::number_moves(speech, &mut announcements, &self.said, (speaker, &mut self.moves, now));
            *self.shared.held_back() = self.moves.held().copied().collect();
            for announcement in announcements.values_mut().filter(|_| drains) {
                announcement.preference = LEAVING;
            }
            for nlri in self.said.keys().filter(|nlri| !announcements.contains_key(nlri)) {
                speaker.withdraw(nlri);
            }
            for (nlri, announcement) in &announcements {
                if self.said.get(nlri) != Some(announcement) {
                    speaker.announce(*nlri, announcement.clone());
                }
            }
            self.said = announcements;
        }
        self.speech = wanted;
    }
}
