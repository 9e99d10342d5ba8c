//! Taps: network devices of the kernel whose other end is ours. A container's way in, or a way out.

pub(crate) mod attach;
mod rx;
mod tx;

use crate::error::{Context, Error};
use crate::events::Events;
use crate::opener::{Opener, TapState};
use crate::state::State;
use crate::sys;
use mem::{Accepts, Lease, Opened, Port, PortStatus, RxQueue, TxQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rx::TapRx;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use tx::{Sender, TapTx};

/// A tap port.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TapPort {
    /// Name of the device to create in the opener's network namespace.
    pub device: String,
    /// Queue pairs. At least 1.
    pub queues: u16,
    /// MTU to set, in bytes.
    pub mtu: u16,
    /// Link-layer address to set on the kernel's end; None: one that the kernel picks.
    pub mac: Option<[u8; 6]>,
    /// Whether the kernel's end may leave checksums and segmentation to us.
    pub offload: bool,
}

/// What the kernel's end and ours take unfinished from each other.
const ACCEPTS: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

/// How long to wait before another attempt to create a device that was deleted.
const RETRY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What queues, port and the thread that creates the device again share.
struct Shared {
    config: TapPort,
    opener: Arc<dyn Opener>,
    state: State,
    queues: Vec<Queue>,
    /// Polls readable when a queue found that its device is gone.
    gone: OwnedFd,
    stop: OwnedFd,
}

/// One queue pair.
struct Queue {
    tap: OwnedFd,
    events: Events,
    attached: AtomicBool,
}

struct Tap {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

/// Creates a tap and sets it up. It goes when the port is dropped.
///
/// The device may be moved to another network namespace and renamed there. When it is deleted, as happens with
/// the namespace it is in, it is created anew where it was at first.
///
/// # Errors
/// [`Error::System`]: the device exists already, no /dev/net/tun, the opener has no permission (CAP_NET_ADMIN).
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
    fn new(config: &TapPort, opener: Arc<dyn Opener>, taps: Vec<OwnedFd>) -> io::Result<Self> {
        let queue = |tap| Ok(Queue { tap, events: Events::new()?, attached: AtomicBool::new(false) });
        Ok(Self {
            config: config.clone(),
            opener,
            state: State::default(),
            queues: taps.into_iter().map(queue).collect::<io::Result<_>>()?,
            gone: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Creates the device again where it is gone. Its queues keep their descriptors.
    fn attach(&self) -> io::Result<()> {
        let missing = |queue: &Queue| attach::name(queue.tap.as_fd()).is_err();
        if self.queues.iter().any(missing) {
            for (queue, tap) in self.queues.iter().zip(self.opener.tap(&self.config)?) {
                queue.events.forget(queue.tap.as_fd());
                sys::replace(queue.tap.as_fd(), tap)?;
            }
        }
        self.resume()
    }

    /// Has all queues work.
    fn resume(&self) -> io::Result<()> {
        for queue in &self.queues {
            queue.events.forget(queue.tap.as_fd());
            queue.events.watch(queue.tap.as_fd())?;
            queue.attached.store(true, Relaxed);
        }
        self.state.set_up(true);
        Ok(())
    }

    /// Told by a queue whose device is gone.
    fn detached(&self, index: usize) {
        let queue = &self.queues[index];
        if queue.attached.swap(false, Relaxed) {
            self.state.set_up(false);
            // It would poll as failed for ever.
            queue.events.forget(queue.tap.as_fd());
            // Fails only where it polls readable already.
            let _ = rustix::io::write(&self.gone, &1u64.to_ne_bytes());
        }
    }

    /// Creates the device again whenever it was deleted, until told to stop.
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
                Ok(()) => tracing::info!(device = self.config.device, "tap was deleted, created anew"),
                Err(error) if !missing => {
                    tracing::warn!(device = self.config.device, %error, "tap was deleted, cannot create it");
                }
                Err(_) => {}
            }
            missing = !self.state.up();
        }
    }

    /// The device's state, in whatever namespace and by whatever name it is now.
    fn link(&self) -> io::Result<TapState> {
        self.opener.tap_state(self.queues[0].tap.as_fd())
    }
}

impl Port for Tap {
    fn is_up(&self) -> bool {
        self.shared.state.up()
    }

    fn status(&self) -> PortStatus {
        let Shared { config, state, queues, .. } = &*self.shared;
        let link = self.shared.link();
        let offloads: &[_] = if config.offload { &["tap", "csum", "tso4", "tso6"] } else { &["tap"] };
        PortStatus {
            up: state.up() && link.as_ref().map_or(true, |tap| tap.link.up),
            features: offloads.iter().map(|name| (*name).to_owned()).collect(),
            queues: queues.len() as u16,
            // Without the right to look into its namespace, a device that works shows no error.
            fault: link
                .as_ref()
                .err()
                .filter(|_| !state.up())
                .map(|error| format!("device {}: {error}", config.device)),
            malformed: state.malformed.get(),
            lost: link.as_ref().map_or(0, |tap| tap.dropped),
            refused: state.refused.get(),
            mtu: Some(link.as_ref().map_or(config.mtu, |tap| tap.link.mtu.min(u16::MAX.into()) as u16)),
            mac: link.ok().map(|tap| tap.link.mac).or(config.mac),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(keeper) = self.keeper.take() {
            // A panic of the thread was reported where it happened.
            let _ = keeper.join();
        }
    }
}
