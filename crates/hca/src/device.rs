//! Owns a guest's device: its socket, its thread and the list of its applications. May import all other folders.

mod agents;

use crate::base::budget::{Exhausted, Kind};
use crate::base::clock::monotonic;
use crate::base::refusal::{no_memory, refuse};
use crate::base::refusal_log::RefusalLog;
use crate::base::spec::DeviceSpec;
use crate::client::NewClient;
use crate::cm::{CmDescription, CmService, ConnectionManager};
use crate::inbox::message::Message;
use crate::inbox::{Arrivals, Inbox};
use crate::lines::{Freight, Lines};
use crate::net::adapter::Adapter;
use crate::net::fabric::Fabric;
use crate::net::wire;
use crate::program::description::ClientDescription;
use crate::program::grants::HolderDescription;
use crate::program::who::Who;
use crate::streams::events::Notifiers;
use crate::streams::reception::{Door, HALTED, VIRTIO};
use crate::streams::tickets::Origin;
use crate::window::Window;
use crate::window::host_process::HostProcess;
use crate::window::source::DeviceWindows;
use agents::Agents;
use ringport::{Downlink, Uplink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, shutdown};
use sockets::{Closing, Listener, ListeningFile, Place, Sockets, Untrusted};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};
use uverbs::{Claim, Connection, Refusal, Stream, Uuid, machine};

/// How many applications may wait to be accepted.
const BACKLOG: i32 = 64;
/// As long as this many applications that left are not closed entirely, no more are accepted.
const CLOSING: usize = 64;
/// How long all applications together may take to describe themselves: a thread may be stuck in its application's
/// memory.
const PATIENCE: Duration = Duration::from_millis(200);
/// The time for which the device accepts no applications after the kernel ran out of descriptors or memory. While
/// another process accepts them, the time between two checks whether it still does.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the programs of a virtual machine may take to end when that is halted. Nothing makes their threads wait.
const HALT_PATIENCE: Duration = Duration::from_secs(5);
/// The time between two checks of the device's windows.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Why a device can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The socket can't be created.
    #[error("{0}")]
    Socket(#[from] sockets::Error),
    /// No event descriptors are left.
    #[error("{0}")]
    Kernel(#[from] Errno),
    /// A thread can't be started.
    #[error("can't start the device's thread: {0}")]
    Thread(std::io::Error),
}

/// An application that was accepted.
#[derive(Clone, Debug)]
struct Admitted {
    inbox: Arc<Inbox<Message>>,
    /// The socket of its connection, which the device shuts down when it closes.
    socket: Arc<Untrusted>,
    who: Who,
}

/// Removes an application from the device when its thread ends or could not be started.
struct Admission {
    shared: Arc<Shared>,
    inbox: Arc<Inbox<Message>>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        // Many may end together, and somebody may wait to see who is there. So their sockets are closed without the lock.
        let ended = self.shared.clients().remove(&self.inbox);
        drop(ended);
        self.shared.left.notify_all();
    }
}

/// Why an application is not accepted.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error("{0}")]
    Exhausted(#[from] Exhausted),
    #[error("{0}")]
    Kernel(#[from] Errno),
    #[error("the device is closing")]
    Closing,
    #[error("{HALTED}")]
    Halted,
    #[error("can't start its thread: {0}")]
    Thread(std::io::Error),
}

#[derive(Debug, Default)]
struct Clients {
    all: Vec<Admitted>,
    stopped: bool,
}

impl Clients {
    /// Takes out an application, for the caller to drop.
    #[must_use]
    fn remove(&mut self, inbox: &Arc<Inbox<Message>>) -> Option<Admitted> {
        let at = self.all.iter().position(|other| Arc::ptr_eq(&other.inbox, inbox))?;
        Some(self.all.swap_remove(at))
    }
}

#[derive(Debug)]
struct Shared {
    adapter: Arc<Adapter>,
    fabric: Arc<Fabric>,
    clients: Mutex<Clients>,
    agents: Agents,
    /// Signalled when an application has ended.
    left: Condvar,
    /// Locked while a program ends those of an earlier boot, and while pages of ended programs are freed.
    boots: Mutex<()>,
    uplink: Uplink,
    manager: Arc<CmService>,
    /// Connections of applications that left, while they are being closed.
    closing: Arc<Closing>,
    /// True if the device has windows.
    has_windows: AtomicBool,
    /// The process at the other end of the last stream from the machine: what carries its vsock in user space.
    carrier: Mutex<HostProcess>,
    stop: OwnedFd,
    /// The inbox of the thread of its lines, once it has one.
    lines: OnceLock<Arc<Inbox<Message>>>,
}

/// A guest's device. Dropping it disconnects its applications.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
    /// The file of its socket, which is removed with the device.
    file: Arc<dyn ListeningFile>,
    /// The socket, for another process.
    listener: Arc<Listener>,
}

impl Device {
    /// Opens the device with a socket at this place, and the two ends of its port.
    ///
    /// # Errors
    /// If the socket can't be created.
    pub fn open(
        spec: DeviceSpec,
        place: &Place,
        sockets: &dyn Sockets,
        fabric: &Arc<Fabric>,
        uplink: Uplink,
        downlink: Downlink,
    ) -> Result<Self, DeviceError> {
        let (listener, file) = sockets.listen(place, SocketType::SEQPACKET, BACKLOG)?;
        let (stop, listener) = (eventfd(0, EventfdFlags::CLOEXEC)?, Arc::new(Listener::from(listener)));
        let adapter = fabric.adapter(spec);
        place.owner.iter().for_each(|(user, _)| adapter.set_user(*user));
        let inbox = Arc::new(Inbox::new(adapter.budget.clone())?);
        inbox.open();
        fabric.place(&adapter);
        adapter.set_manager(&inbox);
        let cm = ConnectionManager::new(adapter.clone(), fabric.clone(), uplink.clone());
        let manager = Arc::new(CmService { cm, inbox, refusals: RefusalLog::default() });
        let clients = Mutex::default();
        let shared = Arc::new(Shared {
            adapter,
            fabric: fabric.clone(),
            clients,
            agents: Agents::default(),
            left: Condvar::new(),
            boots: Mutex::default(),
            uplink,
            manager,
            closing: Arc::default(),
            has_windows: AtomicBool::new(false),
            carrier: Mutex::default(),
            stop,
            lines: OnceLock::new(),
        });
        let (served, accepting) = (shared.clone(), listener.clone());
        std::thread::Builder::new()
            .name("verbs".into())
            .spawn(move || served.run(&accepting, downlink))
            .map_err(DeviceError::Thread)?;
        Ok(Self { shared, file, listener })
    }

    /// Duplicates the socket on which applications connect.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn listener(&self) -> std::io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Sets the windows of the device: the window of its guest, if that is a virtual machine, and the window of its
    /// trust. Programs in the virtual machine that used other windows are disconnected; nobody gets their pages
    /// before they are given back.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn set_windows(
        &self,
        own: Option<Arc<Window>>,
        common: Option<Arc<Window>>,
    ) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let uuid = |window: &Option<Arc<Window>>| window.as_ref().map(|window| window.uuid());
        let new = DeviceWindows { own, common };
        let old = shared.adapter.set_windows(new.clone());
        shared.has_windows.store(new.own.is_some() || new.common.is_some(), Ordering::Relaxed);
        shared.manager.inbox.wake();
        let door: Weak<dyn Door> = Arc::downgrade(&(shared.clone() as Arc<dyn Door>));
        shared.fabric.reception.set_door(uuid(&old.own), uuid(&new.own), &door)?;
        if old != new {
            shared.agents.end(|_| true);
            for client in shared.clients().all.iter().filter(|client| client.who.is_remote()) {
                let _ = shutdown(&client.socket, Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Notes the process that is the VMM of the guest's machine; 0: it is not known. When that process ends, the
    /// machine's programs have ended, for a daemon after this one too.
    pub fn set_vmm(&self, pid: i32) {
        let adapter = &self.shared.adapter;
        adapter.set_vmm(pid);
        let (windows, guest) = (adapter.windows(), adapter.spec().guest.clone());
        let process = HostProcess::now(pid);
        windows.own.iter().chain(&windows.common).for_each(|window| window.set_vmm(&guest, process));
    }

    /// Is true if the process that carried the machine's vsock has ended and no program has connected since.
    #[must_use]
    pub fn has_lost_carrier(&self) -> bool {
        let carrier = *self.shared.carrier();
        carrier.pid != 0 && carrier.has_ended()
    }

    /// Lets the guest's machine migrate, with the contents of its window. The device is halted until
    /// [`Self::resume`].
    pub fn let_migrate(&self) {
        self.shared.adapter.set_migrates();
        self.shared.adapter.set_halted(true);
    }

    /// Halts the device, because the guest's machine stands still, or its memory is about to be copied: its
    /// programs lose the device, and no others get it, until [`Self::resume`]. They keep their pages of the window.
    /// Afterwards the device writes nothing there any more. Returns how many contexts ended.
    ///
    /// # Errors
    /// The number of contexts that take too long to end.
    pub fn halt(&self) -> Result<usize, usize> {
        let shared = &self.shared;
        shared.adapter.set_halted(true);
        drop(shared.boots.lock());
        shared.agents.end(|_| true);
        let is_remote = |client: &Admitted| client.who.is_remote();
        let clients = shared.clients();
        let count = |clients: &Clients| clients.all.iter().filter(|client| is_remote(client)).count();
        for client in clients.all.iter().filter(|client| is_remote(client)) {
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
        let ended = count(&clients);
        let waited = shared.left.wait_timeout_while(clients, HALT_PATIENCE, |clients| count(clients) > 0);
        match count(&waited.unwrap_or_else(PoisonError::into_inner).0) {
            0 => Ok(ended),
            left => Err(left),
        }
    }

    /// Is true from [`Self::halt`] or [`Self::let_migrate`] until [`Self::resume`].
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.shared.adapter.is_halted()
    }

    /// Resumes the device: the machine runs, and nobody copies its memory.
    pub fn resume(&self) {
        self.shared.adapter.set_halted(false);
    }

    /// Accepts streams of programs in the device's virtual machine from a listening socket.
    ///
    /// # Errors
    /// If the thread that does it can't be started.
    pub fn listen_streams(&self, listener: OwnedFd) -> Result<(), DeviceError> {
        let door: Weak<dyn Door> = Arc::downgrade(&(self.shared.clone() as Arc<dyn Door>));
        self.shared.fabric.reception.listen(listener, Some(door)).map_err(DeviceError::Thread)
    }

    /// Changes the device to this specification. Applications are told if their addresses changed.
    pub fn update(&self, spec: DeviceSpec) {
        let shared = &self.shared;
        let changed = *shared.adapter.spec() != spec;
        shared.adapter.set_spec(spec);
        shared.fabric.place(&shared.adapter);
        if changed {
            shared.manager.cm.set_gids(self.gids());
            shared.send_all(|| Message::NewAddresses);
            self.review();
        }
    }

    /// Describes the connection manager's identifiers of its applications.
    #[must_use]
    pub fn describe_connections(&self) -> Vec<CmDescription> {
        self.shared.manager.cm.describe()
    }

    /// Sets the number of its port. Until then all packets go through the vRouter.
    pub fn set_port(&self, port: u16) {
        self.shared.adapter.set_port(port);
    }

    /// Finds all paths again, since rules may have changed.
    pub fn review(&self) {
        self.shared.send_all(|| Message::Review);
    }

    /// Returns the GIDs of the device.
    #[must_use]
    pub fn gids(&self) -> Vec<Ipv6Addr> {
        self.shared.adapter.spec().gids()
    }

    /// Asks its applications to describe themselves.
    #[must_use]
    pub fn ask(&self) -> Answers {
        let (answer, answers) = mpsc::channel();
        let ticket = Arc::new(());
        let clients = self.shared.clients().all.clone();
        let message = || Message::Describe(Arc::downgrade(&ticket), answer.clone());
        let asked = clients.into_iter().filter(|client| client.inbox.send(message())).collect();
        Answers { asked, answers, _ticket: ticket }
    }

    /// Describes the applications of the device.
    #[must_use]
    pub fn describe(&self) -> Vec<ClientDescription> {
        self.ask().wait(Answers::deadline())
    }

    /// Processes that were given memory of its applications, and may still have it.
    #[must_use]
    pub fn holders(&self) -> Vec<HolderDescription> {
        self.shared.fabric.describe_holders(&self.shared.adapter)
    }
}

/// The answers of a device's applications, some of which may be pending.
#[derive(Debug)]
pub struct Answers {
    asked: Vec<Admitted>,
    answers: mpsc::Receiver<ClientDescription>,
    /// The applications answer as long as this exists.
    _ticket: Arc<()>,
}

impl Answers {
    /// Returns until when to wait for answers to requests made now.
    #[must_use]
    pub fn deadline() -> Instant {
        Instant::now() + PATIENCE
    }

    /// Waits for the answers until the deadline. An application that does not answer is described as stuck, usually in
    /// its own memory; nothing else is known about it.
    #[must_use]
    pub fn wait(self, deadline: Instant) -> Vec<ClientDescription> {
        let mut described = Vec::new();
        while described.len() < self.asked.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(one) = self.answers.recv_timeout(left) else { break };
            described.push(one);
        }
        let stuck = self.asked.iter().filter(|asked| !asked.inbox.is_done());
        let stuck = stuck.filter(|asked| !described.iter().any(|one| one.id == asked.inbox.id()));
        let stuck: Vec<_> =
            stuck.map(|asked| ClientDescription::stuck(&asked.who, asked.inbox.id())).collect();
        described.extend(stuck);
        described.sort_by_key(|client| client.pid);
        described
    }
}

impl Device {
    /// Has lines carry what `freight` returns, unless the device has lines already.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn carry(&self, freight: impl FnOnce() -> Option<Box<dyn Freight>>) -> Result<(), DeviceError> {
        let shared = &self.shared;
        if shared.lines.get().is_some() {
            return Ok(());
        }
        let Some(freight) = freight() else { return Ok(()) };
        let inbox = Arc::new(Inbox::new(shared.adapter.budget.clone())?);
        inbox.open();
        if shared.lines.set(inbox.clone()).is_err() {
            return Ok(());
        }
        shared.adapter.set_service(&inbox);
        let (adapter, fabric, uplink) =
            (shared.adapter.clone(), shared.fabric.clone(), shared.uplink.clone());
        let lines = Lines { adapter, fabric, inbox, uplink, freight };
        let started = std::thread::Builder::new().name("sockets-lines".into()).spawn(move || lines.run());
        started.map(drop).map_err(DeviceError::Thread)
    }

    /// Returns the counters since the device was opened. `clients` must be the descriptions of all applications
    /// that it has.
    #[must_use]
    pub fn counters(&self, clients: &[ClientDescription]) -> Vec<(&'static str, u64)> {
        let mut counters = self.shared.adapter.counters();
        clients.iter().for_each(|client| counters += &client.counters);
        counters.iter().collect()
    }

    /// Gives the device's socket to another user and group.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), DeviceError> {
        Ok(self.file.give_to(owner, mode)?)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.fabric.remove(&self.shared.adapter);
        self.shared.adapter.close();
        self.shared.fabric.reception.look();
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        self.shared.lines.get().into_iter().for_each(|inbox| inbox.wake());
        let mut clients = self.shared.clients();
        clients.stopped = true;
        self.shared.agents.end(|_| true);
        for client in &clients.all {
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
    }
}

/// Returns how long the thread may sleep.
fn timeout(deadline: Option<Duration>, waits: bool) -> Option<Timespec> {
    if waits {
        return Some(Timespec::default());
    }
    let left = deadline?.saturating_sub(monotonic());
    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
}

impl Door for Shared {
    fn window(&self) -> Option<Arc<Window>> {
        self.adapter.windows().own
    }

    fn is_closed(&self) -> bool {
        self.adapter.is_closing()
    }

    fn look_at(&self, claim: &Claim) -> Result<(), Refusal> {
        if self.adapter.migrates() && claim.is_virtio {
            return refuse(Errno::OPNOTSUPP, VIRTIO);
        }
        if self.adapter.is_halted() { refuse(Errno::AGAIN, HALTED) } else { Ok(()) }
    }

    fn admit(self: Arc<Self>, socket: Arc<Untrusted>, claim: Claim, origin: Origin) -> Result<(), Refusal> {
        let connection = Connection::Stream(Stream::serving(socket.clone()));
        // The kernel's vsock has no process at the other end.
        if machine(&*socket).is_none()
            && let Ok(carrier) = socket_peercred(&*socket)
        {
            *self.carrier() = HostProcess::now(carrier.pid.as_raw_nonzero().get());
        }
        Self::admit(&self, &socket, connection, Some(origin), Who::remote(claim)).map_err(|error| {
            self.manager.refusals.tell(&error);
            no_memory(error)
        })
    }

    fn admit_agent(self: Arc<Self>, socket: Arc<Untrusted>, claim: Claim) -> Result<(), Refusal> {
        self.let_in(socket, claim)
    }
}

impl Shared {
    /// Disconnects the programs of an earlier boot of the guest's machine: they are gone, though nothing may have
    /// told their connections. It may take long: programs do it on their threads, one after the other, before they
    /// get pages.
    fn see_boot(&self, boot: Uuid) {
        let _one = self.boots.lock().unwrap_or_else(PoisonError::into_inner);
        let windows = self.adapter.windows();
        let is_new = boot != Uuid::default() && windows.own.as_ref().is_some_and(|own| own.is_new_boot(boot));
        if !is_new {
            return;
        }
        self.agents.end(|of| of != boot);
        let is_old = |client: &&Admitted| client.who.boot().is_some_and(|of| of != boot);
        for client in self.clients().all.iter().filter(is_old) {
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
        let guest = self.adapter.spec().guest.clone();
        windows.own.iter().chain(&windows.common).for_each(|window| window.free_earlier_boots(&guest, boot));
    }

    fn carrier(&self) -> MutexGuard<'_, HostProcess> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts files of its windows that are too long, and frees orphaned pages of ended programs, once that is `due`.
    /// Returns when it is due again. The device's thread does it, because it may take long where there is much:
    /// that delays only devices that have the window.
    fn tend_windows(&self, due: &mut Duration) -> Option<Duration> {
        if !self.has_windows.load(Ordering::Relaxed) {
            return None;
        }
        let now = monotonic();
        if now >= *due {
            let windows = self.adapter.windows();
            windows.own.iter().chain(&windows.common).for_each(|window| window.cut_excess());
            // Streams of an earlier boot's agents end some time after the machine started anew.
            if let (Some(common), Some(boot)) = (&windows.common, self.agents.boot()) {
                common.end_boots(&self.adapter.spec().guest, boot);
            }
            if let Ok(_one) = self.boots.try_lock() {
                // A VMM may be copying what is in the window, or bringing it.
                let own = windows.own.iter().filter(|_| !self.adapter.is_halted());
                own.chain(&windows.common).for_each(|window| window.sweep());
            }
            *due = now + BETWEEN_LOOKS;
        }
        Some(*due)
    }

    /// Runs the device's thread: accepts applications, delivers packets to their threads, and works for the
    /// connection manager.
    fn run(self: &Arc<Self>, listener: &Listener, mut downlink: Downlink) {
        let CmService { cm, inbox, refusals } = &*self.manager;
        let (mut delivery, mut arrivals) = (wire::Delivery::new(&self.adapter), Arrivals::default());
        // The thread accepts no application before this time.
        let mut pause: Option<Duration> = None;
        let mut tends = Duration::ZERO;
        loop {
            delivery.turn(&mut downlink);
            delivery.undelivered.drain(..).for_each(|message| cm.undelivered(&message));
            inbox.take(&mut arrivals);
            while let Some(packet) = arrivals.packets.pop_front() {
                cm.receive(&packet);
                arrivals.give_back(packet);
            }
            inbox.settle(&mut arrivals);
            pause = pause.filter(|end| monotonic() < *end);
            if self.fabric.reception.is_held() {
                pause = Some(monotonic() + PAUSE);
            }
            let deadline = cm.work().into_iter().chain(pause).chain(self.tend_windows(&mut tends)).min();
            let waits = downlink.arm() | inbox.set_asleep();
            let limit = timeout(deadline, waits);
            let event = downlink.event_fd();
            let mut wanted = [listener.as_fd(), self.stop.as_fd(), event, inbox.event().as_fd()]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            if pause.is_some() {
                wanted[0] = PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::empty());
            }
            let polled = poll(&mut wanted, limit.as_ref());
            let [comes, stops, _, _] = wanted.map(|descriptor| !descriptor.revents().is_empty());
            downlink.disarm();
            inbox.set_awake();
            inbox.drain();
            if stops || polled.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return;
            }
            if comes && pause.is_none() && self.accept(listener, refusals) {
                pause = Some(monotonic() + PAUSE);
            }
        }
    }

    /// Accepts an application. Returns whether to pause before the next one, because the kernel is out of
    /// descriptors or memory, or too many applications that left are not closed yet.
    fn accept(self: &Arc<Self>, listener: &Listener, refusals: &RefusalLog) -> bool {
        if self.closing.count() >= CLOSING {
            return true;
        }
        let accepted = accept_with(listener, SocketFlags::CLOEXEC);
        let socket = match accepted.and_then(|socket| Untrusted::new(socket, &self.closing)) {
            Ok(socket) => Arc::new(socket),
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => return false,
            Err(error) => {
                refusals.tell(&error);
                return true;
            }
        };
        let peer = uverbs::peer(&socket).map_err(NotAdmitted::from);
        let admitted = peer.and_then(|uverbs::Peer { pid, uid }| {
            let connection = Connection::serving(socket.clone());
            self.admit(&socket, connection, None, Who::Local { pid, uid })
        });
        if let Err(error) = admitted {
            refusals.tell(&error);
        }
        false
    }

    /// Starts the thread of an accepted application, which may come by a stream from there.
    fn admit(
        self: &Arc<Self>,
        socket: &Arc<Untrusted>,
        connection: Connection,
        origin: Option<Origin>,
        who: Who,
    ) -> Result<(), NotAdmitted> {
        let tickets = origin.map(|origin| Ok::<_, Errno>((self.fabric.reception.tickets()?, origin)));
        let notifiers = Notifiers::new(tickets.transpose()?);
        let limit = self.adapter.spec().limits.connections;
        let held = self.adapter.budget.take(Kind::Client, 0, limit)?;
        let inbox = Arc::new(Inbox::new(self.adapter.budget.clone())?);
        let admission = Admission { shared: self.clone(), inbox: inbox.clone() };
        {
            let mut clients = self.clients();
            if clients.stopped {
                return Err(NotAdmitted::Closing);
            }
            // Whoever halts the device disconnects all that are there afterwards.
            if who.is_remote() && self.adapter.is_halted() {
                return Err(NotAdmitted::Halted);
            }
            clients.all.push(Admitted { inbox: inbox.clone(), socket: socket.clone(), who: who.clone() });
        }
        let new_client = NewClient {
            connection,
            socket: socket.clone(),
            notifiers,
            adapter: self.adapter.clone(),
            fabric: self.fabric.clone(),
            inbox,
            uplink: self.uplink.clone(),
            manager: self.manager.clone(),
            who,
            reservation: held,
        };
        let serve = move || {
            if let Some(boot) = new_client.who.boot() {
                admission.shared.see_boot(boot);
            }
            new_client.serve();
            drop(admission);
        };
        std::thread::Builder::new().name("verbs-client".into()).spawn(serve).map_err(NotAdmitted::Thread)?;
        Ok(())
    }

    fn send_all(&self, message: impl Fn() -> Message) {
        let clients = self.clients().all.clone();
        clients.iter().for_each(|client| _ = client.inbox.send(message()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "device_tests.rs"]
mod tests;
