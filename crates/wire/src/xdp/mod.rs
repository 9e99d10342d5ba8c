//! AF_XDP: frames directly from and to the driver, in memory that it shares if it can.

mod attachment;
mod bpf;
mod hand_over;
mod program;
mod ring;
mod rx;
mod socket;
mod tx;

use crate::device::{Device, Link};
use crate::error::{Context, Error};
use crate::ethtool::{self, Channels};
use crate::events::Events;
use crate::netlink;
use crate::opener::{MAX_QUEUES, Opener};
use crate::state::{Mailbox, State};
use crate::watch::Watch;
pub use attachment::{Attachment, Stage, XdpError, XdpProgram};
pub use bpf::Mode;
use mem::{Frozen, Lease, Opened, Port, PortStatus, RxQueue, TxQueue};
use rx::XdpRx;
pub use socket::XdpSocket;
use socket::{FITS, RxRings, TxRings, Xsk};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tx::{Sender, XdpTx};

/// An AF_XDP port. It has as many queue pairs as the device.
///
/// Packets longer than a frame (an MTU above 3818 bytes) need kernel 6.6, and the MTU must be set before the port is
/// opened.
#[derive(Clone, Debug)]
pub struct XdpPort {
    /// Name of a network device in the calling thread's network namespace.
    pub device: String,
    /// IP addresses of this port. It gets packets to them that are sent to the device's link-layer address, and ARP and
    /// neighbour discovery for them. Everything else stays with the kernel.
    pub addresses: Vec<IpAddr>,
    /// Whether the port takes everything that arrives, whatever its destination or VLAN. The kernel then gets nothing.
    pub all: bool,
}

/// Bytes of the Ethernet header and two VLAN tags, which come on top of the MTU.
const HEADERS: u32 = 14 + 8;

struct Queue {
    /// The current socket.
    xsk: Mutex<Arc<Xsk>>,
    events: Events,
    /// Rings to which the receiving and the sending half must switch.
    rx: Mailbox<RxRings>,
    tx: Mailbox<TxRings>,
}

impl Queue {
    fn xsk(&self) -> MutexGuard<'_, Arc<Xsk>> {
        lock(&self.xsk)
    }
}

/// The program and interface to which the sockets are bound.
struct Bound {
    /// `None` while the device is gone.
    attachment: Option<Attachment>,
    index: i32,
    /// The link-layer address for which the program was made; `None` if a different process made it.
    mac: Option<[u8; 6]>,
    /// Whether packets may take several frames.
    several: bool,
}

/// Starts to follow the device's changes.
type Begin = Box<dyn FnOnce() -> io::Result<Watch> + Send>;

struct Xdp {
    device: Arc<Device>,
    state: Arc<State>,
    queues: Arc<[Queue]>,
    senders: Vec<Arc<XdpTx>>,
    bound: Arc<Mutex<Bound>>,
    /// Present until a different process has handed the port over: only then does this one follow the device.
    begin: Mutex<Option<Begin>>,
    watch: Mutex<Option<Watch>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens AF_XDP sockets on all queues of a device, and attaches the program that separates our frames from the host's.
/// Sockets and program are removed with the port, and with the process. If the driver supports it, the program runs in
/// the driver, and frames are not copied.
///
/// The device may go down, disappear and come back under its name; meanwhile the port is down.
///
/// If the opener has the sockets of a running daemon ([`Opener::shared_xdp`]), the port waits until that stops
/// ([`Port::adopt`], [`Port::thaw`]). This needs kernel 6.4.
///
/// # Errors
/// [`Error`] if there is no such device, permission is missing (CAP_NET_ADMIN, CAP_BPF, CAP_NET_RAW), a different XDP
/// program is on the device, its MTU is too large, or it is a veth whose peer leaves checksums unfinished.
pub fn open_xdp(port: &XdpPort, opener: &Arc<dyn Opener>) -> Result<Opened, Error> {
    let name = port.device.as_str();
    let device = Arc::new(Device::new(name).context(name, "use this device name")?);
    let link = device.link().context(name, "find the device")?;
    check_peer(&device)?;
    let channels = ethtool::channels(&device).context(name, "count the device's queues")?;
    let opening = Opening {
        port: port.clone(),
        opener: opener.clone(),
        several: link.mtu + HEADERS > FITS as u32,
        channels,
    };
    let shared = opener.shared_xdp();
    let waits = !shared.is_empty();
    let (bound, rings) = if waits { opening.inherit(shared, &link)? } else { opening.open(&link)? };

    let state = Arc::new(State::default());
    state.set_mtu(link.mtu);
    state.set_up(link.up);
    let mut queues = Vec::new();
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for (rx, tx) in rings {
        let events = Events::new().context(name, "watch a socket")?;
        events.watch(rx.xsk.socket.as_fd()).context(name, "watch a socket")?;
        let xsk = Mutex::new(rx.xsk.clone());
        queues.push(Queue { xsk, events, rx: Mailbox::default(), tx: Mailbox::default() });
        receivers.push(rx);
        senders.push(tx);
    }
    let queues: Arc<[Queue]> = queues.into();
    let rx = receivers.into_iter().enumerate().map(|(index, rings)| {
        Box::new(XdpRx::new(queues.clone(), index, state.clone(), rings)) as Box<dyn RxQueue>
    });
    // If the device has fewer queues for sending, the other sockets only receive.
    let senders: Vec<_> = senders
        .into_iter()
        .take(channels.tx as usize)
        .enumerate()
        .map(|(index, rings)| {
            let sender = Lease::new(Sender::new(state.clone(), rings));
            Arc::new(XdpTx { queues: queues.clone(), index, sender })
        })
        .collect();
    let (rx, tx) = (rx.collect(), senders.iter().map(|tx| tx.clone() as Arc<dyn TxQueue>).collect());
    let bound = Arc::new(Mutex::new(bound));
    let changed = follow(opening, bound.clone(), queues.clone(), state.clone());
    let watched = device.clone();
    let begin: Begin = Box::new(move || Watch::start(watched, changed));
    let (begin, watch) =
        if waits { (Some(begin), None) } else { (None, Some(begin().context(name, "watch the device")?)) };
    let (begin, watch) = (Mutex::new(begin), Mutex::new(watch));
    Ok(Opened { port: Arc::new(Xdp { device, state, queues, senders, bound, begin, watch }), rx, tx })
}

/// Fails if the device is a veth whose peer leaves checksums for the device to complete: AF_XDP passes only the bytes,
/// so such checksums stay wrong.
fn check_peer(device: &Device) -> Result<(), Error> {
    if !ethtool::is_veth(device) {
        return Ok(());
    }
    let peer = netlink::linked(device).context(device.name(), "find the other end of the pair")?;
    match peer {
        Some(peer) if ethtool::finishes_checksums(&peer).unwrap_or(false) => {
            Err(Error::PeerChecksums { device: device.name().to_owned(), peer: peer.name().to_owned() })
        }
        Some(_) => Ok(()),
        None => {
            tracing::warn!(
                device = device.name(),
                "AF_XDP on a veth whose peer is in another namespace: it must not leave checksums and VLAN tags \
                 to the device: run `ethtool -K PEER tx off txvlan off` there"
            );
            Ok(())
        }
    }
}

/// Opens the port, the first time and when the device comes back.
struct Opening {
    port: XdpPort,
    opener: Arc<dyn Opener>,
    /// Whether packets may take several frames.
    several: bool,
    channels: Channels,
}

impl Opening {
    fn queues(&self) -> u32 {
        self.channels.rx.max(self.channels.tx).min(MAX_QUEUES as u32)
    }

    fn open(&self, link: &Link) -> Result<(Bound, Vec<(RxRings, TxRings)>), Error> {
        let queues = self.queues();
        let open = |queue| socket::open(self.opener.xdp_socket()?, link.index, queue, self.several);
        let rings = (0..queues).map(|queue| open(queue).map_err(|error| self.refused(error, link)));
        let rings = rings.collect::<Result<Vec<_>, _>>()?;
        let sockets: Vec<_> = rings.iter().map(|(rx, _)| rx.xsk.socket.as_fd()).collect();
        let attached = self.opener.attach_xdp(&self.program(link, self.several), &sockets);
        let attachment = Some(attached.map_err(|error| self.not_attached(error, link))?);
        let bound = Bound { attachment, index: link.index, mac: Some(link.mac), several: self.several };
        Ok((bound, rings))
    }

    /// Opens the port that a different process still uses.
    fn inherit(&self, shared: Vec<OwnedFd>, link: &Link) -> Result<(Bound, Vec<(RxRings, TxRings)>), Error> {
        let inherited = hand_over::open(shared, link.index, self.several).and_then(|(bound, rings)| {
            if rings.len() != self.queues() as usize {
                return Err(io::Error::other("it has another number of queues now"));
            }
            Ok((bound, rings))
        });
        inherited.context(&self.port.device, "take it over from the running daemon (kernel 6.4 can)")
    }

    fn program(&self, link: &Link, several: bool) -> XdpProgram {
        let XdpPort { addresses, all, .. } = &self.port;
        XdpProgram { index: link.index, mac: link.mac, addresses: addresses.clone(), all: *all, several }
    }

    /// Replaces the attached program with one of this process for the device's current address.
    fn reload(&self, attachment: &Attachment, link: &Link, several: bool) -> Result<(), Error> {
        let replaced = self.opener.replace_xdp(&self.program(link, several), attachment);
        replaced.map_err(|error| self.not_attached(error, link))
    }

    fn not_attached(&self, error: XdpError, link: &Link) -> Error {
        match error.stage {
            Stage::Map => self.lacking(error.source, error.stage.words()),
            Stage::Load => match error.log {
                Some(log) => Error::Program { device: self.port.device.clone(), log },
                None => self.refused(error.source, link),
            },
            stage => {
                Error::System { device: self.port.device.clone(), what: stage.words(), source: error.source }
            }
        }
    }

    /// Returns the error for a kernel's refusal. An older kernel refuses packets of several frames.
    fn refused(&self, error: io::Error, link: &Link) -> Error {
        if self.several && error.raw_os_error() == Some(libc::EINVAL) {
            let limit = FITS as u32 - HEADERS;
            return Error::Mtu { device: self.port.device.clone(), mtu: link.mtu, limit };
        }
        self.lacking(error, "open an AF_XDP socket")
    }

    fn lacking(&self, source: io::Error, what: &'static str) -> Error {
        let device = self.port.device.clone();
        match source.raw_os_error() {
            Some(libc::ENOSYS) => Error::Kernel { device, option: "bpf(2): CONFIG_BPF_SYSCALL" },
            Some(libc::EAFNOSUPPORT) => Error::Kernel { device, option: "AF_XDP: CONFIG_XDP_SOCKETS" },
            _ => Error::System { device, what, source },
        }
    }
}

/// Keeps port and program up to date with the device, and reopens everything when the device comes back.
fn follow(
    opening: Opening,
    bound: Arc<Mutex<Bound>>,
    queues: Arc<[Queue]>,
    state: Arc<State>,
) -> impl FnMut(Option<Link>) + Send + 'static {
    move |link| {
        let Some(link) = link else { return state.set_up(false) };
        let mut bound = lock(&bound);
        let result = if link.index != bound.index {
            // The attached program disappeared with the device.
            bound.attachment = None;
            opening.open(&link).and_then(|(opened, rings)| {
                replace(&queues, rings, &state).context(&opening.port.device, "watch a socket")?;
                *bound = opened;
                Ok(())
            })
        } else if let Some(attachment) = bound.attachment.as_ref().filter(|_| bound.mac != Some(link.mac)) {
            let reloaded = opening.reload(attachment, &link, bound.several);
            reloaded.map(|()| bound.mac = Some(link.mac))
        } else {
            Ok(())
        };
        if let Err(error) = result {
            tracing::warn!(device = opening.port.device, %error, "can't follow a change of the device");
        }
        state.set_mtu(link.mtu);
        state.set_up(link.up && link.index == bound.index);
    }
}

/// Passes the rings of new sockets to the queues.
fn replace(queues: &[Queue], rings: Vec<(RxRings, TxRings)>, state: &State) -> io::Result<()> {
    for (queue, rings) in queues.iter().zip(rings) {
        state.lost.add(queue.xsk().drops() as usize);
        queue.switch(rings)?;
    }
    Ok(())
}

impl Queue {
    fn switch(&self, (rx, tx): (RxRings, TxRings)) -> io::Result<()> {
        let mut xsk = self.xsk();
        self.events.forget(xsk.socket.as_fd());
        self.events.watch(rx.xsk.socket.as_fd())?;
        *xsk = rx.xsk.clone();
        self.rx.put(rx);
        self.tx.put(tx);
        Ok(())
    }
}

impl Port for Xdp {
    fn is_up(&self) -> bool {
        self.state.up()
    }

    fn status(&self) -> PortStatus {
        let link = self.device.link();
        let zero_copy = self.queues.iter().all(|queue| queue.xsk().zero_copy());
        let mode = lock(&self.bound).attachment.as_ref().map(|attachment| attachment.mode);
        let mode = if mode == Some(Mode::Native) { "native" } else { "generic" };
        PortStatus {
            up: self.state.up() && link.as_ref().is_ok_and(|link| link.up),
            features: vec!["af-xdp".into(), mode.into(), if zero_copy { "zero-copy" } else { "copy" }.into()],
            queues: self.queues.len() as u16,
            fault: link.as_ref().err().map(|error| format!("device {}: {error}", self.device.name())),
            malformed: self.state.malformed.get(),
            lost: self.state.lost.get() + self.queues.iter().map(|queue| queue.xsk().drops()).sum::<u64>(),
            refused: self.state.refused.get(),
            mtu: link.as_ref().ok().map(|link| link.mtu.min(u16::MAX.into()) as u16),
            mac: link.ok().map(|link| link.mac),
            aside: false,
            pages_aside: false,
            elsewhere: None,
        }
    }

    fn share(&self) -> io::Result<Vec<OwnedFd>> {
        match &lock(&self.bound).attachment {
            Some(attachment) => hand_over::descriptors(&self.queues, attachment),
            None => Ok(Vec::new()),
        }
    }

    fn freeze(&self) -> io::Result<Option<Frozen>> {
        let mut free: Vec<_> =
            self.senders.iter().map(|tx| tx.free()).collect::<Option<_>>().ok_or_else(busy)?;
        // Queues without a sender only receive.
        free.resize(self.queues.len(), Vec::new());
        hand_over::freeze(&self.queues, &lock(&self.bound), free)
    }

    fn thaw(&self) {
        let Some(begin) = lock(&self.begin).take() else { return };
        match begin() {
            Ok(watch) => *lock(&self.watch) = Some(watch),
            Err(error) => {
                tracing::error!(device = self.device.name(), %error, "changes of the device are not followed");
            }
        }
    }

    fn adopt(&self, frozen: Frozen) -> io::Result<()> {
        let (bound, rings) = hand_over::adopt(frozen, &self.queues)?;
        if rings.len() != self.queues.len() {
            return Err(io::Error::other("it has another number of queues than before"));
        }
        for (queue, rings) in self.queues.iter().zip(rings) {
            queue.switch(rings)?;
        }
        *lock(&self.bound) = bound;
        Ok(())
    }
}

fn busy() -> io::Error {
    io::Error::other("somebody still sends")
}
