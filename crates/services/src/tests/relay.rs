//! DHCP by servers outside.

use super::*;
use crate::Relayed;
use dhcproto::v4;

/// Servers outside, and the host's address by which it reaches the first one.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 67);
const OUTSIDE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x67);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
const AGENT: u8 = 82;

fn relaying() -> Services {
    let mut plan = plan(DhcpOptions::default(), 1450);
    for binding in plan.bindings.values_mut() {
        let dhcp_relay = vec![OUTSIDE.into(), OUTSIDE6.into()];
        binding.network = Arc::new(Network { dhcp: false, dhcp_relay, ..Network::clone(&binding.network) });
        binding.addresses = Vec::new();
    }
    let services = Services::default();
    services.follow(plan);
    services
}

fn relay(services: &Services, guest: u16, frame: &[u8], now: u64) -> Option<Relayed> {
    match services.answer(guest, frame, Duration::from_secs(now)).into_iter().next()? {
        Answer::Relayed(relayed) => Some(*relayed),
        other => panic!("{other:?}"),
    }
}

fn returned(
    services: &Services,
    server: impl Into<IpAddr>,
    bytes: &[u8],
    now: u64,
) -> Option<(u16, Vec<u8>)> {
    services.returned(server.into(), bytes, Duration::from_secs(now))
}

/// Returns the value of an option.
fn option(message: &[u8], wanted: u8) -> Option<Vec<u8>> {
    let mut found = None;
    crate::dhcp::message::options(&message[240..], &mut |code, value| {
        if code == wanted {
            found = Some(value.to_vec());
        }
        Some(())
    })
    .unwrap();
    found
}

/// Returns a server's offer of an address, with the relay's option.
fn offer(asked: &[u8], yiaddr: Ipv4Addr, kind: MessageType) -> Vec<u8> {
    let asked = Message::decode(&mut Decoder::new(asked)).unwrap();
    let mut answer =
        Message::new_with_id(asked.xid(), asked.ciaddr(), yiaddr, NOBODY, asked.giaddr(), asked.chaddr());
    answer.set_opcode(dhcproto::v4::Opcode::BootReply).set_flags(asked.flags());
    answer.opts_mut().insert(DhcpOption::MessageType(kind));
    answer.opts_mut().insert(DhcpOption::ServerIdentifier(SERVER));
    asked.opts().get(OptionCode::RelayAgentInformation).map(|agent| answer.opts_mut().insert(agent.clone()));
    answer.to_vec().unwrap()
}

#[test]
fn servers_are_told_the_guest_and_its_subnet() {
    let services = relaying();
    let asked = relay(&services, 1, &frame(&message(MessageType::Discover, NOBODY, [])), 0).unwrap();
    let sent = asked.datagram(HOST.into());
    assert_eq!(asked.servers, [IpAddr::from(OUTSIDE)]);
    assert_eq!((sent[3], &sent[24..28]), (1, &HOST.octets()[..]));
    let gateway = [10, 2, 1, 254];
    let told = [&[1, 3][..], b"vm1", &[5, 4], &gateway, &[11, 4], &gateway].concat();
    assert_eq!(option(&sent, AGENT), Some(told));
    assert_eq!(option(&sent, 53), Some(vec![1]));
    assert_eq!(count(&services, "relayed"), 1);
}

#[test]
fn an_answer_goes_to_who_asked_without_the_relays_part() {
    let services = relaying();
    let asked = relay(&services, 1, &frame(&message(MessageType::Discover, NOBODY, [])), 0).unwrap();
    let said = offer(&asked.datagram(HOST.into()), OWN, MessageType::Offer);
    assert_eq!(returned(&services, Ipv4Addr::new(192, 0, 2, 68), &said, 1), None, "a stranger");
    assert_eq!(returned(&services, OUTSIDE, &said, 60), None, "too late");
    let (guest, answer) = returned(&services, OUTSIDE, &said, 1).unwrap();
    let headers = Headers::ethernet(&answer, 0, answer.len()).unwrap();
    let read = Datagram::read(&answer, &headers).unwrap();
    assert_eq!(
        (guest, read.from, headers.ip().unwrap().dst, headers.ports().1),
        (1, GATEWAY, OWN.into(), 68)
    );
    assert_eq!((option(read.payload, AGENT), &read.payload[24..28]), (None, &[0; 4][..]));
    let read = Message::decode(&mut Decoder::new(read.payload)).unwrap();
    assert_eq!((read.yiaddr(), read.opts().msg_type()), (OWN, Some(MessageType::Offer)));
    assert_eq!(count(&services, "answered"), 1);
}

#[test]
fn answers_to_others_go_to_nobody() {
    let services = relaying();
    let asked = relay(&services, 1, &frame(&message(MessageType::Discover, NOBODY, [])), 0).unwrap();
    let sent = asked.datagram(HOST.into());
    for at in [4, 28] {
        // The number, and the MAC.
        let mut other = offer(&sent, OWN, MessageType::Offer);
        other[at] ^= 1;
        assert_eq!(returned(&services, OUTSIDE, &other, 1), None);
    }
    let mut other = sent.clone();
    let name = other.windows(3).position(|name| name == b"vm1").unwrap();
    other[name + 2] = b'2';
    assert_eq!(returned(&services, OUTSIDE, &offer(&other, OWN, MessageType::Offer), 1), None);
    assert_eq!(returned(&services, OUTSIDE, &sent, 1), None, "a question");
}

#[test]
fn answers_go_where_the_client_hears_them() {
    let services = relaying();
    let to = |ciaddr: Ipv4Addr, broadcast: bool, yiaddr, kind| {
        let mut asked = message(MessageType::Request, ciaddr, []);
        asked.set_flags(if broadcast { 0x8000.into() } else { 0.into() });
        let asked = relay(&services, 1, &frame(&asked), 0).unwrap().datagram(HOST.into());
        let (_, answer) = returned(&services, OUTSIDE, &offer(&asked, yiaddr, kind), 0).unwrap();
        Headers::ethernet(&answer, 0, answer.len()).unwrap().ip().unwrap().dst
    };
    let all = IpAddr::from(Ipv4Addr::BROADCAST);
    assert_eq!(to(NOBODY, false, OWN, MessageType::Ack), IpAddr::from(OWN));
    assert_eq!(to(NOBODY, true, OWN, MessageType::Ack), all);
    assert_eq!(to(OWN, true, OWN, MessageType::Ack), IpAddr::from(OWN));
    assert_eq!(to(OWN, false, NOBODY, MessageType::Nak), all);
}

#[test]
fn nothing_is_relayed_twice_nor_for_others() {
    let services = relaying();
    let refused = |asked: &Message, why: &str| {
        let before = count(&services, why);
        assert_eq!(relay(&services, 1, &frame(asked), 0), None);
        assert_eq!(count(&services, why), before + 1, "{why}");
    };
    let mut asked = message(MessageType::Discover, NOBODY, []);
    asked.set_giaddr(HOST);
    refused(&asked, "not_ours");
    let circuit = [&[1, 1][..], b"x"].concat();
    let agent = DhcpOption::Unknown(v4::UnknownOption::new(AGENT.into(), circuit));
    refused(&message(MessageType::Discover, NOBODY, [agent]), "not_ours");
    let mut asked = message(MessageType::Discover, NOBODY, []);
    asked.set_chaddr(&[2, 0, 0, 0, 0, 9]);
    refused(&asked, "wrong_mac");
}

#[test]
fn a_guest_asks_so_often_and_no_more() {
    let services = relaying();
    let ask = |xid: u32, now| {
        let mut asked = message(MessageType::Discover, NOBODY, []);
        asked.set_xid(xid);
        relay(&services, 1, &frame(&asked), now)
    };
    let asked: Vec<_> = (0..20).filter_map(|xid| ask(xid, 5)).collect();
    assert_eq!((asked.len(), count(&services, "too_many")), (10, 10));
    // The guest's last messages wait.
    let is_waiting = |asked: &Relayed| {
        returned(&services, OUTSIDE, &offer(&asked.datagram(HOST.into()), OWN, MessageType::Offer), 6)
            .is_some()
    };
    assert_eq!(asked.iter().map(is_waiting).filter(|waits| *waits).count(), 8);
    assert!(ask(30, 6).is_some());
    // Messages without an answer are forgotten, and so are guests that are gone.
    let waiting = || services.lock().waiting.len();
    assert_eq!(waiting(), 8);
    assert!(ask(30, 100).is_some() && ask(30, 101).is_some());
    assert_eq!(waiting(), 1);
    services.follow(Plan { bindings: BTreeMap::new(), ..plan(DhcpOptions::default(), 1500) });
    assert_eq!(waiting(), 0);
}

fn ask6(payload: &[u8]) -> Vec<u8> {
    let plan = Plan { gateway_mac: MAC, ..plan(DhcpOptions::default(), 1500) };
    let mut guest = plan.bindings[&1].clone();
    guest.network =
        Arc::new(Network { gateways: vec!["fe80::7/64".parse().unwrap()], ..Network::clone(&guest.network) });
    datagram6(&plan, &guest, (546, 547), (GATEWAY, SERVERS), payload).unwrap()
}

/// Returns a server's message to the relay, with this one for the client in it.
fn reply6(asked: &[u8], inner: &[u8]) -> Vec<u8> {
    let part = |code: u16, value: &[u8]| {
        [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
    };
    [&[13, 0][..], &asked[2..34], &part(18, b"vm1"), &part(9, inner)].concat()
}

#[test]
fn dhcpv6_goes_within_messages_of_the_relay() {
    let services = relaying();
    let inner = message6(v6::MessageType::Solicit, [wish(&[])]);
    let asked = relay(&services, 1, &ask6(&inner), 0).unwrap();
    let sent = asked.datagram(OUTSIDE6.into());
    assert_eq!(asked.servers, [IpAddr::from(OUTSIDE6)]);
    let link: Ipv6Addr = "fd00:1::ffff".parse().unwrap();
    assert_eq!(sent[..34], [&[12, 0][..], &link.octets(), &CLIENT6.octets()].concat());
    assert!(sent.ends_with(&inner) && sent.windows(3).any(|name| name == b"vm1"));
    let said = message6(v6::MessageType::Advertise, []);
    let (guest, answer) = returned(&services, OUTSIDE6, &reply6(&sent, &said), 1).unwrap();
    let headers = Headers::ethernet(&answer, 0, answer.len()).unwrap();
    assert_eq!((guest, headers.ip().unwrap().dst, headers.ports()), (1, CLIENT6.into(), (547, 546)));
    assert_eq!(Datagram::read(&answer, &headers).unwrap().payload, said);
    // Nobody asked for the first one, and the second one is a question.
    let mut other = said.clone();
    other[3] ^= 1;
    assert_eq!(returned(&services, OUTSIDE6, &reply6(&sent, &other), 1), None);
    assert_eq!(returned(&services, OUTSIDE6, &reply6(&sent, &inner), 1), None);
}

#[derive(Clone, Debug, TypeGenerator)]
struct Round {
    guest: bool,
    is_v6: bool,
    kinds: (u8, u8),
    /// Bytes of the question and of the answer that are changed.
    asked: Option<(u16, u8)>,
    said: Vec<(u16, u8)>,
    /// An answer that is not made of a question.
    bytes: Option<Vec<u8>>,
}

#[test]
fn any_servers_are_survived() {
    let services = relaying();
    let mut now = 0;
    bolero::check!().with_type::<Vec<Round>>().cloned().for_each(|rounds| {
        for round in rounds {
            now += 1;
            round.take(&services, now);
        }
    });
}

impl Round {
    fn take(self, services: &Services, now: u64) {
        let change = |bytes: &mut [u8], (at, to): (u16, u8)| {
            let at = usize::from(at) % bytes.len();
            bytes[at] = to;
        };
        let guest = if self.guest { 1 } else { 2 };
        let mut payload = match self.is_v6 {
            true => message6(self.kinds.0.into(), [wish(&[])]),
            false => message(self.kinds.0.into(), NOBODY, []).to_vec().unwrap(),
        };
        self.asked.into_iter().for_each(|it| change(&mut payload, it));
        let ends = (
            End { mac: MAC, addr: NOBODY, port: 68 },
            End { mac: Mac::BROADCAST, addr: Ipv4Addr::BROADCAST, port: 67 },
        );
        let frame = if self.is_v6 { ask6(&payload) } else { datagram(ends.0, ends.1, &payload).unwrap() };
        let asked = relay(services, guest, &frame, now).map(|asked| asked.datagram(HOST.into()));
        let server = if self.is_v6 { IpAddr::from(OUTSIDE6) } else { IpAddr::from(OUTSIDE) };
        let mut said = match (self.bytes, asked) {
            (Some(bytes), _) => bytes,
            (None, Some(asked)) if self.is_v6 => reply6(&asked, &message6(self.kinds.1.into(), [])),
            (None, Some(asked)) if Message::decode(&mut Decoder::new(&asked)).is_ok() => {
                offer(&asked, OWN, self.kinds.1.into())
            }
            _ => return,
        };
        if !said.is_empty() {
            self.said.into_iter().for_each(|it| change(&mut said, it));
        }
        let Some((to, frame)) = returned(services, server, &said, now) else { return };
        let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
        let read = Datagram::read(&frame, &headers).unwrap();
        assert!((to == 1 || to == 2) && frame.len() <= 1464, "{to}");
        if !self.is_v6 {
            assert_eq!((option(read.payload, AGENT), &read.payload[24..28]), (None, &[0; 4][..]));
        }
    }
}
