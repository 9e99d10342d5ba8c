//! Outside addresses that guests share ([`crate::snat`]): the connection of a packet chooses address and port.
//!
//! On the way out, the source becomes a shared address once the packet's last network is known. On the way in, the
//! destination is a shared address, and the connection or a forwarded port says whose it is. Both happen to a packet
//! from one guest to a forwarded port of another.

use super::{Frame, Stop, Walk, is_roce};
use crate::snat::{Block, Mapping, OutsidePort, tag};
use crate::transport::is_echo;
use crate::{
    Binding, Connection, DropReason, Endpoint, FlowKey, FlowState, Lookup, Nat, Network, Segment, Transport,
    Vrf,
};
use packet::{Headers, Ip, L4, proto};
use std::net::IpAddr;

/// The translation of a packet by shared addresses.
#[derive(Clone, Copy, Default)]
pub(super) struct Sharing {
    /// The network outside, in which a shared address stands for the source.
    pub out: Option<Vrf>,
    /// The guest's end for which a shared address was the destination, and how it was found.
    pub inward: Option<Inward>,
}

/// A guest's end, found by a shared address and a port of it.
#[derive(Clone, Copy)]
pub(super) struct Inward {
    pub to: Endpoint,
    /// The binding by which a new connection is known outside, if a forwarded port leads there.
    forward: Option<(u16, u16)>,
}

/// The part of a packet's translation that its connection remembers.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// The guest's port, if the packet has one of a shared address as its destination.
    pub inside_port: Option<u16>,
    tag: u16,
    port: u16,
    /// Whether the binding is of the packet's destination.
    of_destination: bool,
    /// True if the guest has the port for all destinations.
    for_all: bool,
    /// Whether the connection does not have this binding yet.
    pub is_new: bool,
}

impl Bound {
    /// Returns the ports of a packet as they are inside.
    pub fn inside_ports(self, ports: (u16, u16)) -> (u16, u16) {
        (ports.0, self.inside_port.unwrap_or(ports.1))
    }

    /// Returns whether a packet by a forwarded port has the inside ends of a connection that goes by a different one.
    pub const fn clashes(self, known: &Connection) -> bool {
        self.is_new && self.of_destination && known.binding.is_some()
    }

    /// Returns the binding of a connection. `turned`: the packet goes against its original direction.
    pub const fn binding(self, turned: bool) -> Binding {
        let Self { tag, port, for_all, .. } = self;
        Binding { tag, port, of_destination: self.of_destination != turned, for_all }
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Finds the guest's end that packets to a shared address of the network `vrf` are for. `None` if it is a ping, which
    /// the gateway answers.
    pub(super) fn inward(
        &self,
        frame: &Frame<'a>,
        (src, outside): (IpAddr, IpAddr),
        vrf: Vrf,
    ) -> Result<Option<Inward>, Stop> {
        let ip = frame.headers.ip().ok_or(DropReason::SnatUnknown)?;
        // Nobody outside has a shared address, or may tell guests of other routers.
        let redirects = matches!(frame.headers.l4, L4::Icmp { kind: proto::ICMP_REDIRECT, .. });
        if redirects || self.tables.shared_by(frame.network.vrf, src).is_some() {
            return Err(DropReason::SnatUnknown.into());
        }
        let quoted = frame.headers.quoted(self.packet.bytes, frame.end).ok().flatten();
        if let Some((quoted, refused)) = quoted.as_ref().and_then(|quoted| Some((quoted, quoted.ip()?))) {
            let guest = Transport::of(quoted).and_then(|transport| {
                let (port, remote_port) = transport.ports.filter(|_| refused.src == outside)?;
                let remote = self.endpoint(frame, refused.dst, remote_port);
                let known = self.bound_to(vrf, (outside, port), remote, transport.protocol);
                let guest = known.and_then(|connection| Some(connection.bound_ends()?.0));
                guest.or_else(|| self.answerer(vrf, (outside, port), remote, transport.protocol))
            });
            return Ok(Some(Inward { to: guest.ok_or(DropReason::SnatUnknown)?, forward: None }));
        }
        let (protocol, (remote_port, port)) = self.ports(frame, ip)?;
        let remote = self.endpoint(frame, src, remote_port);
        let forwarded =
            self.tables.network(vrf).and_then(|network| network.sharing.forwarded(outside, protocol, port));
        let known = self.bound_to(vrf, (outside, port), remote, protocol);
        let known = known.filter(|connection| !opens_anew(connection, &frame.headers));
        if let Some((connection, (guest, _))) = known.and_then(|known| Some((known, known.bound_ends()?))) {
            // A connection by a forwarded port ends with it.
            let end = Some((guest.addr, guest.port));
            // A connection ends when the forwarded port by which it came is gone, or its own port leads to another end.
            let is_lost = connection.binding.is_some_and(|binding| match binding.of_destination {
                true => forwarded != end,
                false => binding.for_all && forwarded.is_some() && forwarded != end,
            });
            if is_lost {
                return Err(DropReason::SnatUnknown.into());
            }
            return Ok(Some(Inward { to: guest, forward: None }));
        }
        match forwarded {
            Some((addr, inside)) => {
                let to = Endpoint { vrf, addr, port: inside };
                Ok(Some(Inward { to, forward: Some((tag(outside), port)) }))
            }
            None if asks(&frame.headers) => Ok(None),
            None => Err(DropReason::SnatUnknown.into()),
        }
    }

    /// Returns the guest's end to which a port leads, if it has a connection with `remote`. That may be a guest whose
    /// own port the connection remembers.
    fn answerer(
        &self,
        vrf: Vrf,
        (outside, port): (IpAddr, u16),
        remote: Endpoint,
        protocol: u8,
    ) -> Option<Endpoint> {
        let (addr, port) = self.tables.network(vrf)?.sharing.forwarded(outside, protocol, port)?;
        let end = Endpoint { vrf, addr, port };
        let key = FlowKey { src: end, dst: remote, protocol };
        self.tables.connection(&key, self.now).map(|_| end)
    }

    /// Translates a packet that leaves for `dst` in `network` by shared addresses, if it must be. Records what its
    /// connection remembers.
    pub(super) fn share(
        &mut self,
        frame: &Frame<'a>,
        (network, dst): (&Network, IpAddr),
        nat: Nat,
        sharing: Sharing,
    ) -> Result<Nat, Stop> {
        let (nat, sharing) = self.speak_for(frame, (network.vrf, dst), nat, sharing);
        if sharing.out.is_none() && sharing.inward.is_none() {
            return Ok(nat);
        }
        let ip = frame.headers.ip().ok_or(DropReason::SnatProtocol)?;
        if is_roce(&frame.headers.l4) {
            return Err(DropReason::RoceNat.into());
        }
        let nat = match sharing.inward {
            Some(inward) => Nat { dst_port: Some(inward.to.port), ..nat },
            None => nat,
        };
        match (sharing.out, sharing.inward) {
            (None, Some(inward)) => {
                self.bind_inward(inward);
                Ok(nat)
            }
            (Some(outside_vrf), inward) => {
                let to = (network.vrf, dst);
                let (addr, port) = self.outward(frame, ip, to, outside_vrf, inward)?;
                Ok(Nat { src: Some(addr), src_port: Some(port), ..nat })
            }
            (None, None) => Ok(nat),
        }
    }

    fn bind_inward(&mut self, inward: Inward) {
        let (tag, port) = inward.forward.unwrap_or_default();
        self.bound = Some(Bound {
            inside_port: Some(inward.to.port),
            tag,
            port,
            of_destination: true,
            for_all: false,
            is_new: inward.forward.is_some(),
        });
    }

    /// Returns the shared address and port that stand for the source of a packet to `to`.
    fn outward(
        &mut self,
        frame: &Frame<'a>,
        ip: &Ip,
        to: (Vrf, IpAddr),
        outside_vrf: Vrf,
        inward: Option<Inward>,
    ) -> Result<(IpAddr, u16), Stop> {
        let src = self.source(frame, ip.src);
        let inside = self.tables.network(src.0).ok_or(DropReason::SnatUnknown)?;
        inward.into_iter().for_each(|inward| self.bind_inward(inward));
        if let Some(connection) = self.refused(frame, ip, to) {
            let end = self.refuser(inside, outside_vrf, &connection, inward);
            return Ok(end.ok_or(DropReason::SnatUnknown)?);
        }
        let (protocol, ports) = self.ports(frame, ip)?;
        let ports = (ports.0, inward.map_or(ports.1, |inward| inward.to.port));
        let key = FlowKey::new(src, to, protocol, ports);
        if inward.is_some_and(|inward| inward.forward.is_none()) {
            // An answer of a guest that was reached by a forwarded port, to a guest behind a shared address.
            let end = inside.sharing.forwarded_to(src.1, protocol, ports.0);
            return Ok(end.ok_or(DropReason::SnatUnknown)?);
        }
        let known = self.known_end(inside, outside_vrf, &key, ports)?;
        let is_new = known.is_none();
        let ((addr, port), for_all) = match known {
            Some((addr, binding)) => ((addr, binding.port), binding.for_all),
            None => {
                let new = match inside.sharing.mapping {
                    Mapping::EndpointIndependent => self.port_for_all(inside, outside_vrf, &key),
                    Mapping::AddressAndPortDependent => {
                        self.free_port(inside, outside_vrf, &key).map(|end| (end, false))
                    }
                };
                new.ok_or(DropReason::SnatPorts)?
            }
        };
        let inside_port = inward.map(|inward| inward.to.port);
        self.bound =
            Some(Bound { inside_port, tag: tag(addr), port, of_destination: false, for_all, is_new });
        Ok((addr, port))
    }

    /// Returns the shared address and the binding by which a packet's connection knows its sender. `None` if that has
    /// none, or has lost the address.
    ///
    /// # Errors
    /// `SnatUnknown`: the connection came by a port that no longer leads to the sender, or has the sender's port for all
    /// destinations, which leads to another end now.
    fn known_end(
        &self,
        inside: &Network,
        outside_vrf: Vrf,
        key: &FlowKey,
        ports: (u16, u16),
    ) -> Result<Option<(IpAddr, Binding)>, DropReason> {
        let FlowKey { src, protocol, .. } = *key;
        let known = self.connection(key, ports).and_then(|(connection, reply)| {
            Some((connection.binding.filter(|binding| binding.of_destination == reply)?, reply))
        });
        let Some((binding, reply)) = known else { return Ok(None) };
        let addr = inside.sharing.tagged(src.addr, outside_vrf, binding.tag);
        let end = Some((src.addr, ports.0));
        let leads = |addr| inside.sharing.forwarded(addr, protocol, binding.port) == end;
        let leads_elsewhere = |addr| {
            binding.for_all
                && inside.sharing.forwarded(addr, protocol, binding.port).is_some_and(|to| Some(to) != end)
        };
        if (reply && !addr.is_some_and(leads)) || addr.is_some_and(leads_elsewhere) {
            return Err(DropReason::SnatUnknown);
        }
        Ok(addr.map(|addr| (addr, binding)))
    }

    /// Returns the shared address and port that stand for the end to which the refused packet went. Records what the
    /// connection remembers, if the packet came from outside.
    fn refuser(
        &mut self,
        inside: &Network,
        outside_vrf: Vrf,
        refused: &Connection,
        inward: Option<Inward>,
    ) -> Option<(IpAddr, u16)> {
        let FlowKey { src, dst, protocol } = refused.original;
        let (binding, (guest, _)) = (refused.binding?, refused.bound_ends()?);
        let end = inward.map_or(guest, |inward| if inward.to == src { dst } else { src });
        if end != guest {
            return inside.sharing.forwarded_to(end.addr, protocol, end.port);
        }
        let Binding { tag, port, for_all, .. } = binding;
        if inward.is_none() {
            self.bound =
                Some(Bound { inside_port: None, tag, port, of_destination: false, for_all, is_new: false });
        }
        Some((inside.sharing.tagged(end.addr, outside_vrf, tag)?, port))
    }

    /// Returns the shared address and the port that a guest's end has for all destinations: those of its connections;
    /// those that lead to it; or else new ones. The flag is false if they are for this destination alone: older
    /// connections of the end still have a port that it has lost. `None` if no port is free, or another connection with
    /// the port goes to the same destination.
    fn port_for_all(
        &self,
        inside: &Network,
        outside_vrf: Vrf,
        key: &FlowKey,
    ) -> Option<((IpAddr, u16), bool)> {
        let FlowKey { src, dst, protocol } = *key;
        let addr = |tag| inside.sharing.tagged(src.addr, outside_vrf, tag);
        let is_own = |known: OutsidePort| {
            addr(known.tag).is_some_and(|addr| self.is_own(inside, outside_vrf, key, (addr, known.port)))
        };
        let known = self.tables.mapping(&src, protocol, &is_own);
        if let Some(end) = known.and_then(|known| Some((addr(known.tag)?, known.port))) {
            let is_free = self.bound_to(inside.vrf, end, dst, protocol).is_none();
            return is_free.then_some((end, true));
        }
        let has_another = self.tables.mapping(&src, protocol, &|known| addr(known.tag).is_some()).is_some();
        if has_another {
            return self.free_port(inside, outside_vrf, key).map(|end| (end, false));
        }
        let leading = inside.sharing.forwarded_to(src.addr, protocol, src.port);
        let leading = leading.filter(|(addr, port)| {
            let is_outside = inside.sharing.tagged(src.addr, outside_vrf, tag(*addr)).is_some();
            is_outside && self.is_free(inside, (*addr, *port), dst, protocol)
        });
        leading.or_else(|| self.free_port(inside, outside_vrf, key)).map(|end| (end, true))
    }

    /// Returns whether a port of a shared address leads to a guest's end, or to nobody and is of the guest's block.
    fn is_own(&self, inside: &Network, outside_vrf: Vrf, key: &FlowKey, (addr, port): (IpAddr, u16)) -> bool {
        let FlowKey { src, protocol, .. } = *key;
        match inside.sharing.forwarded(addr, protocol, port) {
            Some(to) => to == (src.addr, src.port),
            None => {
                Block::of(&inside.sharing, src.addr, outside_vrf).is_some_and(|block| block.has((addr, port)))
            }
        }
    }

    /// Returns a shared address and a port of the guest's block with which packets from the other end find no connection.
    fn free_port(&self, inside: &Network, outside_vrf: Vrf, key: &FlowKey) -> Option<(IpAddr, u16)> {
        let FlowKey { src, dst, protocol } = *key;
        let block = Block::of(&inside.sharing, src.addr, outside_vrf)?;
        let is_free = |port: &u16| {
            let reserved = protocol == proto::UDP && *port == proto::PORT_ROCE;
            let is_forwarded = || inside.sharing.forwarded(block.outside, protocol, *port).is_some();
            !reserved && !is_forwarded() && self.is_free(inside, (block.outside, *port), dst, protocol)
        };
        block.candidates(src.port).find(is_free).map(|port| (block.outside, port))
    }

    /// Returns whether packets from `remote` to an end outside find no connection; and no guest has the end for all
    /// destinations, if the network's guests have ends so.
    fn is_free(&self, inside: &Network, outside: (IpAddr, u16), remote: Endpoint, protocol: u8) -> bool {
        let for_all = inside.sharing.mapping == Mapping::EndpointIndependent;
        let is_mapped = for_all && self.tables.is_mapped(inside.vrf, outside, protocol);
        !is_mapped && self.bound_to(inside.vrf, outside, remote, protocol).is_none()
    }

    /// Returns the protocol and the ports of a packet that can go by a shared address.
    fn ports(&self, frame: &Frame<'a>, ip: &Ip) -> Result<(u8, (u16, u16)), DropReason> {
        let Transport { protocol, ports } = self.transport(frame, ip).ok_or(DropReason::SnatUnknown)?;
        let ports = ports.ok_or(DropReason::SnatUnknown)?;
        may_share(protocol, &frame.headers).then_some((protocol, ports)).ok_or(DropReason::SnatProtocol)
    }

    /// Returns the connection of a guest of the network `vrf` that `remote` knows by this end.
    fn bound_to(
        &self,
        vrf: Vrf,
        (outside, port): (IpAddr, u16),
        remote: Endpoint,
        protocol: u8,
    ) -> Option<Connection> {
        let binding = Binding { tag: tag(outside), port, of_destination: false, for_all: false };
        self.tables.bound(&binding.key(vrf, remote, protocol), self.now)
    }

    /// Returns a packet's sender as connections know it.
    fn endpoint(&self, frame: &Frame<'a>, addr: IpAddr, port: u16) -> Endpoint {
        let (vrf, addr) = self.source(frame, addr);
        Endpoint { vrf, addr, port }
    }
}

/// Returns whether a segment opens a connection in the place of one that has ended. From outside, only a forwarded port
/// leads to a guest then.
fn opens_anew(ended: &Connection, headers: &Headers) -> bool {
    ended.state == FlowState::Closed && Segment::of(headers).is_some_and(|segment| segment.opens())
}

/// Returns whether a packet has ports or, for a ping, an identifier.
fn may_share(protocol: u8, headers: &Headers) -> bool {
    match headers.l4 {
        L4::Icmp { kind, .. } => is_echo(kind, protocol),
        _ => matches!(protocol, proto::TCP | proto::UDP | proto::ICMP | proto::ICMPV6),
    }
}

/// Returns whether a packet is a ping.
const fn asks(headers: &Headers) -> bool {
    matches!(headers.l4, L4::Icmp { kind: proto::ICMP_ECHO_REQUEST | proto::ICMPV6_ECHO_REQUEST, .. })
}
