//! DHCP by servers outside: messages of guests go there, and the answers come back (RFC 2131, 4.1; RFC 8415, 19).
//!
//! A guest is found again by its own message, which is kept for a while: what nobody asked for goes to nobody.

mod v4;
mod v6;

use crate::frame::Datagram;
use crate::{Binding, Plan, Refused};
use packet::Mac;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Most messages of a guest that wait for an answer, and for how long, seconds.
const MOST: usize = 8;
const PATIENCE: u64 = 60;

/// A message of a guest for servers outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The servers, all of one family: each gets the message.
    pub servers: Vec<IpAddr>,
    pub(crate) network: String,
    message: Vec<u8>,
    client: Client,
}

/// A guest that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    /// The number of the guest's interface, and the guest's name.
    number: u16,
    guest: String,
    mac: Mac,
    id: Id,
    /// When it asked, seconds.
    asked: u64,
}

/// The part of a message by which its answer is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    V4 { xid: u32 },
    V6 { xid: [u8; 3], peer: Ipv6Addr },
}

impl Relayed {
    /// Returns the datagram for a server. `own`: the address by which the host reaches it.
    #[must_use]
    pub fn datagram(&self, own: IpAddr) -> Vec<u8> {
        let mut message = self.message.clone();
        if let IpAddr::V4(own) = own {
            v4::set_relay(&mut message, own);
        }
        message
    }
}

/// The guests that wait for answers, by the numbers of their interfaces.
#[derive(Debug, Default)]
pub(crate) struct Waiting(BTreeMap<u16, VecDeque<Client>>);

impl Waiting {
    /// Notes who asks. The oldest message of the guest makes room for this one.
    pub(crate) fn note(&mut self, asked: &Relayed, now: u64) {
        let client = Client { asked: now, ..asked.client.clone() };
        let its = self.0.entry(client.number).or_default();
        its.retain(|other| other.is_waiting(now) && (other.mac, other.id) != (client.mac, client.id));
        if its.len() == MOST {
            its.pop_front();
        }
        its.push_back(client);
    }

    /// Forgets guests that are gone.
    pub(crate) fn keep(&mut self, plan: &Plan) {
        self.0.retain(|number, _| plan.bindings.contains_key(number));
    }

    fn find(&self, now: u64, is_it: impl Fn(&Client) -> bool) -> Option<&Client> {
        self.0.values().flatten().find(|client| client.is_waiting(now) && is_it(client))
    }
}

impl Client {
    const fn is_waiting(&self, now: u64) -> bool {
        now < self.asked + PATIENCE
    }

    /// Returns the guest as it is now, if this server still serves it.
    fn binding<'a>(&self, plan: &'a Plan, server: IpAddr) -> Option<&'a Binding> {
        let binding = plan.bindings.get(&self.number).filter(|binding| binding.guest == self.guest)?;
        Some(binding).filter(|binding| binding.network.dhcp_relay.contains(&server))
    }
}

/// Returns the message of a guest for the servers of its network. `number`: that of the guest's interface.
pub(crate) fn forward((number, guest): (u16, &Binding), asked: &Datagram<'_>) -> Result<Relayed, Refused> {
    if guest.mac.is_some_and(|own| own != asked.from) {
        return Err(Refused::WrongMac);
    }
    let (id, message) = match asked.src {
        IpAddr::V4(_) => v4::forward(guest, asked)?,
        IpAddr::V6(peer) => v6::forward(guest, asked, peer)?,
    };
    let network = &guest.network;
    let servers: Vec<_> = network.relays(asked.src.is_ipv4()).collect();
    if servers.is_empty() {
        return Err(Refused::NotOurs);
    }
    let client = Client { number, guest: guest.guest.clone(), mac: asked.from, id, asked: 0 };
    Ok(Relayed { servers, network: network.name.clone(), message, client })
}

/// An answer of a server, for a guest.
pub(crate) struct Returned {
    pub(crate) number: u16,
    pub(crate) network: String,
    pub(crate) frame: Result<Vec<u8>, Refused>,
}

/// Returns the frame for the guest that a datagram of a server answers; `None` if it answers nobody.
pub(crate) fn back(plan: &Plan, waiting: &Waiting, from: (IpAddr, &[u8]), now: u64) -> Option<Returned> {
    let (server, datagram) = from;
    let is_its = |client: &Client| client.binding(plan, server).is_some();
    let (client, frame) = match server {
        IpAddr::V4(_) => {
            let answer = v4::Answer::read(datagram)?;
            let client = waiting.find(now, |client| answer.is_for(client) && is_its(client))?;
            (client, answer.frame(plan, client.binding(plan, server)?))
        }
        IpAddr::V6(_) => {
            let answer = v6::Answer::read(datagram)?;
            let client = waiting.find(now, |client| answer.is_for(client) && is_its(client))?;
            (client, answer.frame(plan, client.binding(plan, server)?, client.mac))
        }
    };
    let network = client.binding(plan, server)?.network.name.clone();
    Some(Returned { number: client.number, network, frame })
}
