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
    match services.answer(1, &packet(&message.to_vec().unwrap()), now)? {
        Answer::Inquiry(inquiry) => Some(inquiry),
        Answer::Frame(_) => None,
    }
}

/// Returns a resolver's answer.
fn response(asked: &[u8], ttl: u32, records: usize) -> Vec<u8> {
    let answered = |inquiry: &Box<Inquiry>| services.resolved(inquiry, None, 1).is_some();
    let asked = (0..200).filter_map(|n| ask(n, 1)).filter(answered).count();
    assert_eq!(asked, 68, "a hundred a second");
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
    let _ = services.answer(1, &frame, 0);
    let Some(Answer::Inquiry(inquiry)) = resolving.answer(1, &frame, 0) else { return };
    let mut whole = inquiry.query(3);
    whole[2] |= 0x80;
    whole.extend(response.iter().copied());
    if let [first, second, ..] = response[..] {
        (whole[7], whole[9]) = (first % 4, second % 4);
    }
    for said in [response, whole] {
        if inquiry.is_answered_by(3, &said) {
            let (_, frame) = resolving.resolved(&inquiry, Some(&said), 0).unwrap();
            assert!(frame.len() <= 42 + 1232.max(said.len()));
            let _ = resolving.answer(1, &packet(&bytes), 1);
        }
    }
}
