//! DHCPv6 (RFC 8415). As for IPv4, a guest has the addresses of its binding, whatever it asks for, and the server
//! remembers nothing.

pub(crate) mod message;

use crate::frame::{Datagram, datagram6};
use crate::plan::v6_of;
use crate::{Binding, Plan, Refused};
use dhcproto::Encodable;
use dhcproto::v6::{
    self, DhcpOption, DhcpOptions, IAAddr, IANA, MessageType, NtpSuboption, OptionCode, Status, StatusCode,
    UnknownOption,
};
use message::{Association, Message};
use packet::proto;
use std::net::{IpAddr, Ipv6Addr};

/// The port of servers.
pub(crate) const SERVER: u16 = 547;
pub(crate) const CLIENT: u16 = 546;
/// Longest answer, bytes: the least MTU of links with IPv6 (RFC 8200, 5) without the headers of IPv6 and UDP.
const LONGEST: usize = 1280 - proto::IPV6_LEN - proto::UDP_LEN;
/// Most addresses of a guest in an answer.
const MOST: usize = 16;

/// Returns the answer to a datagram; `None` if nothing is to be answered.
pub(crate) fn answer(plan: &Plan, guest: &Binding, asked: &Datagram<'_>) -> Result<Option<Vec<u8>>, Refused> {
    let message = Message::read(asked.payload)?;
    let IpAddr::V6(src) = asked.src else { return Err(Refused::Malformed) };
    if guest.mac.is_some_and(|own| own != asked.from) {
        return Err(Refused::WrongMac);
    }
    let own: Vec<Ipv6Addr> = guest.v6().take(MOST).collect();
    let server = [&[0, 3, 0, 1][..], &plan.gateway_mac.0].concat();
    match (message.kind, &message.server) {
        (_, Some(other)) if *other != server => return Err(Refused::NotOurs),
        (MessageType::Solicit | MessageType::Confirm | MessageType::Rebind, Some(_))
        | (MessageType::Request | MessageType::Renew | MessageType::Release | MessageType::Decline, None) => {
            return Err(Refused::Malformed);
        }
        (MessageType::InformationRequest, _) => {}
        _ if message.client.is_none() => return Err(Refused::Malformed),
        _ if own.is_empty() => return Err(Refused::NoAddress),
        _ => {}
    }
    let at_once = message.kind == MessageType::Solicit && message.rapid;
    let kind = match message.kind {
        MessageType::Solicit if !at_once => MessageType::Advertise,
        _ => MessageType::Reply,
    };
    let mut answer = v6::Message::new_with_id(kind, message.xid);
    let all = answer.opts_mut();
    message.client.iter().for_each(|client| all.insert(DhcpOption::ClientId(client.clone())));
    all.insert(DhcpOption::ServerId(server));
    if at_once {
        all.insert(DhcpOption::RapidCommit);
    }
    let mut associations = message.associations.iter();
    match message.kind {
        MessageType::Solicit | MessageType::Request | MessageType::Renew | MessageType::Rebind => {
            // The first association has all addresses.
            let first =
                associations.next().map(|first| granted(first, &own, guest.network.options.lease_time));
            let granted = first.into_iter().chain(associations.map(refused));
            granted.for_each(|association| all.insert(DhcpOption::IANA(association)));
        }
        MessageType::Confirm => {
            let right = associations.flat_map(|its| &its.addresses).all(|addr| own.contains(addr));
            all.insert(status(if right { Status::Success } else { Status::NotOnLink }));
        }
        MessageType::Release | MessageType::Decline => all.insert(status(Status::Success)),
        MessageType::InformationRequest => {}
        _ => return Err(Refused::Malformed),
    }
    let payload = with(answer, tell(guest)).ok_or(Refused::Malformed)?;
    datagram6(plan, guest, (SERVER, CLIENT), (asked.from, src), &payload).map(Some)
}

/// Returns an association with the guest's addresses. Others that the client has end at once.
fn granted(wish: &Association, own: &[Ipv6Addr], time: u32) -> IANA {
    let addr = |addr: &Ipv6Addr, life: u32| {
        let (preferred_life, valid_life, opts) = (life, life, DhcpOptions::new());
        DhcpOption::IAAddr(IAAddr { addr: *addr, preferred_life, valid_life, opts })
    };
    let wrong = wish.addresses.iter().filter(|addr| !own.contains(addr)).map(|wrong| addr(wrong, 0));
    let opts = own.iter().map(|own| addr(own, time)).chain(wrong).collect();
    let share = |tenths: u32| (u64::from(time) * u64::from(tenths) / 10) as u32;
    IANA { id: wish.id, t1: share(5), t2: share(8), opts }
}

fn refused(wish: &Association) -> IANA {
    IANA { id: wish.id, t1: 0, t2: 0, opts: [status(Status::NoAddrsAvail)].into_iter().collect() }
}

fn status(status: Status) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: String::new() })
}

/// Returns servers of names, domains and time servers: what matters most first.
fn tell(guest: &Binding) -> Vec<DhcpOption> {
    let network = &guest.network;
    let resolvers = v6_of(&guest.resolvers());
    // The library would compress the names, which is not allowed here (RFC 8415, 10).
    let mut search = Vec::new();
    guest.search().iter().for_each(|name| crate::router::wire(name, &mut search));
    let search_list = |names| DhcpOption::Unknown(UnknownOption::new(OptionCode::DomainSearchList, names));
    let ntp: Vec<_> = v6_of(&network.options.ntp).into_iter().map(NtpSuboption::ServerAddress).collect();
    let options = [
        (!resolvers.is_empty()).then_some(DhcpOption::DomainNameServers(resolvers)),
        (!ntp.is_empty()).then_some(DhcpOption::NtpServer(ntp)),
        (!search.is_empty()).then(|| search_list(search)),
    ];
    options.into_iter().flatten().collect()
}

/// Returns the bytes of an answer with as many more options as every link with IPv6 carries.
fn with(answer: v6::Message, mut more: Vec<DhcpOption>) -> Option<Vec<u8>> {
    loop {
        let mut whole = answer.clone();
        more.iter().for_each(|option| whole.opts_mut().insert(option.clone()));
        let bytes = whole.to_vec().ok()?;
        if bytes.len() <= LONGEST || more.pop().is_none() {
            return Some(bytes);
        }
    }
}
