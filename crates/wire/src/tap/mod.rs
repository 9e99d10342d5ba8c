//! Taps: network devices of the kernel whose other end is ours. They connect containers, or lead out of the host.

pub(crate) mod attach;
pub(crate) mod host;
mod rx;
mod spool;
mod tx;

use crate::error::{Context, Error};
use crate::events::Events;
use crate::opener::{Opener, TapState};
use crate::state::{State, why};
use crate::sys;
pub use host::HostSide;
use mem::{Accepts, Account, Lease, NoRoom, Opened, Port, PortStatus, RxQueue, Segment, TxQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rx::TapRx;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tx::{Sender, TapTx};

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TapPort {
    /// Name of the device to create in the opener's network namespace.
    pub device: String,
    /// Number of queue pairs, at least 1.
    pub queues: u16,
    /// MTU to set, in bytes.
    pub mtu: u16,
    /// Link-layer address to set on the kernel's end; if `None`, the kernel picks one.
    pub mac: Option<[u8; 6]>,
    /// Whether the kernel's end may leave checksums and segmentation to us.
    pub offload: bool,
    /// The host's side, if it is an interface of the host itself. `None`: somebody else gets the device.
    pub host: Option<HostSide>,
}

/// Unfinished offloads that the kernel's end and ours accept from each other.
const ACCEPTS: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

/// How long to wait before another attempt to create a device that was deleted.
const RETRY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// State that is shared by the queues, the port, and the thread that recreates the device.
struct Shared {
    name: String,
    config: Mutex<TapPort>,
    opener: Arc<dyn Opener>,
    state: State,
    /// Whether the other side shall see the link up.
    link: AtomicBool,
    queues: Vec<Queue>,
    /// Descriptors that stay open as long as the device is there.
    beside: Mutex<Vec<OwnedFd>>,
    /// The cost of writes.
    account: Account,
    /// Polls readable when a queue found that its device no longer exists.
    gone: OwnedFd,
    stop: OwnedFd,
}

struct Queue {
    tap: OwnedFd,
    events: Events,
    attached: AtomicBool,
}

struct Tap {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

/// Creates a tap and sets it up. It is deleted when the port is dropped, unless the opener keeps it for the next
/// daemon.
///
/// Others may move the device to a different network namespace and rename it there. If it is deleted, for example with
/// its namespace, it is created anew in the namespace where it was first created.
///
/// # Errors
/// [`Error::System`] if the device exists already, /dev/net/tun is missing, or the opener lacks permission
/// (CAP_NET_ADMIN).
pub fn open_tap(port: &TapPort, opener: &Arc<dyn Opener>) -> Result<Opened, Error> {
    let name = port.device.as_str();
    let taps = opener.tap(port).context(name, "create the tap")?;
    let shared = Shared::new(port, opener.clone(), taps).context(name, "watch the tap")?;
    shared.resume().context(name, "watch the tap")?;
    let shared = Arc::new(shared);
    let (mut rx, mut tx) = (Vec::<Box<dyn RxQueue>>::new(), Vec::<Arc<dyn TxQueue>>::new());
    for index in 0..shared.queues.len() {
        rx.push(Box::new(TapRx::new(shared.clone(), index).context(name, "map memory")?));
        let sender = Sender::new(shared.clone(), index).context(name, "map memory")?;
        tx.push(Arc::new(TapTx { sender: Lease::new(sender) }));
    }
    let keeper = std::thread::Builder::new()
        .name(format!("wire-{name}"))
        .spawn({
            let shared = shared.clone();
            move || shared.keep()
        })
        .context(name, "start a thread")?;
    Ok(Opened { port: Arc::new(Tap { shared, keeper: Some(keeper) }), rx, tx })
}

impl Shared {
    fn new(config: &TapPort, opener: Arc<dyn Opener>, mut taps: Vec<OwnedFd>) -> io::Result<Self> {
        let beside = taps.split_off(taps.len().min(config.queues.max(1).into()));
        let queue = |tap| Ok(Queue { tap, events: Events::new()?, attached: AtomicBool::new(false) });
        Ok(Self {
            name: config.device.clone(),
            config: Mutex::new(config.clone()),
            opener,
            state: State::default(),
            link: AtomicBool::new(true),
            queues: taps.into_iter().map(queue).collect::<io::Result<_>>()?,
            beside: Mutex::new(beside),
            account: Account::default(),
            gone: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Recreates the device if it no longer exists. Its queues keep their descriptors.
    fn attach(&self) -> io::Result<()> {
        let missing = |queue: &Queue| attach::name(queue.tap.as_fd()).is_err();
        if self.queues.iter().any(missing) {
            let mut taps = self.opener.tap(&self.config())?.into_iter();
            for (queue, tap) in self.queues.iter().zip(&mut taps) {
                queue.events.forget(queue.tap.as_fd());
                sys::replace(queue.tap.as_fd(), tap)?;
            }
            *self.beside.lock().unwrap_or_else(PoisonError::into_inner) = taps.collect();
            if !self.link.load(Relaxed) {
                self.opener.tap_carrier(self.queues[0].tap.as_fd(), false)?;
            }
        }
        self.resume()
    }

    /// Returns the configuration with which the device is created again.
    fn config(&self) -> TapPort {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets all queues work: watches their descriptors and marks them attached.
    fn resume(&self) -> io::Result<()> {
        for queue in &self.queues {
            queue.events.forget(queue.tap.as_fd());
            queue.events.watch(queue.tap.as_fd())?;
            queue.attached.store(true, Relaxed);
        }
        self.state.set_up(true);
        Ok(())
    }

    /// Wakes the thread that recreates the device. A queue calls this when its device no longer exists.
    fn detached(&self, index: usize) {
        let queue = &self.queues[index];
        if queue.attached.swap(false, Relaxed) {
            self.state.set_up(false);
            // The descriptor would poll as failed forever.
            queue.events.forget(queue.tap.as_fd());
            // Fails only if it already polls readable.
            let _ = rustix::io::write(&self.gone, &1u64.to_ne_bytes());
        }
    }

    /// Recreates the device whenever it was deleted, until told to stop.
    fn keep(&self) {
        let mut missing = false;
        loop {
            let mut fds = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.gone, PollFlags::IN)];
            let _ = poll(&mut fds, missing.then_some(&RETRY));
            if !fds[0].revents().is_empty() {
                return;
            }
            let _ = rustix::io::read(&self.gone, &mut [0; 8]);
            if self.state.up() {
                continue;
            }
            match self.attach() {
                Ok(()) => {
                    tracing::info!(device = self.name, "the tap was deleted and is created again")
                }
                Err(error) if !missing => {
                    tracing::warn!(device = self.name, %error, "the tap was deleted and can't be created again");
                }
                Err(_) => {}
            }
            missing = !self.state.up();
        }
    }

    /// Writes a frame with its header.
    ///
    /// # Errors
    /// The reason why the kernel refuses it.
    fn write(&self, index: usize, message: Segment) -> Result<(), NoRoom> {
        let tap = self.queues[index].tap.as_raw_fd();
        // SAFETY: the message is mapped and nobody else's; its length is passed along.
        if unsafe { libc::write(tap, message.as_ptr().cast(), message.len()) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        self.state.refused.add(1);
        if error.raw_os_error() == Some(libc::EBADFD) {
            self.detached(index);
        }
        Err(why(&error))
    }

    /// Returns whether the device is set up, whatever its current namespace. Only then does poll report that it takes
    /// frames.
    fn is_set_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.queues[0].tap, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::OUT)
    }

    /// Returns the device's state, whatever its current namespace and name.
    fn link(&self) -> io::Result<TapState> {
        self.opener.tap_state(self.queues[0].tap.as_fd())
    }
}

impl Port for Tap {
    fn is_up(&self) -> bool {
        self.shared.state.up() && self.shared.link.load(Relaxed) && self.shared.is_set_up()
    }

    fn status(&self) -> PortStatus {
        let Shared { state, queues, .. } = &*self.shared;
        let config = self.shared.config();
        let link = self.shared.link();
        let offloads: &[_] = if config.offload { &["tap", "csum", "tso4", "tso6"] } else { &["tap"] };
        PortStatus {
            up: state.up() && link.as_ref().map_or(true, |tap| tap.link.up),
            features: offloads.iter().map(|name| (*name).to_owned()).collect(),
            queues: queues.len() as u16,
            // Without the right to inspect its namespace, a working device shows no error.
            fault: link
                .as_ref()
                .err()
                .filter(|_| !state.up())
                .map(|error| format!("device {}: {error}", config.device)),
            malformed: state.malformed.get(),
            lost: link.as_ref().map_or(0, |tap| tap.dropped),
            refused: state.refused.get(),
            mtu: Some(link.as_ref().map_or(config.mtu, |tap| tap.link.mtu.min(u16::MAX.into()) as u16)),
            aside: self.shared.account.is_aside(),
            pages_aside: false,
            elsewhere: link.as_ref().ok().and_then(|tap| tap.elsewhere),
            mac: link.ok().map(|tap| tap.link.mac).or(config.mac),
        }
    }

    fn set_link(&self, up: bool) -> io::Result<()> {
        if self.shared.link.swap(up, Relaxed) == up {
            return Ok(());
        }
        self.shared.opener.tap_carrier(self.shared.queues[0].tap.as_fd(), up)
    }

    fn configure(&self, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        self.note(mtu, mac);
        self.shared.opener.configure_tap(self.shared.queues[0].tap.as_fd(), mtu, mac)
    }

    fn share(&self) -> io::Result<Vec<OwnedFd>> {
        self.shared.queues.iter().map(|queue| queue.tap.try_clone()).collect()
    }
}

impl Tap {
    /// Notes MTU and address for the next time that the device is created.
    fn note(&self, mtu: u16, mac: Option<[u8; 6]>) {
        let mut config = self.shared.config.lock().unwrap_or_else(PoisonError::into_inner);
        (config.mtu, config.mac) = (mtu, mac);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(keeper) = self.keeper.take() {
            // The thread reported its panic where it happened.
            let _ = keeper.join();
        }
        self.shared.opener.forget_tap(&self.shared.name);
    }
}
