//! Sockets to servers outside: the BGP peers, the resolvers of names, the DHCP servers and the metadata services that
//! the configuration file names, and the resolvers of the host. The daemon reaches no others, whatever guests or
//! clients ask.

use crate::request::Refusal;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The port of resolvers.
const PORT: u16 = 53;
/// The ports of DHCP servers, to which they answer a relay (RFC 2131, 4.1; RFC 8415, 7.2).
const DHCP: u16 = 67;
const DHCPV6: u16 = 547;
/// The host's resolvers (resolv.conf(5)).
const HOSTS: &str = "/etc/resolv.conf";
/// Most bytes of such a file that are read.
const MOST: u64 = 64 << 10;

/// Servers that a configuration file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// BGP peers.
    pub peers: Vec<SocketAddr>,
    /// Resolvers of names.
    pub resolvers: Vec<IpAddr>,
    /// DHCP servers.
    pub dhcp: Vec<IpAddr>,
    /// Metadata services.
    pub metadata: Vec<SocketAddr>,
}

/// Reads the servers that a configuration file, and the files that it includes, name. Returns them, and the paths
/// beside the file's on which they depend; `None` if something in the files is wrong.
pub type Named = fn(&Path, File) -> Option<(Servers, Vec<PathBuf>)>;

/// How long nobody reads files again in which something was wrong.
const PAUSE: Duration = Duration::from_secs(1);

/// The servers that may be reached.
pub(crate) struct Outside {
    named: Named,
    last: Mutex<Option<Last>>,
}

/// The servers that the configuration file named last, and the states of all files then.
struct Last {
    named: Servers,
    file: Stamp,
    others: Vec<(PathBuf, Option<Stamp>)>,
    /// When something in the files was wrong. Until it is right, the servers before that are reached. The same holds
    /// while there is no file.
    wrong: Option<Instant>,
}

/// A state of a file: device, inode, length and time of its last change.
type Stamp = (u64, u64, u64, (i64, i64));

impl Outside {
    pub(crate) fn new(named: Named) -> Self {
        Self { named, last: Mutex::default() }
    }

    /// Connects to a resolver; see [`Request::Resolver`](crate::Request::Resolver).
    pub(crate) fn resolver(
        &self,
        config: &Path,
        server: Option<IpAddr>,
        (number, by_tcp): (u8, bool),
    ) -> Result<OwnedFd, Refusal> {
        match server {
            Some(server) if !self.names(config, |named| named.resolvers.contains(&server))? => {
                Err(Refusal::new(format!(
                    "{server}: the daemon's file names no such resolver; add it to `resolvers` of a network there"
                )))
            }
            _ => Ok(resolver(server, number, by_tcp)?),
        }
    }

    /// Connects to a DHCP server; see [`Request::DhcpServer`](crate::Request::DhcpServer).
    pub(crate) fn dhcp_server(&self, config: &Path, server: IpAddr) -> Result<OwnedFd, Refusal> {
        if !self.names(config, |named| named.dhcp.contains(&server))? {
            return Err(Refusal::new(format!(
                "{server}: the daemon's file names no such DHCP server; add it to `dhcp_relay` of a network there"
            )));
        }
        Ok(dhcp_server(server)?)
    }

    /// Connects to a BGP peer; see [`Request::Peer`](crate::Request::Peer).
    pub(crate) fn peer(
        &self,
        config: &Path,
        to: (SocketAddr, Option<IpAddr>),
        password: Option<&str>,
    ) -> Result<OwnedFd, Refusal> {
        if !self.names(config, |named| named.peers.contains(&to.0))? {
            return Err(Refusal::new(format!(
                "{}: the daemon's file names no BGP peer of this address and port (any more); add it there as \
                 `[[bgp.peer]]`, or apply that file",
                to.0
            )));
        }
        Ok(peer(to, password)?)
    }

    /// Connects to a metadata service; see [`Request::MetadataService`](crate::Request::MetadataService).
    pub(crate) fn metadata_service(&self, config: &Path, server: SocketAddr) -> Result<OwnedFd, Refusal> {
        if !self.names(config, |named| named.metadata.contains(&server))? {
            return Err(Refusal::new(format!(
                "{server}: the daemon's file names no such service; add it as `metadata_proxy` of a network there"
            )));
        }
        Ok(stream(server)?)
    }

    fn names(&self, config: &Path, is_there: impl FnOnce(&Servers) -> bool) -> io::Result<bool> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = crate::config_file(config).and_then(|file| Ok((stamp(&file.metadata()?), file)));
        let (stamp, file) = match (opened, &*last) {
            (Ok(opened), _) => opened,
            (Err(_), Some(last)) => return Ok(is_there(&last.named)),
            (Err(error), None) => return Err(error),
        };
        let is_same = |last: &Last| match last.wrong {
            Some(then) => then.elapsed() < PAUSE,
            None => last.file == stamp && last.others.iter().all(|(path, then)| stamp_at(path) == *then),
        };
        if !last.as_ref().is_some_and(is_same) {
            *last = Some(match (self.named)(config, file) {
                Some((named, others)) => {
                    let stamped = |path: PathBuf| (stamp_at(&path), path);
                    let others = others.into_iter().map(stamped).map(|(stamp, path)| (path, stamp)).collect();
                    Last { named, file: stamp, others, wrong: None }
                }
                None => {
                    let named = last.take().map(|last| last.named).unwrap_or_default();
                    Last { named, file: stamp, others: Vec::new(), wrong: Some(Instant::now()) }
                }
            });
        }
        Ok(last.as_ref().is_some_and(|last| is_there(&last.named)))
    }
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outside")
    }
}

fn stamp(of: &Metadata) -> Stamp {
    (of.dev(), of.ino(), of.len(), (of.mtime(), of.mtime_nsec()))
}

fn stamp_at(path: &Path) -> Option<Stamp> {
    path.metadata().ok().map(|of| stamp(&of))
}

/// Returns a socket that exchanges datagrams with a resolver, or `by_tcp` one that is connecting: with this one, or
/// else with the one of this number among those of the host.
///
/// # Errors
/// There is none of this number, or no way to it.
pub fn resolver(server: Option<IpAddr>, number: u8, by_tcp: bool) -> io::Result<OwnedFd> {
    let server = match server {
        Some(server) => server,
        None => {
            let text = io::read_to_string(std::fs::File::open(HOSTS)?.take(MOST))?;
            let mut all = of_host(&text);
            all.nth(number.into())
                .ok_or_else(|| io::Error::other(format!("{HOSTS} names none of this number")))?
        }
    };
    let kind = if by_tcp { SocketType::STREAM } else { SocketType::DGRAM };
    let server = SocketAddr::new(server, PORT);
    connecting(unconnected(server, kind)?, server)
}

/// Begins to connect to a BGP peer by TCP: from this address and signed with this password, if there are any. The
/// socket never blocks.
///
/// # Errors
/// The host does not have the source address; or there is no way to the peer.
pub fn peer((to, source): (SocketAddr, Option<IpAddr>), password: Option<&str>) -> io::Result<OwnedFd> {
    let socket = unconnected(to, SocketType::STREAM)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    wire::highest_ttl(&socket, to.is_ipv4())?;
    if let Some(source) = source {
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    if let Some(password) = password {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        wire::sign(&socket, (to.ip(), bits), Some(password))?;
    }
    connecting(socket, to)
}

/// Returns a TCP socket that is connecting.
///
/// # Errors
/// There is no way to the server.
pub fn stream(server: SocketAddr) -> io::Result<OwnedFd> {
    connecting(unconnected(server, SocketType::STREAM)?, server)
}

fn unconnected(server: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn connecting(socket: OwnedFd, server: SocketAddr) -> io::Result<OwnedFd> {
    match connect(&socket, &server) {
        Err(error) if error != Errno::INPROGRESS => Err(error.into()),
        _ => Ok(socket),
    }
}

/// Returns a socket that exchanges datagrams with a DHCP server, as a relay does.
///
/// # Errors
/// There is no way to the server; a program of the host has the port; or permission is missing.
pub fn dhcp_server(server: IpAddr) -> io::Result<OwnedFd> {
    let (family, port, all) = match server {
        IpAddr::V4(_) => (AddressFamily::INET, DHCP, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => (AddressFamily::INET6, DHCPV6, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Other servers of the host's networks, as libvirt's, share the port as well.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(all, port))?;
    connect(&socket, &SocketAddr::new(server, port))?;
    Ok(socket)
}

/// Returns the resolvers that the text of resolv.conf names.
fn of_host(text: &str) -> impl Iterator<Item = IpAddr> + '_ {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()?.parse().ok()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::net::TcpListener;

    #[test]
    fn only_named_servers_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("host.toml");
        std::fs::write(&file, "127.0.0.1").unwrap();
        let outside = Outside::new(|path, file| {
            let other = path.with_file_name("other.toml");
            let text =
                io::read_to_string(file).unwrap() + &std::fs::read_to_string(&other).unwrap_or_default();
            let all: Vec<_> = text.split(',').filter_map(|word| word.parse().ok()).collect();
            (!all.is_empty()).then(|| (Servers { resolvers: all, ..Servers::default() }, vec![other]))
        });
        let [one, other] = ["127.0.0.1", "127.0.0.2"].map(|addr| Some(addr.parse().unwrap()));
        assert!(outside.resolver(&file, one, (0, false)).is_ok());
        let refused = outside.dhcp_server(&file, Ipv4Addr::LOCALHOST.into()).unwrap_err().text;
        assert!(refused.contains("names no such DHCP server"), "{refused}");
        let refused = outside.metadata_service(&file, ([127, 0, 0, 1], 80).into()).unwrap_err().text;
        assert!(refused.contains("names no such service"), "{refused}");
        assert!(
            outside.resolver(&file, other, (0, false)).unwrap_err().text.contains("names no such resolver")
        );
        std::fs::write(&file, "127.0.0.2,::1").unwrap();
        assert!(
            outside.resolver(&file, one, (0, false)).is_err()
                && outside.resolver(&file, other, (0, false)).is_ok()
        );
        // Another file on which they depend.
        std::fs::write(dir.path().join("other.toml"), ",127.0.0.1").unwrap();
        assert!(outside.resolver(&file, one, (0, false)).is_ok());
        // One in which something is wrong changes nothing.
        std::fs::write(&file, "half a").unwrap();
        std::fs::remove_file(dir.path().join("other.toml")).unwrap();
        assert!(outside.resolver(&file, one, (0, false)).is_ok());
        std::fs::remove_file(&file).unwrap();
        assert!(outside.resolver(&file, other, (0, false)).is_ok());
    }

    #[test]
    fn only_named_peers_are_called() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("host.toml");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        std::fs::write(&file, listener.local_addr().unwrap().to_string()).unwrap();
        let source = Some("127.0.0.9".parse().unwrap());
        let outside = Outside::new(|_, file| {
            let peers = vec![io::read_to_string(file).unwrap().parse().unwrap()];
            Some((Servers { peers, ..Servers::default() }, Vec::new()))
        });
        let to = listener.local_addr().unwrap();
        let socket = outside.peer(&file, (to, source), None).unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None).unwrap();
        assert_eq!(Some(listener.accept().unwrap().1.ip()), source);
        let other = (SocketAddr::new(to.ip(), 1), source);
        let refused = outside.peer(&file, other, None).unwrap_err().text;
        assert!(refused.contains("names no BGP peer of this address and port"), "{refused}");
    }

    #[test]
    fn the_hosts_resolvers_are_read() {
        let text = "# nameserver 192.0.2.1\nsearch example\nnameserver 192.0.2.2\nnameserver  2001:db8::2 \n\
                    nameserver x\n";
        let all: Vec<IpAddr> = of_host(text).collect();
        assert_eq!(all, ["192.0.2.2".parse::<IpAddr>().unwrap(), "2001:db8::2".parse().unwrap()]);
    }
}
