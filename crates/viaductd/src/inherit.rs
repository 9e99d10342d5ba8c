//! Opens ports with the descriptors that an old daemon shares with this one, which takes over.

use crate::privileges::Privileges;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use sockets::{Listening, ListeningFile, Place, Sockets};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use wire::{Attachment, Opener, TapPort, TapState, TunnelTraffic, XdpError, XdpProgram, XdpSocket};

/// Ports that the old daemon shares: each with its device and descriptors.
pub struct Inheritance {
    ports: Mutex<BTreeMap<String, (String, Vec<OwnedFd>)>>,
    succession: Arc<Succession>,
}

impl Inheritance {
    pub fn new(ports: BTreeMap<String, (String, Vec<OwnedFd>)>, succession: Arc<Succession>) -> Self {
        Self { ports: Mutex::new(ports), succession }
    }

    /// Is true while the old daemon still has the host.
    pub fn waits(&self) -> bool {
        !self.succession.is_done()
    }

    /// Returns privileges that give windows away only once this daemon has the host.
    pub fn late(&self, own: &Privileges) -> Privileges {
        own.inheriting(Vec::new(), &self.succession)
    }

    /// Returns privileges that open the port of this interface from the shared descriptors, if it was on that
    /// device.
    pub fn privileges(&self, name: &str, device: &str, own: &Privileges) -> Privileges {
        let shared = lock(&self.ports).remove(name);
        let descriptors = shared.filter(|(its, _)| its == device).map(|(_, descriptors)| descriptors);
        descriptors.map_or_else(|| own.clone(), |descriptors| own.inheriting(descriptors, &self.succession))
    }
}

impl Privileges {
    /// Returns privileges that use `descriptors` before they open others.
    pub fn inheriting(&self, descriptors: Vec<OwnedFd>, succession: &Arc<Succession>) -> Self {
        let (descriptors, succession) = (Mutex::new(descriptors), succession.clone());
        let all = Arc::new(Inheriting { own: self.clone(), descriptors, succession });
        self.opening_by(all.clone(), all)
    }
}

/// Privileges that use inherited descriptors first.
struct Inheriting {
    own: Privileges,
    descriptors: Mutex<Vec<OwnedFd>>,
    succession: Arc<Succession>,
}

impl Inheriting {
    fn take(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut lock(&self.descriptors))
    }

    /// Takes the socket of this type. A device has at most one of each.
    fn take_socket(&self, kind: SocketType) -> Option<OwnedFd> {
        let mut descriptors = lock(&self.descriptors);
        let at = descriptors.iter().position(|one| socket_type(one) == Ok(kind))?;
        Some(descriptors.remove(at))
    }
}

/// Checks that there is one descriptor for each queue of the port.
fn check(descriptors: &[OwnedFd], queues: u16) -> io::Result<()> {
    if descriptors.len() == usize::from(queues.max(1)) {
        return Ok(());
    }
    Err(io::Error::other(
        "it has another number of queues now, and is opened when the replaced daemon is gone",
    ))
}

impl Opener for Inheriting {
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>> {
        let queues = self.take();
        if queues.is_empty() {
            return self.own.opener.tap(tap);
        }
        check(&queues, tap.queues)?;
        let Some(helper) = self.own.helper() else {
            queues.iter().try_for_each(|queue| wire::set_tap_offload(queue.as_fd(), tap.offload))?;
            let rules = match &tap.host {
                Some(host) => wire::set_up_host_side(queues[0].as_fd(), host)?,
                None => None,
            };
            return Ok(queues.into_iter().chain(rules).collect());
        };
        helper.inherit_tap(&tap.device, &queues)?;
        self.own.opener.tap(tap)
    }

    fn forget_tap(&self, device: &str) {
        self.own.opener.forget_tap(device);
    }

    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState> {
        self.own.opener.tap_state(tap)
    }

    fn configure_tap(&self, tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        self.own.opener.configure_tap(tap, mtu, mac)
    }

    fn tap_carrier(&self, tap: BorrowedFd<'_>, up: bool) -> io::Result<()> {
        self.own.opener.tap_carrier(tap, up)
    }

    fn packet(&self, index: i32, sockets: u16, tunnels: Option<&TunnelTraffic>) -> io::Result<Vec<OwnedFd>> {
        let is_queue = |one: &OwnedFd| socket_domain(one) == Ok(AddressFamily::PACKET);
        let (queues, others): (Vec<_>, Vec<_>) = self.take().into_iter().partition(is_queue);
        *lock(&self.descriptors) = others;
        if queues.is_empty() {
            return self.own.opener.packet(index, sockets, tunnels);
        }
        check(&queues, sockets)?;
        Ok(queues)
    }

    fn silence(&self, tunnels: &TunnelTraffic) -> io::Result<Vec<OwnedFd>> {
        let silent = self.take();
        if silent.is_empty() { self.own.opener.silence(tunnels) } else { Ok(silent) }
    }

    fn seek(&self, neighbours: &[(i32, IpAddr)]) -> io::Result<()> {
        self.own.opener.seek(neighbours)
    }

    fn xdp_socket(&self) -> io::Result<XdpSocket> {
        self.own.opener.xdp_socket()
    }

    fn shared_xdp(&self) -> Vec<OwnedFd> {
        self.take()
    }

    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError> {
        self.own.opener.attach_xdp(program, sockets)
    }

    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError> {
        self.own.opener.replace_xdp(program, attachment)
    }
}

impl Sockets for Inheriting {
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, sockets::Error> {
        let Some(socket) = self.take_socket(kind) else {
            return self.own.sockets.listen(place, kind, backlog);
        };
        if socket_domain(&socket) != Ok(AddressFamily::UNIX) || socket_acceptconn(&socket) != Ok(true) {
            return Err(sockets::Error::InUse(place.path.clone()));
        }
        let file = self.own.sockets.adopt(&place.path, place.owner)?;
        Ok((socket, self.succession.adopt(file, place)?))
    }

    fn adopt(
        &self,
        path: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<Arc<dyn ListeningFile>, sockets::Error> {
        self.own.sockets.adopt(path, owner)
    }

    fn memory(&self, place: &Place, keeps: bool) -> Result<OwnedFd, sockets::Error> {
        self.own.sockets.memory(place, keeps || self.succession.keeps(place))
    }

    fn remove_memory(&self, path: &Path) -> Result<(), sockets::Error> {
        self.own.sockets.remove_memory(path)
    }

    fn connect(&self, path: &Path) -> Result<OwnedFd, sockets::Error> {
        self.own.sockets.connect(path)
    }
}

/// Whether this daemon has succeeded the old one, and the files of sockets and windows that both have. If the
/// old daemon goes on, these files stay as they are.
#[derive(Debug, Default)]
pub struct Succession {
    is_done: AtomicBool,
    files: Mutex<Vec<Weak<Shared>>>,
    /// The new owners and modes of windows' files, by path.
    windows: Mutex<BTreeMap<PathBuf, Place>>,
}

impl Succession {
    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Gives the files to their owners, because the old daemon does not go on; those of windows through
    /// `sockets`. From here on, the file of a socket is removed when the socket closes.
    pub fn succeed(&self, sockets: &dyn Sockets) {
        self.is_done.store(true, Ordering::Release);
        let files = std::mem::take(&mut *lock(&self.files));
        for file in files.iter().filter_map(Weak::upgrade) {
            let to = lock(&file.to);
            let Err(e) = file.give(*to) else { continue };
            tracing::error!("a socket is nobody's, as it can't be given to its owner: {e}");
            // Otherwise the owner from the old daemon would keep it.
            let _ = file.give((None, 0));
        }
        let windows = std::mem::take(&mut *lock(&self.windows));
        for place in windows.into_values() {
            let Err(e) = sockets.memory(&place, false) else { continue };
            tracing::error!("a window is nobody's, as it can't be given to its owner: {e}");
            let _ = sockets.memory(&Place { owner: None, mode: 0, ..place }, false);
        }
    }

    /// Is true if a window's file at this place must stay as it is until this daemon has succeeded.
    fn keeps(&self, place: &Place) -> bool {
        let mut windows = lock(&self.windows);
        // `succeed` takes the windows after it has set `is_done`, so none is forgotten.
        let keeps = !self.is_done();
        if keeps {
            windows.insert(place.path.clone(), place.clone());
        }
        keeps
    }

    /// Takes the file of an inherited socket. It gets the owner and mode of `place` once this daemon has
    /// succeeded.
    fn adopt(
        self: &Arc<Self>,
        file: Arc<dyn ListeningFile>,
        place: &Place,
    ) -> Result<Arc<dyn ListeningFile>, sockets::Error> {
        let shared = Arc::new(Shared { file: Some(file), to: Mutex::default(), succession: self.clone() });
        lock(&self.files).push(Arc::downgrade(&shared));
        shared.give_to(place.owner, place.mode)?;
        Ok(shared)
    }
}

/// User and group, and the mode.
type To = (Option<(u32, u32)>, u32);

/// The file of an inherited socket. If it is dropped while the old daemon still has the host, the file stays.
#[derive(Debug)]
struct Shared {
    file: Option<Arc<dyn ListeningFile>>,
    to: Mutex<To>,
    succession: Arc<Succession>,
}

impl Shared {
    fn give(&self, (owner, mode): To) -> Result<(), sockets::Error> {
        self.file.as_ref().map_or(Ok(()), |file| file.give_to(owner, mode))
    }
}

impl ListeningFile for Shared {
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), sockets::Error> {
        let mut to = lock(&self.to);
        *to = (owner, mode);
        if self.succession.is_done() { self.give(*to) } else { Ok(()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.succession.is_done() {
            std::mem::forget(self.file.take());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
