//! Names, for well-behaved and hostile guests and resolvers.

use super::*;
use crate::Inquiry;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};

const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

fn resolving() -> Services {
    let mut plan = plan(DhcpOptions { lease_time: 3600, ..DhcpOptions::default() }, 1500);
    let own = plan.bindings[&1].clone();
    let network = Network { dns: true, resolvers: vec![RESOLVER.into()], ..Network::clone(&own.network) };
    let network = Arc::new(network);
    plan.bindings.values_mut().for_each(|its| its.network = network.clone());
    let other = Network { name: "red".to_owned(), ..Network::clone(&network) };
    let secret = ["10.1.1.66".parse().unwrap()];
    plan.bindings.insert(
        4,
        Binding {
            guest: "secret".to_owned(),
            hostname: Some("secret".to_owned()),
            addresses: secret.into(),
            network: other.into(),
            ..own
        },
    );
    let services = Services::default();
    services.follow(plan);
    services
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0, MessageType::Query, OpCode::Query);
    message.metadata.id = 77;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn packet(bytes: &[u8]) -> Vec<u8> {
    let from = End { mac: MAC, addr: OWN, port: 40000 };
    datagram(from, End { mac: GATEWAY, addr: SERVER, port: 53 }, bytes).unwrap()
}

fn read(frame: &[u8]) -> Message {
    let headers = Headers::ethernet(frame, 0, frame.len()).unwrap();
    let read = Datagram::read(frame, &headers).unwrap();
    assert_eq!((read.from, read.src, headers.ports()), (GATEWAY, SERVER.into(), (53, 40000)));
    assert_eq!((headers.eth.as_ref().unwrap().dst, headers.ip().unwrap().dst), (MAC, OWN.into()));
    Message::from_vec(read.payload).unwrap()
}

/// Returns what is known at once: the code and the records.
fn known(services: &Services, name: &str, kind: RecordType) -> Option<(ResponseCode, Vec<RData>)> {
    let message = read(&answer(services, 1, &packet(&query(name, kind).to_vec().unwrap()))?);
    assert_eq!((message.metadata.id, message.metadata.message_type), (77, MessageType::Response));
    Some((message.metadata.response_code, message.answers.into_iter().map(|record| record.data).collect()))
}

fn inquire(services: &Services, message: &Message, now: u64) -> Option<Box<Inquiry>> {
    match first(services, &packet(&message.to_vec().unwrap()), now)? {
        Answer::Inquiry(inquiry) => Some(inquiry),
        Answer::Frame(_) | Answer::Relayed(_) | Answer::Proxied(_) => None,
    }
}

fn first(services: &Services, frame: &[u8], now: u64) -> Option<Answer> {
    services.answer(1, frame, Duration::from_secs(now)).into_iter().next()
}

fn resolved(services: &Services, inquiry: &Inquiry, said: Option<&[u8]>, now: u64) -> Option<(u16, Vec<u8>)> {
    match services.resolved(inquiry, said, Duration::from_secs(now)).into_iter().next()? {
        (guest, Answer::Frame(frame)) => Some((guest, frame)),
        (_, other) => panic!("{other:?}"),
    }
}

/// Returns a resolver's answer.
fn response(asked: &[u8], ttl: u32, records: usize) -> Vec<u8> {
    let asked = Message::from_vec(asked).unwrap();
    let mut message = Message::response(asked.metadata.id, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_queries(asked.queries.iter().cloned());
    let record = |n: usize| {
        Record::from_rdata(asked.queries[0].name.clone(), ttl, RData::A(A(Ipv4Addr::from_bits(n as u32 + 1))))
    };
    message.add_answers((0..records).map(record));
    asked.edns.into_iter().for_each(|edns| _ = message.set_edns(edns));
    message.to_vec().unwrap()
}

#[test]
fn guests_of_the_network_have_names() {
    use RecordType::{A as V4, AAAA as V6, MX, PTR};
    let services = resolving();
    let own = || (ResponseCode::NoError, vec![RData::A(OWN.into())]);
    for name in ["vm1.blue.internal.", "VM1.Blue.Internal.", "vm1."] {
        assert_eq!(known(&services, name, V4), Some(own()), "{name}");
    }
    let v6 = (ResponseCode::NoError, vec![RData::AAAA(OWN6.into())]);
    assert_eq!(known(&services, "vm1.blue.internal.", V6), Some(v6));
    assert_eq!(known(&services, "vm1.blue.internal.", MX), Some((ResponseCode::NoError, vec![])));
    for (name, kind) in [
        ("vm2.blue.internal.", V4),
        ("secret.blue.internal.", V4),
        ("secret.", V6),
        ("a.vm1.blue.internal.", V4),
        ("66.1.1.10.in-addr.arpa.", PTR),
    ] {
        assert_eq!(known(&services, name, kind), Some((ResponseCode::NXDomain, vec![])), "{name}");
    }
    let name = Name::from_ascii("vm1.blue.internal.").unwrap();
    let whole = format!("{}ip6.arpa.", "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.d.f.");
    for reverse in ["7.1.1.10.in-addr.arpa.", &whole] {
        let Some((ResponseCode::NoError, records)) = known(&services, reverse, PTR) else {
            panic!("{reverse}")
        };
        assert_eq!(records, [RData::PTR(hickory_proto::rr::rdata::PTR(name.clone()))]);
    }
    for (name, kind) in [("www.example.", V4), ("1.2.0.192.in-addr.arpa.", PTR), ("example.", MX)] {
        assert_eq!(known(&services, name, kind), None, "{name} is asked outside");
    }
}

#[test]
fn resolvers_outside_are_asked_once() {
    let services = resolving();
    let mut asked = query("WWW.Example.", RecordType::A);
    let inquiry = inquire(&services, &asked, 5).unwrap();
    assert_eq!(inquiry.servers, [IpAddr::from(RESOLVER)]);
    let good = response(&inquiry.query(9), 60, 2);
    assert!(inquiry.is_answered_by(9, &good) && !inquiry.is_answered_by(8, &good));
    assert!(!inquiry.is_answered_by(9, &inquiry.query(9)), "a question");
    let other = inquire(&services, &query("other.example.", RecordType::A), 5).unwrap();
    assert!(!inquiry.is_answered_by(9, &response(&other.query(9), 60, 2)));
    let (guest, frame) = resolved(&services, &inquiry, Some(&good), 5).unwrap();
    let message = read(&frame);
    assert_eq!((guest, message.metadata.id, message.answers.len()), (1, 77, 2));
    assert_eq!(message.queries[0].name.to_ascii(), "WWW.Example.", "as the client wrote it");
    // From the cache, by whichever letters, with the time that is left.
    asked.queries[0].name = Name::from_ascii("www.EXAMPLE.").unwrap();
    let kept = |now| match first(&services, &packet(&asked.to_vec().unwrap()), now) {
        Some(Answer::Frame(frame)) => Some(read(&frame).answers[0].ttl),
        _ => None,
    };
    assert_eq!([kept(5), kept(64), kept(65)], [Some(60), Some(1), None]);
    // Nothing is known of a silent resolver.
    let (_, frame) = resolved(&services, &other, None, 6).unwrap();
    assert_eq!(read(&frame).metadata.response_code, ResponseCode::ServFail);
    assert_eq!((count(&services, "answered"), count(&services, "no_resolver")), (3, 1));
    let mut plan = plan(DhcpOptions::default(), 1500);
    plan.bindings.get_mut(&1).unwrap().guest = "other".to_owned();
    services.follow(plan);
    assert_eq!(resolved(&services, &inquiry, Some(&good), 7), None, "the guest is gone");
}

#[test]
fn long_answers_are_cut() {
    let services = resolving();
    let mut asked = query("big.example.", RecordType::A);
    let inquiry = inquire(&services, &asked, 0).unwrap();
    let (_, frame) = resolved(&services, &inquiry, Some(&response(&inquiry.query(1), 60, 60)), 0).unwrap();
    let cut = read(&frame);
    assert!(cut.metadata.truncation && cut.answers.is_empty() && cut.queries == asked.queries);
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    asked.set_edns(edns);
    let inquiry = inquire(&services, &asked, 0).unwrap();
    assert_eq!(Message::from_vec(&inquiry.query(1)).unwrap().max_payload(), 1232);
    let (_, frame) = resolved(&services, &inquiry, Some(&response(&inquiry.query(1), 60, 60)), 0).unwrap();
    assert_eq!((read(&frame).answers.len(), read(&frame).metadata.truncation), (60, false));
}

#[test]
fn a_guest_inquires_so_much_alone() {
    let services = resolving();
    let ask = |n: usize, now| inquire(&services, &query(&format!("{n}.example."), RecordType::A), now);
    let under_way: Vec<_> = (0..100).filter_map(|n| ask(n, 1)).collect();
    assert_eq!((under_way.len(), count(&services, "too_many")), (32, 68));
    under_way.iter().for_each(|inquiry| drop(resolved(&services, inquiry, None, 1)));
    let answered =
        (0..200).filter_map(|n| ask(n, 1)).filter(|asked| resolved(&services, asked, None, 1).is_some());
    assert_eq!(answered.count(), 68, "a hundred a second");
    assert!(ask(0, 2).is_some());
}

#[test]
fn what_is_no_question_is_not_answered() {
    let services = resolving();
    let good = query("www.example.", RecordType::A);
    let said = |message: &Message| answer(&services, 1, &packet(&message.to_vec().unwrap()));
    let mut response = good.clone();
    response.metadata.message_type = MessageType::Response;
    let mut two = good.clone();
    two.add_query(good.queries[0].clone());
    let mut update = good.clone();
    update.metadata.op_code = OpCode::Update;
    let mut alone = good;
    alone.metadata.recursion_desired = false;
    assert_eq!((said(&response), said(&two), count(&services, "malformed")), (None, None, 2));
    assert_eq!(read(&said(&update).unwrap()).metadata.response_code, ResponseCode::NotImp);
    assert_eq!(read(&said(&alone).unwrap()).metadata.response_code, ResponseCode::Refused);
}

/// Plays a hostile guest, which sends a message, and a hostile resolver, which answers.
pub(super) fn hostile(services: &Services, message: Vec<u8>, response: Vec<u8>, changed: Option<(u8, u8)>) {
    let resolving = resolving();
    let mut asked = query("www.example.", RecordType::A).to_vec().unwrap();
    let bytes = match changed {
        None => message,
        Some((at, to)) => {
            let at = usize::from(at) % asked.len();
            asked[at] = to;
            asked
        }
    };
    let frame = packet(&bytes);
    let _ = first(services, &frame, 0);
    let Some(Answer::Inquiry(inquiry)) = first(&resolving, &frame, 0) else { return };
    let mut whole = inquiry.query(3);
    whole[2] |= 0x80;
    whole.extend(response.iter().copied());
    if let [first, second, ..] = response[..] {
        (whole[7], whole[9]) = (first % 4, second % 4);
    }
    for said in [response, whole] {
        if inquiry.is_answered_by(3, &said) {
            let (_, frame) = resolved(&resolving, &inquiry, Some(&said), 0).unwrap();
            assert!(frame.len() <= 42 + 1232.max(said.len()));
            let _ = first(&resolving, &packet(&bytes), 1);
        }
    }
}
