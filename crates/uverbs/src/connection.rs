//! A connection between library and device, over a local socket or a stream.

use crate::part::{Given, Lent, Part, Ticket};
use crate::stream::Stream;
use seqpacket::SocketError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sockets::Untrusted;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A connection. Over a local socket, a message is a datagram. It is only the JSON of the body if nothing but
/// descriptors comes with it.
#[derive(Debug)]
pub enum Connection {
    /// The connection is between processes of one kernel.
    Local(seqpacket::Connection),
    /// The connection is between a virtual machine and its host.
    Stream(Stream),
}

/// A message with its items, in the form in which it is sent.
#[derive(Serialize)]
struct Outgoing<'a, T> {
    body: &'a T,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    along: Vec<Item>,
}

#[derive(Deserialize)]
struct Incoming<T> {
    body: T,
    #[serde(default = "Vec::new")]
    along: Vec<Item>,
}

/// The start of a message that has items. No request or answer starts like this.
const NOT_ALONE: &[u8] = b"{\"body\":";

/// An item that comes with a message, in the form in which it is sent.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Item {
    /// The next descriptor of the message.
    Descriptor,
    /// Pages of a window whose file is the next descriptor.
    Window(Part),
    Part(Part),
    Stream(Ticket),
}

fn malformed(error: impl std::fmt::Display) -> SocketError {
    SocketError::Malformed(error.to_string())
}

impl Connection {
    /// Returns the requester's end of a local socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self::Local(seqpacket::Connection::new(socket))
    }

    /// Returns the responder's end of a local socket.
    #[must_use]
    pub fn serving(socket: Arc<Untrusted>) -> Self {
        Self::Local(seqpacket::Connection::serving(socket))
    }

    /// Has a stream end together with another one of the same peer ([`Stream::end_with`]).
    pub fn end_with(&mut self, life: OwnedFd) {
        if let Self::Stream(stream) = self {
            stream.end_with(life);
        }
    }

    /// Sends a message. A responder never waits.
    ///
    /// # Errors
    /// If the message can't be sent.
    pub fn send(&mut self, message: &impl Serialize, along: &[Lent<'_>]) -> Result<(), SocketError> {
        let mut descriptors = Vec::new();
        let item = |lent: &Lent<'_>| match *lent {
            Lent::Descriptor(_) => Item::Descriptor,
            Lent::Window(_, part) => Item::Window(part),
            Lent::Part(part) => Item::Part(part),
            Lent::Stream(ticket) => Item::Stream(ticket),
        };
        for lent in along {
            if let Lent::Descriptor(descriptor) | Lent::Window(descriptor, _) = lent {
                descriptors.push(*descriptor);
            }
        }
        let outgoing = Outgoing { body: message, along: along.iter().map(item).collect() };
        match self {
            Self::Local(local) => {
                if along.iter().all(|lent| matches!(lent, Lent::Descriptor(_))) {
                    return local.send(message, &descriptors);
                }
                local.send(&outgoing, &descriptors)
            }
            Self::Stream(_) if !descriptors.is_empty() => {
                Err(malformed("no descriptor passes over a stream"))
            }
            Self::Stream(stream) => stream.send(&serde_json::to_vec(&outgoing).map_err(malformed)?),
        }
    }

    /// Waits for a message; returns it with its items.
    ///
    /// # Errors
    /// If none comes, or it is not of this protocol.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<Given>), SocketError> {
        match self {
            Self::Local(local) => {
                let (bytes, descriptors) = local.receive_bytes(true)?;
                parse(bytes, descriptors)
            }
            Self::Stream(stream) => parse(&stream.receive()?, Vec::new()),
        }
    }

    /// Receives a message without waiting; returns `None` if no whole message has come yet.
    ///
    /// # Errors
    /// The same as for [`Self::receive`].
    pub fn receive_now<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<Given>)>, SocketError> {
        match self {
            Self::Local(local) => match local.receive_bytes(false) {
                Ok((bytes, descriptors)) => parse(bytes, descriptors).map(Some),
                Err(SocketError::Kernel(rustix::io::Errno::AGAIN)) => Ok(None),
                Err(error) => Err(error),
            },
            Self::Stream(stream) => stream.receive_now()?.map(|bytes| parse(&bytes, Vec::new())).transpose(),
        }
    }

    /// Is true if an answer waits for room, and requests wait for the answer. Once the socket is writable,
    /// [`Self::receive_now`] sends it.
    #[must_use]
    pub const fn has_unsent(&self) -> bool {
        matches!(self, Self::Stream(stream) if stream.has_unsent())
    }
}

/// Parses a message and its items.
fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    descriptors: Vec<OwnedFd>,
) -> Result<(T, Vec<Given>), SocketError> {
    if !bytes.starts_with(NOT_ALONE) {
        let body = serde_json::from_slice(bytes).map_err(malformed)?;
        return Ok((body, descriptors.into_iter().map(Given::Descriptor).collect()));
    }
    let Incoming { body, along } = serde_json::from_slice(bytes).map_err(malformed)?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| malformed("a descriptor is missing"));
    let given = along.into_iter().map(|item| {
        Ok(match item {
            Item::Descriptor => Given::Descriptor(next()?),
            Item::Window(part) => Given::Window(next()?, part),
            Item::Part(part) => Given::Part(part),
            Item::Stream(ticket) => Given::Stream(ticket),
        })
    });
    Ok((body, given.collect::<Result<_, SocketError>>()?))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Local(local) => local.as_fd(),
            Self::Stream(stream) => stream.as_fd(),
        }
    }
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::part::WindowKind;
    use crate::{Refusal, Reply, Request};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn untrusted(socket: OwnedFd) -> Arc<Untrusted> {
        Arc::new(Untrusted::new(socket, &Arc::default()).unwrap())
    }

    fn local() -> (Connection, Connection) {
        let (a, b) = pair(SocketType::SEQPACKET);
        (Connection::new(a), Connection::serving(untrusted(b)))
    }

    fn streams() -> (Connection, Connection) {
        let (a, b) = pair(SocketType::STREAM);
        (Connection::Stream(Stream::new(a)), Connection::Stream(Stream::serving(untrusted(b))))
    }

    const PART: Part = Part { window: WindowKind::Common, offset: 4096, len: 8192 };

    #[test]
    fn both_forms_carry_what_they_can() {
        let (file, _) = pair(SocketType::STREAM);
        let answer = Ok::<_, Refusal>(Reply::Handle(7));
        let (mut library, mut device) = local();
        let along = [Lent::Window(file.as_fd(), PART), Lent::from(file.as_fd()), Lent::Stream(Ticket(1))];
        device.send(&answer, &along).unwrap();
        let (got, given) = library.receive::<Result<Reply, Refusal>>().unwrap();
        assert_eq!(got, answer);
        let [Given::Window(_, PART), Given::Descriptor(_), Given::Stream(Ticket(1))] = given[..] else {
            panic!("{given:?}")
        };
        device.send(&answer, &[Lent::from(file.as_fd())]).unwrap();
        assert!(matches!(library.receive::<Result<Reply, Refusal>>().unwrap().1[..], [Given::Descriptor(_)]));

        let (mut library, mut device) = streams();
        library.send(&Request::AllocPd, &[]).unwrap();
        assert_eq!(device.receive_now::<Request>().unwrap().unwrap().0, Request::AllocPd);
        assert!(device.receive_now::<Request>().unwrap().is_none());
        device.send(&answer, &[Lent::Part(PART), Lent::Stream(Ticket(u64::MAX))]).unwrap();
        let (got, given) = library.receive::<Result<Reply, Refusal>>().unwrap();
        assert_eq!(got, answer);
        assert!(matches!(given[..], [Given::Part(PART), Given::Stream(Ticket(u64::MAX))]));
        assert!(matches!(device.send(&answer, &along), Err(SocketError::Malformed(_))));
    }

    #[test]
    fn what_is_said_to_come_along_must_have_come() {
        let text: &[u8] = br#"{"body":"alloc_pd","along":["descriptor"]}"#;
        assert!(matches!(parse::<Request>(text, Vec::new()), Err(SocketError::Malformed(_))));
        let (file, _) = pair(SocketType::STREAM);
        assert!(parse::<Request>(text, vec![file]).is_ok());
        for wrong in [&br#"{"body":1}"#[..], br#"{"body":"alloc_pd","along":[{"part":{}}]}"#, b"\xff", b""] {
            assert!(matches!(parse::<Request>(wrong, Vec::new()), Err(SocketError::Malformed(_))));
        }
    }

    /// Other versions of the device use the same messages.
    #[test]
    fn messages_look_as_agreed() {
        let outgoing = Outgoing { body: &Request::AllocPd, along: vec![Item::Part(PART)] };
        let text = r#"{"body":"alloc_pd","along":[{"part":{"window":"common","offset":4096,"len":8192}}]}"#;
        assert_eq!(serde_json::to_string(&outgoing).unwrap(), text);
        let outgoing = Outgoing { body: &Request::AllocPd, along: Vec::new() };
        assert_eq!(serde_json::to_string(&outgoing).unwrap(), r#"{"body":"alloc_pd"}"#);
    }
}
