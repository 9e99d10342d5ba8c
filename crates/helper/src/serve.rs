//! The helper's side: handles each request on its own thread, so that one that waits does not block the others.

use crate::check::check;
use crate::directories::Directories;
use crate::files::Files;
use crate::outside::{Named, Outside};
use crate::request::{Answer, Refusal, Reply, Request};
use crate::taps::{self, Heir, Taps, is_closed, move_in, wait};
use crate::under_way::{UnderWay, Work};
use crate::{bar, confine, users};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use sandbox::{Account, Report};
use seqpacket::{Connection, MOST_DESCRIPTORS, SocketError};
use sockets::{Place, Sockets};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use wire::{Attachment, Mode, Opener, TapPort, TapState, XdpError, XdpProgram, XdpSocket};

const MOST_AT_ONCE: usize = 256;

/// Handles the requests of the daemon at the other end of `socket` until the daemon has ended. Sockets may be
/// in these directories; `config` is the daemon's configuration file, in which `named` finds servers outside, and
/// `included` opens the files that it includes. The daemon `takes_over` from one that runs, or it has the run-dir
/// alone.
///
/// Call it while the process has only one thread: it first gives up privileges that it does not need.
pub fn serve(
    socket: OwnedFd,
    directories: Directories,
    config: PathBuf,
    takes_over: bool,
    (named, included): (Named, OpenIncluded),
) {
    let _ = rustix::thread::set_name(c"viaductd-helper");
    ignore_terminal();
    let started_as = Account { uid: nix::unistd::getuid().as_raw(), gid: nix::unistd::getgid().as_raw() };
    users::prepare();
    let daemon = rustix::process::getppid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // When a daemon ends, this closes before its children get another parent. That parent would not end.
    if is_closed(&socket) {
        return;
    }
    let outside = Outside::new(named);
    let mut server = Server { outside, included, ..Server::new(directories, config, started_as) };
    let heir = server.inherit(takes_over);
    let windows = server.directories.run_dir().join(crate::WINDOWS);
    let report: Report = confine::confine(windows.parent().unwrap_or(&windows));
    for missing in &report.missing {
        tracing::debug!("the helper: {missing}");
    }
    let server = Arc::new(server);
    let (ended, end) = std::io::pipe().map_or((None, None), |(ended, end)| (Some(ended), Some(end)));
    let watched = [daemon, ended.map(OwnedFd::from)].into_iter().flatten().collect();
    let watch = {
        let server = server.clone();
        std::thread::Builder::new().name("watch".into()).spawn(move || outlive(watched, heir, &server))
    };
    server.clone().serve(socket);
    drop(end);
    match watch {
        Ok(watch) => drop(watch.join()),
        Err(e) => tracing::warn!("the helper can't start a thread: {e}"),
    }
    // A daemon that ends normally has removed its sockets. Sockets of a daemon that died are left to the next
    // daemon, which replaces them: it may already have started, and a file system may have reused the inode
    // numbers for its files.
    std::mem::forget(server);
}

/// Ends this process after the daemon, even if somebody else has the daemon's end of the socket: a daemon
/// controlled by a guest could give it away. Before that, keeps the taps for the next daemon. One of `daemon`
/// polls readable after the daemon's end.
fn outlive(daemon: Vec<OwnedFd>, heir: Option<Heir>, server: &Server) {
    let ended = || {
        server.has_ended.store(true, Ordering::Relaxed);
        // If somebody ends all processes of the service, this one ends too. If somebody ends the daemon by
        // the terminal, it stays.
        let _ = SigSet::from(Signal::SIGTERM).thread_unblock();
    };
    match heir {
        Some(heir) => heir.serve(&daemon, &server.taps, ended),
        None => while wait(&daemon.iter().collect::<Vec<_>>(), None).is_none() {},
    }
    std::process::exit(0);
}

/// Ignores the signals of the terminal and of the service manager. They are for the daemon; the helper ends
/// after it.
fn ignore_terminal() {
    let signals: SigSet =
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None);
}

/// Opens the files below a folder that match patterns, with their names.
pub type OpenIncluded = fn(&Path, &[String]) -> io::Result<Vec<(String, File)>>;

/// The executor of requests.
#[derive(Debug)]
pub struct Server {
    directories: Directories,
    config: PathBuf,
    outside: Outside,
    included: OpenIncluded,
    /// The owner of sockets for which the daemon names none.
    started_as: Account,
    files: Files,
    taps: Taps,
    /// The path of the socket of [`Heir`], or the reason why there is none.
    heir: Result<PathBuf, String>,
    at_once: AtomicUsize,
    /// The daemon has ended: nobody may ask for anything.
    has_ended: AtomicBool,
    under_way: UnderWay,
    /// Number of log lines that the daemon caused.
    lines: AtomicU64,
}

impl Server {
    /// Returns a server for a daemon that the user `started_as` started, with sockets in these directories
    /// and this configuration file.
    #[must_use]
    pub fn new(directories: Directories, config: PathBuf, started_as: Account) -> Self {
        Self {
            directories,
            config,
            outside: Outside::new(|_, _| Default::default()),
            included: |_, _| Ok(Vec::new()),
            started_as,
            files: Files::default(),
            taps: Taps::default(),
            heir: Err("the helper does not listen".to_owned()),
            at_once: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            under_way: UnderWay::default(),
            lines: AtomicU64::new(0),
        }
    }

    /// Takes the taps of the daemon before this one, and listens for the helper that will take over this
    /// daemon's taps. Runs while the process still has the rights of whoever started it.
    fn inherit(&mut self, takes_over: bool) -> Option<Heir> {
        let (taps, heir) = taps::inherit(self.directories.run_dir(), self.started_as.uid, takes_over);
        self.taps = taps;
        self.heir = heir.as_ref().map(|heir| heir.path.clone()).map_err(ToString::to_string);
        heir.ok()
    }

    /// Logs a warning that the daemon causes, only the first, second, fourth, eighth time and so on: so
    /// invalid requests never fill the log.
    fn warn(&self, what: fmt::Arguments<'_>) {
        let times = self.lines.fetch_add(1, Ordering::Relaxed) + 1;
        if times.is_power_of_two() {
            tracing::warn!(times, "the helper {what}");
        }
    }

    pub fn serve(self: Arc<Self>, socket: OwnedFd) {
        let mut connection = Connection::carrying(socket, MOST_DESCRIPTORS);
        loop {
            match connection.receive::<Request>() {
                Ok((request, descriptors)) => self.clone().take(request, descriptors),
                Err(SocketError::Malformed(what)) => {
                    self.warn(format_args!("got a request that it can't parse: {what}"))
                }
                Err(SocketError::Closed | SocketError::Kernel(_)) => return,
            }
        }
    }

    /// Handles a request on its own thread, and answers it.
    fn take(self: Arc<Self>, request: Request, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        let Some(to) = descriptors.next() else {
            return self.warn(format_args!("got a request without a socket for the answer"));
        };
        let descriptors: Vec<_> = descriptors.collect();
        let busy = self.at_once.fetch_add(1, Ordering::Relaxed) >= MOST_AT_ONCE;
        let server = self.clone();
        let answer = move || {
            let done = if server.has_ended.load(Ordering::Relaxed) {
                Err(Refusal::new("the daemon has ended"))
            } else if busy {
                Err(Refusal::new("too many requests at a time"))
            } else {
                server.handle(&request, &descriptors)
            };
            let (answer, descriptors) = match done {
                Ok((reply, descriptors)) => (Ok(reply), descriptors),
                Err(refusal) => (Err::<Reply, _>(refusal), Vec::new()),
            };
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let answer: Answer = answer;
            // The daemon may no longer wait for the answer.
            let _ = Connection::carrying(to, MOST_DESCRIPTORS).send(&answer, &borrowed);
            server.at_once.fetch_sub(1, Ordering::Relaxed);
        };
        if busy {
            return answer();
        }
        if let Err(e) = std::thread::Builder::new().name("request".into()).spawn(answer) {
            self.at_once.fetch_sub(1, Ordering::Relaxed);
            self.warn(format_args!("can't start a thread: {e}"));
        }
    }

    /// Checks a request and carries it out.
    ///
    /// # Errors
    /// The reason why it was refused or failed.
    pub fn handle(
        &self,
        request: &Request,
        descriptors: &[OwnedFd],
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        check(request, descriptors)?;
        let here = wire::Here;
        let given = |descriptors| Ok((Reply::Done, descriptors));
        match request {
            Request::Tap(port) => return given(self.tap(port)?),
            Request::TapState => {
                let state = here.tap_state(descriptors[0].as_fd())?;
                let elsewhere = self.taps.is_elsewhere(&descriptors[0]);
                return Ok((Reply::TapState(TapState { elsewhere, ..state }), Vec::new()));
            }
            Request::Config => return given(vec![crate::config_file(&self.config)?.into()]),
            Request::Included { patterns } => {
                let folder = self.config.parent().unwrap_or(&self.config);
                let (names, files): (_, Vec<_>) = (self.included)(folder, patterns)?.into_iter().unzip();
                return Ok((Reply::Files { names }, files.into_iter().map(OwnedFd::from).collect()));
            }
            Request::Packet { index, sockets, tunnels } => {
                return given(here.packet(*index, *sockets, tunnels.as_ref())?);
            }
            Request::Silence(traffic) => return given(here.silence(traffic)?),
            Request::XdpSocket => {
                let XdpSocket { socket, frames } = here.xdp_socket()?;
                return given(vec![socket, frames]);
            }
            Request::AttachXdp(program) => return attach_xdp(program, descriptors),
            Request::Listen { path, messages, owner, mode, backlog } => {
                let kind = if *messages { SocketType::SEQPACKET } else { SocketType::STREAM };
                let (socket, file) = self.listen(&self.place(path, *owner, *mode), kind, *backlog)?;
                return Ok((Reply::Listening { file }, vec![socket]));
            }
            Request::AdoptSocket { path, owner } => {
                self.check_not_settled()?;
                let file = self.adopt(path, self.owner(*owner))?;
                return Ok((Reply::Listening { file }, Vec::new()));
            }
            Request::Memory { path, owner, mode, keeps } => {
                let _work = self.begin_window(path)?;
                return given(vec![sockets::Here.memory(&self.place(path, *owner, *mode), *keeps)?]);
            }
            Request::Machines => return given(vec![crate::listen_to_machines()?]),
            Request::Connect { path } => return given(vec![self.connect(path)?]),
            Request::Peer { address, source, password } => {
                let to = (*address, *source);
                return given(vec![self.outside.peer(&self.config, to, password.as_deref())?]);
            }
            Request::Resolver { server, number, by_tcp } => {
                return given(vec![self.outside.resolver(&self.config, *server, (*number, *by_tcp))?]);
            }
            Request::MetadataService { server } => {
                return given(vec![self.outside.metadata_service(&self.config, *server)?]);
            }
            Request::DhcpServer { server } => {
                return given(vec![self.outside.dhcp_server(&self.config, *server)?]);
            }
            Request::Owner { names } => {
                let (user, group) = sandbox::lookup(names).map_err(Refusal::new)?;
                return Ok((Reply::Owner(user, group), Vec::new()));
            }
            Request::Bar { address, number } => return given(vec![bar::open_bar(address, *number)?.into()]),
            // The other requests need no answer but "done".
            Request::ForgetTap { device } => self.taps.forget(device),
            Request::Settle => self.taps.settle(),
            Request::InheritTap { device } => {
                self.check_not_settled()?;
                self.taps.inherit_one(device, descriptors)?;
            }
            Request::Retire(retires) => self.taps.set_anothers(*retires),
            Request::Succeed => self.succeed()?,
            Request::Stop => self.taps.stop(),
            Request::ConfigureTap { mtu, mac } => here.configure_tap(descriptors[0].as_fd(), *mtu, *mac)?,
            Request::TapCarrier { up } => here.tap_carrier(descriptors[0].as_fd(), *up)?,
            Request::Seek { neighbours } => here.seek(neighbours)?,
            Request::ReplaceXdp(program) => replace_xdp(program, descriptors)?,
            Request::Give { file, owner, mode } => self.give(*file, *owner, *mode)?,
            Request::Remove { file } => self.remove(*file)?,
            Request::RemoveMemory { path } => {
                let _work = self.begin_window(path)?;
                sockets::Here.remove_memory(path)?;
            }
        }
        Ok((Reply::Done, Vec::new()))
    }

    /// Records that the daemon has taken over from another one: its taps are kept for the next daemon.
    fn succeed(&self) -> Result<(), Refusal> {
        self.taps.set_anothers(false);
        // Refuses to put this socket into the place of a third daemon's helper, which may have been faster to
        // listen.
        let no_heir = |why| Refusal::new(format!("{why}; replace the daemon again"));
        Ok(move_in(self.heir.as_ref().map_err(no_heir)?, self.directories.run_dir())?)
    }

    /// Gives the file of a socket to a new owner.
    fn give(&self, file: u64, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Refusal> {
        let (path, file) = self.files.get(file).ok_or_else(no_socket)?;
        let _work = self.begin(&path)?;
        Ok(file.give_to(Some(self.owner(owner)), mode)?)
    }

    fn remove(&self, file: u64) -> Result<(), Refusal> {
        let (path, _) = self.files.get(file).ok_or_else(no_socket)?;
        let _work = self.begin(&path)?;
        self.files.forget(file);
        Ok(())
    }

    /// Returns a tap of the daemon before, or a new one.
    fn tap(&self, port: &TapPort) -> Result<Vec<OwnedFd>, Refusal> {
        if let Some(queues) = self.taps.take(port) {
            return Ok(queues);
        }
        Ok(self.taps.keep(port, wire::Here.tap(port)?)?)
    }

    fn place(&self, path: &Path, owner: Option<(u32, u32)>, mode: u32) -> Place {
        Place { path: path.to_owned(), owner: Some(self.owner(owner)), mode }
    }

    fn owner(&self, owner: Option<(u32, u32)>) -> (u32, u32) {
        owner.unwrap_or((self.started_as.uid, self.started_as.gid))
    }

    /// Counts a request for the path of a socket, until the returned value is dropped.
    pub(crate) fn begin(&self, path: &Path) -> Result<Work<'_>, Refusal> {
        self.under_way.begin(path, self.directories.is_in_run_dir(path))
    }

    /// Counts a request for the path of a window, until the returned value is dropped.
    fn begin_window(&self, path: &Path) -> Result<Work<'_>, Refusal> {
        self.directories.check_window(path)?;
        self.begin(path)
    }

    /// Creates a socket. Returns it with the number of its file.
    fn listen(&self, place: &Place, kind: SocketType, backlog: i32) -> Result<(OwnedFd, u64), Refusal> {
        self.directories.check(&place.path)?;
        let _work = self.begin(&place.path)?;
        let (socket, file) = sockets::Here.listen(place, kind, backlog)?;
        let file = self.files.keep(&place.path, file).ok_or_else(|| Refusal::new("too many sockets"))?;
        Ok((socket, file))
    }

    /// Takes over the file of a socket. Returns its number.
    fn adopt(&self, path: &Path, owner: (u32, u32)) -> Result<u64, Refusal> {
        self.directories.check(path)?;
        let _work = self.begin(path)?;
        let file = sockets::Here.adopt(path, Some(owner))?;
        self.files.keep(path, file).ok_or_else(|| Refusal::new("too many sockets"))
    }

    /// Checks that the daemon has not opened its ports. Nothing is handed over after that: a guest may have
    /// taken over the daemon.
    fn check_not_settled(&self) -> Result<(), Refusal> {
        match self.taps.is_settled() {
            false => Ok(()),
            true => {
                Err(Refusal::new("the daemon has opened its ports, and nothing can be handed over to it"))
            }
        }
    }

    /// Connects to a VMM. In the run-dir, anybody may listen on the socket. Elsewhere root may not, because
    /// services of root grant rights.
    fn connect(&self, path: &Path) -> Result<OwnedFd, Refusal> {
        self.directories.check(path)?;
        let _work = self.begin(path)?;
        let socket = sockets::Here.connect(path)?;
        let by = socket_peercred(&socket).map_err(std::io::Error::from)?.uid;
        if by.is_root() && !self.directories.is_in_run_dir(path) {
            return Err(Refusal::new(format!(
                "{}: root listens there; a VMM of root has its socket in the run-dir",
                path.display()
            )));
        }
        Ok(socket)
    }
}

/// Attaches a program for the sockets that came with the request.
fn attach_xdp(program: &XdpProgram, sockets: &[OwnedFd]) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let Attachment { map, link, mode, promiscuous } = wire::Here.attach_xdp(program, &sockets)?;
    Ok((Reply::Attached { mode }, [map, link].into_iter().chain(promiscuous).collect()))
}

/// Replaces the program whose map and link came with the request.
fn replace_xdp(program: &XdpProgram, descriptors: &[OwnedFd]) -> Result<(), Refusal> {
    let [map, link] = [&descriptors[0], &descriptors[1]].map(OwnedFd::try_clone);
    // `mode` and `promiscuous` do not matter here.
    let attachment = Attachment { map: map?, link: link?, mode: Mode::Generic, promiscuous: None };
    Ok(wire::Here.replace_xdp(program, &attachment)?)
}

fn no_socket() -> Refusal {
    Refusal::new("no such socket")
}

impl From<sockets::Error> for Refusal {
    fn from(error: sockets::Error) -> Self {
        Self { is_of_place: error.is_of_place(), ..Self::new(error.to_string()) }
    }
}

impl From<XdpError> for Refusal {
    fn from(error: XdpError) -> Self {
        let XdpError { stage, source, log } = error;
        Self { xdp: Some((stage, log)), ..source.into() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn who_takes_over_moves_only_its_own_socket() {
        let dir = tempfile::tempdir().unwrap();
        let us = Account { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let start = || {
            let mut server = Server::new(Directories::new(dir.path(), []), PathBuf::new(), us);
            let heir = server.inherit(true);
            (server, heir)
        };
        let serve = |heir: Option<Heir>| {
            let (daemon, end) = std::io::pipe().unwrap();
            let heir = heir.unwrap();
            let served = std::thread::spawn(move || heir.serve(&[daemon.into()], &Taps::default(), || ()));
            (served, end)
        };
        let file = |name: &str| std::fs::metadata(dir.path().join(name)).map(|file| file.ino()).ok();
        let succeed = |server: &Server| server.handle(&Request::Succeed, &[]).map(drop);
        let (first, heir) = start();
        let running = serve(heir);
        let (second, heir) = start();
        let starting = serve(heir);
        let (third, none) = start();
        let files = [file("taps.sock"), file("taps-next.sock")];
        assert!(files.iter().all(Option::is_some) && none.is_none());
        let refused = succeed(&third).unwrap_err().text;
        assert!(refused.contains("taps-next.sock") && refused.contains("replace"), "{refused}");
        // A helper that had none to replace already has the place.
        succeed(&first).unwrap();
        assert_eq!([file("taps.sock"), file("taps-next.sock")], files);
        succeed(&second).unwrap();
        assert_eq!([file("taps.sock"), file("taps-next.sock")], [files[1], None]);
        for (served, end) in [running, starting] {
            drop(end);
            served.join().unwrap();
        }
    }
}
