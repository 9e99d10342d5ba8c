//! A guest's device: its socket, and the applications behind it.

use crate::client::Newcomer;
use crate::cm::{CmDescription, ConnectionManager};
use crate::describe::ClientDescription;
use crate::fabric::{Adapter, DeviceSpec, Fabric};
use crate::inbox::{Arrivals, Inbox, Question};
use crate::wire;
use rdmaport::{Downlink, Uplink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, shutdown};
use sockets::{ListeningFile, Place, Sockets};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Applications at a time; the guest's processes.
const CLIENTS: usize = 256;
/// Applications that may wait to be let in.
const BACKLOG: i32 = 64;
/// How long an application may take to tell of itself: it may be stuck in its own memory.
const PATIENCE: Duration = Duration::from_millis(200);

/// Why a device can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The socket can't be made.
    #[error(transparent)]
    Socket(#[from] sockets::Error),
    /// What the kernel says.
    #[error("{0}")]
    Kernel(#[from] rustix::io::Errno),
    /// A thread can't be started.
    #[error("the device's thread can't be started: {0}")]
    Thread(std::io::Error),
}

/// An application that was let in.
#[derive(Debug)]
struct Admitted {
    inbox: Arc<Inbox>,
    /// Its connection, to end it.
    socket: OwnedFd,
}

#[derive(Debug, Default)]
struct Clients {
    all: Vec<Admitted>,
    stopped: bool,
}

/// The connection manager, and what wakes who works for it.
#[derive(Debug)]
pub(crate) struct Management {
    pub cm: ConnectionManager,
    pub inbox: Arc<Inbox>,
}

#[derive(Debug)]
struct Shared {
    adapter: Arc<Adapter>,
    fabric: Arc<Fabric>,
    clients: Mutex<Clients>,
    uplink: Uplink,
    manager: Arc<Management>,
    stop: OwnedFd,
}

/// A guest's device. Dropping it ends what its applications do.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
    /// Its socket's. Goes with it.
    file: Box<dyn ListeningFile>,
}

impl Device {
    /// Opens the device, with a socket at a place that somebody makes. Its packets travel by the two ends of its port.
    ///
    /// # Errors
    /// Where the socket can't be made.
    pub fn open(
        spec: DeviceSpec,
        (place, sockets): (&Place, &dyn Sockets),
        fabric: &Arc<Fabric>,
        (uplink, downlink): (Uplink, Downlink),
    ) -> Result<Self, DeviceError> {
        let (listener, file) = sockets.listen(place, SocketType::SEQPACKET, BACKLOG)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let adapter = Arc::new(Adapter::new(spec));
        fabric.place(&adapter);
        let inbox = Arc::new(Inbox::new()?);
        adapter.set_manager(&inbox);
        let cm = ConnectionManager::new(adapter.clone(), fabric.clone(), uplink.clone());
        let manager = Arc::new(Management { cm, inbox });
        let clients = Mutex::default();
        let shared = Arc::new(Shared { adapter, fabric: fabric.clone(), clients, uplink, manager, stop });
        let served = shared.clone();
        std::thread::Builder::new()
            .name("verbs".into())
            .spawn(move || served.run(&listener, downlink))
            .map_err(DeviceError::Thread)?;
        Ok(Self { shared, file })
    }

    /// Makes it be what it is to be now. Applications are told where their addresses changed.
    pub fn update(&self, spec: DeviceSpec) {
        let shared = &self.shared;
        let changed = *shared.adapter.spec() != spec;
        shared.adapter.set_spec(spec);
        shared.fabric.place(&shared.adapter);
        if changed {
            shared.manager.cm.set_gids(self.gids());
            shared.clients().all.iter().for_each(|client| client.inbox.ask(Question::NewAddresses));
            self.review();
        }
    }

    /// What its applications have of the connection manager.
    #[must_use]
    pub fn describe_connections(&self) -> Vec<CmDescription> {
        self.shared.manager.cm.describe()
    }

    /// Says the number of its port: until then everything goes that way.
    pub fn set_port(&self, port: u16) {
        self.shared.adapter.set_port(port);
    }

    /// Has the ways of its packets looked at again: rules may be others now.
    pub fn review(&self) {
        self.shared.clients().all.iter().for_each(|client| client.inbox.ask(Question::Review));
    }

    /// Its GIDs.
    #[must_use]
    pub fn gids(&self) -> Vec<Ipv6Addr> {
        self.shared.adapter.spec().gids()
    }

    /// What its applications have. Those that do not answer are left out.
    #[must_use]
    pub fn describe(&self) -> Vec<ClientDescription> {
        let (answer, answers) = mpsc::channel();
        let clients: Vec<_> = self.shared.clients().all.iter().map(|client| client.inbox.clone()).collect();
        clients.iter().for_each(|client| client.ask(Question::Describe(answer.clone())));
        drop(answer);
        let mut described = Vec::new();
        while described.len() < clients.len()
            && let Ok(one) = answers.recv_timeout(PATIENCE)
        {
            described.push(one);
        }
        described.sort_by_key(|client| client.pid);
        described
    }
}

impl Device {
    /// What happened since it was opened: with what these applications, all that it has, counted.
    #[must_use]
    pub fn counters(&self, clients: &[ClientDescription]) -> Vec<(&'static str, u64)> {
        let mut counters = self.shared.adapter.counters();
        clients.iter().for_each(|client| counters += &client.counters);
        counters.iter().collect()
    }

    /// Gives its socket to another user and group.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), DeviceError> {
        Ok(self.file.give_to(owner, mode)?)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.fabric.remove(&self.shared.adapter);
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        let mut clients = self.shared.clients();
        clients.stopped = true;
        for client in &clients.all {
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
    }
}

/// How long may be slept.
fn timeout(deadline: Option<Duration>, waits: bool) -> Option<Timespec> {
    if waits {
        return Some(Timespec::default());
    }
    let left = deadline?.saturating_sub(crate::client::monotonic());
    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets applications in, gives packets that come to their threads, and works for the connection manager.
    fn run(self: &Arc<Self>, listener: &OwnedFd, mut downlink: Downlink) {
        let Management { cm, inbox } = &*self.manager;
        let (mut spare, mut taken) = (Vec::new(), Arrivals::default());
        loop {
            let mut delivery = wire::Delivery::new(&self.adapter, &mut spare);
            while downlink.receive(|frame| delivery.deliver(frame)) {}
            drop(delivery);
            inbox.take(&mut taken);
            while let Some(packet) = taken.packets.pop_front() {
                cm.receive(&packet);
                taken.give_back(packet);
            }
            let deadline = cm.work();
            let waits = downlink.arm() | inbox.set_asleep(true);
            let limit = timeout(deadline, waits);
            let event = downlink.event_fd();
            let mut wanted = [listener.as_fd(), self.stop.as_fd(), event, inbox.event().as_fd()]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            let polled = poll(&mut wanted, limit.as_ref());
            let [comes, stops, _, _] = wanted.map(|descriptor| !descriptor.revents().is_empty());
            downlink.disarm();
            inbox.set_asleep(false);
            inbox.drain();
            if stops || polled.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return;
            }
            if comes {
                self.accept(listener);
            }
        }
    }

    fn accept(self: &Arc<Self>, listener: &OwnedFd) {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) else { return };
        if let Err(error) = self.admit(socket) {
            tracing::warn!("verbs: an application can't be served: {error}");
        }
    }

    /// Starts the thread of an application.
    fn admit(self: &Arc<Self>, socket: OwnedFd) -> std::io::Result<()> {
        let peer = socket_peercred(&socket)?;
        let inbox = Arc::new(Inbox::new()?);
        {
            let mut clients = self.clients();
            if clients.stopped || clients.all.len() >= CLIENTS {
                return Err(std::io::Error::other(format!("there are {CLIENTS} already")));
            }
            clients.all.push(Admitted { inbox: inbox.clone(), socket: socket.try_clone()? });
        }
        let newcomer = Newcomer {
            connection: uverbs::Connection::new(socket),
            adapter: self.adapter.clone(),
            fabric: self.fabric.clone(),
            inbox: inbox.clone(),
            uplink: self.uplink.clone(),
            manager: self.manager.clone(),
            pid: peer.pid.as_raw_nonzero().get(),
            uid: peer.uid.as_raw(),
        };
        let shared = self.clone();
        let serve = move || {
            newcomer.serve();
            shared.forget(&inbox);
        };
        std::thread::Builder::new().name("verbs-client".into()).spawn(serve)?;
        Ok(())
    }

    fn forget(&self, inbox: &Arc<Inbox>) {
        self.clients().all.retain(|other| !Arc::ptr_eq(&other.inbox, inbox));
    }
}
