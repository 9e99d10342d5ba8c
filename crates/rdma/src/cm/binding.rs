//! Addresses and ports of identifiers, before a conversation.

use super::endpoint::State;
use super::{Client, EventKind, Manager, Refused, Route, Transport, gid, status};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Ports for identifiers that don't request one.
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;

impl Manager {
    /// Binds an identifier to an address (`rdma_bind_addr`): one of the guest's, a loopback address, or the
    /// unspecified one. Port 0 stands for any free port. Returns the bound address.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`], [`Refused::AddressNotAvailable`], [`Refused::AddressInUse`].
    pub fn bind_addr(&mut self, client: Client, id: u32, address: SocketAddr) -> Result<SocketAddr, Refused> {
        if self.owned(client, id)?.state != State::Idle {
            return Err(Refused::State);
        }
        let ip = address.ip().to_canonical();
        if !ip.is_unspecified() && !self.has(ip) {
            return Err(Refused::AddressNotAvailable);
        }
        let local = self.take_port(id, SocketAddr::new(ip, address.port()))?;
        self.set_state(id, State::Bound);
        Ok(local)
    }

    /// Is true if the guest may use an address as its own.
    fn has(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.gids.contains(&gid(ip))
    }

    fn take_port(&mut self, id: u32, wanted: SocketAddr) -> Result<SocketAddr, Refused> {
        let port = match wanted.port() {
            0 => self.free_port(id, wanted.ip())?,
            port if self.is_free(id, wanted.ip(), port) => port,
            _ => return Err(Refused::AddressInUse),
        };
        let local = SocketAddr::new(wanted.ip(), port);
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        endpoint.local = Some(local);
        self.ports.entry((endpoint.space, port)).or_default().push(id);
        Ok(local)
    }

    /// Releases an endpoint's port for others, and ends its listening.
    pub(super) fn release_port(&mut self, id: u32) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let Some(local) = endpoint.local else { return };
        let port = (endpoint.space, local.port());
        remove_from(&mut self.ports, &port, id);
        remove_from(&mut self.listeners, &port.0.service(port.1), id);
    }

    fn free_port(&mut self, id: u32, ip: IpAddr) -> Result<u16, Refused> {
        let ports = u64::from(EPHEMERAL.end - EPHEMERAL.start);
        let first = u64::from((self.random.0)() as u32);
        let candidates = (0..ports).map(|more| EPHEMERAL.start + ((first + more) % ports) as u16);
        let mut free = candidates.filter(|port| self.is_free(id, ip, *port));
        free.next().ok_or(Refused::AddressInUse)
    }

    fn is_free(&self, id: u32, ip: IpAddr, port: u16) -> bool {
        let Some(asking) = self.endpoints.get(&id) else { return false };
        let with_port = self.ports.get(&(asking.space, port)).into_iter().flatten();
        let mut others =
            with_port.filter(|other| **other != id).filter_map(|other| self.endpoints.get(other));
        !others.any(|other| {
            let Some(local) = other.local else { return false };
            let shared = other.reuse_address && asking.reuse_address && other.state != State::Listening;
            let meet = overlap(local.ip(), other.only_ipv6, ip) || overlap(ip, asking.only_ipv6, local.ip());
            meet && !shared
        })
    }

    /// Resolves a destination (`rdma_resolve_addr`). The source is the given one, the bound one, or one of the
    /// guest's. `reaches` tells whether the host delivers packets from the first address to the second. The result
    /// is an event: `AddrResolved` or `AddrError`. Datagrams may go to a multicast group. As with Linux, the
    /// unspecified address means the loopback address; packets to it stay in the device.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`], [`Refused::AddressNotAvailable`], [`Refused::AddressInUse`];
    /// [`Refused::Parameter`] if the destination is not valid; [`Refused::TooMany`] if its events are not taken.
    pub fn resolve_addr(
        &mut self,
        client: Client,
        id: u32,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        reaches: impl FnOnce(IpAddr, IpAddr) -> bool,
    ) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        endpoint.listens_for_more()?;
        let bound = match (endpoint.state, endpoint.local) {
            (State::Idle, _) => source,
            (State::Bound, Some(local)) => Some(local),
            _ => return Err(Refused::State),
        };
        let is_new = endpoint.state == State::Idle;
        let to = SocketAddr::new(or_loopback(destination.ip().to_canonical()), destination.port());
        if to.ip().is_multicast() && endpoint.transport != Transport::Datagram {
            return Err(Refused::Parameter);
        }
        let asked = bound.map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        let port = bound.map_or(0, |address| address.port());
        if is_new && asked.is_some_and(|ip| !self.has(ip)) {
            return Err(Refused::AddressNotAvailable);
        }
        let found = asked.or_else(|| self.source_for(to.ip()));
        let gets_there = |from: &IpAddr| !from.is_loopback() || to.ip().is_loopback();
        let from = found.filter(|from| from.is_ipv4() == to.is_ipv4() && gets_there(from));
        let own = from.filter(|_| to.ip().is_loopback()).and_then(|from| self.behind_loopback(from));
        if let Some(from) = from {
            if is_new {
                self.take_port(id, SocketAddr::new(from, port))?;
                self.set_state(id, State::Bound);
            } else if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.local = Some(SocketAddr::new(from, port));
            }
        }
        match from.filter(|from| reaches(*from, to.ip())) {
            Some(_) => self.resolved(id, to, own),
            None => self.tell(id, EventKind::AddrError, |event| event.status = status::UNREACHABLE),
        }
        Ok(())
    }

    fn resolved(&mut self, id: u32, to: SocketAddr, own: Option<IpAddr>) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            (endpoint.peer, endpoint.own) = (Some(to), own);
        }
        self.set_state(id, State::AddressResolved);
        let route = self.route(id);
        self.tell(id, EventKind::AddrResolved, |event| event.route = route);
    }

    pub(super) fn route(&self, id: u32) -> Option<Route> {
        let endpoint = self.endpoints.get(&id)?;
        Some(Route { local: endpoint.local?, peer: endpoint.peer?, own: endpoint.own, mtu: endpoint.mtu })
    }

    /// Returns the guest's address that replaces a loopback address on the wire: one of the same IP version and, if
    /// possible, not link-local. Returns other addresses unchanged.
    fn behind_loopback(&self, from: IpAddr) -> Option<IpAddr> {
        if !from.is_loopback() {
            return Some(from);
        }
        let own = self.gids.iter().map(|gid| IpAddr::V6(*gid).to_canonical());
        own.min_by_key(|ip| (ip.is_ipv4() != from.is_ipv4(), is_link_local(*ip)))
    }

    /// Returns the guest's address from which another address is reached.
    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        if to.is_loopback() {
            return Some(to);
        }
        let own = self.gids.iter().map(|gid: &Ipv6Addr| IpAddr::V6(*gid).to_canonical());
        let same_version = own.clone().filter(|ip| ip.is_ipv4() == to.is_ipv4());
        let mut right = same_version.clone().filter(|ip| is_link_local(*ip) == is_link_local(to));
        let any = || if to.is_multicast() { same_version.clone().next() } else { None };
        own.clone().find(|ip| *ip == to).or_else(|| right.next()).or_else(any)
    }

    /// Resolves the route to a resolved destination (`rdma_resolve_route`). Over Ethernet there is nothing to do. The
    /// result is the event `RouteResolved`.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    pub fn resolve_route(&mut self, client: Client, id: u32) -> Result<(), Refused> {
        if self.owned(client, id)?.state != State::AddressResolved {
            return Err(Refused::State);
        }
        self.set_state(id, State::RouteResolved);
        self.tell(id, EventKind::RouteResolved, |_| ());
        Ok(())
    }

    /// Listens (`rdma_listen`): requests to the identifier's address become `ConnectRequest` events. At most `backlog`
    /// may wait for an answer; 0 stands for the largest backlog.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`], [`Refused::AddressInUse`].
    pub fn listen(&mut self, client: Client, id: u32, backlog: u32) -> Result<(), Refused> {
        let most = self.config.limits.backlog;
        let endpoint = self.owned(client, id)?;
        endpoint.backlog = if backlog == 0 { most } else { backlog.min(most) };
        let space = endpoint.space;
        let local = match (endpoint.state, endpoint.local) {
            (State::Bound, Some(local)) => local,
            (State::Idle, _) => self.take_port(id, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?,
            _ => return Err(Refused::State),
        };
        let listeners = self.listeners.entry(space.service(local.port())).or_default();
        // Endpoints that share a port may be bound to it, but only one may listen.
        let is_there = |id: &u32| self.endpoints.get(id).is_some_and(|other| other.local == Some(local));
        if listeners.iter().any(is_there) {
            return Err(Refused::AddressInUse);
        }
        listeners.push(id);
        self.set_state(id, State::Listening);
        Ok(())
    }

    /// Returns the listener for a service at an address. One that is bound to this address takes precedence over
    /// one bound to all.
    pub(super) fn listener(&self, service: u64, to: IpAddr, datagram: bool) -> Option<u32> {
        let of_service = self.listeners.get(&service).into_iter().flatten();
        let listens = |id: &u32| {
            let endpoint = self.endpoints.get(id)?;
            let local = endpoint.local?.ip();
            let is_it = (endpoint.transport == Transport::Datagram) == datagram
                && overlap(local, endpoint.only_ipv6, to);
            is_it.then_some((local.is_unspecified(), *id))
        };
        of_service.filter_map(listens).min().map(|(_, id)| id)
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Replaces the unspecified address with the loopback address, which means this guest.
fn or_loopback(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Removes an endpoint from a list, and the list if it is then empty.
fn remove_from<K: Ord>(lists: &mut BTreeMap<K, Vec<u32>>, key: &K, id: u32) {
    if let Some(list) = lists.get_mut(key) {
        list.retain(|other| *other != id);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

/// Is true if a bound address includes another one.
fn overlap(bound: IpAddr, only_ipv6: bool, other: IpAddr) -> bool {
    match bound {
        _ if bound == other => true,
        IpAddr::V4(bound) => bound.is_unspecified() && other.is_ipv4(),
        IpAddr::V6(bound) => bound.is_unspecified() && (other.is_ipv6() || !only_ipv6),
    }
}
