//! Messages of an agent in a virtual machine: it reads the sockets of programs there, since no descriptor passes out of
//! the machine, and passes on their messages. There is a stream for each program.
//!
//! | bytes of a frame | what it is |
//! |---|---|
//! | none | the program has ended, and nobody has its memory any more |
//! | [`MESSAGE_LEN`] | a message |
//! | 44 more | an offer of an established connection: address (as one of IPv6) and port of its own end, then of the other, then the number of the socket |

use crate::offer::Offered;
use sockring::{MESSAGE_LEN, Message};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of an address with its port.
const END: usize = 18;
/// Bytes of the longest frame.
const LEN: usize = MESSAGE_LEN + 2 * END + 8;

/// A frame of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The program has ended.
    End,
    /// It says this, and offers that.
    Said(Message, Option<Offered>),
}

fn put(of: SocketAddr) -> [u8; END] {
    let address = match of.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut bytes = [0; END];
    bytes[..16].copy_from_slice(&address.octets());
    bytes[16..].copy_from_slice(&of.port().to_be_bytes());
    bytes
}

fn get(bytes: &[u8]) -> Option<SocketAddr> {
    let address: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    let port = bytes.get(16..END)?.try_into().map(u16::from_be_bytes).ok()?;
    Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(address)).to_canonical(), port))
}

impl Frame {
    /// Returns the bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::End => Vec::new(),
            Self::Said(message, None) => message.bytes().to_vec(),
            Self::Said(message, Some(offered)) => {
                let cookie = offered.cookie.to_le_bytes();
                [&message.bytes()[..], &put(offered.own), &put(offered.peer), &cookie].concat()
            }
        }
    }

    /// Reads a frame. `None`: it is none.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::End);
        }
        let (message, ends) = bytes.split_at_checked(MESSAGE_LEN)?;
        let message = Message::read(message)?;
        match bytes.len() {
            MESSAGE_LEN => Some(Self::Said(message, None)),
            LEN => {
                let (ends, cookie) = ends.split_at(2 * END);
                let (own, peer) = ends.split_at(END);
                let cookie = u64::from_le_bytes(cookie.try_into().ok()?);
                let offered = Offered { own: get(own)?, peer: get(peer)?, namespace: 0, cookie };
                Some(Self::Said(message, Some(offered)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written() {
        let ends = ["10.1.1.1:80", "[fd00::1]:65535"].map(|end| end.parse().unwrap());
        let offered = Offered { own: ends[0], peer: ends[1], namespace: 0, cookie: 3 };
        let message = Message::Offer { token: 7, doors: false, carries: false, relays: false };
        for frame in [Frame::End, Frame::Said(message, None), Frame::Said(message, Some(offered))] {
            assert_eq!(Frame::read(&frame.bytes()), Some(frame));
        }
    }

    /// Whatever is read as a frame is written as the same bytes.
    #[test]
    fn any_frames() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            for bytes in [
                bytes.clone(),
                [
                    &Message::Offer { token: 1, doors: false, carries: false, relays: false }.bytes()[..],
                    bytes,
                ]
                .concat(),
            ] {
                if let Some(frame) = Frame::read(&bytes) {
                    assert_eq!(Frame::read(&frame.bytes()), Some(frame));
                }
            }
        });
    }
}
