//! Requests to the helper, and its answers.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use wire::{Mode, Stage, TapPort, TapState, XdpProgram};

/// A request. Its first descriptor is the socket for the answer; the descriptors named here follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Create a tap. The answer has its queues.
    Tap(TapPort),
    /// The state of a tap. One of its queues comes with the request.
    TapState,
    /// A tap that another daemon hands over: its queues come with the request, and [`Request::Tap`] returns them.
    /// Before [`Request::Settle`] only.
    InheritTap {
        /// The name under which it was created.
        device: String,
    },
    /// Whether another daemon takes over and has the taps: then they are not to be kept when this one ends.
    Retire(bool),
    /// The daemon has taken over from another one, which ends: from now on its taps are kept for the next.
    Succeed,
    /// Let go of a tap, which ends with its last descriptor.
    ForgetTap {
        /// The name under which it was created.
        device: String,
    },
    /// The daemon has all the taps that it wants of the daemon before it: let go of the others.
    Settle,
    /// The daemon stops: what it drops from now on is for the next daemon.
    Stop,
    /// Another MTU and, if given, link-layer address for the device of a tap. One of its queues comes with the request.
    ConfigureTap {
        /// MTU, bytes.
        mtu: u16,
        /// Link-layer address.
        mac: Option<[u8; 6]>,
    },
    /// Carrier, or none, for the device of a tap. One of its queues comes with the request.
    TapCarrier {
        /// Whether there is one.
        up: bool,
    },
    /// The daemon's configuration file, for reading. The answer has it.
    Config,
    /// Packet sockets on an interface. The answer has them.
    Packet {
        /// Index of the interface.
        index: i32,
        /// How many.
        sockets: u16,
    },
    /// An AF_XDP socket. The answer has the socket and the memory of its frames.
    XdpSocket,
    /// Attach a program that passes frames to the sockets that come with the request. Answered by [`Reply::Attached`].
    AttachXdp(XdpProgram),
    /// Replace the program whose map and link come with the request.
    ReplaceXdp(XdpProgram),
    /// A listening unix socket. The answer is [`Reply::Listening`] with the socket.
    Listen {
        /// Path of its file.
        path: PathBuf,
        /// Whether it keeps the boundaries of messages (`SOCK_SEQPACKET`); otherwise it is a stream.
        messages: bool,
        /// User and group that will own the file; `None`: whoever started the daemon.
        owner: Option<(u32, u32)>,
        /// The file's mode.
        mode: u32,
        /// Connections that may wait.
        backlog: i32,
    },
    /// The file of a socket that another daemon hands over. The answer is [`Reply::Listening`], without the socket.
    /// Before [`Request::Settle`] only.
    AdoptSocket {
        /// Path of its file.
        path: PathBuf,
        /// To whom it will be given ([`Request::Give`]).
        owner: Option<(u32, u32)>,
    },
    /// Give a socket's file to another owner.
    Give {
        /// Its number.
        file: u64,
        /// As above.
        owner: Option<(u32, u32)>,
        /// As above.
        mode: u32,
    },
    /// Remove a socket's file.
    Remove {
        /// Its number.
        file: u64,
    },
    /// A file of memory that a virtual machine maps, which is made if it is not there. The answer has it, open for
    /// reading and writing.
    Memory {
        /// Its path, in [`WINDOWS`](crate::WINDOWS) of the run-dir.
        path: PathBuf,
        /// As for [`Request::Listen`].
        owner: Option<(u32, u32)>,
        /// The file's mode.
        mode: u32,
        /// Whether a file that is there keeps owner and mode.
        keeps: bool,
    },
    /// Remove such a file, if it is there.
    RemoveMemory {
        /// Its path.
        path: PathBuf,
    },
    /// The socket of the daemon that virtual machines reach ([`listen_to_machines`](crate::listen_to_machines)). The
    /// answer has it.
    Machines,
    /// Connect to the unix socket at a path. The answer has the connection.
    Connect {
        /// Its path.
        path: PathBuf,
    },
    /// The numbers of `user` or `user:group`. Answered by [`Reply::Owner`].
    Owner {
        /// The names.
        names: String,
    },
    /// The registers of a PCI device. The answer has the file.
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
    /// Done, with descriptors if there are any.
    Done,
    /// State of a tap.
    TapState(TapState),
    /// The program is attached. With its map and link and, if everything is ours, a third descriptor for queries about
    /// the device.
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

/// Why a request was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kernel's error code, if it refused.
    pub errno: Option<i32>,
    /// In words.
    pub text: String,
    /// Whether it is about what is at a path ([`sockets::Error::is_of_place`]).
    pub is_of_place: bool,
    /// How far attaching a program went, and the verifier's log.
    pub xdp: Option<(Stage, Option<String>)>,
}

/// The answer to a request.
pub type Answer = Result<Reply, Refusal>;

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { errno: error.raw_os_error(), ..Self::new(error.to_string()) }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        refusal.errno.map_or_else(|| Self::other(refusal.text), Self::from_raw_os_error)
    }
}
