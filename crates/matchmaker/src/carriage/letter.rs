//! Messages between the daemons of two ends.

use super::carried::Settled;
use crate::offer::{End, Key};
use hca::HEAD;
use sockring::EndState;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first end of a connection is offered.
    Call,
    /// It is no more.
    Withdraw,
    /// The other end of a call is offered, too.
    Answer,
    /// The first end has memory.
    Join,
    /// There is no such pair.
    Gone,
    /// The state of an end of a pair, and bytes that it sent.
    State,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    pub kind: Kind,
    /// The receiver's number of the call or the pair.
    pub theirs: u64,
    /// The sender's.
    pub ours: u64,
    /// [`Kind::State`]: nothing comes after this.
    pub is_last: bool,
    /// [`Kind::State`]: the line is new, and the receiver goes on from `got`.
    pub resumes: bool,
    /// [`Kind::State`]: there are more bytes before the sender's last switch, which is not told yet.
    pub is_partial: bool,
    /// [`Kind::State`]: how far the sender is with the return to TCP.
    pub settled: Settled,
    /// The position of the first byte that comes along.
    pub from: u64,
    /// Bytes of the receiver that have arrived.
    pub got: u64,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    Addresses { own: (Ipv6Addr, u16), peer: (Ipv6Addr, u16) },
    State(EndState),
}

/// The offset of the body.
const BODY: usize = 40;

impl Letter {
    pub const fn new(kind: Kind, theirs: u64, ours: u64) -> Self {
        Self {
            kind,
            theirs,
            ours,
            is_last: false,
            resumes: false,
            is_partial: false,
            settled: Settled { has_all: false, knows: false },
            from: 0,
            got: 0,
            body: Body::None,
        }
    }

    pub fn call(number: u64, key: &Key) -> Self {
        let end = |of: &End| (super::mapped(of.addr), of.port);
        let body = Body::Addresses { own: end(&key.own), peer: end(&key.peer) };
        Self { body, ..Self::new(Kind::Call, 0, number) }
    }

    pub const fn with_state(self, state: EndState) -> Self {
        Self { body: Body::State(state), ..self }
    }

    pub const fn state(&self) -> Option<&EndState> {
        if let Body::State(state) = &self.body { Some(state) } else { None }
    }

    /// Returns the addresses of a call, from the receiver's end.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let address = |(at, port): (Ipv6Addr, u16)| SocketAddr::new(IpAddr::V6(at).to_canonical(), port);
        match self.body {
            Body::Addresses { own, peer } => (address(peer), address(own)),
            _ => (address((Ipv6Addr::UNSPECIFIED, 0)), address((Ipv6Addr::UNSPECIFIED, 0))),
        }
    }

    pub fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let flags = [self.is_last, self.resumes, self.is_partial, self.settled.has_all, self.settled.knows];
        head[0] = self.kind as u8;
        head[1..6].copy_from_slice(&flags.map(u8::from));
        for (at, word) in [(8, self.theirs), (16, self.ours), (24, self.from), (32, self.got)] {
            head[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        match self.body {
            Body::None => {}
            Body::Addresses { own, peer } => {
                for (at, (address, port)) in [(BODY, own), (BODY + 18, peer)] {
                    head[at..at + 16].copy_from_slice(&address.octets());
                    head[at + 16..at + 18].copy_from_slice(&port.to_be_bytes());
                }
            }
            Body::State(state) => {
                let bytes = state.bytes();
                head[BODY..BODY + bytes.len()].copy_from_slice(&bytes);
            }
        }
        head
    }

    /// Reads a message. `None`: it is none of this protocol.
    pub fn read(head: &[u8; HEAD]) -> Option<Self> {
        let word = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let kind = [Kind::Call, Kind::Withdraw, Kind::Answer, Kind::Join, Kind::Gone, Kind::State];
        let kind = *kind.get(usize::from(head[0]))?;
        let body = match kind {
            Kind::Call => {
                let end = |at: usize| {
                    let octets: [u8; 16] = head[at..at + 16].try_into().ok()?;
                    Some((Ipv6Addr::from(octets), u16::from_be_bytes([head[at + 16], head[at + 17]])))
                };
                Body::Addresses { own: end(BODY)?, peer: end(BODY + 18)? }
            }
            Kind::State => Body::State(EndState::read(head[BODY..BODY + 80].try_into().ok()?)),
            _ => Body::None,
        };
        let (is_last, resumes, is_partial) = (head[1] == 1, head[2] == 1, head[3] == 1);
        let settled = Settled { has_all: head[4] == 1, knows: head[5] == 1 };
        let (theirs, ours, from, got) = (word(8)?, word(16)?, word(24)?, word(32)?);
        Some(Self { kind, theirs, ours, is_last, resumes, is_partial, from, got, settled, body })
    }
}
