//! Messages of DHCP for IPv4. Servers answer to the host's own address, in `giaddr`. The relay tells them the guest
//! (RFC 3046), the gateway's subnet (RFC 3527), and to have clients renew by the gateway (RFC 5107): so guests need no
//! way to the servers.

use super::{Client, Id};
use crate::dhcp::message::{Message, OPTIONS, options};
use crate::dhcp::{CLIENT, SERVER, SHORTEST};
use crate::frame::{Datagram, End, datagram};
use crate::{Binding, Plan, Refused};
use dhcproto::v4::MessageType;
use ipnet::Ipv4Net;
use packet::{Mac, proto};
use std::net::Ipv4Addr;

/// Offsets of fixed fields (RFC 2131, 2).
const HOPS: usize = 3;
const GIADDR: usize = 24;
/// A message that has gone by so many relays goes no further (RFC 1542, 4.1.1).
const MAX_HOPS: u8 = 16;
const END: u8 = 255;
/// The option of relays (RFC 3046), and parts of it: the guest, the subnet (RFC 3527), the server that the client is
/// told (RFC 5107).
const AGENT: u8 = 82;
const CIRCUIT: u8 = 1;
const SUBNET: u8 = 5;
const SERVER_OVERRIDE: u8 = 11;

/// Writes the address of the relay into a message.
pub(super) fn set_relay(message: &mut [u8], own: Ipv4Addr) {
    message[GIADDR..GIADDR + 4].copy_from_slice(&own.octets());
}

/// Returns a client's message for servers, which lacks the relay's address.
pub(super) fn forward(guest: &Binding, asked: &Datagram<'_>) -> Result<(Id, Vec<u8>), Refused> {
    let read = Message::read(asked.payload)?;
    if read.mac != asked.from {
        return Err(Refused::WrongMac);
    }
    let gateway = gateway(guest).ok_or(Refused::NoAddress)?;
    let mut is_relayed = !read.giaddr.is_unspecified() || asked.payload[HOPS] >= MAX_HOPS;
    let rest = &asked.payload[OPTIONS..];
    let end = options(rest, &mut |code, _| {
        is_relayed |= code == AGENT;
        Some(())
    });
    if is_relayed {
        return Err(Refused::NotOurs);
    }
    let mut message = asked.payload[..OPTIONS + end.ok_or(Refused::Malformed)?].to_vec();
    message[HOPS] += 1;
    message.extend(agent(&guest.guest, gateway.addr()));
    message.push(END);
    message.resize(message.len().max(SHORTEST), 0);
    Ok((Id::V4 { xid: read.xid }, message))
}

/// Returns the relay's option.
fn agent(guest: &str, gateway: Ipv4Addr) -> Vec<u8> {
    let guest = &guest.as_bytes()[..guest.len().min(MAX_CIRCUIT)];
    let parts = [(CIRCUIT, guest), (SUBNET, &gateway.octets()), (SERVER_OVERRIDE, &gateway.octets())];
    let parts: Vec<u8> =
        parts.into_iter().flat_map(|(code, value)| [&[code, value.len() as u8], value].concat()).collect();
    [&[AGENT, parts.len() as u8], &parts[..]].concat()
}

/// Longest name of a guest in the relay's option, bytes.
const MAX_CIRCUIT: usize = 200;

/// Returns the gateway in whose subnet the guest is: that of its address, or the first one.
fn gateway(guest: &Binding) -> Option<Ipv4Net> {
    guest.v4().map(|(_, gateway)| gateway).or_else(|| guest.network.gateways4().next())
}

/// An answer of a server.
pub(super) struct Answer<'a> {
    read: Message,
    yiaddr: Ipv4Addr,
    /// The guest that the relay's option names, if the server sent that back.
    guest: Option<&'a [u8]>,
    bytes: &'a [u8],
}

impl<'a> Answer<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let read = Message::answer(bytes)?;
        let mut guest = None;
        let yiaddr = Ipv4Addr::from(*bytes[16..].first_chunk::<4>()?);
        options(&bytes[OPTIONS..], &mut |code, value| {
            if code == AGENT {
                guest = circuit(value);
            }
            Some(())
        })?;
        Some(Self { read, yiaddr, guest, bytes })
    }

    /// Returns how its guest is found.
    pub(super) fn id(&self) -> Id {
        Id::V4 { xid: self.read.xid }
    }

    pub(super) fn is_for(&self, client: &Client) -> bool {
        let named = client.guest.as_bytes();
        let is_named = self.guest.is_none_or(|guest| guest == &named[..named.len().min(MAX_CIRCUIT)]);
        is_named && client.mac == self.read.mac
    }

    /// Returns the frame for the guest: without what is between relay and server.
    pub(super) fn frame(&self, plan: &Plan, guest: &Binding) -> Result<Vec<u8>, Refused> {
        let gateway = gateway(guest).ok_or(Refused::NoAddress)?;
        let mut message = self.bytes[..OPTIONS].to_vec();
        set_relay(&mut message, Ipv4Addr::UNSPECIFIED);
        options(&self.bytes[OPTIONS..], &mut |code, value| {
            if code != AGENT {
                message.extend([code, value.len() as u8]);
                message.extend(value);
            }
            Some(())
        })
        .ok_or(Refused::Malformed)?;
        message.push(END);
        message.resize(message.len().max(SHORTEST), 0);
        if message.len() + proto::IPV4_LEN + proto::UDP_LEN > guest.mtu.into() {
            return Err(Refused::Malformed);
        }
        let from = End { mac: plan.gateway_mac, addr: gateway.addr(), port: SERVER };
        datagram(from, self.to(), &message).map_err(|_| Refused::Malformed)
    }

    /// Returns where the answer goes (RFC 2131, 4.1).
    fn to(&self) -> End {
        let read = &self.read;
        let everybody = End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: CLIENT };
        let one = |addr| End { mac: read.mac, addr, port: CLIENT };
        match (read.ciaddr, self.yiaddr) {
            _ if read.kind == MessageType::Nak => everybody,
            (used, _) if !used.is_unspecified() => one(used),
            (_, given) if given.is_unspecified() || read.wants_broadcast() => everybody,
            (_, given) => one(given),
        }
    }
}

/// Returns the guest that the relay's option names.
fn circuit(mut parts: &[u8]) -> Option<&[u8]> {
    loop {
        let ([code, len], behind) = parts.split_first_chunk::<2>()?;
        let (value, behind) = behind.split_at_checked((*len).into())?;
        if *code == CIRCUIT {
            return Some(value);
        }
        parts = behind;
    }
}
