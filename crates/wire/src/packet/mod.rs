//! Packet sockets: for any network device; the kernel makes one or two copies; offloads are passed on unfinished.

mod datagram;
mod filter;
mod join;
mod rx;
pub(crate) mod socket;
mod split;
#[cfg(test)]
mod tests;
mod tx;

use crate::device::{Device, Link};
use crate::error::{Context, Error};
use crate::events::Events;
use crate::opener::Opener;
use crate::shared::TunnelTraffic;
use crate::state::{Current, State};
use crate::watch::Watch;
use mem::{Lease, Opened, Port, PortStatus, RxQueue, TxQueue};
use rx::PacketRx;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tx::{PacketTx, Sender};

#[derive(Clone, Debug)]
pub struct PacketPort {
    /// Name of a network device in the calling thread's network namespace.
    pub device: String,
    /// Number of queue pairs, at least 1. The kernel spreads received frames over them by flow.
    pub queues: u16,
    /// The packets that are taken if the kernel keeps the device, and otherwise all.
    pub tunnels: Option<TunnelTraffic>,
}

/// One queue pair: its current socket, and the event on which its worker sleeps.
struct Queue {
    socket: Current<Arc<OwnedFd>>,
    events: Events,
}

struct Packet {
    device: Arc<Device>,
    state: Arc<State>,
    queues: Arc<[Queue]>,
    /// The sockets that keep the kernel from answering tunnel packets ([`Opener::silence`]).
    silent: Vec<OwnedFd>,
    _watch: Watch,
}

/// Opens packet sockets on a device. They receive every frame that arrives there, to whatever address, in parallel to
/// the kernel's own stack, and no frame that leaves.
///
/// If the kernel keeps the device, they receive tunnel packets to this host alone, and the kernel does not answer those.
///
/// The device may go down, disappear and come back under its name; meanwhile the port is down.
///
/// # Errors
/// [`Error::System`] if there is no such device, or the opener lacks permission (CAP_NET_RAW; CAP_NET_ADMIN for large
/// buffers).
pub fn open_packet(port: &PacketPort, opener: &Arc<dyn Opener>) -> Result<Opened, Error> {
    let name = port.device.as_str();
    let device = Arc::new(Device::new(name).context(name, "use this device name")?);
    let link = device.link().context(name, "find the device")?;
    let tunnels = port.tunnels.as_ref();
    let sockets =
        opener.packet(link.index, port.queues.max(1), tunnels).context(name, "open a packet socket")?;
    let silent = match tunnels {
        Some(tunnels) => opener.silence(tunnels).context(name, "take tunnel packets from the kernel")?,
        None => Vec::new(),
    };
    let state = Arc::new(State::default());
    state.set_mtu(link.mtu);
    state.set_up(link.up);
    let queues: Arc<[Queue]> = sockets
        .into_iter()
        .map(|socket| {
            let events = Events::new()?;
            events.watch(socket.as_fd())?;
            Ok(Queue { socket: Current::new(Arc::new(socket)), events })
        })
        .collect::<io::Result<_>>()
        .context(name, "watch a packet socket")?;

    let (mut rx, mut tx) = (Vec::<Box<dyn RxQueue>>::new(), Vec::<Arc<dyn TxQueue>>::new());
    for i in 0..queues.len() {
        rx.push(Box::new(PacketRx::new(queues.clone(), i, state.clone()).context(name, "map memory")?));
        let sender = Sender::new(&queues[i].socket, state.clone()).context(name, "map memory")?;
        tx.push(Arc::new(PacketTx { queues: queues.clone(), index: i, sender: Lease::new(sender) }));
    }
    let changed = follow((port.clone(), opener.clone()), link.index, queues.clone(), state.clone());
    let watch = Watch::start(device.clone(), changed).context(name, "watch the device")?;
    Ok(Opened { port: Arc::new(Packet { device, state, queues, silent, _watch: watch }), rx, tx })
}

/// Keeps the port's state equal to the device's, and opens new sockets when the device comes back: a packet socket
/// stays bound to the old interface index.
fn follow(
    (port, opener): (PacketPort, Arc<dyn Opener>),
    mut index: i32,
    queues: Arc<[Queue]>,
    state: Arc<State>,
) -> impl FnMut(Option<Link>) + Send + 'static {
    move |link| {
        let name = &port.device;
        if let Some(link) = link.filter(|link| link.index != index) {
            match opener
                .packet(link.index, queues.len() as u16, port.tunnels.as_ref())
                .and_then(|sockets| replace(&queues, sockets, &state))
            {
                Ok(()) => {
                    tracing::info!(device = name, "device is back");
                    index = link.index;
                }
                Err(error) => tracing::warn!(device = name, %error, "can't open the device that came back"),
            }
        }
        state.set_mtu(link.as_ref().map_or(0, |link| link.mtu));
        state.set_up(link.is_some_and(|link| link.up && link.index == index));
    }
}

/// Passes new sockets to the queues, and counts the frames that the old ones lost.
fn replace(queues: &[Queue], sockets: Vec<OwnedFd>, state: &State) -> io::Result<()> {
    for (queue, socket) in queues.iter().zip(sockets) {
        let gone = queue.socket.get();
        state.lost.add(socket::take_drops(gone.as_fd()));
        queue.events.forget(gone.as_fd());
        queue.events.watch(socket.as_fd())?;
        queue.socket.replace(Arc::new(socket));
    }
    Ok(())
}

impl Port for Packet {
    fn is_up(&self) -> bool {
        self.state.up()
    }

    fn status(&self) -> PortStatus {
        for queue in self.queues.iter() {
            self.state.lost.add(socket::take_drops(queue.socket.get().as_fd()));
        }
        let link = self.device.link();
        PortStatus {
            up: self.state.up() && link.as_ref().is_ok_and(|link| link.up),
            features: vec!["af-packet".into(), "csum".into(), "tso4".into(), "tso6".into()],
            queues: self.queues.len() as u16,
            fault: link.as_ref().err().map(|error| format!("device {}: {error}", self.device.name())),
            malformed: self.state.malformed.get(),
            lost: self.state.lost.get(),
            refused: self.state.refused.get(),
            mtu: link.as_ref().ok().map(|link| link.mtu.min(u16::MAX.into()) as u16),
            mac: link.ok().map(|link| link.mac),
            aside: false,
            pages_aside: false,
            elsewhere: None,
        }
    }

    fn share(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = self.queues.iter().map(|queue| queue.socket.get().try_clone());
        sockets.chain(self.silent.iter().map(OwnedFd::try_clone)).collect()
    }
}
