//! Metadata of a guest, by HTTP, as the data sources EC2, OpenStack and NoCloud of cloud-init read it. Who asks is
//! known by the interface from which the connection came, never by what the request says.

mod proxy;
mod tokens;
mod tree;

pub use proxy::Proxied;
pub(crate) use tokens::Tokens;

use crate::frame::Back;
use crate::tcp::Talk;
use crate::{Plan, Refused};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tree::Content;

/// The addresses of the service, and its port.
pub(crate) const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];
pub(crate) const SERVER: u16 = 80;
/// Longest request, bytes, and most headers.
const LONGEST: usize = 4096;
const MOST_HEADERS: usize = 48;
/// Headers of tokens (IMDSv2), and one that only a proxy adds.
const TOKEN: &str = "X-aws-ec2-metadata-token";
const TOKEN_SECONDS: &str = "X-aws-ec2-metadata-token-ttl-seconds";
const FORWARDED: &str = "X-Forwarded-For";

/// One request of a guest, and the answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    plan: Arc<Plan>,
    /// The number of the guest's interface.
    number: u16,
    back: Back,
    tokens: Tokens,
    request: Vec<u8>,
    /// The request to a service outside, until somebody takes it.
    passed: Option<Vec<u8>>,
    /// Whether that service is asked.
    waits: bool,
    answer: Option<Answer>,
    outcome: Option<Result<(), Refused>>,
}

/// An answer, of which so much was sent.
#[derive(Debug)]
struct Answer {
    head: Vec<u8>,
    body: Content,
    sent: usize,
}

impl Answer {
    fn of(bytes: Vec<u8>) -> Self {
        Self { head: bytes, body: Content::text(String::new()), sent: 0 }
    }
}

/// The result of a whole request.
enum Reply {
    Answer(Answer, Result<(), Refused>),
    /// A service outside is to have this.
    Pass(Vec<u8>),
}

/// A status, headers, and a body.
struct Response {
    status: &'static str,
    header: Option<(&'static str, String)>,
    body: Content,
}

impl Response {
    fn of(body: Content) -> Self {
        Self { status: "200 OK", header: None, body }
    }

    fn failed(status: &'static str) -> Self {
        Self { status, header: None, body: Content::text(format!("{status}\n")) }
    }

    fn written(self, has_body: bool) -> Answer {
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        if let Some((name, value)) = self.header {
            _ = write!(head, "{name}: {value}\r\n");
        }
        let (kind, len) = (self.body.kind(), self.body.bytes().len());
        _ = write!(head, "Content-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
        let body = if has_body { self.body } else { Content::text(String::new()) };
        Answer { head: head.into_bytes(), body, sent: 0 }
    }
}

impl Exchange {
    pub(crate) fn new(plan: Arc<Plan>, number: u16, back: Back, tokens: Tokens) -> Self {
        let (request, passed, waits) = Default::default();
        Self { plan, number, back, tokens, request, passed, waits, answer: None, outcome: None }
    }

    /// Returns the answer to the request, once all of it is there.
    fn answer(&self, now: Duration) -> Option<Reply> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let bad =
            |status| Some(Reply::Answer(Response::failed(status).written(true), Err(Refused::Malformed)));
        match request.parse(&self.request) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if self.request.len() < LONGEST => return None,
            Ok(httparse::Status::Partial) => return bad("431 Request Header Fields Too Large"),
            Err(_) => return bad("400 Bad Request"),
        }
        let (Some(method), Some(path)) = (request.method, request.path) else {
            return bad("400 Bad Request");
        };
        let header = |name: &str| {
            let mut all = request.headers.iter();
            let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok()
        };
        let guest = self.plan.bindings.get(&self.number);
        let proxy = guest.and_then(|guest| Some((guest, guest.network.metadata_proxy.as_ref()?)));
        if let Some((guest, proxy)) = proxy.filter(|_| ["GET", "HEAD", "PUT"].contains(&method)) {
            return Some(Reply::Pass(proxy::request(guest, proxy, self.back.guest(), &request)));
        }
        let response = match method {
            "GET" | "HEAD" => self.get(path, header(TOKEN), now),
            "PUT" => self.put(path, header(TOKEN_SECONDS), header(FORWARDED).is_some(), now),
            _ => Response::failed("405 Method Not Allowed"),
        };
        Some(Reply::Answer(response.written(method != "HEAD"), Ok(())))
    }

    fn get(&self, path: &str, token: Option<&str>, now: Duration) -> Response {
        let Some(guest) = self.plan.bindings.get(&self.number) else {
            return Response::failed("404 Not Found");
        };
        if token.is_some_and(|token| !self.tokens.is_right(guest, token, now)) {
            return Response::failed("401 Unauthorized");
        }
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let teller = tree::Teller { guest, mac: self.back.mac() };
        teller.find(&parts).map_or_else(|| Response::failed("404 Not Found"), Response::of)
    }

    /// Gives out a token. A request through a proxy gets none: who asks there is not the guest.
    fn put(&self, path: &str, seconds: Option<&str>, forwarded: bool, now: Duration) -> Response {
        let Some(guest) = self.plan.bindings.get(&self.number).filter(|_| path == "/latest/api/token") else {
            return Response::failed("404 Not Found");
        };
        if forwarded {
            return Response::failed("403 Forbidden");
        }
        let seconds = seconds.and_then(|text| text.trim().parse().ok());
        let Some((token, seconds)) = seconds.and_then(|n| Some((self.tokens.token(guest, n, now)?, n)))
        else {
            return Response::failed("400 Bad Request");
        };
        let header = Some((TOKEN_SECONDS, seconds.to_string()));
        Response { header, ..Response::of(Content::text(token)) }
    }
}

impl Talk for Exchange {
    fn hear(&mut self, bytes: &[u8], fin: bool, now: Duration) -> usize {
        if self.answer.is_some() || self.waits {
            return bytes.len();
        }
        let room = LONGEST.saturating_sub(self.request.len()).min(bytes.len());
        self.request.extend_from_slice(&bytes[..room]);
        match self.answer(now) {
            Some(Reply::Answer(answer, outcome)) => {
                (self.answer, self.outcome) = (Some(answer), Some(outcome));
            }
            Some(Reply::Pass(request)) => (self.passed, self.waits) = (Some(request), true),
            None if fin => {
                self.answer = Some(Answer::of(Vec::new()));
                self.outcome = Some(Err(Refused::Malformed));
            }
            None => {}
        }
        room
    }

    fn say(&self) -> &[u8] {
        let Some(Answer { head, body, sent }) = &self.answer else { return &[] };
        match head.get(*sent..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => body.bytes().get(sent - head.len()..).unwrap_or_default(),
        }
    }

    fn said(&mut self, len: usize) {
        if let Some(answer) = &mut self.answer {
            answer.sent += len;
        }
    }

    fn is_over(&self) -> bool {
        self.answer.is_some()
    }

    fn questions(&mut self) -> Vec<Vec<u8>> {
        self.passed.take().into_iter().collect()
    }

    /// Takes the response of the service outside; an empty one if there is none.
    fn deliver(&mut self, response: &[u8]) {
        if response.is_empty() {
            self.answer = Some(Response::failed("502 Bad Gateway").written(true));
        } else {
            (self.answer, self.outcome) = (Some(Answer::of(response.to_vec())), Some(Ok(())));
        }
    }

    /// Returns the length of a response that came from outside: other answers are of the plan.
    fn held(&self) -> usize {
        self.answer.as_ref().filter(|_| self.waits).map_or(0, |answer| answer.head.len())
    }

    fn follow(&mut self, plan: &Arc<Plan>) {
        self.plan = plan.clone();
    }

    fn outcome(&mut self) -> Option<Result<(), Refused>> {
        self.outcome.take()
    }
}
