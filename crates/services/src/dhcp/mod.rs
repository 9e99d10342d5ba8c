//! DHCP for IPv4 (RFC 2131). A guest has one address, that of its binding, whatever it asks for and under how many
//! names: so the server remembers nothing, and no guest can use up what is there.

pub(crate) mod message;

use crate::frame::{Datagram, End, datagram};
use crate::plan::v4_of;
use crate::{Binding, Plan, Refused};
use dhcproto::Encodable;
use dhcproto::v4::{self, DhcpOption, MessageType, Opcode};
use hickory_proto::rr::Name;
use ipnet::Ipv4Net;
use message::Message;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr};

/// The port of servers.
pub(crate) const SERVER: u16 = 67;
pub(crate) const CLIENT: u16 = 68;
/// The shortest message that all clients take (BOOTP, RFC 951), and the longest (RFC 2131, 2; without IP and UDP
/// headers).
pub(crate) const SHORTEST: usize = 300;
const LONGEST: usize = 548;
/// Bytes of IP and UDP headers, which the longest message that a client takes includes.
const HEADERS: usize = 28;
/// Shares of the lease's time after which a client renews and rebinds (RFC 2131, 4.4.5), in eighths.
const RENEW: u32 = 4;
const REBIND: u32 = 7;

/// Returns the answer to a datagram; `None` if nothing is to be answered.
pub(crate) fn answer(plan: &Plan, guest: &Binding, asked: &Datagram<'_>) -> Result<Option<Vec<u8>>, Refused> {
    let message = Message::read(asked.payload)?;
    if message.mac != asked.from || guest.mac.is_some_and(|own| own != message.mac) {
        return Err(Refused::WrongMac);
    }
    let (own, gateway) = guest.v4().ok_or(Refused::NoAddress)?;
    let is_ours = |server: Ipv4Addr| server == gateway.addr();
    if message.server.is_some_and(|server| !is_ours(server)) || !message.giaddr.is_unspecified() {
        return Err(Refused::NotOurs);
    }
    let lease = Lease { guest, message: &message, own, gateway, mac: plan.gateway_mac };
    let kind = match message.kind {
        MessageType::Discover if message.rapid => MessageType::Ack,
        MessageType::Discover => MessageType::Offer,
        MessageType::Request if lease.is_asked_for() => MessageType::Ack,
        MessageType::Request => MessageType::Nak,
        MessageType::Inform if asked.src == IpAddr::V4(message.ciaddr) => MessageType::Ack,
        // The address stays the guest's own.
        MessageType::Release | MessageType::Decline => return Ok(None),
        _ => return Err(Refused::Malformed),
    };
    lease.frame(kind).map(Some)
}

/// An address for a client.
struct Lease<'a> {
    guest: &'a Binding,
    message: &'a Message,
    own: Ipv4Addr,
    gateway: Ipv4Net,
    mac: Mac,
}

impl Lease<'_> {
    /// Returns whether the client asks for the address that it has: by name when it chooses a server or comes back,
    /// by using it when it renews (RFC 2131, 4.3.2).
    fn is_asked_for(&self) -> bool {
        match (self.message.requested, self.message.ciaddr) {
            (Some(requested), _) => requested == self.own,
            (None, used) => used == self.own,
        }
    }

    /// Returns the frame of an answer of this kind.
    fn frame(&self, kind: MessageType) -> Result<Vec<u8>, Refused> {
        let message = self.message;
        let from = End { mac: self.mac, addr: self.gateway.addr(), port: SERVER };
        let everybody = End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: CLIENT };
        let to = match message.ciaddr {
            _ if kind == MessageType::Nak => everybody,
            used if !used.is_unspecified() => End { mac: message.mac, addr: used, port: CLIENT },
            _ if message.wants_broadcast() => everybody,
            _ => End { mac: message.mac, addr: self.own, port: CLIENT },
        };
        datagram(from, to, &self.payload(kind)?).map_err(|_| Refused::Malformed)
    }

    /// Returns an answer without headers: with as many options as the client takes.
    fn payload(&self, kind: MessageType) -> Result<Vec<u8>, Refused> {
        let most = self.message.most.map_or(LONGEST, |most| usize::from(most).saturating_sub(HEADERS));
        let most = most.clamp(LONGEST, usize::from(self.guest.mtu).saturating_sub(HEADERS).max(LONGEST));
        let mut more = if kind == MessageType::Nak { Vec::new() } else { self.network() };
        loop {
            let mut answer = self.header(kind);
            more.iter().cloned().for_each(|option| _ = answer.opts_mut().insert(option));
            let mut bytes = answer.to_vec().map_err(|_| Refused::Malformed)?;
            if bytes.len() <= most || more.pop().is_none() {
                bytes.resize(bytes.len().max(SHORTEST), 0);
                return Ok(bytes);
            }
        }
    }

    /// Returns the parts of an answer that may not be missing.
    fn header(&self, kind: MessageType) -> v4::Message {
        let Self { message, guest, .. } = self;
        let options = &guest.network.options;
        let leases =
            matches!(kind, MessageType::Offer | MessageType::Ack) && message.kind != MessageType::Inform;
        let own = if leases { self.own } else { Ipv4Addr::UNSPECIFIED };
        let next = options.next_server.filter(|_| kind != MessageType::Nak).unwrap_or(Ipv4Addr::UNSPECIFIED);
        let used = if kind == MessageType::Nak { Ipv4Addr::UNSPECIFIED } else { message.ciaddr };
        let mut answer =
            v4::Message::new_with_id(message.xid, used, own, next, Ipv4Addr::UNSPECIFIED, &message.mac.0);
        answer.set_opcode(Opcode::BootReply).set_flags(message.flags.into());
        if let Some(file) = options.boot_file.as_ref().filter(|_| kind != MessageType::Nak) {
            answer.set_fname_str(file);
        }
        let all = answer.opts_mut();
        all.insert(DhcpOption::MessageType(kind));
        all.insert(DhcpOption::ServerIdentifier(self.gateway.addr()));
        if leases {
            let time = options.lease_time;
            let share = |eighths: u32| (u64::from(time) * u64::from(eighths) / 8) as u32;
            all.insert(DhcpOption::AddressLeaseTime(time));
            all.insert(DhcpOption::Renewal(share(RENEW)));
            all.insert(DhcpOption::Rebinding(share(REBIND)));
            if message.rapid && message.kind == MessageType::Discover {
                all.insert(DhcpOption::RapidCommit);
            }
        }
        answer
    }

    /// Returns what the network tells, what matters most first.
    fn network(&self) -> Vec<DhcpOption> {
        let network = &self.guest.network;
        let options = &network.options;
        let mut all = vec![
            DhcpOption::SubnetMask(self.gateway.netmask()),
            DhcpOption::Router(vec![self.gateway.addr()]),
            DhcpOption::InterfaceMtu(self.guest.mtu),
        ];
        let list = |addresses: &[IpAddr], option: fn(Vec<Ipv4Addr>) -> DhcpOption| {
            let v4 = v4_of(addresses);
            (!v4.is_empty()).then(|| option(v4))
        };
        all.extend(list(&self.guest.resolvers(), DhcpOption::DomainNameServer));
        all.extend(self.guest.hostname.clone().map(DhcpOption::Hostname));
        all.extend(network.domain.clone().map(DhcpOption::DomainName));
        if !options.routes.is_empty() {
            // Clients that take these ignore the router above (RFC 3442), so the default route is among them.
            let default = (Ipv4Net::default(), self.gateway.addr());
            let routes = options.routes.iter().map(|route| (route.to, route.via));
            all.push(DhcpOption::ClasslessStaticRoute(routes.chain([default]).collect()));
        }
        all.extend(list(&options.ntp, DhcpOption::NtpServers));
        let search: Vec<_> = options.search.iter().filter_map(|name| Name::from_ascii(name).ok()).collect();
        if !search.is_empty() {
            all.push(DhcpOption::DomainSearch(search));
        }
        all
    }
}
