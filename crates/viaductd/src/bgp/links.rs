//! The speaker's sockets.

use super::Shared;
use crate::privileges::Privileges;
use bgp::{Conn, Speaker};
use config::{Bgp, BgpPeer, Password};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes that are read from a socket at once: other sockets have their turn between two such pieces.
const PIECE: usize = 64 << 10;
/// More connections than a listener holds that nobody has accepted.
const BACKLOG: usize = 256;
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
    /// The configuration, which says who the peers are.
    bgp: Option<Bgp>,
    links: BTreeMap<Conn, Link>,
    buffer: Vec<u8>,
}

impl Links {
    pub(super) fn new(listeners: Vec<TcpListener>, privileges: Privileges) -> Self {
        for listener in &listeners {
            let is_v4 = listener.local_addr().is_ok_and(|address| address.is_ipv4());
            if let Err(e) = wire::watch_hops(listener, is_v4) {
                tracing::warn!("peers that look at the TTL can't call: {e}");
            }
        }
        Self { listeners, privileges, bgp: None, links: BTreeMap::new(), buffer: vec![0; PIECE] }
    }

    /// Opens connections with peers, and signs them, as the configuration says, from the next one on.
    pub(super) fn set_peers(&mut self, shared: &Shared, bgp: &Bgp) {
        // The kernel keeps a password until it is told of another, or of none. New ones come before old ones go, so
        // that nobody is without.
        let passwords: BTreeMap<_, _> = signed(bgp).collect();
        let gone = self.bgp.iter().flat_map(signed).filter(|(peers, _)| !passwords.contains_key(peers));
        let new = passwords.iter().map(|(peers, text)| (*peers, Some(*text)));
        for ((address, bits), password) in new.chain(gone.map(|(peers, _)| (peers, None))) {
            for listener in &self.listeners {
                let Some(address) = seen_by(listener, address) else { continue };
                if let Err(e) = wire::sign(listener, (address, bits), password) {
                    tracing::error!(peer = %address, "its password can't be used: {e}");
                }
            }
        }
        // A peer that connected before that may not know the password.
        for listener in self.listeners.iter().filter(|_| !passwords.is_empty()) {
            (0..BACKLOG).take_while(|_| listener.accept().is_ok()).for_each(drop);
        }
        shared.refused().clear();
        self.bgp = Some(bgp.clone());
    }

    /// Closes all connections.
    pub(super) fn clear(&mut self) {
        self.links.clear();
    }

    pub(super) fn connect(&mut self, shared: &Shared, conn: Conn, to: SocketAddr) {
        let peer = self.bgp.as_ref().and_then(|bgp| Some((bgp, bgp.peer_at(to.ip())?)));
        let source = peer.and_then(|(bgp, peer)| bgp.way_to(peer).1);
        let password = peer.and_then(|(_, peer)| peer.password.as_ref()).map(Password::text);
        match self.privileges.peer((to, source), password) {
            Ok(socket) => {
                if let Some(Err(e)) = peer.map(|(_, peer)| guard(&socket, to.ip(), peer)) {
                    tracing::error!(%to, "its `ttl_security` can't be used: {e}");
                    return closed(shared, conn);
                }
                shared.refused().remove(&to.ip());
                self.links.insert(conn, Link { socket, is_connecting: true, is_full: false });
            }
            Err(refusal) => {
                // The kernel's reasons come and go with the network.
                if refusal.errno.is_none() {
                    let known = shared.refused().insert(to.ip(), refusal.text.clone());
                    if known.is_none() {
                        tracing::warn!("no connection to a BGP peer: {}", refusal.text);
                    }
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
                accept(shared, listener, self.bgp.as_ref(), &mut self.links);
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

/// Returns the peers, by address and prefix length, whose segments are signed, with their passwords.
fn signed(bgp: &Bgp) -> impl Iterator<Item = ((IpAddr, u8), &str)> {
    let bits = |peer: &BgpPeer| if peer.address.is_ipv4() { 32 } else { 128 };
    let peers = bgp.peers.iter().map(move |peer| ((peer.address, bits(peer)), peer));
    let ranges =
        bgp.ranges.iter().map(|range| ((range.prefix.addr(), range.prefix.prefix_len()), &range.peer));
    peers.chain(ranges).filter_map(|(at, peer)| Some((at, peer.password.as_ref()?.text())))
}

/// Has a socket hear a peer from as near as it is.
fn guard(socket: &impl AsFd, address: IpAddr, peer: &BgpPeer) -> std::io::Result<()> {
    peer.ttl_security.map_or(Ok(()), |hops| wire::limit_hops(socket, address, hops))
}

/// Returns the address that a peer has for a listener: one for both families sees IPv4 peers by mapped ones.
fn seen_by(listener: &TcpListener, peer: IpAddr) -> Option<IpAddr> {
    match (listener.local_addr().ok()?.ip(), peer) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some(peer),
        (IpAddr::V6(_), IpAddr::V4(peer)) => Some(peer.to_ipv6_mapped().into()),
        (IpAddr::V4(_), IpAddr::V6(_)) => None,
    }
}

fn accept(shared: &Shared, listener: &TcpListener, bgp: Option<&Bgp>, links: &mut BTreeMap<Conn, Link>) {
    for _ in 0..ACCEPTED {
        let Ok((socket, from)) = listener.accept() else { return };
        if socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).is_err() {
            continue;
        }
        let Some(peer) = bgp.and_then(|bgp| bgp.peer_at(from.ip().to_canonical())) else { continue };
        // The answers are signed as well.
        let password = peer.password.as_ref().map(Password::text);
        let bits = if from.ip().to_canonical().is_ipv4() { 32 } else { 128 };
        let signed = password.map_or(Ok(()), |text| wire::sign(&socket, (from.ip(), bits), Some(text)));
        let is_near =
            || peer.ttl_security.is_none_or(|hops| wire::came_within(&socket, hops).unwrap_or(false));
        if signed.and_then(|()| guard(&socket, from.ip(), peer)).is_err() || !is_near() {
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
