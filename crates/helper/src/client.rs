//! The daemon's end: starts the helper and sends it requests.

use crate::ARGUMENT;
use crate::directories::Directories;
use crate::request::{Answer, Refusal, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use seqpacket::{Connection, MOST_DESCRIPTORS, SocketError};
use sockets::{Listening, ListeningFile, Place, Sockets};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use wire::{Attachment, Opener, Stage, TapPort, TapState, TunnelTraffic, XdpError, XdpProgram, XdpSocket};

/// The longest wait for an answer. User names may have to come from another machine.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("can't start the helper process: {0}")]
    Start(io::Error),
}

/// The helper. It ends when this value and all sockets that came from it are dropped.
#[derive(Clone, Debug)]
pub struct Helper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Mutex<Connection>,
    pid: u32,
    /// Polls readable when the helper has ended.
    pidfd: OwnedFd,
}

impl Helper {
    /// Starts the helper: this same program, with [`ARGUMENT`], the log level, whether the daemon `takes_over`,
    /// the configuration file and the directories of sockets.
    ///
    /// # Errors
    /// [`HelperError::Start`].
    pub fn start(
        directories: &Directories,
        config: &Path,
        log: &str,
        takes_over: bool,
    ) -> Result<Self, HelperError> {
        Self::launch(directories, config, log, takes_over).map_err(HelperError::Start)
    }

    fn launch(directories: &Directories, config: &Path, log: &str, takes_over: bool) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("viaductd-helper").arg(ARGUMENT).arg(log).arg(takes_over.to_string());
        command.arg(config).args(directories.words());
        // The helper's requests come through its standard input. It holds none of our outputs, so that
        // readers notice when the daemon ends.
        let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        Self::over(ours, Pid::from_child(&child))
    }

    /// Returns a client of the helper that runs in this process, at the other end of `socket`.
    fn over(socket: OwnedFd, pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let connection = Mutex::new(Connection::carrying(socket, MOST_DESCRIPTORS));
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Self(Arc::new(Shared { connection, pid, pidfd })))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Returns a descriptor that polls readable when the helper has ended.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn ended(&self) -> io::Result<OwnedFd> {
        self.0.pidfd.try_clone()
    }

    /// Tells the helper that the daemon has opened its ports. The helper then lets go of taps of the daemon
    /// before that this one did not open.
    pub fn settle(&self) {
        let _ = self.ask(&Request::Settle, &[]);
    }

    /// Hands the helper the queues of a tap that another daemon gives to this one. [`Opener::tap`] then
    /// returns the tap.
    ///
    /// # Errors
    /// It is no tap, or the daemon has opened its ports.
    pub fn inherit_tap(&self, device: &str, queues: &[OwnedFd]) -> io::Result<()> {
        let queues: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
        Ok(self.descriptors(&Request::InheritTap { device: device.to_owned() }, &queues).map(drop)?)
    }

    /// Tells the helper whether another daemon takes over, and has the taps.
    pub fn retire(&self, retires: bool) {
        let _ = self.ask(&Request::Retire(retires), &[]);
    }

    /// Tells the helper that the daemon has taken over from another one, which ends.
    ///
    /// # Errors
    /// The helper's socket can't take the place of the other helper's: taps end with this daemon.
    pub fn succeed(&self) -> io::Result<()> {
        Ok(self.descriptors(&Request::Succeed, &[]).map(drop)?)
    }

    /// Tells the helper that the daemon stops. Taps that the daemon drops from now on are kept for the next
    /// daemon.
    pub fn stop(&self) {
        let _ = self.ask(&Request::Stop, &[]);
    }

    /// Returns the user and group id of `user` or `user:group`, found by [`crate::lookup`].
    ///
    /// # Errors
    /// If there is no such user or group.
    pub fn owner(&self, names: &str) -> Result<(u32, u32), String> {
        match self.ask(&Request::Owner { names: names.to_owned() }, &[]) {
            Ok((Reply::Owner(user, group), _)) => Ok((user, group)),
            other => Err(unexpected(other).text),
        }
    }

    /// Opens the registers of a card with [`crate::open_bar`].
    ///
    /// # Errors
    /// If there is no such device, or permission is missing.
    pub fn bar(&self, address: &str, number: u8) -> io::Result<File> {
        let request = Request::Bar { address: address.to_owned(), number };
        Ok(one(self.descriptors(&request, &[])?)?.into())
    }

    /// Returns the socket that [`crate::listen_to_machines`] opens.
    ///
    /// # Errors
    /// As there.
    pub fn machines(&self) -> io::Result<OwnedFd> {
        Ok(one(self.descriptors(&Request::Machines, &[])?)?)
    }

    /// Begins to connect to a BGP peer; see [`Request::Peer`].
    ///
    /// # Errors
    /// As for [`crate::peer`]; or the file names no such peer.
    pub fn peer(
        &self,
        (address, source): (SocketAddr, Option<IpAddr>),
        password: Option<&str>,
    ) -> Result<OwnedFd, Refusal> {
        let password = password.map(str::to_owned);
        self.descriptors(&Request::Peer { address, source, password }, &[]).and_then(one)
    }

    /// Connects to a resolver of names; see [`Request::Resolver`].
    ///
    /// # Errors
    /// As for [`crate::resolver`]; or the file names no such resolver.
    pub fn resolver(&self, server: Option<IpAddr>, number: u8, by_tcp: bool) -> io::Result<OwnedFd> {
        Ok(one(self.descriptors(&Request::Resolver { server, number, by_tcp }, &[])?)?)
    }

    /// Connects to a DHCP server; see [`Request::DhcpServer`].
    ///
    /// # Errors
    /// As for [`crate::dhcp_server`]; or the file names no such server.
    pub fn dhcp_server(&self, server: IpAddr) -> io::Result<OwnedFd> {
        Ok(one(self.descriptors(&Request::DhcpServer { server }, &[])?)?)
    }

    /// Begins to connect to a metadata service; see [`Request::MetadataService`].
    ///
    /// # Errors
    /// As for [`crate::stream`]; or the file names no such service.
    pub fn metadata_service(&self, server: SocketAddr) -> io::Result<OwnedFd> {
        Ok(one(self.descriptors(&Request::MetadataService { server }, &[])?)?)
    }

    /// Opens the daemon's configuration file for reading.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn config(&self) -> io::Result<File> {
        Ok(one(self.descriptors(&Request::Config, &[])?)?.into())
    }

    /// Opens the files that the configuration file includes.
    ///
    /// # Errors
    /// One can't be opened.
    pub fn included(&self, patterns: &[String]) -> io::Result<Vec<(String, File)>> {
        match self.ask(&Request::Included { patterns: patterns.to_vec() }, &[])? {
            (Reply::Files { names }, files) => {
                Ok(names.into_iter().zip(files.into_iter().map(File::from)).collect())
            }
            _ => Err(io::Error::other("the helper process: not the answer to this request")),
        }
    }

    /// Sends a request and waits for the answer.
    fn ask(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let exchange = || -> Result<_, SocketError> {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            let all: Vec<_> = [theirs.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
            self.0.connection.lock().unwrap_or_else(PoisonError::into_inner).send(request, &all)?;
            // If the helper ends without an answer, this socket is closed.
            drop(theirs);
            let mut readable = [PollFd::new(&ours, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut readable, Some(&PATIENCE)))?;
            if readable[0].revents().is_empty() {
                return Err(rustix::io::Errno::TIMEDOUT.into());
            }
            Connection::carrying(ours, MOST_DESCRIPTORS).receive::<Answer>()
        };
        let (answer, descriptors) =
            exchange().map_err(|e| Refusal::new(format!("the helper process: {e}")))?;
        answer.map(|reply| (reply, descriptors))
    }

    fn descriptors(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<OwnedFd>, Refusal> {
        match self.ask(request, descriptors) {
            Ok((Reply::Done, descriptors)) => Ok(descriptors),
            other => Err(unexpected(other)),
        }
    }
}

/// Returns the refusal. If the answer belongs to another request, returns an error about that.
fn unexpected(answer: Result<(Reply, Vec<OwnedFd>), Refusal>) -> Refusal {
    answer.err().unwrap_or_else(|| Refusal::new("the helper process gave an answer to another request"))
}

/// Returns the only descriptor of an answer.
fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Refusal> {
    descriptors
        .into_iter()
        .next()
        .ok_or_else(|| Refusal::new("the helper process gave an answer without a descriptor"))
}

impl Opener for Helper {
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>> {
        let queues = self.descriptors(&Request::Tap(tap.clone()), &[])?;
        // A port has as many queues as requested.
        if queues.len() == usize::from(tap.queues.max(1)) {
            Ok(queues)
        } else {
            Err(Refusal::new("the helper process gave an answer without all queues").into())
        }
    }

    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState> {
        match self.ask(&Request::TapState, &[tap]) {
            Ok((Reply::TapState(state), _)) => Ok(state),
            other => Err(unexpected(other).into()),
        }
    }

    fn forget_tap(&self, device: &str) {
        // A helper that has ended keeps no taps.
        let _ = self.ask(&Request::ForgetTap { device: device.to_owned() }, &[]);
    }

    fn configure_tap(&self, tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        Ok(self.descriptors(&Request::ConfigureTap { mtu, mac }, &[tap]).map(drop)?)
    }

    fn tap_carrier(&self, tap: BorrowedFd<'_>, up: bool) -> io::Result<()> {
        Ok(self.descriptors(&Request::TapCarrier { up }, &[tap]).map(drop)?)
    }

    fn packet(&self, index: i32, sockets: u16, tunnels: Option<&TunnelTraffic>) -> io::Result<Vec<OwnedFd>> {
        Ok(self.descriptors(&Request::Packet { index, sockets, tunnels: tunnels.cloned() }, &[])?)
    }

    fn silence(&self, tunnels: &TunnelTraffic) -> io::Result<Vec<OwnedFd>> {
        Ok(self.descriptors(&Request::Silence(tunnels.clone()), &[])?)
    }

    fn seek(&self, neighbours: &[(i32, IpAddr)]) -> io::Result<()> {
        Ok(self.descriptors(&Request::Seek { neighbours: neighbours.to_vec() }, &[]).map(drop)?)
    }

    fn xdp_socket(&self) -> io::Result<XdpSocket> {
        let mut descriptors = self.descriptors(&Request::XdpSocket, &[])?.into_iter();
        let (socket, frames) = (descriptors.next(), descriptors.next());
        let both = socket.zip(frames).ok_or_else(|| Refusal::new("descriptors are missing"))?;
        Ok(XdpSocket { socket: both.0, frames: both.1 })
    }

    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError> {
        match self.ask(&Request::AttachXdp(program.clone()), sockets) {
            Ok((Reply::Attached { mode }, descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                match (descriptors.next(), descriptors.next()) {
                    (Some(map), Some(link)) => {
                        Ok(Attachment { map, link, mode, promiscuous: descriptors.next() })
                    }
                    _ => Err(xdp_error(Refusal::new("descriptors are missing"))),
                }
            }
            other => Err(xdp_error(unexpected(other))),
        }
    }

    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError> {
        let of = [attachment.map.as_fd(), attachment.link.as_fd()];
        self.descriptors(&Request::ReplaceXdp(program.clone()), &of).map(drop).map_err(xdp_error)
    }
}

fn xdp_error(refusal: Refusal) -> XdpError {
    let (stage, log) = refusal.xdp.clone().unwrap_or((Stage::Attach, None));
    XdpError { stage, source: refusal.into(), log }
}

/// The file of a socket that the helper created. Dropping it has the helper remove the file.
#[derive(Debug)]
struct HelpersFile {
    helper: Helper,
    file: u64,
}

impl Sockets for Helper {
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<Listening, sockets::Error> {
        let path = std::path::absolute(&place.path)
            .map_err(|source| sockets::Error::Os { path: place.path.clone(), source })?;
        let messages = kind == SocketType::SEQPACKET;
        let request = Request::Listen { path, messages, owner: place.owner, mode: place.mode, backlog };
        match self.ask(&request, &[]) {
            Ok((Reply::Listening { file }, descriptors)) => {
                let file = Arc::new(HelpersFile { helper: self.clone(), file });
                Ok((one(descriptors).map_err(asked)?, file))
            }
            other => Err(asked(unexpected(other))),
        }
    }

    fn adopt(
        &self,
        path: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<Arc<dyn ListeningFile>, sockets::Error> {
        let path = std::path::absolute(path)
            .map_err(|source| sockets::Error::Os { path: path.to_owned(), source })?;
        let request = Request::AdoptSocket { path, owner };
        match self.ask(&request, &[]) {
            Ok((Reply::Listening { file }, _)) => Ok(Arc::new(HelpersFile { helper: self.clone(), file })),
            other => Err(asked(unexpected(other))),
        }
    }

    fn memory(&self, place: &Place, keeps: bool) -> Result<OwnedFd, sockets::Error> {
        let request =
            Request::Memory { path: place.path.clone(), owner: place.owner, mode: place.mode, keeps };
        self.descriptors(&request, &[]).and_then(one).map_err(asked)
    }

    fn remove_memory(&self, path: &Path) -> Result<(), sockets::Error> {
        self.descriptors(&Request::RemoveMemory { path: path.to_owned() }, &[]).map(drop).map_err(asked)
    }

    fn connect(&self, path: &Path) -> Result<OwnedFd, sockets::Error> {
        let path = std::path::absolute(path)
            .map_err(|source| sockets::Error::Os { path: path.to_owned(), source })?;
        self.descriptors(&Request::Connect { path }, &[]).and_then(one).map_err(asked)
    }
}

fn asked(refusal: Refusal) -> sockets::Error {
    sockets::Error::Asked { text: refusal.text, is_of_place: refusal.is_of_place }
}

impl ListeningFile for HelpersFile {
    fn give_to(&self, owner: Option<(u32, u32)>, mode: u32) -> Result<(), sockets::Error> {
        let request = Request::Give { file: self.file, owner, mode };
        self.helper.descriptors(&request, &[]).map(drop).map_err(asked)
    }
}

impl Drop for HelpersFile {
    fn drop(&mut self) {
        // If the helper has ended, the file stays, and the next daemon replaces it.
        let _ = self.helper.descriptors(&Request::Remove { file: self.file }, &[]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::Server;
    use sandbox::Account;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    /// Runs a helper as a thread of this process, for a daemon with its own run-dir. Sockets may also be next
    /// to that directory.
    fn helper() -> (Helper, tempfile::TempDir) {
        let (helper, dir, _) = helper_and_server();
        (helper, dir)
    }

    fn helper_and_server() -> (Helper, tempfile::TempDir, Arc<Server>) {
        helper_and_server_in(&std::env::temp_dir())
    }

    fn helper_and_server_in(dir: &Path) -> (Helper, tempfile::TempDir, Arc<Server>) {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let us = Account { uid: nix::unistd::getuid().as_raw(), gid: nix::unistd::getgid().as_raw() };
        let run_dir = dir.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        let directories = Directories::new(&run_dir, [dir.path().to_owned()]);
        let server = Arc::new(Server::new(directories, dir.path().join("host.toml"), us));
        let serving = server.clone();
        std::thread::spawn(move || serving.serve(theirs));
        (Helper::over(ours, rustix::process::getpid()).unwrap(), dir, server)
    }

    fn place(dir: &Path, name: &str) -> Place {
        Place { path: dir.join(name), owner: None, mode: 0o640 }
    }

    #[test]
    fn a_socket_is_made_given_away_and_removed() {
        let (helper, dir) = helper();
        let place = place(dir.path(), "run/vm1.sock");
        let (_socket, file) = helper.listen(&place, SocketType::STREAM, 8).unwrap();
        UnixStream::connect(&place.path).unwrap();
        file.give_to(None, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&place.path).unwrap().mode() & 0o7777, 0o600);
        let taken = helper.listen(&place, SocketType::STREAM, 8).unwrap_err().to_string();
        assert!(taken.contains("in use"), "{taken}");
        drop(file);
        assert!(!place.path.exists());
    }

    #[test]
    fn a_socket_is_handed_over_before_ports_are_open() {
        let (helper, dir) = helper();
        let place = place(dir.path(), "run/vm1.sock");
        // Another daemon listens there.
        let _listening = UnixListener::bind(&place.path).unwrap();
        let mode = || std::fs::metadata(&place.path).unwrap().mode() & 0o7777;
        let before = mode();
        let file = helper.adopt(&place.path, None).unwrap();
        assert_eq!(mode(), before);
        file.give_to(None, 0o600).unwrap();
        assert_eq!(mode(), 0o600);
        let gone = helper.adopt(&dir.path().join("run/vm2.sock"), None).unwrap_err();
        assert!(gone.is_of_place(), "{gone}");
        assert!(helper.adopt(Path::new("/etc/x.sock"), None).is_err());
        helper.settle();
        let refused = helper.adopt(&place.path, None).unwrap_err();
        assert!(refused.to_string().contains("has opened its ports") && !refused.is_of_place(), "{refused}");
        drop(file);
        assert!(!place.path.exists());
    }

    #[test]
    fn windows_are_files_in_their_directory() {
        let (helper, dir) = {
            let (helper, dir, _) = helper_and_server_in(Path::new("/dev/shm"));
            (helper, dir)
        };
        let place = place(dir.path(), "run/rdma/vm/c1");
        assert!(helper.memory(&place, false).is_err());
        std::fs::create_dir_all(dir.path().join("run/rdma/vm")).unwrap();
        let file = helper.memory(&place, false).unwrap();
        rustix::fs::ftruncate(&file, 1 << 21).unwrap();
        let meta = std::fs::metadata(&place.path).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (1 << 21, 0o640));
        for (keeps, mode) in [(true, 0o640), (false, 0o600)] {
            helper.memory(&Place { mode: 0o600, ..place.clone() }, keeps).unwrap();
            assert_eq!(std::fs::metadata(&place.path).unwrap().mode() & 0o7777, mode);
        }
        for elsewhere in ["run/rdma/c2", "run/rdma/vm/../c2", "c2"] {
            let place = Place { path: dir.path().join(elsewhere), ..place.clone() };
            assert!(helper.memory(&place, false).is_err() && helper.remove_memory(&place.path).is_err());
        }
        helper.remove_memory(&place.path).unwrap();
        assert!(!place.path.exists());
    }

    #[test]
    fn the_configuration_file_is_read_as_it_is_now() {
        let (helper, dir) = helper();
        let read = || helper.config().and_then(std::io::read_to_string);
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::NotFound);
        for text in ["one", "two"] {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), dir.path().join("host.toml")).unwrap();
            assert_eq!(read().unwrap(), text);
        }
    }

    #[test]
    fn roots_sockets_are_reached_in_the_run_dir_only() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let (helper, dir) = helper();
        let [inside, outside] = ["run/vm1.sock", "docker.sock"].map(|name| dir.path().join(name));
        let _listening = [&inside, &outside].map(|path| UnixListener::bind(path).unwrap());
        helper.connect(&inside).unwrap();
        let refused = helper.connect(&outside).unwrap_err().to_string();
        assert!(refused.contains("root listens there"), "{refused}");
        let up = helper.connect(&dir.path().join("run/../docker.sock")).unwrap_err().to_string();
        assert!(up.contains("not an absolute path"), "{up}");
    }

    #[test]
    fn sockets_are_in_the_directories_that_the_helper_was_told() {
        let (helper, dir) = helper();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let _listening = UnixListener::bind(elsewhere.join("vm1.sock")).unwrap();
        helper.listen(&place(dir.path(), "vm2.sock"), SocketType::STREAM, 8).unwrap();
        let made = helper.listen(&place(&elsewhere, "vm2.sock"), SocketType::STREAM, 8).unwrap_err();
        let reached = helper.connect(&elsewhere.join("vm1.sock")).unwrap_err();
        for refused in [made.to_string(), reached.to_string()] {
            assert!(refused.contains("elsewhere/vm") && refused.contains("`socket_dirs`"), "{refused}");
        }
        assert!(!elsewhere.join("vm2.sock").exists());
    }

    #[test]
    fn paths_that_do_not_answer_hold_few_threads() {
        let (helper, dir, server) = helper_and_server();
        let path = dir.path().join("vmm.sock");
        // Keeps two requests in progress, as if they waited for a file system.
        let waiting = [server.begin(&path).unwrap(), server.begin(&path).unwrap()];
        let refused = helper.connect(&path).unwrap_err().to_string();
        assert!(refused.contains("vmm.sock: requests from before wait there"), "{refused}");
        let refused = helper.listen(&place(dir.path(), "vmm.sock"), SocketType::STREAM, 8).unwrap_err();
        assert!(refused.to_string().contains("wait there"), "{refused}");
        let (_socket, file) = helper.listen(&place(dir.path(), "vm1.sock"), SocketType::STREAM, 8).unwrap();
        drop(waiting);
        helper.listen(&place(dir.path(), "vmm.sock"), SocketType::STREAM, 8).unwrap();
        drop(file);
        assert!(!dir.path().join("vm1.sock").exists());
    }

    #[test]
    fn nonsense_does_not_fill_the_log() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let log = Log::default();
        let to = log.clone();
        let serving = std::thread::spawn(move || {
            let subscriber =
                tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
            let directories = Directories::new(Path::new("/run/x"), []);
            let server = Arc::new(Server::new(directories, PathBuf::new(), Account { uid: 0, gid: 0 }));
            tracing::subscriber::with_default(subscriber, || server.serve(theirs));
        });
        let mut connection = Connection::carrying(ours, MOST_DESCRIPTORS);
        for _ in 0..500 {
            connection.send(&"nonsense", &[]).unwrap();
            connection.send(&Request::XdpSocket, &[]).unwrap();
        }
        drop(connection);
        serving.join().unwrap();
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(text.contains("times=512"), "{text}");
    }

    /// Collects the log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_makes_no_sense_is_answered_and_the_next_request_served() {
        let (helper, _dir) = helper();
        let nobody = Request::Remove { file: 99 };
        assert_eq!(helper.ask(&nobody, &[]).unwrap_err().text, "no such socket");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(helper.tap_state(null.as_fd()).unwrap_err().to_string().contains("not of a tap"));
        // Sends requests without a socket for the answer, and malformed ones: nobody gets an answer, and the
        // helper continues.
        let connection = || helper.0.connection.lock().unwrap();
        connection().send(&nobody, &[]).unwrap();
        connection().send(&"nonsense", &[]).unwrap();
        assert_eq!(helper.owner("root"), Ok((0, 0)));
        let none = helper.bar("ffff:ff:1f.7", 2).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn many_may_ask_at_once() {
        let (helper, _dir) = helper();
        let asked: Vec<_> = (0..32)
            .map(|_| {
                let helper = helper.clone();
                std::thread::spawn(move || helper.owner("root"))
            })
            .collect();
        assert!(asked.into_iter().all(|thread| thread.join().unwrap() == Ok((0, 0))));
    }

    #[test]
    fn a_helper_that_is_gone_is_an_error() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        drop(theirs);
        let helper = Helper::over(ours, rustix::process::getpid()).unwrap();
        let said = helper.packet(1, 1, None).unwrap_err().to_string();
        assert!(said.starts_with("the helper process"), "{said}");
        let said = helper.connect(&PathBuf::from("/x")).unwrap_err().to_string();
        assert!(said.starts_with("the helper process"), "{said}");
    }
}
