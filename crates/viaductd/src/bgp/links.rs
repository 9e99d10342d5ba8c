//! The speaker's sockets.

use super::Shared;
use crate::privileges::Privileges;
use bgp::{Conn, Speaker};
use config::{Bgp, Password};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes that are read from a socket at once: other sockets have their turn between two such pieces.
const PIECE: usize = 64 << 10;
/// Most connections that are accepted in one turn.
const ACCEPTED: usize = 16;

struct Link {
    socket: OwnedFd,
    is_connecting: bool,
    /// Whether there is more to write than the kernel takes.
    is_full: bool,
}

pub(super) struct Links {
    listeners: Vec<TcpListener>,
    privileges: Privileges,
    passwords: BTreeMap<IpAddr, Password>,
    /// The addresses from which connections come, of peers for which the kernel does not choose.
    sources: BTreeMap<SocketAddr, IpAddr>,
    /// Peers of which the log says that they may not be called.
    refused: BTreeSet<SocketAddr>,
    links: BTreeMap<Conn, Link>,
    buffer: Vec<u8>,
}

impl Links {
    pub(super) fn new(listeners: Vec<TcpListener>, privileges: Privileges) -> Self {
        let (passwords, sources, refused, links) = Default::default();
        Self { listeners, privileges, passwords, sources, refused, links, buffer: vec![0; PIECE] }
    }

    /// Opens connections with peers, and signs them, as the configuration says, from the next one on.
    pub(super) fn set_peers(&mut self, bgp: &Bgp) {
        let ways = bgp.peers.iter().map(|peer| bgp.way_to(peer));
        self.sources = ways.filter_map(|(to, source)| Some((to, source?))).collect();
        self.passwords.clear();
        self.refused.clear();
        for peer in &bgp.peers {
            self.passwords.extend(peer.password.clone().map(|password| (peer.address, password)));
            let password = peer.password.as_ref().map(Password::text);
            for listener in &self.listeners {
                let Some(address) = seen_by(listener, peer.address) else { continue };
                if let Err(e) = wire::sign(listener, address, password) {
                    tracing::error!(peer = %peer.address, "its password can't be used: {e}");
                }
            }
        }
    }

    /// Closes all connections.
    pub(super) fn clear(&mut self) {
        self.links.clear();
    }

    pub(super) fn connect(&mut self, shared: &Shared, conn: Conn, to: SocketAddr) {
        let password = self.passwords.get(&to.ip()).map(Password::text);
        match self.privileges.peer((to, self.sources.get(&to).copied()), password) {
            Ok(socket) => {
                self.links.insert(conn, Link { socket, is_connecting: true, is_full: false });
            }
            Err(refusal) => {
                // The kernel's reasons come and go with the network.
                if refusal.errno.is_none() && self.refused.insert(to) {
                    tracing::warn!("no connection to a BGP peer: {}", refusal.text);
                } else {
                    tracing::debug!(%to, "no connection to a BGP peer: {}", refusal.text);
                }
                closed(shared, conn);
            }
        }
    }

    /// Closes a connection after an attempt to send its last message.
    pub(super) fn close(&mut self, conn: Conn, last: &[u8]) {
        if let Some(link) = self.links.remove(&conn).filter(|link| !link.is_connecting) {
            let _ = send(&link.socket, last, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Writes as much as the kernel takes.
    pub(super) fn write(&mut self, shared: &Shared) {
        let now = shared.now();
        let mut speaker = shared.speaker();
        let Some(speaker) = &mut *speaker else { return };
        self.links.retain(|conn, link| {
            while !link.is_connecting && !link.is_full {
                let output = speaker.output(*conn, now);
                if output.is_empty() {
                    break;
                }
                match send(&link.socket, output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(sent) => speaker.sent(*conn, sent, now),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => link.is_full = true,
                    Err(_) => {
                        speaker.closed(*conn, now);
                        return false;
                    }
                }
            }
            true
        });
    }

    /// Waits until a socket is ready, the speaker is to say something else, or a time has passed; then reads and
    /// accepts.
    pub(super) fn wait(&mut self, shared: &Shared, patience: Option<Duration>) {
        let conns: Vec<Conn> = self.links.keys().copied().collect();
        let mut ready = self.ready(shared, patience).into_iter();
        if ready.next().is_some_and(|wake| !wake.is_empty()) {
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
        }
        for (listener, flags) in self.listeners.iter().zip(ready.by_ref()) {
            if !flags.is_empty() {
                accept(shared, listener, &self.passwords, &mut self.links);
            }
        }
        for (conn, flags) in conns.into_iter().zip(ready) {
            if !flags.is_empty() {
                self.serve(shared, conn, flags);
            }
        }
    }

    /// Returns what the waker, the listeners and the links are ready for, in this order.
    fn ready(&self, shared: &Shared, patience: Option<Duration>) -> Vec<PollFlags> {
        let wants = {
            let speaker = shared.speaker();
            let wants_input = speaker.as_ref().is_some_and(Speaker::wants_input);
            let of = |link: &Link| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::OUT, link.is_connecting || link.is_full);
                flags.set(PollFlags::IN, !link.is_connecting && wants_input);
                flags
            };
            self.links.values().map(of).collect::<Vec<_>>()
        };
        let links = self.links.values().zip(wants);
        let mut polled: Vec<_> = std::iter::once(PollFd::new(&shared.wake, PollFlags::IN))
            .chain(self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)))
            .chain(links.map(|(link, wants)| PollFd::new(&link.socket, wants)))
            .collect();
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => polled.iter().map(PollFd::revents).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn serve(&mut self, shared: &Shared, conn: Conn, flags: PollFlags) {
        let now = shared.now();
        let Some(link) = self.links.get_mut(&conn) else { return };
        let mut speaker = shared.speaker();
        let Some(speaker) = &mut *speaker else { return };
        if flags.contains(PollFlags::OUT) {
            link.is_full = false;
        }
        if std::mem::take(&mut link.is_connecting) {
            if matches!(sockopt::socket_error(&link.socket), Ok(Ok(()))) {
                return speaker.connected(conn, now);
            }
        } else if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            match recv(&link.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {}
                Ok((_, length)) => return speaker.received(conn, &self.buffer[..length], now),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => {}
            }
        } else {
            return;
        }
        speaker.closed(conn, now);
        self.links.remove(&conn);
    }
}

/// Returns the address that a peer has for a listener: one for both families sees IPv4 peers by mapped ones.
fn seen_by(listener: &TcpListener, peer: IpAddr) -> Option<IpAddr> {
    match (listener.local_addr().ok()?.ip(), peer) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some(peer),
        (IpAddr::V6(_), IpAddr::V4(peer)) => Some(peer.to_ipv6_mapped().into()),
        (IpAddr::V4(_), IpAddr::V6(_)) => None,
    }
}

fn accept(
    shared: &Shared,
    listener: &TcpListener,
    passwords: &BTreeMap<IpAddr, Password>,
    links: &mut BTreeMap<Conn, Link>,
) {
    for _ in 0..ACCEPTED {
        let Ok((socket, from)) = listener.accept() else { return };
        if socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).is_err() {
            continue;
        }
        // It may have come before the listener knew the password.
        let password = passwords.get(&from.ip().to_canonical()).map(Password::text);
        if password.is_some() && wire::sign(&socket, from.ip(), password).is_err() {
            continue;
        }
        let now = shared.now();
        let conn = shared.speaker().as_mut().and_then(|speaker| speaker.accepted(from.ip(), now));
        if let Some(conn) = conn {
            links.insert(conn, Link { socket: socket.into(), is_connecting: false, is_full: false });
        }
    }
}

fn closed(shared: &Shared, conn: Conn) {
    let now = shared.now();
    shared.speaker().iter_mut().for_each(|speaker| speaker.closed(conn, now));
}
