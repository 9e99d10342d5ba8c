//! Opens a guest's port, and reports its state.

use crate::announcement::Announcement;
use crate::control::{Control, Watch, lock};
use crate::features::Features;
use crate::journals::Journals;
use crate::log::Log;
use crate::queue::{Queue, Shared};
use crate::ring::Fault;
use crate::rx::GuestRx;
use crate::socket::Listener;
use crate::tx::GuestTx;
use mem::{Account, FaultWord, Frozen, HostQuota, Opened, Port, PortStatus, Quota, RxQueue, TxQueue};
use rustix::event::{EventfdFlags, eventfd};
use sockets::{ListeningFile, Sockets};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::warn;

/// Most queue pairs of a port: vhost-user identifies rings by a byte (SET_VRING_KICK).
pub const MAX_QUEUES: u16 = 128;

/// How long to wait for the end of a port's control thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// The side that listens on a port's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We listen.
    Server,
    /// The VMM listens; we connect, and reconnect.
    Client,
}

/// A guest's port to open.
#[derive(Clone, Debug)]
pub struct GuestPort {
    /// Name of the guest, for logs and the thread.
    pub name: String,
    pub socket: PathBuf,
    pub role: Role,
    /// Queue pairs offered, 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Largest MTU of the guest's network, in bytes.
    pub mtu: u16,
    /// Owner (user, group) of the socket file in server role; `None`: ours.
    pub owner: Option<(u32, u32)>,
    /// Mode of the socket file in server role.
    pub mode: u32,
    /// Whether to offer checksum and segmentation offload.
    pub offload: bool,
    /// Whether the guest may migrate. If not, its VMM refuses to migrate it, because there is no log of
    /// written pages.
    pub migrates: bool,
    /// Limits of the memory of guests.
    pub memory: Arc<HostQuota>,
    /// Whether the port waits for [`Port::thaw`] before it serves VMMs.
    pub waits: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No queues, or more than [`MAX_QUEUES`].
    #[error("{0} queues: must be 1 to {MAX_QUEUES}")]
    Queues(u16),
    /// The socket can't be created.
    #[error(transparent)]
    Socket(#[from] sockets::Error),
    /// Descriptors or a thread can't be created.
    #[error(transparent)]
    Os(#[from] io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Os(e.into())
    }
}

/// Opens a guest's port. No VMM need be there: the port is down until one comes, and whenever it leaves.
///
/// # Errors
/// [`Error`].
pub fn open(port: &GuestPort) -> Result<Opened, Error> {
    open_by(port, sockets::here(), None, None)
}

/// Does the same as [`open`], with `sockets` to create the socket or connect to it. Packed rings go on after
/// this process's death if the next process has the same `journals`. `watch` is told of VMMs.
///
/// # Errors
/// [`Error`].
pub fn open_by(
    port: &GuestPort,
    sockets: Arc<dyn Sockets>,
    journals: Option<Arc<Journals>>,
    watch: Option<Watch>,
) -> Result<Opened, Error> {
    if !(1..=MAX_QUEUES).contains(&port.queues) {
        return Err(Error::Queues(port.queues));
    }
    let (listener, file) = match port.role {
        Role::Server => Some(Listener::new(port, &*sockets)?),
        Role::Client => None,
    }
    .unzip();
    let listener = listener.map(Arc::new);
    let from_guest = |index| index % 2 == 1;
    let queues =
        (0..2 * port.queues).map(|index| Queue::new(from_guest(index))).collect::<io::Result<_>>()?;
    let shared = Arc::new(Shared {
        queues,
        fault: Arc::new(FaultWord::new()),
        account: Arc::default(),
        pages: Account::of_pages(),
        refused: AtomicU64::new(0),
        quota: Arc::new(Quota::new(port.memory.clone())),
        features: AtomicU64::new(0),
        mtu: AtomicU16::new(0),
        pairs: AtomicU16::new(0),
        announcement: Announcement::default(),
        files: Mutex::default(),
    });
    let control = Arc::new(Control {
        config: port.clone(),
        sockets,
        journals,
        log: Arc::new(Log::new(port.name.clone())),
        watch,
        shared: shared.clone(),
        wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        closing: AtomicBool::new(false),
        is_down: AtomicBool::new(false),
        stream: Mutex::new(None),
        command: Mutex::new(None),
        freezing: Mutex::new(None),
        refused: Mutex::new(None),
    });
    mem::start_aside()?;
    // Ring 2i is the driver's receive ring, 2i + 1 its transmit ring (VIRTIO 1.2, 5.1.2).
    let pairs = 0..usize::from(port.queues);
    let rx =
        pairs.clone().map(|i| Ok(Box::new(GuestRx::new(shared.clone(), 2 * i + 1)?) as Box<dyn RxQueue>));
    let rx = rx.collect::<io::Result<_>>()?;
    let tx = pairs.map(|i| Ok(Arc::new(GuestTx::new(shared.clone(), 2 * i)?) as Arc<dyn TxQueue>));
    let tx = tx.collect::<io::Result<_>>()?;
    let (run, accepting) = (control.clone(), listener.clone());
    let (running, ended) = mpsc::channel();
    std::thread::Builder::new().name(format!("vhost-{}", port.name)).spawn(move || {
        run.run(accepting.as_deref());
        drop(running);
    })?;
    Ok(Opened { rx, tx, port: Arc::new(Device { control, ended: Mutex::new(ended), listener, _file: file }) })
}

/// The port as its owner sees it.
struct Device {
    control: Arc<Control>,
    /// Carries no values; it is disconnected when the control thread ends.
    ended: Mutex<Receiver<Infallible>>,
    /// The listening socket in server role, for a different process.
    listener: Option<Arc<Listener>>,
    /// The socket's file, kept here so that it is removed whatever the thread does.
    _file: Option<Arc<dyn ListeningFile>>,
}

impl Port for Device {
    fn is_up(&self) -> bool {
        let shared = &self.control.shared;
        shared.pairs.load(Ordering::Relaxed) > 0 && shared.healthy()
    }

    fn status(&self) -> PortStatus {
        let shared = &self.control.shared;
        let queues = shared.pairs.load(Ordering::Relaxed);
        let fault = shared.fault.get().map(fault_words).or_else(|| lock(&self.control.refused).clone());
        PortStatus {
            up: self.is_up(),
            features: Features(shared.features.load(Ordering::Relaxed)).words(),
            queues,
            fault,
            malformed: shared.queues.iter().map(Queue::malformed).sum(),
            mtu: Some(shared.mtu.load(Ordering::Relaxed)).filter(|mtu| *mtu != 0),
            aside: shared.account.is_aside(),
            pages_aside: shared.pages.is_aside(),
            refused: shared.refused.load(Ordering::Relaxed),
            ..PortStatus::default()
        }
    }

    fn set_link(&self, up: bool) -> io::Result<()> {
        self.control.set_link(up);
        Ok(())
    }

    fn memory_files(&self) -> Vec<(u64, u64)> {
        lock(&self.control.shared.files).clone()
    }

    fn share(&self) -> io::Result<Vec<OwnedFd>> {
        self.listener.iter().map(|listener| listener.as_fd().try_clone_to_owned()).collect()
    }

    fn rest(&self) {
        self.control.rest();
    }

    fn await_rest(&self) {
        self.control.await_rest();
    }

    fn begin_freeze(&self) {
        self.control.begin_freeze();
    }

    fn freeze(&self) -> io::Result<Option<Frozen>> {
        self.control.freeze()
    }

    fn thaw(&self) {
        self.control.thaw();
    }

    fn adopt(&self, frozen: Frozen) -> io::Result<()> {
        self.control.adopt(frozen)
    }
}

fn fault_words(code: u32) -> String {
    match Fault::from_code(code) {
        Some(fault) => fault.to_string(),
        None => "guest memory went away (the VMM truncated it, or the host ran out of huge pages)".to_owned(),
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.control.close();
        // Closing a descriptor from the VMM may take as long as the VMM likes (SO_LINGER, FUSE). So the thread may be
        // stuck in a request. It ends when it gets out; until then it affects only its own guest.
        if lock(&self.ended).recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let guest = &self.control.config.name;
            warn!(
                guest,
                "the thread that serves the VMM is stuck in a request; the port is closed without it"
            );
        }
    }
}
