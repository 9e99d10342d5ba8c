//! The peers to which the daemon may open TCP connections: those that its file names.

use crate::request::Refusal;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Peers, each with the address from which the connection comes, unless the kernel chooses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(Vec<(SocketAddr, Option<IpAddr>)>);

impl Peers {
    /// Returns these peers.
    pub fn new(peers: impl IntoIterator<Item = (SocketAddr, Option<IpAddr>)>) -> Self {
        Self(peers.into_iter().collect())
    }

    /// Returns the word of the helper's command line.
    pub(crate) fn word(&self) -> String {
        let peer = |(peer, source): &(SocketAddr, Option<IpAddr>)| match source {
            Some(source) => format!("{peer}@{source}"),
            None => peer.to_string(),
        };
        self.0.iter().map(peer).collect::<Vec<_>>().join(",")
    }

    /// Parses such a word; `None` if it is none.
    #[must_use]
    pub fn of_word(word: &OsStr) -> Option<Self> {
        let peer = |text: &str| match text.split_once('@') {
            Some((peer, source)) => Some((peer.parse().ok()?, Some(source.parse().ok()?))),
            None => Some((text.parse().ok()?, None)),
        };
        let words = word.to_str()?.split(',').filter(|word| !word.is_empty());
        words.map(peer).collect::<Option<_>>().map(Self)
    }

    /// Begins to connect to a peer, and signs with a password if there is one. The socket never blocks; it becomes
    /// writable when it is connected, or has an error.
    ///
    /// # Errors
    /// The file does not name the peer, or the kernel refuses.
    pub fn connect(&self, to: SocketAddr, password: Option<&str>) -> Result<OwnedFd, Refusal> {
        let Some((_, source)) = self.0.iter().find(|(peer, _)| *peer == to) else {
            return Err(Refusal::new(format!(
                "{to} is no peer of the configuration file with which the daemon started"
            )));
        };
        Ok(connect_from(*source, to, password)?)
    }
}

fn connect_from(source: Option<IpAddr>, to: SocketAddr, password: Option<&str>) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if let Some(source) = source {
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    if let Some(password) = password {
        wire::sign(&socket, to.ip(), Some(password))?;
    }
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::net::TcpListener;

    #[test]
    fn only_peers_of_the_file_are_reached() {
        let [known, unknown] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let peers = Peers::new([(address(&known), Some("127.0.0.9".parse().unwrap()))]);
        let peers = Peers::of_word(OsStr::new(&peers.word())).unwrap();
        let socket = peers.connect(address(&known), None).unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None).unwrap();
        assert_eq!(known.accept().unwrap().1.ip().to_string(), "127.0.0.9");
        let refused = peers.connect(address(&unknown), None).unwrap_err().text;
        assert!(refused.contains("is no peer of the configuration file"), "{refused}");
    }

    #[test]
    fn words_are_read_back() {
        for word in ["", "192.0.2.1:179", "[fd00::1]:1790@fd00::2,192.0.2.1:179"] {
            assert_eq!(Peers::of_word(OsStr::new(word)).unwrap().word(), word);
        }
        assert_eq!(Peers::of_word(OsStr::new("192.0.2.1")), None);
    }
}
