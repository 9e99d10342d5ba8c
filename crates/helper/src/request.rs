//! What is asked of the helper, and what it answers.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use wire::{Mode, Stage, TapPort, TapState, XdpProgram};

/// A request. Its first descriptor is the socket that the answer goes to; those named here come behind that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// To make a tap. Answered with its queues.
    Tap(TapPort),
    /// State of a tap, one of whose queues comes along.
    TapState,
    /// Packet sockets on an interface. Answered with them.
    Packet {
        /// Index of the interface.
        index: i32,
        /// How many.
        sockets: u16,
    },
    /// An AF_XDP socket. Answered with it and the memory of its frames.
    XdpSocket,
    /// To attach a program that gives frames to the sockets that come along. Answered by [`Reply::Attached`].
    AttachXdp(XdpProgram),
    /// To put another program in the place of the one whose map and link come along.
    ReplaceXdp(XdpProgram),
    /// A unix socket that is listened on. Answered with it, by [`Reply::Listening`].
    Listen {
        /// Path of its file.
        path: PathBuf,
        /// Whether it keeps the boundaries of messages (`SOCK_SEQPACKET`), else it is a stream.
        messages: bool,
        /// User and group that the file is for; `None`: whoever started the daemon.
        owner: Option<(u32, u32)>,
        /// The file's mode.
        mode: u32,
        /// Connections that may wait.
        backlog: i32,
    },
    /// To give a socket's file to somebody else.
    Give {
        /// Its number.
        file: u64,
        /// As above.
        owner: Option<(u32, u32)>,
        /// As above.
        mode: u32,
    },
    /// To remove a socket's file.
    Remove {
        /// Its number.
        file: u64,
    },
    /// A connection to the unix socket at a path. Answered with it.
    Connect {
        /// Its path.
        path: PathBuf,
    },
    /// The numbers of `user` or `user:group`. Answered by [`Reply::Owner`].
    Owner {
        /// The names.
        names: String,
    },
    /// The registers of a PCI device. Answered with the file.
    Bar {
        /// The device's address, as `0000:01:00.0`.
        address: String,
        /// Which of its six.
        number: u8,
    },
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done; descriptors come along where there are any.
    Done,
    /// State of a tap.
    TapState(TapState),
    /// With the program's map and link, and where everything is ours a third descriptor that asks the device for it.
    Attached {
        /// Where the program runs.
        mode: Mode,
    },
    /// With the socket.
    Listening {
        /// Number of its file.
        file: u64,
    },
    /// User and group.
    Owner(u32, u32),
}

/// Why a request was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kernel's answer, if it is one.
    pub errno: Option<i32>,
    /// In words.
    pub text: String,
    /// How far attaching a program came, and the verifier's log.
    pub xdp: Option<(Stage, Option<String>)>,
}

/// What a request is answered with.
pub type Answer = Result<Reply, Refusal>;

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { errno: error.raw_os_error(), text: error.to_string(), xdp: None }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        refusal.errno.map_or_else(|| Self::other(refusal.text), Self::from_raw_os_error)
    }
}
