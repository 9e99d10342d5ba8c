//! DNS (RFC 1035) at the gateways' addresses: the names of a network's guests are answered here; what else guests ask
//! is for resolvers outside.

mod cache;
mod inquiry;
mod stream;
mod wire;

pub(crate) use cache::Cache;
pub use inquiry::Inquiry;
pub(crate) use stream::Stream;

use crate::frame::Back;
use crate::{Binding, Plan, Refused};
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::net::IpAddr;

/// The port of servers.
pub(crate) const SERVER: u16 = 53;
/// Longest question that is read, bytes.
const LONGEST_QUESTION: usize = 512;
/// Longest answer, bytes, if the client says that it takes so much: no link with IPv6 fragments it (DNS flag day 2020).
const LONGEST_ANSWER: u16 = 1232;
/// How long clients keep the name or address of a guest, seconds.
const TTL: u32 = 30;

/// The result of a question.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An answer.
    Answer(Vec<u8>),
    /// Somebody outside knows.
    Inquire(Inquiry),
}

/// Answers a question, or says whom to ask. `connection`: by which it came, if that was by TCP.
pub(crate) fn answer(
    plan: &Plan,
    guest: &Binding,
    (back, connection): (Back, Option<u64>),
    asked: &[u8],
) -> Result<Outcome, Refused> {
    if asked.len() > LONGEST_QUESTION {
        return Err(Refused::Malformed);
    }
    let asked = Message::from_vec(asked).map_err(|_| Refused::Malformed)?;
    if asked.metadata.message_type != MessageType::Query || !asked.answers.is_empty() {
        return Err(Refused::Malformed);
    }
    let by_udp = || back.room(guest.mtu).min(asked.max_payload().min(LONGEST_ANSWER).into());
    let most = connection.map_or_else(by_udp, |_| u16::MAX.into());
    let code = |code| Ok(Outcome::Answer(written(said(&asked, code, Vec::new()), most)?));
    let [query] = &asked.queries[..] else { return Err(Refused::Malformed) };
    match asked.metadata.op_code {
        OpCode::Query => {}
        _ => return code(ResponseCode::NotImp),
    }
    if query.query_class() != DNSClass::IN {
        return code(ResponseCode::Refused);
    }
    if let Some((known, records)) = local(plan, guest, query) {
        return Ok(Outcome::Answer(written(said(&asked, known, records), most)?));
    }
    if !asked.metadata.recursion_desired {
        return code(ResponseCode::Refused);
    }
    let inquiry = Inquiry::new(guest, back, &asked, most).ok_or(Refused::Malformed)?;
    Ok(Outcome::Inquire(Inquiry { connection, ..inquiry }))
}

/// Returns what is known here about a name: that of a guest of the network, or its address.
fn local(plan: &Plan, guest: &Binding, query: &Query) -> Option<(ResponseCode, Vec<Record>)> {
    let network = &guest.network;
    let (name, kind) = (query.name(), query.query_type());
    let domain = network.domain.as_ref().and_then(|domain| Name::from_ascii(format!("{domain}.")).ok());
    let members = || plan.bindings.values().filter(|other| other.network.name == network.name);
    if let Ok(net) = name.parse_arpa_name() {
        let addr = net.addr();
        let is_whole = net.prefix_len() == net.max_prefix_len();
        if !is_whole || !network.gateways.iter().any(|gateway| gateway.contains(&addr)) {
            return None;
        }
        let mut owners = members().filter(|other| other.addresses.contains(&addr));
        let host = owners.find_map(|other| other.hostname.as_deref());
        let Some(host) = host.and_then(|host| full(host, domain.as_ref())) else {
            return Some((ResponseCode::NXDomain, Vec::new()));
        };
        let records = matches!(kind, RecordType::PTR | RecordType::ANY)
            .then(|| Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(host))));
        return Some((ResponseCode::NoError, records.into_iter().collect()));
    }
    let inside = domain.as_ref().is_some_and(|domain| domain.zone_of(name));
    let depth = domain.filter(|_| inside).map_or(0, |domain| domain.num_labels());
    if inside && name.num_labels() == depth {
        return Some((ResponseCode::NoError, Vec::new()));
    }
    let label = (name.num_labels() == depth + 1).then(|| name.iter().next()).flatten();
    let is_its = |other: &&Binding| match (label, &other.hostname) {
        (Some(label), Some(host)) => label.eq_ignore_ascii_case(host.as_bytes()),
        _ => false,
    };
    let found: Vec<&Binding> = members().filter(is_its).collect();
    let is_address = matches!(kind, RecordType::A | RecordType::AAAA);
    match found[..] {
        [] if inside || label.is_some() && is_address => Some((ResponseCode::NXDomain, Vec::new())),
        [] => None,
        _ => {
            let addresses = found.iter().flat_map(|other| &other.addresses);
            let records = addresses.filter_map(|addr| of_kind(kind, *addr));
            let record = |data| Record::from_rdata(name.clone(), TTL, data);
            Some((ResponseCode::NoError, records.map(record).collect()))
        }
    }
}

/// Returns a host's whole name.
fn full(host: &str, domain: Option<&Name>) -> Option<Name> {
    let host = Name::from_ascii(host).ok()?;
    host.append_domain(domain.unwrap_or(&Name::root())).ok()
}

/// Returns the data of a record with an address, if the record is asked for.
fn of_kind(kind: RecordType, addr: IpAddr) -> Option<RData> {
    match (kind, addr) {
        (RecordType::A | RecordType::ANY, IpAddr::V4(addr)) => Some(RData::A(A(addr))),
        (RecordType::AAAA | RecordType::ANY, IpAddr::V6(addr)) => Some(RData::AAAA(AAAA(addr))),
        _ => None,
    }
}

/// Returns the answer to a question that is known here.
fn said(asked: &Message, code: ResponseCode, records: Vec<Record>) -> Message {
    let mut message = Message::response(asked.metadata.id, asked.metadata.op_code);
    message.metadata = Metadata::response_from_request(&asked.metadata);
    message.metadata.authoritative = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    message.add_queries(asked.queries.iter().cloned());
    message.add_answers(records);
    if let Some(edns) = &asked.edns {
        message.set_edns(extended(edns));
    }
    message
}

/// Returns what we say of ourselves to somebody who says so much.
fn extended(edns: &Edns) -> Edns {
    let mut own = Edns::new();
    own.set_max_payload(LONGEST_ANSWER).set_dnssec_ok(edns.flags().dnssec_ok);
    own
}

/// Returns the bytes of a message; if they are too many, those of one that says so.
fn written(message: Message, most: usize) -> Result<Vec<u8>, Refused> {
    let bytes = message.to_vec().map_err(|_| Refused::Malformed)?;
    if bytes.len() <= most {
        return Ok(bytes);
    }
    message.truncate().to_vec().map_err(|_| Refused::Malformed)
}
