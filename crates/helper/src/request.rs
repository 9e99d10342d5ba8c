//! Requests to the helper, and its answers.

use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use wire::{Mode, Stage, TapPort, TapState, TunnelTraffic, XdpProgram};

/// A request. Its first descriptor is the socket for the answer; the descriptors that a variant names follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Create a tap. The answer has its queues.
    Tap(TapPort),
    /// Query the state of a tap. One of its queues comes with the request.
    TapState,
    /// Take a tap that another daemon hands over: its queues come with the request, and [`Request::Tap`]
    /// returns them. Only before [`Request::Settle`].
    InheritTap {
        /// The name under which the tap was created.
        device: String,
    },
    /// Whether another daemon takes over and has the taps. If so, the helper does not keep them when this
    /// daemon ends.
    Retire(bool),
    /// The daemon has taken over from another one, which ends: from now on its taps are kept for the next.
    Succeed,
    /// Let go of a tap. It ends with its last descriptor.
    ForgetTap {
        /// The name under which the tap was created.
        device: String,
    },
    /// The daemon has all the taps that it wants of the daemon before it: let go of the others.
    Settle,
    /// The daemon stops: keep the taps that it drops from now on for the next daemon.
    Stop,
    /// Set the MTU and, if given, the link-layer address of a tap's device. One of its queues comes with the
    /// request.
    ConfigureTap {
        /// MTU, bytes.
        mtu: u16,
        mac: Option<[u8; 6]>,
    },
    /// Set the carrier of a tap's device on or off. One of its queues comes with the request.
    TapCarrier { up: bool },
    /// Open the daemon's configuration file for reading. The answer has it.
    Config,
    /// Open the files below its folder that match these patterns. The answer is [`Reply::Files`] with them.
    Included { patterns: Vec<String> },
    /// Open packet sockets on an interface. The answer has them.
    Packet {
        index: i32,
        /// Number of sockets.
        sockets: u16,
        /// The packets that they receive, if the kernel keeps the interface.
        tunnels: Option<TunnelTraffic>,
    },
    /// Keep the kernel from answering tunnel packets. The answer has the sockets that do it.
    Silence(TunnelTraffic),
    /// Have the kernel find neighbours: pairs of a device's index and an address.
    Seek { neighbours: Vec<(i32, IpAddr)> },
    /// Open an AF_XDP socket. The answer has the socket and the memory of its frames.
    XdpSocket,
    /// Attach a program that passes frames to the sockets that come with the request. Answered by [`Reply::Attached`].
    AttachXdp(XdpProgram),
    /// Replace the program whose map and link come with the request.
    ReplaceXdp(XdpProgram),
    /// Create a listening unix socket. The answer is [`Reply::Listening`] with the socket.
    Listen {
        path: PathBuf,
        /// Whether it keeps the boundaries of messages (`SOCK_SEQPACKET`); otherwise it is a stream.
        messages: bool,
        /// User and group that will own the file; `None`: whoever started the daemon.
        owner: Option<(u32, u32)>,
        mode: u32,
        backlog: i32,
    },
    /// Adopt the file of a socket that another daemon hands over. The answer is [`Reply::Listening`], without
    /// the socket. Only before [`Request::Settle`].
    AdoptSocket {
        path: PathBuf,
        /// The owner that the file will get later ([`Request::Give`]).
        owner: Option<(u32, u32)>,
    },
    /// Give a socket's file to another owner.
    Give {
        /// The number in [`Reply::Listening`].
        file: u64,
        /// As for [`Request::Listen`].
        owner: Option<(u32, u32)>,
        mode: u32,
    },
    /// Remove a socket's file.
    Remove {
        /// The number in [`Reply::Listening`].
        file: u64,
    },
    /// Open a file of memory that a virtual machine maps, and create it if it does not exist. The answer has
    /// it, open for reading and writing.
    Memory {
        /// The file's path, in [`WINDOWS`](crate::WINDOWS) of the run-dir.
        path: PathBuf,
        /// As for [`Request::Listen`].
        owner: Option<(u32, u32)>,
        mode: u32,
        /// Whether a file that exists keeps owner and mode.
        keeps: bool,
    },
    /// Remove a file of memory, if it exists.
    RemoveMemory { path: PathBuf },
    /// Open the daemon's socket for virtual machines ([`listen_to_machines`](crate::listen_to_machines)). The
    /// answer has it.
    Machines,
    /// Connect to the unix socket at a path. The answer has the connection.
    Connect { path: PathBuf },
    /// Begin to connect to a BGP peer, if the configuration file names it. The answer has the socket.
    Peer {
        address: SocketAddr,
        /// The address from which the connection comes, unless the kernel chooses it.
        source: Option<IpAddr>,
        /// The password that segments are signed with.
        password: Option<String>,
    },
    /// Connect a socket for datagrams, or for a stream, to a resolver of names: to this one, if the configuration file
    /// names it, or else to the one of this number among those of the host. The answer has it.
    Resolver { server: Option<IpAddr>, number: u8, by_tcp: bool },
    /// Bind a socket to the port of DHCP servers, and connect it to this one, if the configuration file names it. The
    /// answer has it.
    DhcpServer { server: IpAddr },
    /// Connect a socket to a metadata service, if the configuration file names it. The answer has it.
    MetadataService { server: SocketAddr },
    /// Look up the ids of `user` or `user:group`. Answered by [`Reply::Owner`].
    Owner { names: String },
    /// Open the registers of a PCI device. The answer has the file.
    Bar {
        /// The device's address, as `0000:01:00.0`.
        address: String,
        /// Number of the BAR, one of six.
        number: u8,
    },
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request is done. Descriptors come with the answer if it has any.
    Done,
    TapState(TapState),
    /// The program is attached. With its map and link and, if everything is ours, a third descriptor for
    /// queries about the device.
    Attached {
        /// The place where the program runs.
        mode: Mode,
    },
    /// The socket listens, and comes with the answer.
    Listening {
        /// Number of the socket's file, for later requests.
        file: u64,
    },
    /// The files that come with the answer, by name.
    Files {
        names: Vec<String>,
    },
    /// User and group id.
    Owner(u32, u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kernel's error code, if the kernel refused.
    pub errno: Option<i32>,
    /// The reason in words.
    pub text: String,
    /// Whether the file or directory at a path is the reason ([`sockets::Error::is_of_place`]).
    pub is_of_place: bool,
    /// The stage that attaching a program reached, and the verifier's log.
    pub xdp: Option<(Stage, Option<String>)>,
}

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
