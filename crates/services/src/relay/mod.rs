//! DHCP by servers outside: messages of guests go there, and the answers come back (RFC 2131, 4.1; RFC 8415, 19).
//!
//! A guest is found again by its own message, which is kept for a while: what nobody asked for goes to nobody.

mod v4;
mod v6;

use crate::frame::Datagram;
use crate::{Binding, Plan, Refused};
use packet::Mac;
use std::collections::{BTreeMap, HashMap, VecDeque};
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
    at: u64,
}

/// The part of a message by which its answer is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// The guests that wait for answers. An answer finds its guest by its own bytes, however many guests wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    clients: HashMap<Id, Vec<Client>>,
    /// The messages of each guest, the oldest first, by the numbers of their interfaces.
    asked: BTreeMap<u16, VecDeque<Asked>>,
}

/// A message of a guest: when it came, from which MAC, and how its answer is found.
type Asked = (u64, Mac, Id);

impl Waiting {
    /// Notes who asks. The oldest message of the guest makes room for this one.
    pub(crate) fn note(&mut self, relayed: &Relayed, now: u64) {
        let client = Client { at: now, ..relayed.client.clone() };
        let its = self.asked.entry(client.number).or_default();
        let is_gone = |(at, mac, id): &Asked| !is_waiting(*at, now) || (*mac, *id) == (client.mac, client.id);
        let (gone, mut left): (VecDeque<_>, VecDeque<_>) = its.drain(..).partition(is_gone);
        let oldest = if left.len() == MOST { left.pop_front() } else { None };
        left.push_back((now, client.mac, client.id));
        *its = left;
        gone.into_iter().chain(oldest).for_each(|asked| forget(&mut self.clients, client.number, asked));
        self.clients.entry(client.id).or_default().push(client);
    }

    /// Forgets guests that are gone.
    pub(crate) fn keep(&mut self, plan: &Plan) {
        let Self { clients, asked } = self;
        asked.retain(|number, its| {
            let is_there = plan.bindings.contains_key(number);
            if !is_there {
                its.drain(..).for_each(|asked| forget(clients, *number, asked));
            }
            is_there
        });
    }

    /// Returns how many messages wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.clients.values().map(Vec::len).sum()
    }

    fn find(&self, id: Id, now: u64, is_it: impl Fn(&Client) -> bool) -> Option<&Client> {
        self.clients.get(&id)?.iter().find(|client| is_waiting(client.at, now) && is_it(client))
    }
}

/// Returns whether who asked at this time waits for the answer.
const fn is_waiting(at: u64, now: u64) -> bool {
    now < at + PATIENCE
}

fn forget(clients: &mut HashMap<Id, Vec<Client>>, number: u16, (_, mac, id): Asked) {
    if let Some(those) = clients.get_mut(&id) {
        those.retain(|client| (client.number, client.mac) != (number, mac));
        if those.is_empty() {
            clients.remove(&id);
        }
    }
}

impl Client {
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
    let client = Client { number, guest: guest.guest.clone(), mac: asked.from, id, at: 0 };
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
            let client = waiting.find(answer.id(), now, |client| answer.is_for(client) && is_its(client))?;
            (client, answer.frame(plan, client.binding(plan, server)?))
        }
        IpAddr::V6(_) => {
            let answer = v6::Answer::read(datagram)?;
            let client = waiting.find(answer.id(), now, |client| answer.is_for(client) && is_its(client))?;
            (client, answer.frame(plan, client.binding(plan, server)?, client.mac))
        }
    };
    let network = client.binding(plan, server)?.network.name.clone();
    Some(Returned { number: client.number, network, frame })
}
