//! The sockets on which clients connect.

use crate::inherit::Succession;
use crate::privileges::Privileges;
use crate::readers::{self, Late};
use crate::replace;
use anyhow::Context;
use control::{Missing, Process};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use sockets::{ListeningFile, Place};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Connections to the control socket that may wait.
const BACKLOG: i32 = 4096;
/// Connections to the socket of metrics that may wait.
const SCRAPERS: i32 = 128;

/// Names that both daemons use for shared sockets.
const API: &str = "api";
const READERS: &str = "readers";
const METRICS: &str = "metrics";
const OVS: &str = "ovs";
const BGP: [&str; config::MOST_LISTEN] = ["bgp-0", "bgp-1", "bgp-2", "bgp-3"];

/// Opens the sockets, from descriptors that the old daemon shares if this one takes over.
pub struct Clients<'a> {
    pub privileges: &'a Privileges,
    /// Sockets of the old daemon. Those that are not used here are closed, since nobody would serve their
    /// clients.
    pub shared: BTreeMap<String, OwnedFd>,
    pub succession: Arc<Succession>,
    /// Sockets that can't be opened so far.
    pub missing: Missing,
}

/// The sockets, and the files that are removed with them.
pub struct Open {
    pub listeners: control::Listeners,
    /// Copies of the sockets for a new daemon, and the socket on which it connects.
    pub copies: Vec<(&'static str, OwnedFd)>,
    pub replace: OwnedFd,
    /// The socket for drivers of Open vSwitch.
    pub drivers: OwnedFd,
    pub files: Vec<Arc<dyn ListeningFile>>,
}

/// Notes why some clients are not served, until something happens. Packets don't wait for these clients.
pub fn lacks(missing: &Missing, why: impl Display, until: &str) -> String {
    let message = format!("{why}; nobody is served there before {until}");
    tracing::error!("[host] {message}");
    missing.add(message.clone());
    message
}

/// Opens the socket of metrics while the process may bind one. `None` also if it can't be opened.
pub fn metrics(
    address: Option<SocketAddr>,
    shared: &mut BTreeMap<String, OwnedFd>,
    missing: &Missing,
) -> anyhow::Result<Option<(TcpListener, Process)>> {
    let Some(address) = address else { return Ok(None) };
    let same = shared.remove(METRICS).map(TcpListener::from);
    let same = same.filter(|socket| socket.local_addr().is_ok_and(|own| own == address));
    match same.map_or_else(|| bind(address), Ok) {
        Ok(socket) => Ok(Some((socket, Process::open().context("the daemon's own files in /proc")?))),
        Err(e) => {
            lacks(missing, format_args!("metrics: {address}: {e}"), "the next start");
            Ok(None)
        }
    }
}

/// Opens the sockets of BGP peers while the process may bind them, and returns them with a copy for a new daemon.
pub fn bgp(
    bgp: Option<&config::Bgp>,
    shared: &mut BTreeMap<String, OwnedFd>,
    missing: &Missing,
) -> Vec<(&'static str, TcpListener)> {
    let addresses = bgp.map(|bgp| &bgp.listen[..]).unwrap_or_default();
    let mut same: Vec<_> =
        BGP.iter().filter_map(|name| shared.remove(*name)).map(TcpListener::from).collect();
    let mut open = |address: SocketAddr| {
        let at = same.iter().position(|socket| socket.local_addr().is_ok_and(|own| own == address));
        let socket = at.map_or_else(|| bind(address), |at| Ok(same.swap_remove(at)))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let mut opened = Vec::new();
    for (name, address) in BGP.into_iter().zip(addresses) {
        let address = SocketAddr::new(*address, config::BGP_PORT);
        match open(address) {
            Ok(socket) => opened.push((name, socket)),
            Err::<_, std::io::Error>(e) => {
                let message =
                    format!("[bgp] listen: {address}: {e}; no peer can connect there before the next start");
                tracing::error!("{message}");
                missing.add(message);
            }
        }
    }
    opened
}

/// Listens at an address, which the host may get later: the daemon starts before the network is up.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match address {
        SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, SCRAPERS)?;
    Ok(socket.into())
}

impl Clients<'_> {
    /// Opens the sockets.
    ///
    /// # Errors
    /// A socket's path is in use or can't be written.
    pub fn open(
        mut self,
        run_dir: &Path,
        readers: Option<&str>,
        metrics: Option<(TcpListener, Process)>,
    ) -> anyhow::Result<Open> {
        let place = Place { path: api::socket(run_dir), owner: None, mode: 0o660 };
        let (api, file) = self.listen(API, &place, SocketType::STREAM).context("control socket")?;
        let (mut files, mut copies) = (vec![file], vec![(API, api.try_clone()?)]);
        let readers = readers.and_then(|group| {
            let opened = self.readers(run_dir, group);
            opened.map_err(|why| lacks(&self.missing, why, "the next start")).ok()
        });
        let readers = match readers {
            Some((socket, file)) => {
                copies.push((READERS, socket.try_clone()?));
                files.push(file);
                Some(socket)
            }
            None => None,
        };
        if let Some((metrics, _)) = &metrics {
            copies.push((METRICS, metrics.as_fd().try_clone_to_owned()?));
        }
        let place = Place { path: replace::socket(run_dir), owner: None, mode: 0o600 };
        let replace = self.listen(replace::NAME, &place, SocketType::SEQPACKET);
        let replace = replace.context("socket for a daemon that takes over")?;
        copies.push((replace::NAME, replace.0.try_clone()?));
        files.push(replace.1);
        let place = Place { path: run_dir.join("ovs.sock"), owner: None, mode: 0o660 };
        let (drivers, file) =
            self.listen(OVS, &place, SocketType::SEQPACKET).context("socket for drivers of Open vSwitch")?;
        copies.push((OVS, drivers.try_clone()?));
        files.push(file);
        let listeners = control::Listeners { api, readers, metrics, missing: self.missing };
        Ok(Open { listeners, copies, replace: replace.0, drivers, files })
    }

    /// Opens the socket for this group. While there is no such group, the socket exists, but nobody else may
    /// connect.
    fn readers(&mut self, run_dir: &Path, group: &str) -> Result<(OwnedFd, Arc<dyn ListeningFile>), String> {
        let path = api::readers_socket(run_dir);
        let owner = readers::owner(self.privileges, group);
        let (given, mode) = match &owner {
            Ok(owner) => (Some(*owner), readers::MODE),
            Err(_) => (None, readers::CLOSED),
        };
        let place = Place { path, owner: given, mode };
        let opened = self.listen(READERS, &place, SocketType::STREAM);
        let (socket, file) = opened.map_err(|e| format!("readers: {e}"))?;
        if let Err(why) = owner {
            let message = lacks(&self.missing, why, "that changes");
            let late = Late {
                group: group.to_owned(),
                file: Arc::downgrade(&file),
                privileges: self.privileges.clone(),
                missing: self.missing.clone(),
                message,
            };
            late.wait().map_err(|e| format!("readers: {e}"))?;
        }
        Ok((socket, file))
    }

    fn listen(
        &mut self,
        name: &str,
        place: &Place,
        kind: SocketType,
    ) -> Result<sockets::Listening, sockets::Error> {
        let shared = self.shared.remove(name).into_iter().collect();
        self.privileges.inheriting(shared, &self.succession).sockets.listen(place, kind, BACKLOG)
    }
}
