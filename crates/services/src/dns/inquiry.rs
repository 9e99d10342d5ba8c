//! Questions to resolvers outside.

use super::{LONGEST_ANSWER, extended, wire};
use crate::Binding;
use crate::frame::Back;
use hickory_proto::op::{Message, MessageType, OpCode};
use std::net::IpAddr;

/// Flags of a header: a response; it is cut; recursion is available.
const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const CUT: u8 = 0x02;
const AVAILABLE: u8 = 0x80;
const CODE: u8 = 0x0f;
/// Codes of responses.
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;

/// A question to a resolver outside, on behalf of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The resolvers to ask, in this order; none: those of the host.
    pub servers: Vec<IpAddr>,
    /// The number of the guest's interface, and the guest's name.
    pub(crate) number: u16,
    pub(crate) guest: String,
    pub(crate) network: String,
    pub(crate) back: Back,
    /// The connection by which the client asked, if that was by TCP.
    pub(crate) connection: Option<u64>,
    /// The question, without number, by which answers are found again.
    pub(crate) query: Vec<u8>,
    /// The client's number, and its question as it wrote it.
    pub(crate) id: u16,
    pub(crate) question: Vec<u8>,
    /// The longest answer.
    pub(crate) most: usize,
}

impl Inquiry {
    pub(super) fn new(guest: &Binding, back: Back, asked: &Message, most: usize) -> Option<Self> {
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        query.metadata.checking_disabled = asked.metadata.checking_disabled;
        query.metadata.authentic_data = asked.metadata.authentic_data;
        query.add_queries(asked.queries.iter().cloned());
        let question = wire::question(&query.to_vec().ok()?)?.to_vec();
        query.queries.iter_mut().for_each(|query| query.name = query.name.to_lowercase());
        if let Some(edns) = &asked.edns {
            let mut own = extended(edns);
            own.set_max_payload(asked.max_payload().min(LONGEST_ANSWER));
            query.set_edns(own);
        }
        Some(Self {
            servers: guest.network.resolvers.clone(),
            number: 0,
            guest: guest.guest.clone(),
            network: guest.network.name.clone(),
            back,
            connection: None,
            query: query.to_vec().ok()?,
            id: asked.metadata.id,
            question,
            most,
        })
    }

    /// Returns whether the client asked by TCP, because it takes any answer or because a shorter one was cut. Then
    /// resolvers are asked by TCP as well.
    #[must_use]
    pub fn is_by_tcp(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns the bytes of the question to a resolver, with a number that nobody can guess.
    #[must_use]
    pub fn query(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.query.clone();
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        bytes
    }

    /// Returns whether this is a resolver's answer to the question with this number.
    #[must_use]
    pub fn is_answered_by(&self, id: u16, response: &[u8]) -> bool {
        let is_response = response.get(2).is_some_and(|flags| flags & (RESPONSE | OPCODE) == RESPONSE);
        let same = || match (wire::question(response), wire::question(&self.query)) {
            (Some(one), Some(other)) => wire::is_same(one, other),
            _ => false,
        };
        wire::short(response, 0) == Some(id) && is_response && same()
    }

    /// Returns the answer to the client, of a resolver's.
    pub(crate) fn passed_on(&self, response: &[u8]) -> Option<Vec<u8>> {
        let len = wire::question(response)?.len();
        let mut bytes = response.to_vec();
        bytes[..2].copy_from_slice(&self.id.to_be_bytes());
        bytes[3] |= AVAILABLE;
        bytes.get_mut(wire::HEADER..)?.get_mut(..len)?.copy_from_slice(self.question.get(..len)?);
        if bytes.len() > self.most {
            bytes.truncate(wire::HEADER + len);
            bytes[2] |= CUT;
            bytes[6..wire::HEADER].fill(0);
        }
        Some(bytes)
    }

    /// Returns the answer to the client that no resolver could be asked.
    pub(crate) fn failed(&self) -> Vec<u8> {
        let mut bytes = self.query[..wire::HEADER].to_vec();
        bytes[..2].copy_from_slice(&self.id.to_be_bytes());
        bytes[2] |= RESPONSE;
        bytes[3] = bytes[3] & !CODE | AVAILABLE | SERVER_FAILURE;
        bytes[6..].fill(0);
        bytes.extend(&self.question);
        bytes
    }
}

/// Returns for how long an answer may be kept, seconds; `None`: it may not.
pub(super) fn lifetime(response: &[u8]) -> Option<u32> {
    /// Longest time for answers, and for those that there is nothing.
    const MOST: [u32; 2] = [3600, 60];
    let (flags, code) = (*response.get(2)?, response.get(3)? & CODE);
    let has_answers = wire::short(response, 6)? > 0;
    let most = MOST[usize::from(!has_answers || code == NO_SUCH_NAME)];
    let least = wire::ttls(response)?.into_iter().map(|(_, ttl)| ttl).min()?;
    (flags & CUT == 0 && [0, NO_SUCH_NAME].contains(&code) && least > 0).then_some(least.min(most))
}
