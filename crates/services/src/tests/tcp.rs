//! Connections by TCP, of well-behaved clients, which smoltcp plays, and of hostile ones.

mod proxy;

use super::*;
use crate::tcp::Talk;
use crate::{Inquiry, Proxied, metadata};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use packet::build::ethernet;
use packet::{checksum, proto};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

const DATA: &str = "#cloud-config\npassword: secret\n";

const KEYS: [&str; 2] = ["ssh-ed25519 AAAA me", "ssh-ed25519 BBBB you"];

fn plan_of(data: &str) -> Plan {
    let mut plan = plan(DhcpOptions { lease_time: 3600, ..DhcpOptions::default() }, 1450);
    let network = Network { dns: true, metadata: true, ..Network::clone(&plan.bindings[&1].network) };
    let network = Arc::new(network);
    plan.bindings.values_mut().for_each(|its| its.network = network.clone());
    let its = plan.bindings.get_mut(&1).unwrap();
    (its.user_data, its.ssh_keys) = (Some(data.into()), KEYS.map(str::to_owned).to_vec());
    let other =
        Binding { guest: "vm3".to_owned(), hostname: None, user_data: Some("other".into()), ..its.clone() };
    plan.bindings.insert(3, other);
    plan
}

fn serving(data: &str) -> Services {
    let services = Services::default();
    services.follow(plan_of(data));
    services
}

/// A client with one connection.
struct Client {
    own: IpAddr,
    interface: Interface,
    sockets: SocketSet<'static>,
    link: Wire,
    now: Duration,
    /// Requests for a metadata service outside.
    proxied: Vec<Proxied>,
}

/// Packets on their way to the client and from it.
#[derive(Default)]
struct Wire {
    to: VecDeque<Vec<u8>>,
    from: VecDeque<Vec<u8>>,
}

impl Client {
    fn connect(own: IpAddr, to: IpAddr, port: u16, from: u16) -> Self {
        let mut link = Wire::default();
        let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut link, Instant::ZERO);
        let len = if own.is_ipv4() { 24 } else { 64 };
        interface.update_ip_addrs(|all| all.push(IpCidr::new(own.into(), len)).unwrap());
        let routes = interface.routes_mut();
        _ = match own {
            IpAddr::V4(_) => routes.add_default_ipv4_route(SERVER).is_ok(),
            IpAddr::V6(own) => routes.add_default_ipv6_route(own).is_ok(),
        };
        let buffer = || SocketBuffer::new(vec![0; 4096]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.connect(interface.context(), (IpAddress::from(to), port), from).unwrap();
        let mut sockets = SocketSet::new(Vec::new());
        sockets.add(socket);
        Self { own, interface, sockets, link, now: Duration::ZERO, proxied: Vec::new() }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        let (handle, _) = self.sockets.iter().next().unwrap();
        self.sockets.get_mut(handle)
    }

    /// Carries packets between the client and the services for a while; returns inquiries.
    fn run(&mut self, services: &Services, guest: u16) -> Vec<Inquiry> {
        let mut inquiries = Vec::new();
        for _ in 0..20 {
            self.now += Duration::from_millis(50);
            let now = Instant::from_millis(self.now.as_millis() as i64);
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            let mut answers: Vec<(u16, Answer)> = services.tick(self.now);
            while let Some(packet) = self.link.from.pop_front() {
                let kind = if self.own.is_ipv4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
                let mut frame = vec![0; proto::ETHERNET_LEN];
                ethernet(&mut frame, GATEWAY, MAC, kind).unwrap();
                frame.extend(packet);
                answers.extend(services.answer(guest, &frame, self.now).into_iter().map(|its| (guest, its)));
            }
            inquiries.extend(self.hear(answers, guest));
        }
        inquiries
    }

    fn hear(&mut self, answers: Vec<(u16, Answer)>, guest: u16) -> Vec<Inquiry> {
        let mut inquiries = Vec::new();
        for (number, answer) in answers {
            match answer {
                Answer::Frame(frame) if number == guest => {
                    assert_eq!((Mac(*frame.first_chunk().unwrap()), &frame[6..12]), (MAC, &GATEWAY.0[..]));
                    self.link.to.push_back(frame[proto::ETHERNET_LEN..].to_vec());
                }
                Answer::Frame(_) => panic!("a frame for another guest"),
                Answer::Inquiry(inquiry) => inquiries.push(*inquiry),
                Answer::Proxied(asked) => self.proxied.push(*asked),
                Answer::Relayed(relayed) => panic!("{relayed:?}"),
            }
        }
        inquiries
    }

    /// Returns all that was received.
    fn read(&mut self, services: &Services, guest: u16) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..60 {
            self.run(services, guest);
            let more = self.socket().recv(|bytes| (bytes.len(), bytes.to_vec()));
            all.extend(more.unwrap_or_default());
        }
        all
    }
}

impl smoltcp::phy::Device for Wire {
    type RxToken<'a> = Packet;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Packet, Sender<'_>)> {
        Some((Packet(self.to.pop_front()?), Sender(&mut self.from)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sender<'_>> {
        Some(Sender(&mut self.from))
    }

    fn capabilities(&self) -> smoltcp::phy::DeviceCapabilities {
        let mut own = smoltcp::phy::DeviceCapabilities::default();
        (own.medium, own.max_transmission_unit) = (Medium::Ip, 1450);
        own
    }
}

struct Packet(Vec<u8>);
struct Sender<'a>(&'a mut VecDeque<Vec<u8>>);

impl smoltcp::phy::RxToken for Packet {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl smoltcp::phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push_back(packet);
        result
    }
}

/// Returns the answer to a request: its head and body.
fn http(services: &Services, guest: u16, request: &str) -> (String, String) {
    http_at(services, guest, request, Duration::ZERO)
}

fn http_at(services: &Services, guest: u16, request: &str, now: Duration) -> (String, String) {
    let mut client = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, 40000);
    client.now = now;
    client.run(services, guest);
    client.socket().send_slice(request.as_bytes()).unwrap();
    let answer = String::from_utf8(client.read(services, guest)).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: {answer:?}"));
    assert!(!client.socket().may_recv(), "closed");
    (head.to_owned(), body.to_owned())
}

fn get(services: &Services, path: &str) -> Option<String> {
    let (head, body) = http(services, 1, &format!("GET {path} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"));
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    head.starts_with("HTTP/1.1 200 OK\r\n").then_some(body)
}

#[test]
fn data_sources_read_their_guest() {
    let services = serving(DATA);
    for path in ["/latest/user-data", "/2009-04-04/user-data", "/openstack/latest/user_data", "/user-data"] {
        assert_eq!(get(&services, path).as_deref(), Some(DATA), "{path}");
    }
    let names = "hostname\ninstance-id\nlocal-hostname\nmac\nlocal-ipv4\nipv6\npublic-keys/";
    for (path, text) in [
        ("/latest/meta-data/", names),
        ("/latest/meta-data/instance-id", "vm1"),
        ("/latest/meta-data/hostname", "vm1.blue.internal"),
        ("/latest/meta-data/local-ipv4", "10.1.1.7"),
        ("/latest/meta-data/mac?x=1", "02:00:00:00:00:01"),
        ("/latest/meta-data/public-keys/", "0=key0\n1=key1"),
        ("/latest/meta-data/public-keys/0/openssh-key", KEYS[0]),
        ("/latest/meta-data/public-keys/1/openssh-key", KEYS[1]),
    ] {
        assert_eq!(get(&services, path).as_deref(), Some(text), "{path}");
    }
    for path in ["/vendor-data", "/network-config"] {
        assert_eq!(get(&services, path).as_deref(), Some(""), "{path}");
    }
    for path in ["/", "/openstack", "/openstack/latest"] {
        assert!(get(&services, path).is_some_and(|text| text.lines().count() > 1), "{path}");
    }
    let json = |path| serde_json::from_str::<serde_json::Value>(&get(&services, path).unwrap()).unwrap();
    let openstack = json("/openstack/latest/meta_data.json");
    assert_eq!(
        (&openstack["uuid"], &openstack["public_keys"]["key0"]),
        (&"vm1".into(), &"ssh-ed25519 AAAA me".into())
    );
    let link = &json("/openstack/2018-08-27/network_data.json")["links"][0];
    assert_eq!(link["ethernet_mac_address"], "02:00:00:00:00:01");
    assert_eq!(json("/meta-data")["instance-id"], "vm1");
    for path in
        ["/latest/meta-data/x", "/latest/meta-data/public-keys/2/openssh-key", "/x", "/../latest", "*"]
    {
        assert_eq!(get(&services, path), None, "{path}");
    }
    // Nobody else's, whatever the headers say.
    let (_, other) = http(&services, 3, "GET /user-data HTTP/1.1\r\nX-Forwarded-For: 10.1.1.7\r\n\r\n");
    assert_eq!(other, "other");
    assert_eq!(get(&services, "/latest/user-data/").as_deref(), Some(DATA));
}

#[test]
fn long_user_data_arrives_whole_by_both_families() {
    let data: String = ('a'..='z').cycle().take(65_536).collect();
    let services = serving(&data);
    assert_eq!(get(&services, "/user-data"), Some(data));
    let mut client = Client::connect(OWN6.into(), metadata::ADDRESSES[1], 80, 40001);
    client.run(&services, 1);
    client.socket().send_slice(b"GET /latest/meta-data/ipv6 HTTP/1.1\r\n\r\n").unwrap();
    assert!(String::from_utf8(client.read(&services, 1)).unwrap().ends_with("\r\n\r\nfd00:1::7"));
}

#[test]
fn tokens_are_their_guests_for_a_while() {
    let services = serving(DATA);
    let ask = |guest, seconds: &str| {
        let header = format!("X-aws-ec2-metadata-token-ttl-seconds: {seconds}\r\n");
        http(
            &services,
            guest,
            &format!("PUT /latest/api/token HTTP/1.1\r\n{header}Content-Length: 0\r\n\r\n"),
        )
    };
    let with = |guest, token: &str| {
        let request = format!("GET /user-data HTTP/1.1\r\nx-aws-ec2-metadata-token: {token}\r\n\r\n");
        http(&services, guest, &request).0[9..12].to_owned()
    };
    let (head, token) = ask(1, "60");
    assert!(head.contains("X-aws-ec2-metadata-token-ttl-seconds: 60"), "{head}");
    assert_eq!([with(1, &token), with(3, &token), with(1, "1-2")], ["200", "401", "401"]);
    let late = format!("GET / HTTP/1.1\r\nX-AWS-EC2-Metadata-Token: {token}\r\n\r\n");
    assert_eq!(&http_at(&services, 1, &late, Duration::from_secs(100)).0[9..12], "401");
    for seconds in ["0", "21601", "x"] {
        assert!(ask(1, seconds).0.starts_with("HTTP/1.1 400"), "{seconds}");
    }
    let forwarded = "PUT /latest/api/token HTTP/1.1\r\nX-Forwarded-For: 1\r\n\r\n";
    assert!(http(&services, 1, forwarded).0.starts_with("HTTP/1.1 403"));
    assert!(http(&services, 1, "POST / HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405"));
    assert_eq!(http(&services, 1, "HEAD /user-data HTTP/1.1\r\n\r\n").1, "");
}

#[test]
fn hostile_requests_end() {
    let services = serving(DATA);
    assert!(http(&services, 1, "\0\r\n\r\n").0.starts_with("HTTP/1.1 400"));
    let mut client = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, 40000);
    client.run(&services, 1);
    // One that never ends.
    let mut said = Vec::new();
    for _ in 0..8 {
        _ = client.socket().send_slice(&[b'a'; 1000]);
        client.run(&services, 1);
        said.extend(client.socket().recv(|bytes| (bytes.len(), bytes.to_vec())).unwrap_or_default());
    }
    assert!(String::from_utf8(said).unwrap().starts_with("HTTP/1.1 4"));
    // One that says nothing for long.
    let mut slow = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, 40001);
    slow.now = client.now;
    slow.run(&services, 1);
    assert!(slow.socket().may_send() && services.connections().of(1) == 2);
    (0..15).for_each(|_| drop(slow.run(&services, 1)));
    assert!(!slow.socket().may_send() && services.connections().of(1) == 0);
    // One whose guest goes.
    let mut late = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, 40001);
    late.run(&services, 1);
    services.follow(Plan::default());
    assert!(!services.waits());
}

#[test]
fn a_request_is_answered_by_the_settings_in_force() {
    let services = serving(DATA);
    let begin = |guest, port| {
        let mut client = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, port);
        client.run(&services, guest);
        client.socket().send_slice(b"GET /user-data HTTP/1.1\r\n").unwrap();
        client.run(&services, guest);
        client
    };
    let (mut old, mut other) = (begin(1, 40000), begin(3, 40001));
    // A lease learns a guest's MAC: that ends nothing.
    let mut learned = plan_of(DATA);
    let binding = learned.bindings.get_mut(&1).unwrap();
    (binding.mac, binding.learns) = (Some(Mac([2, 0, 0, 0, 0, 9])), !binding.learns);
    services.follow(learned);
    assert_eq!(services.connections().of(1), 1);
    let before = Arc::downgrade(&services.lock().plan);
    services.follow(plan_of("new"));
    // Nobody keeps the old settings, and the one whose own are the same goes on.
    assert_eq!(before.strong_count(), 0);
    other.socket().send_slice(b"\r\n").unwrap();
    assert!(String::from_utf8(other.read(&services, 3)).unwrap().ends_with("\r\n\r\nother"));
    old.socket().send_slice(b"\r\n").unwrap();
    assert!(old.read(&services, 1).is_empty() && !old.socket().may_send());
    assert_eq!(get(&services, "/user-data").as_deref(), Some("new"));
}

#[test]
fn half_open_connections_make_room() {
    let services = serving(DATA);
    let syn = |port| Segment { port, flags: 2, ..Segment::default() };
    for port in 0..100 {
        let answers = services.answer(1, &syn(port).frame(0, 0), Duration::ZERO);
        assert!(matches!(answers[..], [Answer::Frame(_)]), "{port}");
    }
    assert_eq!(services.connections().of(1), 8);
    assert_eq!(get(&services, "/latest/meta-data/instance-id").as_deref(), Some("vm1"));
    // Open ones do not: nobody waits for them for long.
    let open = |port| {
        let mut client = Client::connect(OWN.into(), metadata::ADDRESSES[0], 80, port);
        client.run(&services, 1);
        client.socket().may_send().then_some(client)
    };
    let held: Vec<Client> = (1..20).filter_map(open).collect();
    assert!(held.len() == 8 && count(&services, "too_many") > 0, "{}", held.len());
    assert!(services.tick(Duration::from_secs(90)).len() >= 8);
    assert!(!services.waits());
}

#[test]
fn all_guests_have_room_for_connections() {
    let guest = plan_of(DATA).bindings.remove(&1).unwrap();
    let bindings = (0..513).map(|number| (number, guest.clone())).collect();
    let services = Services::default();
    services.follow(Plan { bindings, ..Plan::default() });
    let open = |number, port| {
        let frame = Segment { port, flags: 2, ..Segment::default() }.frame(0, 0);
        services.answer(number, &frame, Duration::ZERO).len()
    };
    assert!((0..512).all(|number| (0..8).all(|port| open(number, port) == 1)));
    assert_eq!([open(512, 0), open(512, 1)], [1, 1]);
    assert_eq!(services.connections().of(512), 2);
    assert_eq!((0..513).map(|number| services.connections().of(number)).sum::<usize>(), 4096);
}

#[test]
fn small_segments_are_raised() {
    let services = serving(&DATA.repeat(300));
    for (longest, most) in [([0, 1], 536), ([2, 23], 536), ([3, 0], 768)] {
        let (port, options) = (longest[1], [&[2, 4], &longest[..]].concat());
        let syn = Segment { port, flags: 2, options, window: 60000, ..Segment::default() };
        let said = |segment: Segment, next, theirs| {
            let answers = services.answer(1, &segment.frame(next, theirs), Duration::ZERO);
            let lens = answers.into_iter().filter_map(|answer| match answer {
                Answer::Frame(frame) => {
                    let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
                    let packet::L4::Tcp { seq, header_len, .. } = headers.l4 else { panic!("{headers:?}") };
                    Some((seq, frame.len() - usize::from(headers.l4_at) - usize::from(header_len)))
                }
                Answer::Inquiry(_) | Answer::Relayed(_) | Answer::Proxied(_) => None,
            });
            lens.collect::<Vec<_>>()
        };
        let theirs = said(syn, 0, 0)[0].0.wrapping_add(1);
        let ask = Segment { port, flags: 24, text: 1, window: 60000, ..Segment::default() };
        let lens = said(ask, 1, theirs);
        assert_eq!(lens.iter().map(|(_, len)| *len).max(), Some(most), "{lens:?}");
    }
}

#[test]
fn sources_that_no_host_has_get_nothing() {
    let services = serving(DATA);
    for (ends, dns) in (2..12).flat_map(|ends| [(ends, false), (ends, true)]) {
        for flags in [2, 4, 16, 17] {
            let segment = Segment { ends, dns, flags, window: 1000, ..Segment::default() };
            let answers = services.answer(1, &segment.frame(1, 1), Duration::ZERO);
            assert!(answers.is_empty(), "{segment:?}: {answers:?}");
        }
    }
    assert!(!services.waits());
    assert!(count(&services, "malformed") > 0);
    let right = Segment { ends: 1, flags: 2, ..Segment::default() };
    assert_eq!(services.answer(1, &right.frame(1, 1), Duration::ZERO).len(), 1);
}

/// Returns a question by TCP.
fn query(name: &str, id: u16) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let bytes = message.to_vec().unwrap();
    [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
}

#[test]
fn one_connection_has_many_questions() {
    let services = serving(DATA);
    let asked: Vec<u8> = (0..60).flat_map(|id| query("vm1.blue.internal.", id)).collect();
    assert!(asked.len() > 2048, "more than the socket's buffer");
    let mut client = Client::connect(OWN.into(), SERVER.into(), 53, 40000);
    client.run(&services, 1);
    client.socket().send_slice(&asked).unwrap();
    let said = client.read(&services, 1);
    let (mut rest, mut ids) = (&said[..], Vec::new());
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let (message, more) = more.split_at(usize::from(u16::from_be_bytes(*len)));
        ids.push(Message::from_vec(message).unwrap().metadata.id);
        rest = more;
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..60).collect::<Vec<u16>>());
}

#[test]
fn questions_by_tcp_are_bounded_in_a_second() {
    let services = serving(DATA);
    let segment = |flags, payload| Segment { flags, dns: true, window: 60000, payload, ..Segment::default() };
    let (mut next, mut theirs) = (0, 0);
    let mut say = |segment: Segment| {
        let answers = services.answer(1, &segment.frame(next, theirs), Duration::ZERO);
        next += if segment.flags == 2 { 1 } else { segment.payload.len() as u32 };
        for answer in answers {
            let Answer::Frame(frame) = answer else { panic!("{answer:?}") };
            let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
            let packet::L4::Tcp { seq, header_len, flags, .. } = headers.l4 else { panic!("{headers:?}") };
            let len = frame.len() - usize::from(headers.l4_at) - usize::from(header_len);
            theirs = seq.wrapping_add(len as u32 + u32::from(flags & 2 != 0));
        }
    };
    say(segment(2, Vec::new()));
    let many: Vec<u8> = (0..50).flat_map(|id| query("x.", id)).collect();
    (0..11).for_each(|_| say(segment(24, many.clone())));
    assert_eq!(count(&services, "answered"), 500);
    assert!(count(&services, "too_many") > 0);
}

#[test]
fn answers_that_nobody_takes_are_bounded() {
    let mut stream = crate::dns::Stream::default();
    let asked: Vec<u8> = (0..8).flat_map(|id| query("www.example.", id)).collect();
    assert_eq!(stream.hear(&asked, false, Duration::ZERO), asked.len());
    assert_eq!(stream.questions().len(), 8);
    (0..8).for_each(|_| stream.deliver(&[7; 60_000]));
    assert_eq!(stream.say().len(), 60_002);
    assert!(stream.is_over());
    // One of any length has room behind short ones.
    let mut stream = crate::dns::Stream::default();
    stream.deliver(&[7; 16_000]);
    stream.said(10);
    stream.deliver(&[7; 65_535]);
    assert!(stream.say().len() == 81_529 && !stream.is_over());
}

#[test]
fn names_are_resolved_by_tcp() {
    let services = serving(DATA);
    let mut client = Client::connect(OWN.into(), SERVER.into(), 53, 40000);
    client.run(&services, 1);
    client.socket().send_slice(&[query("vm1.", 7), query("www.example.", 8)].concat()).unwrap();
    let inquiries = client.run(&services, 1);
    let [inquiry] = &inquiries[..] else { panic!("{inquiries:?}") };
    assert!(inquiry.is_by_tcp());
    let mut response = inquiry.query(1);
    response[2] |= 0x80;
    response.resize(3000, 0);
    let now = client.now;
    let answers = services.resolved(inquiry, Some(&response), now);
    assert!(client.hear(answers, 1).is_empty());
    let said = client.read(&services, 1);
    let (len, rest) = said.split_first_chunk::<2>().unwrap();
    let (first, second) = rest.split_at(usize::from(u16::from_be_bytes(*len)));
    let first = Message::from_vec(first).unwrap();
    assert_eq!((first.metadata.id, first.answers.len()), (7, 1));
    assert_eq!((second.len(), &second[..4]), (3002, &[11, 184, 0, 8][..]));
    // Bytes that are no question end the connection.
    let mut bad = Client::connect(OWN.into(), SERVER.into(), 53, 40001);
    bad.run(&services, 1);
    bad.socket().send_slice(&[0xff; 40]).unwrap();
    bad.run(&services, 1);
    assert!(!bad.socket().may_recv());
}

/// A segment of a hostile client. Numbers are counted from where the last answer stands.
#[derive(Clone, Debug, Default, TypeGenerator)]
pub(super) struct Segment {
    port: u8,
    dns: bool,
    flags: u8,
    seq: i16,
    ack: i16,
    far: bool,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
    text: u8,
    wait: u16,
    ends: u8,
    /// If true, sequence numbers begin near their greatest, and the first option permits selective acknowledgements.
    late: bool,
    sack: bool,
}

const METADATA4: &str = "169.254.169.254";
const METADATA6: &str = "fd00:ec2::254";
const SERVER4: &str = "10.1.1.254";
const SERVER6: &str = "fd00:1::ffff";
/// Sources of segments that no host has.
const SOURCES: [[&str; 4]; 2] =
    [["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"], ["::", "ff02::1", "::1", "ff05::2"]];

/// A sequence number near the greatest.
const FIRST: u32 = 0xffff_ff00;

/// Texts of hostile clients.
const TEXTS: [&[u8]; 5] = [
    b"",
    b"GET /user-data HTTP/1.1\r\n\r\n",
    b"PUT /latest/api/token HTTP/1.1\r\n",
    b"\0\x1d\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\0\0\x01\0\x01",
    b"GET /latest/meta-data/ HTTP/1.1\r\nX-aws-ec2-metadata-token: 1-1\r\n\r\n",
];

impl Segment {
    /// Returns the addresses from which it comes, mostly the guest's own, and to which it goes.
    fn addresses(&self) -> (IpAddr, IpAddr) {
        let (v6, number) = (usize::from(self.ends % 2), usize::from(self.ends / 2));
        let own: [IpAddr; 2] = [OWN.into(), OWN6.into()];
        let to = if self.dns { [SERVER4, SERVER6] } else { [METADATA4, METADATA6] };
        let to = to[v6].parse().unwrap();
        let from = match number {
            1..=4 => SOURCES[v6][number - 1].parse().unwrap(),
            5 => to,
            _ => own[v6],
        };
        (from, to)
    }

    fn frame(&self, next: u32, theirs: u32) -> Vec<u8> {
        let (from, to) = self.addresses();
        let mut tcp = self.segment(next, theirs);
        let sum = checksum::l4(from, to, proto::TCP, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        framed(from, to, &tcp)
    }

    /// Returns the segment without its checksum.
    fn segment(&self, next: u32, theirs: u32) -> Vec<u8> {
        let far = if self.far { 0x7fff_0000 } else { 0 };
        let seq = next.wrapping_add_signed(self.seq.into()).wrapping_add(far);
        let ack = theirs.wrapping_add_signed(self.ack.into()).wrapping_add(far);
        let first = if self.late { FIRST } else { 0 };
        let seq = seq.wrapping_add(if self.flags & 2 == 0 { 0 } else { first });
        let mut options = if self.sack { vec![1, 4, 2] } else { Vec::new() };
        options.extend(&self.options);
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 1);
        let mut tcp = Vec::new();
        tcp.extend((40000 + u16::from(self.port)).to_be_bytes());
        tcp.extend(if self.dns { 53_u16 } else { 80 }.to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([((20 + options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(TEXTS[usize::from(self.text) % TEXTS.len()]);
        tcp.extend(self.payload.iter().take(1400));
        tcp
    }
}

/// Returns the frame with a segment.
fn framed(from: IpAddr, to: IpAddr, tcp: &[u8]) -> Vec<u8> {
    let (kind, header) = match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let len = (proto::IPV4_LEN + tcp.len()) as u16;
            let (protocol, ttl, tos, id, dont_fragment) = (proto::TCP, 64, 0, 0, true);
            let ip = packet::build::Ipv4 { src, dst, protocol, ttl, tos, id, dont_fragment, len };
            let mut header = vec![0; proto::IPV4_LEN];
            packet::build::ipv4(&mut header, &ip).unwrap();
            (proto::ETHERTYPE_IPV4, header)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let payload_len = tcp.len() as u16;
            let (next_header, hop_limit, traffic_class, flow_label) = (proto::TCP, 64, 0, 0);
            let ip = packet::build::Ipv6 {
                src,
                dst,
                next_header,
                hop_limit,
                traffic_class,
                flow_label,
                payload_len,
            };
            let mut header = vec![0; proto::IPV6_LEN];
            packet::build::ipv6(&mut header, &ip).unwrap();
            (proto::ETHERTYPE_IPV6, header)
        }
        _ => panic!("{from} and {to}"),
    };
    let mut frame = vec![0; proto::ETHERNET_LEN];
    ethernet(&mut frame, GATEWAY, MAC, kind).unwrap();
    frame.extend(header);
    frame.extend(tcp);
    frame
}

/// Plays a hostile client, whose connections go on from segment to segment.
pub(super) fn hostile(segments: Vec<Segment>) {
    let services = serving(&DATA.repeat(300));
    let mut now = Duration::ZERO;
    let mut ends = BTreeMap::<(u8, bool), (u32, u32)>::new();
    for segment in segments {
        let segment = Segment { port: segment.port % 12, ends: segment.ends % 32, ..segment };
        now += Duration::from_millis(segment.wait.into());
        let key = (segment.port, segment.dns);
        let (next, theirs) = ends.get(&key).copied().unwrap_or_default();
        let mut answers = services.answer(1, &segment.frame(next, theirs), now);
        answers.extend(services.tick(now).into_iter().map(|(_, answer)| answer));
        let mut frames = 0;
        while let Some(answer) = answers.pop() {
            let frame = match answer {
                Answer::Frame(frame) => frame,
                Answer::Inquiry(inquiry) => {
                    let more = services.resolved(&inquiry, Some(&inquiry.query(1)), now);
                    answers.extend(more.into_iter().map(|(_, answer)| answer));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            frames += 1;
            let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
            let packet::L4::Tcp { seq, ack, dst, src, .. } = headers.l4 else { panic!("{headers:?}") };
            ends.insert(((dst - 40000) as u8, src == 53), (ack, seq));
        }
        assert!(frames <= 400, "{frames}");
        assert!(services.connections().of(1) <= 8);
    }
}

#[test]
fn holes_near_the_greatest_sequence_number_are_survived() {
    for options in [vec![4, 2], vec![1, 4, 2], vec![2, 4, 5, 0, 4, 2, 4, 2]] {
        let services = serving(DATA);
        let at = |flags, next, theirs| {
            let segment = Segment { flags, window: 1000, ..Segment::default() };
            let segment = if flags == 2 { Segment { options: options.clone(), ..segment } } else { segment };
            let text = u8::from(flags == 24);
            let answers =
                services.answer(1, &Segment { text, ..segment }.frame(next, theirs), Duration::ZERO);
            let [Answer::Frame(frame)] = &answers[..] else { return None };
            let headers = Headers::ethernet(frame, 0, frame.len()).unwrap();
            let packet::L4::Tcp { seq, ack, flags, .. } = headers.l4 else { panic!("{headers:?}") };
            let options = frame[usize::from(headers.l4_at) + proto::TCP_LEN..].to_vec();
            Some((seq, ack, flags, options))
        };
        let (seq, ack, flags, said) = at(2, FIRST, 0).unwrap();
        assert_eq!((ack, flags), (FIRST + 1, 18));
        assert!(!said.windows(2).any(|option| option == [4, 2]), "{said:?}");
        assert!(at(16, FIRST + 1, seq.wrapping_add(1)).is_none());
        // A part that is ahead by so much that the hole ends behind the greatest number.
        let (_, ack, flags, said) = at(24, FIRST.wrapping_add(300), seq.wrapping_add(1)).unwrap();
        assert_eq!((ack, flags, said.len()), (FIRST + 1, 16, 0));
    }
}

#[test]
fn any_segments_are_survived() {
    bolero::check!().with_type::<Vec<Segment>>().cloned().for_each(hostile);
}
