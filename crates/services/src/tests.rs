//! Answers to well-behaved and hostile guests.

mod dns;
mod relay;
mod tcp;

use crate::frame::{Datagram, End, datagram, datagram6};
use crate::{Answer, Binding, DhcpOptions, Key, Network, Plan, Route, Services};
use bolero::TypeGenerator;
use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::v6;
use dhcproto::{Decodable, Decoder, Encodable};
use packet::{Headers, Mac};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const GATEWAY: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 7);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 254);
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn plan(options: DhcpOptions, mtu: u16) -> Plan {
    let network = Network {
        name: "blue".to_owned(),
        gateways: vec![
            "10.2.1.254/24".parse().unwrap(),
            "10.1.1.254/24".parse().unwrap(),
            "fd00:1::ffff/64".parse().unwrap(),
        ],
        dhcp: true,
        dhcp_relay: Vec::new(),
        ra: true,
        dns: false,
        metadata: false,
        metadata_proxy: None,
        domain: Some("blue.internal".to_owned()),
        resolvers: vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()],
        options,
    };
    let binding = Binding {
        guest: "vm1".to_owned(),
        mac: Some(MAC),
        learns: false,
        addresses: vec!["fd00:1::7".parse().unwrap(), OWN.into()],
        hostname: Some("vm1".to_owned()),
        user_data: None,
        ssh_keys: Vec::new(),
        mtu,
        network: Arc::new(network),
    };
    let free = Binding { mac: None, addresses: Vec::new(), ..binding.clone() };
    Plan { gateway_mac: GATEWAY, bindings: [(1, binding), (2, free)].into() }
}

fn services() -> Services {
    let services = Services::default();
    services.follow(plan(DhcpOptions { lease_time: 3600, ..DhcpOptions::default() }, 1450));
    services
}

fn message(kind: MessageType, ciaddr: Ipv4Addr, options: impl IntoIterator<Item = DhcpOption>) -> Message {
    let mut message = Message::new_with_id(7, ciaddr, NOBODY, NOBODY, NOBODY, &MAC.0);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    options.into_iter().for_each(|option| _ = message.opts_mut().insert(option));
    message
}

fn frame(message: &Message) -> Vec<u8> {
    let from = End { mac: MAC, addr: message.ciaddr(), port: 68 };
    let to = End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: 67 };
    datagram(from, to, &message.to_vec().unwrap()).unwrap()
}

/// Returns the answer: to which MAC and address it goes, and what it says.
fn ask(services: &Services, message: &Message) -> Option<(Mac, IpAddr, Message)> {
    let answer = answer(services, 1, &frame(message))?;
    let headers = Headers::ethernet(&answer, 0, answer.len()).unwrap();
    let (read, to) = (Datagram::read(&answer, &headers).unwrap(), headers.ip().unwrap().dst);
    assert_eq!((read.from, read.src, headers.ports().1), (GATEWAY, SERVER.into(), 68));
    assert!(read.payload.len() >= 300);
    Some((Mac(*answer.first_chunk().unwrap()), to, Message::decode(&mut Decoder::new(read.payload)).unwrap()))
}

/// Returns the frame that answers a question.
fn answer(services: &Services, guest: u16, frame: &[u8]) -> Option<Vec<u8>> {
    match services.answer(guest, frame, Duration::ZERO).into_iter().next()? {
        Answer::Frame(frame) => Some(frame),
        Answer::Inquiry(_) | Answer::Relayed(_) | Answer::Proxied(_) => None,
    }
}

fn count(services: &Services, outcome: &str) -> u64 {
    let key = Key { network: "blue".to_owned(), outcome: outcome.to_owned() };
    services.counts().0.get(&key).copied().unwrap_or(0)
}

#[test]
fn a_client_gets_the_address_and_what_belongs_to_it() {
    let services = services();
    let (mac, to, offer) = ask(&services, &message(MessageType::Discover, NOBODY, [])).unwrap();
    assert_eq!((mac, to, offer.yiaddr()), (MAC, OWN.into(), OWN));
    assert_eq!(offer.opts().msg_type(), Some(MessageType::Offer));
    let chosen = [DhcpOption::ServerIdentifier(SERVER), DhcpOption::RequestedIpAddress(OWN)];
    let (.., ack) = ask(&services, &message(MessageType::Request, NOBODY, chosen)).unwrap();
    let has = |option: DhcpOption| assert_eq!(ack.opts().get((&option).into()), Some(&option));
    has(DhcpOption::MessageType(MessageType::Ack));
    has(DhcpOption::SubnetMask("255.255.255.0".parse().unwrap()));
    has(DhcpOption::Router(vec![SERVER]));
    has(DhcpOption::InterfaceMtu(1450));
    has(DhcpOption::DomainNameServer(vec!["192.0.2.53".parse().unwrap()]));
    has(DhcpOption::Hostname("vm1".to_owned()));
    has(DhcpOption::DomainName("blue.internal".to_owned()));
    has(DhcpOption::AddressLeaseTime(3600));
    has(DhcpOption::Renewal(1800));
    has(DhcpOption::Rebinding(3150));
    assert_eq!((ack.yiaddr(), ack.xid(), count(&services, "answered")), (OWN, 7, 2));
}

#[test]
fn it_keeps_the_address_and_is_told_if_it_has_a_wrong_one() {
    let services = services();
    let wrong = Ipv4Addr::new(10, 1, 1, 8);
    for (ciaddr, requested, kind) in [
        (OWN, None, MessageType::Ack),
        (NOBODY, Some(OWN), MessageType::Ack),
        (NOBODY, Some(wrong), MessageType::Nak),
        (wrong, None, MessageType::Nak),
        (NOBODY, None, MessageType::Nak),
    ] {
        let asked = message(MessageType::Request, ciaddr, requested.map(DhcpOption::RequestedIpAddress));
        let (mac, to, answer) = ask(&services, &asked).unwrap();
        assert_eq!(answer.opts().msg_type(), Some(kind), "{ciaddr} {requested:?}");
        let is_nak = kind == MessageType::Nak;
        let all = (Mac::BROADCAST, IpAddr::from(Ipv4Addr::BROADCAST), NOBODY);
        assert_eq!((mac, to, answer.yiaddr()), if is_nak { all } else { (MAC, OWN.into(), OWN) });
    }
}

#[test]
fn other_messages_have_answers_of_their_own() {
    let services = services();
    let (.., inform) = ask(&services, &message(MessageType::Inform, OWN, [])).unwrap();
    assert_eq!((inform.yiaddr(), inform.opts().get(OptionCode::AddressLeaseTime)), (NOBODY, None));
    let rapid = message(MessageType::Discover, NOBODY, [DhcpOption::RapidCommit]);
    let (.., ack) = ask(&services, &rapid).unwrap();
    assert_eq!((ack.yiaddr(), ack.opts().msg_type()), (OWN, Some(MessageType::Ack)));
    let mut all = message(MessageType::Discover, NOBODY, []);
    all.set_flags(dhcproto::v4::Flags::default().set_broadcast());
    assert_eq!(ask(&services, &all).unwrap().0, Mac::BROADCAST);
    for kind in [MessageType::Release, MessageType::Decline] {
        assert_eq!(ask(&services, &message(kind, OWN, [])), None);
    }
    assert_eq!(count(&services, "noted"), 2);
}

#[test]
fn what_is_wrong_gets_no_answer_and_is_counted() {
    let services = services();
    let discover = message(MessageType::Discover, NOBODY, []);
    let good = frame(&discover);
    let change = |at: usize, to: u8| {
        let mut payload = discover.to_vec().unwrap();
        payload[at] = to;
        let from = End { mac: MAC, addr: NOBODY, port: 68 };
        datagram(from, End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: 67 }, &payload).unwrap()
    };
    // The answer's own operation, a wrong kind of hardware, a long address, no cookie, no end, an option that is cut.
    let end = discover.to_vec().unwrap().len() - 1;
    for wrong in [change(0, 2), change(1, 6), change(2, 16), change(236, 0), change(end, 0), change(end, 50)]
    {
        assert_eq!(answer(&services, 1, &wrong), None);
    }
    assert_eq!(answer(&services, 1, &good[..good.len() - 1]), None);
    assert_eq!(count(&services, "malformed"), 7);
    assert_eq!((answer(&services, 1, &change(33, 9)), count(&services, "wrong_mac")), (None, 1));
    assert_eq!((answer(&services, 1, &change(24, 9)), count(&services, "not_ours")), (None, 1));
    let other = message(MessageType::Request, NOBODY, [DhcpOption::ServerIdentifier(OWN)]);
    assert_eq!((ask(&services, &other), count(&services, "not_ours")), (None, 2));
    assert_eq!((answer(&services, 2, &good), count(&services, "no_address")), (None, 1));
    assert_eq!(answer(&services, 3, &good), None, "a guest of no such network");
}

#[test]
fn options_are_as_many_as_the_client_takes() {
    let route = Route { to: "10.8.0.0/16".parse().unwrap(), via: SERVER };
    let options = DhcpOptions {
        lease_time: u32::MAX,
        search: (0..16).map(|n| format!("department-{n}.domain-{n}.example")).collect(),
        ntp: vec!["192.0.2.123".parse().unwrap()],
        routes: vec![route],
        next_server: Some(OWN),
        boot_file: Some("pxelinux.0".to_owned()),
    };
    let services = Services::default();
    services.follow(plan(options, 1500));
    let (.., short) = ask(&services, &message(MessageType::Discover, NOBODY, [])).unwrap();
    assert_eq!(short.opts().get(OptionCode::DomainSearch), None);
    let more = message(MessageType::Discover, NOBODY, [DhcpOption::MaxMessageSize(1400)]);
    let (.., long) = ask(&services, &more).unwrap();
    assert!(
        matches!(long.opts().get(OptionCode::DomainSearch), Some(DhcpOption::DomainSearch(all)) if all.len() == 16)
    );
    assert!(long.opts().get(OptionCode::NtpServers).is_some());
    let routes = vec![(route.to, SERVER), ("0.0.0.0/0".parse().unwrap(), SERVER)];
    assert_eq!(
        long.opts().get(OptionCode::ClasslessStaticRoute),
        Some(&DhcpOption::ClasslessStaticRoute(routes))
    );
    assert_eq!((long.siaddr(), long.fname()), (OWN, Some(&b"pxelinux.0\0"[..])));
}

const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 7);
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Returns a client's DHCPv6 datagram. The router's link-local address stands for the client's.
fn frame6(payload: &[u8]) -> Vec<u8> {
    let plan = Plan { gateway_mac: MAC, ..plan(DhcpOptions::default(), 1500) };
    datagram6(&plan, &plan.bindings[&1], (546, 547), (GATEWAY, SERVERS), payload).unwrap()
}

fn message6(kind: v6::MessageType, options: impl IntoIterator<Item = v6::DhcpOption>) -> Vec<u8> {
    let mut message = v6::Message::new_with_id(kind, [1, 2, 3]);
    message.opts_mut().insert(v6::DhcpOption::ClientId(vec![0, 3, 0, 1, 9, 9]));
    options.into_iter().for_each(|option| message.opts_mut().insert(option));
    message.to_vec().unwrap()
}

fn wish(addresses: &[Ipv6Addr]) -> v6::DhcpOption {
    let addr = |addr: &Ipv6Addr| {
        v6::DhcpOption::IAAddr(v6::IAAddr {
            addr: *addr,
            preferred_life: 0,
            valid_life: 0,
            opts: v6::DhcpOptions::new(),
        })
    };
    v6::DhcpOption::IANA(v6::IANA { id: 5, t1: 0, t2: 0, opts: addresses.iter().map(addr).collect() })
}

fn ask6(services: &Services, payload: &[u8]) -> Option<v6::Message> {
    let answer = answer(services, 1, &frame6(payload))?;
    let headers = Headers::ethernet(&answer, 0, answer.len()).unwrap();
    let read = Datagram::read(&answer, &headers).unwrap();
    assert_eq!((read.from, read.src, headers.ports().1), (GATEWAY, GATEWAY.link_local().into(), 546));
    assert_eq!(headers.ip().unwrap().dst, IpAddr::from(MAC.link_local()));
    Some(v6::Message::decode(&mut Decoder::new(read.payload)).unwrap())
}

/// Returns the addresses of the first association, with their lifetimes.
fn granted(answer: &v6::Message) -> Vec<(Ipv6Addr, u32)> {
    let Some(v6::DhcpOption::IANA(association)) = answer.opts().get(v6::OptionCode::IANA) else {
        return Vec::new();
    };
    let addr = |option: &v6::DhcpOption| match option {
        v6::DhcpOption::IAAddr(addr) => Some((addr.addr, addr.valid_life)),
        _ => None,
    };
    association.opts.iter().filter_map(addr).collect()
}

#[test]
fn a_client_gets_its_ipv6_addresses() {
    use v6::MessageType::{Advertise, Confirm, InformationRequest, Renew, Reply, Request, Solicit};
    let services = services();
    let offer = ask6(&services, &message6(Solicit, [wish(&[])])).unwrap();
    assert_eq!((offer.msg_type(), offer.xid(), granted(&offer)), (Advertise, [1, 2, 3], vec![(OWN6, 3600)]));
    let server = offer.opts().get(v6::OptionCode::ServerId).unwrap().clone();
    let reply = ask6(&services, &message6(Request, [server.clone(), wish(&[OWN6])])).unwrap();
    assert_eq!((reply.msg_type(), granted(&reply)), (Reply, vec![(OWN6, 3600)]));
    let resolvers = v6::DhcpOption::DomainNameServers(vec!["2001:db8::53".parse().unwrap()]);
    assert_eq!(reply.opts().get(v6::OptionCode::DomainNameServers), Some(&resolvers));
    let wrong = "fd00:1::8".parse().unwrap();
    let renewed = ask6(&services, &message6(Renew, [server.clone(), wish(&[wrong])])).unwrap();
    assert_eq!(granted(&renewed), [(OWN6, 3600), (wrong, 0)]);
    for (addr, right) in [(OWN6, v6::Status::Success), (wrong, v6::Status::NotOnLink)] {
        let confirmed = ask6(&services, &message6(Confirm, [wish(&[addr])])).unwrap();
        let status = v6::DhcpOption::StatusCode(v6::StatusCode { status: right, msg: String::new() });
        assert_eq!(confirmed.opts().get(v6::OptionCode::StatusCode), Some(&status));
    }
    let rapid = ask6(&services, &message6(Solicit, [wish(&[]), v6::DhcpOption::RapidCommit])).unwrap();
    assert_eq!(rapid.msg_type(), Reply);
    assert!(ask6(&services, &message6(InformationRequest, [])).is_some());
    let other = v6::DhcpOption::ServerId(vec![1]);
    assert_eq!(
        (ask6(&services, &message6(Request, [other, wish(&[])])), count(&services, "not_ours")),
        (None, 1)
    );
    let mut long = message6(Request, [server, wish(&[])]);
    long.extend([0, 1, 0, 200, 1]);
    assert_eq!((ask6(&services, &long), count(&services, "malformed")), (None, 1));
}

#[test]
fn the_router_announces_itself() {
    let services = services();
    let all = |answer: &[u8]| (answer[..6].to_vec(), answer[54..].to_vec());
    let due = services.due((0, 199));
    let (to, checked) = all(&due.iter().find(|(guest, _)| *guest == 1).unwrap().1);
    assert_eq!((to, due.len()), (vec![0x33, 0x33, 0, 0, 0, 1], 2));
    assert!(services.due((199, 200)).is_empty() && services.due((200, 397)).is_empty());
    // Type, hop limit, flags: addresses and more by DHCPv6; lifetime.
    assert_eq!(
        (checked[0], &checked[4..8]),
        (134, &[64, 0xc0, 1800_u16.to_be_bytes()[0], 1800_u16.to_be_bytes()[1]][..])
    );
    let prefix = |body: &[u8]| {
        let at = body.windows(4).position(|option| option[..3] == [3, 4, 64]).unwrap();
        (body[at + 3], body[at + 16..at + 24].to_vec())
    };
    assert_eq!(prefix(&checked), (0x80, vec![0xfd, 0, 0, 1, 0, 0, 0, 0]));
    // A guest without addresses makes its own.
    let (_, free) = all(&due.iter().find(|(guest, _)| *guest == 2).unwrap().1);
    assert_eq!((free[5], prefix(&free).0), (0x40, 0xc0));
    let sum =
        |body: &[u8]| packet::checksum::l4(GATEWAY.link_local().into(), "ff02::1".parse().unwrap(), 58, body);
    assert_eq!(sum(&checked), 0);
    assert!(checked.windows(16).any(|addr| addr == "2001:db8::53".parse::<Ipv6Addr>().unwrap().octets()));
    assert!(checked.windows(15).any(|name| name == *b"\x04blue\x08internal\x00"));
}

#[test]
fn ipv6_answers_fit_every_link() {
    let search =
        (0..32).map(|n| format!("{n}.{}", "a-long-label-of-a-domain.".repeat(8) + "example")).collect();
    let services = Services::default();
    let ntp = vec!["2001:db8::123".parse().unwrap()];
    services.follow(plan(DhcpOptions { lease_time: 60, search, ntp, ..DhcpOptions::default() }, 1500));
    let (_, told) = services.due((0, 199)).into_iter().find(|(guest, _)| *guest == 1).unwrap();
    assert!((1000..=14 + 1280).contains(&told.len()), "{}", told.len());
    let headers = Headers::ethernet(&told, 0, told.len()).unwrap();
    let mut options = &told[usize::from(headers.l4_at) + 16..];
    while let [kind, len, ..] = options {
        assert_ne!(*len, 0);
        assert!([1, 3, 5, 25, 31].contains(kind));
        options = &options[8 * usize::from(*len)..];
    }
    assert_eq!(options.len(), 0, "options follow each other to the end");
    let answer = ask6(&services, &message6(v6::MessageType::InformationRequest, [])).unwrap();
    assert!(answer.opts().get(v6::OptionCode::NtpServer).is_some());
    assert!(answer.opts().get(v6::OptionCode::DomainSearchList).is_none());
}

#[test]
fn a_guest_has_the_mac_of_its_first_question() {
    let services = services();
    let learning = |name: &str| {
        let mut plan = plan(DhcpOptions { lease_time: 3600, ..DhcpOptions::default() }, 1450);
        plan.bindings.retain(|number, _| *number == 1);
        plan.bindings
            .values_mut()
            .for_each(|its| (its.mac, its.learns, its.guest) = (None, true, name.to_owned()));
        plan
    };
    services.follow(learning("vm1"));
    let discover = frame(&message(MessageType::Discover, NOBODY, []));
    let mut other = discover.clone();
    // The sender's MAC, and the client's.
    (other[11], other[14 + 20 + 8 + 33]) = (9, 9);
    other[40..42].copy_from_slice(&[0, 0]);
    assert!(services.learnt().is_empty());
    assert!(answer(&services, 1, &discover).is_some());
    assert_eq!(services.learnt(), [("vm1".to_owned(), MAC)]);
    assert_eq!((answer(&services, 1, &other), count(&services, "wrong_mac")), (None, 1));
    services.follow(learning("vm1"));
    assert_eq!(services.learnt().len(), 1, "as long as it is the same guest");
    services.forget("vm1");
    assert!(answer(&services, 1, &other).is_some());
    services.follow(learning("vm2"));
    assert!(services.learnt().is_empty());
}

/// A step of a hostile guest: bytes of its own, or a message with bytes changed; meanwhile the plan changes.
#[derive(Clone, Debug, TypeGenerator)]
enum Step {
    Bytes(Vec<u8>),
    Payload(Vec<u8>),
    Payload6(Vec<u8>),
    Changed6 { kind: u8, wished: Vec<u8>, at: u16, to: u8 },
    Changed { kind: u8, ciaddr: [u8; 4], requested: Option<[u8; 4]>, at: u16, to: u8 },
    Dns { message: Vec<u8>, response: Vec<u8>, changed: Option<(u8, u8)> },
    Segments(Vec<tcp::Segment>),
    Plan { mtu: u16, search: u8 },
}

impl Step {
    fn take(self, services: &Services) {
        let ends = (
            End { mac: MAC, addr: NOBODY, port: 68 },
            End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: 67 },
        );
        let frame = match self {
            Self::Bytes(bytes) => bytes,
            Self::Payload(payload) => datagram(ends.0, ends.1, &payload).unwrap(),
            Self::Payload6(payload) => frame6(&payload),
            Self::Changed6 { kind, wished, at, to } => {
                let wished: Vec<_> =
                    wished.iter().map(|n| Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, (*n).into())).collect();
                let mut bytes = message6(kind.into(), [wish(&wished)]);
                let at = usize::from(at) % bytes.len();
                bytes[at] = to;
                frame6(&bytes)
            }
            Self::Changed { kind, ciaddr, requested, at, to } => {
                let requested = requested.map(|addr| DhcpOption::RequestedIpAddress(addr.into()));
                let mut bytes = message(kind.into(), ciaddr.into(), requested).to_vec().unwrap();
                let at = usize::from(at) % bytes.len();
                bytes[at] = to;
                datagram(ends.0, ends.1, &bytes).unwrap()
            }
            Self::Dns { message, response, changed } => {
                return dns::hostile(services, message, response, changed);
            }
            Self::Segments(segments) => return tcp::hostile(segments),
            Self::Plan { mtu, search } => {
                let search = (0..search).map(|n| format!("{n}.example")).collect();
                return services
                    .follow(plan(DhcpOptions { search, lease_time: 60, ..DhcpOptions::default() }, mtu));
            }
        };
        for guest in 0..3 {
            let Some(answer) = answer(services, guest, &frame) else { continue };
            let headers = Headers::ethernet(&answer, 0, answer.len()).unwrap();
            let Ok(read) = Datagram::read(&answer, &headers) else { continue };
            if headers.ports().1 == 546 {
                let said = v6::Message::decode(&mut Decoder::new(read.payload)).unwrap();
                assert!(granted(&said).iter().all(|(addr, life)| *addr == OWN6 || *life == 0), "{said:?}");
                continue;
            }
            let said = Message::decode(&mut Decoder::new(read.payload)).unwrap();
            assert!(guest == 1 && [OWN, NOBODY].contains(&said.yiaddr()), "{said:?}");
        }
    }
}

#[test]
fn any_questions_are_survived() {
    let services = services();
    bolero::check!().with_type::<Vec<Step>>().cloned().for_each(|steps| {
        steps.into_iter().for_each(|step| step.take(&services));
    });
}
