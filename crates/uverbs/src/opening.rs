//! The opening of a stream to the device. Every user of a virtual machine may open one, so a program first proves
//! that it can read its device's window: the guest's permissions decide about that.

use crate::connection::Connection;
use crate::message::{Refusal, VERSION};
use crate::part::Ticket;
use crate::stream::Stream;
use crate::window::Uuid;
use seqpacket::SocketError;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// Random bytes that the device writes into the window.
pub type Nonce = [u8; 32];

/// A program's statement about itself. The host can't check it: a lie harms only other programs of the same machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// The process number in the guest.
    pub pid: i32,
    /// The user in the guest.
    pub uid: u32,
    /// The program's name (`/proc/self/comm`).
    pub program: String,
    /// Identifies the boot of the machine (`/proc/sys/kernel/random/boot_id`): after a reboot, programs from before are
    /// gone, though their streams may stay.
    pub boot: Uuid,
    /// The process's start time. With it and the namespaces, other programs of the machine can tell that the
    /// process has ended.
    pub started: u64,
    /// The namespaces of process numbers and of times (the inodes of `/proc/self/ns/pid` and `time`), 32 bits each.
    pub pid_namespace: u64,
    /// Whether the window is a virtio device (virtio-pmem), whose contents no VMM moves with the machine.
    pub is_virtio: bool,
}

/// The messages of a program. The device answers each with a [`Welcome`], or refuses it and closes the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    /// A program wants to use the device with this window. The answer is [`Welcome::Challenge`].
    Program {
        /// The version of the protocol ([`VERSION`]).
        version: u32,
        /// The device's own window.
        window: Uuid,
        claim: Claim,
    },
    /// An agent passes on what a program says about its sockets, which proves itself like a program that wants to use
    /// the device. After [`Welcome::Accepted`], the stream carries messages of the service of sockets.
    Sockets {
        /// The version of the protocol ([`VERSION`]).
        version: u32,
        /// The device's own window.
        window: Uuid,
        /// The program, as the agent knows it.
        claim: Claim,
    },
    /// The bytes that the device wrote into the window. The answer is [`Welcome::Accepted`]. From then on the
    /// stream is a [`Connection`], which begins with a greeting like every other.
    Proof { nonce: Nonce },
    /// The stream serves the purpose for which the device gave this ticket out. The answer is
    /// [`Welcome::Accepted`]. From then on, the stream carries
    /// - for the events of a program or a completion channel: the messages of a local socket, without boundaries
    ///   between them, as they all have the same length;
    /// - for the events of the connection manager: messages like those of a [`Stream`], without items;
    /// - for waking the device: bytes of any value, each of which wakes it.
    Ticket { ticket: Ticket },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Welcome {
    /// The nonce is at this offset of the window.
    Challenge {
        /// Bytes from the start of the window's data.
        offset: u64,
    },
    /// The stream is open.
    Accepted {
        /// The common window of the device, if there is one.
        #[serde(default)]
        common: Option<Uuid>,
    },
}

/// A reason why a stream is not open.
#[derive(Debug, thiserror::Error)]
pub enum OpeningError {
    /// The stream ended, or its messages are not of this protocol.
    #[error("{0}")]
    Socket(#[from] SocketError),
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The device asks for bytes that are not in the window.
    #[error("the device's challenge is not in the window")]
    NoChallenge,
}

fn ask(connection: &mut Connection, opening: &Opening) -> Result<Welcome, OpeningError> {
    connection.send(opening, &[])?;
    Ok(connection.receive::<Result<Welcome, Refusal>>()?.0?)
}

/// Returns the error for an answer that does not belong to the message.
fn unexpected() -> OpeningError {
    SocketError::Malformed("not the answer to this message".into()).into()
}

/// Makes a stream to the device a connection, for the library. `read` reads the nonce at an offset of the device's own
/// window. Returns the identifier of the common window, too.
///
/// # Errors
/// If the device does not accept it.
pub fn open_program(
    socket: OwnedFd,
    window: Uuid,
    claim: Claim,
    read: impl FnOnce(u64) -> Option<Nonce>,
) -> Result<(Connection, Option<Uuid>), OpeningError> {
    open(socket, &Opening::Program { version: VERSION, window, claim }, read)
}

/// Makes a stream to the device one of the service of sockets, for an agent. The rest is as for [`open_program`].
///
/// # Errors
/// If the device does not accept it.
pub fn open_sockets(
    socket: OwnedFd,
    window: Uuid,
    claim: Claim,
    read: impl FnOnce(u64) -> Option<Nonce>,
) -> Result<(Stream, Option<Uuid>), OpeningError> {
    match open(socket, &Opening::Sockets { version: VERSION, window, claim }, read)? {
        (Connection::Stream(stream), common) => Ok((stream, common)),
        _ => Err(unexpected()),
    }
}

fn open(
    socket: OwnedFd,
    opening: &Opening,
    read: impl FnOnce(u64) -> Option<Nonce>,
) -> Result<(Connection, Option<Uuid>), OpeningError> {
    let mut connection = Connection::Stream(Stream::new(socket));
    let Welcome::Challenge { offset } = ask(&mut connection, opening)? else { return Err(unexpected()) };
    let nonce = read(offset).ok_or(OpeningError::NoChallenge)?;
    let Welcome::Accepted { common } = ask(&mut connection, &Opening::Proof { nonce })? else {
        return Err(unexpected());
    };
    Ok((connection, common))
}

/// Gives a stream to the device the purpose of a ticket, for the library.
///
/// # Errors
/// If the device does not accept it.
pub fn open_ticket(socket: OwnedFd, ticket: Ticket) -> Result<OwnedFd, OpeningError> {
    let mut connection = Connection::Stream(Stream::new(socket));
    let (Welcome::Accepted { .. }, Connection::Stream(stream)) =
        (ask(&mut connection, &Opening::Ticket { ticket })?, connection)
    else {
        return Err(unexpected());
    };
    stream.into_socket().ok_or_else(unexpected)
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use sockets::Untrusted;
    use std::sync::Arc;

    const WINDOW: Uuid = Uuid([7; 16]);
    const NONCE: Nonce = [9; 32];

    /// Connects to a device that gives these answers. Its thread returns the messages that it received.
    fn device(answers: Vec<Result<Welcome, Refusal>>) -> (OwnedFd, std::thread::JoinHandle<Vec<Opening>>) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let theirs = Arc::new(Untrusted::new(theirs, &Arc::default()).unwrap());
        let mut connection = Connection::Stream(Stream::serving(theirs));
        let serve = move || {
            let mut heard = Vec::new();
            for answer in answers {
                heard.push(connection.receive::<Opening>().unwrap().0);
                connection.send(&answer, &[]).unwrap();
            }
            heard
        };
        (ours, std::thread::spawn(serve))
    }

    #[test]
    fn who_reads_the_window_is_accepted() {
        let common = Some(Uuid([1; 16]));
        let (socket, device) =
            device(vec![Ok(Welcome::Challenge { offset: 4096 }), Ok(Welcome::Accepted { common })]);
        let read = |offset| (offset == 4096).then_some(NONCE);
        let boot = Uuid([5; 16]);
        let claim = Claim {
            pid: 7,
            uid: 1000,
            program: "ib_send_lat".into(),
            boot,
            is_virtio: true,
            ..Claim::default()
        };
        let (connection, found) = open_program(socket, WINDOW, claim.clone(), read).unwrap();
        assert_eq!((found, connection.has_unsent()), (common, false));
        let wanted =
            [Opening::Program { version: VERSION, window: WINDOW, claim }, Opening::Proof { nonce: NONCE }];
        assert_eq!(device.join().unwrap(), wanted);
    }

    #[test]
    fn refusals_and_nonsense_are_errors() {
        let refusal = Refusal { errno: libc::EPERM, message: "no".into() };
        for answer in [Err(refusal), Ok(Welcome::Accepted { common: None })] {
            let (socket, device) = device(vec![answer]);
            assert!(open_program(socket, WINDOW, Claim::default(), |_| Some(NONCE)).is_err());
            device.join().unwrap();
        }
        let (socket, device) = device(vec![Ok(Welcome::Challenge { offset: 1 })]);
        let opened = open_program(socket, WINDOW, Claim::default(), |_| None);
        assert!(matches!(opened, Err(OpeningError::NoChallenge)));
        device.join().unwrap();
    }

    #[test]
    fn a_ticket_makes_a_stream_something_else() {
        let (socket, accepting) = device(vec![Ok(Welcome::Accepted { common: None })]);
        open_ticket(socket, Ticket(3)).unwrap();
        assert_eq!(accepting.join().unwrap(), [Opening::Ticket { ticket: Ticket(3) }]);
        let (socket, device) = device(vec![Ok(Welcome::Challenge { offset: 0 })]);
        assert!(open_ticket(socket, Ticket(3)).is_err());
        device.join().unwrap();
    }

    /// Other versions of the device use the same messages.
    #[test]
    fn messages_look_as_agreed() {
        let text = r#"{"ticket":{"ticket":3}}"#;
        assert_eq!(serde_json::from_str::<Opening>(text).unwrap(), Opening::Ticket { ticket: Ticket(3) });
        let text = r#"{"program":{"version":8,"window":"07070707070707070707070707070707","claim":{}}}"#;
        let opening = Opening::Program { version: 8, window: WINDOW, claim: Claim::default() };
        assert_eq!(serde_json::from_str::<Opening>(text).unwrap(), opening);
    }
}
