//! Options of sockets.

use super::flow::{LOW_WATER, Sizes};
use super::socket::Socket;
use crate::error::Errno;
use libc::{
    IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SO_ACCEPTCONN, SO_BROADCAST, SO_DOMAIN, SO_ERROR, SO_KEEPALIVE,
    SO_LINGER, SO_OOBINLINE, SO_PROTOCOL, SO_RCVBUF, SO_REUSEADDR, SO_SNDBUF, SO_TYPE, SOL_SOCKET, c_int,
};
use std::collections::BTreeMap;
use std::time::Duration;
use uverbs::cm::CmOption;

/// `SOL_RDMA`.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;

/// Smallest and largest number of entries of a queue.
const ENTRIES: (c_int, c_int) = (16, 0x7ffe);
const RING: (i64, i64) = (2 * LOW_WATER as i64, 1 << 30);

#[derive(Clone, Debug)]
pub struct Options {
    send: u32,
    receive: u32,
    sends: u16,
    receives: u16,
    inline: u32,
    /// Time for which `rclose` waits.
    pub linger: Option<Duration>,
    /// Values of options that are only remembered, by level and name.
    remembered: BTreeMap<(c_int, c_int), c_int>,
    /// An error that was not reported to the program yet.
    pub error: c_int,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send: 1 << 17,
            receive: 1 << 17,
            sends: 384,
            receives: 384,
            inline: 64,
            linger: None,
            remembered: BTreeMap::new(),
            error: 0,
        }
    }
}

impl Options {
    /// Returns the options for connections that a listener with these options accepts.
    pub fn inherited(&self) -> Self {
        Self { error: 0, ..self.clone() }
    }

    /// Returns the sizes of a stream, and the largest number of bytes that it sends inline.
    pub const fn sizes(&self) -> (Sizes, u32) {
        let (send, receive) = (self.send, self.receive);
        (Sizes { send, receive, sends: self.sends, receives: self.receives }, self.inline)
    }
}

/// Returns the size of a ring for which a program requests this buffer size. It is doubled, as Linux does it.
fn ring(wanted: c_int) -> u32 {
    (i64::from(wanted) * 2).clamp(RING.0, RING.1) as u32 & !63
}

fn entries(wanted: c_int) -> u16 {
    wanted.clamp(ENTRIES.0, ENTRIES.1) as u16
}

/// Is true for options that have no effect here, but that programs set and ask for.
const fn is_remembered(level: c_int, name: c_int) -> bool {
    match level {
        SOL_SOCKET => matches!(name, SO_KEEPALIVE | SO_OOBINLINE | SO_BROADCAST),
        IPPROTO_TCP => {
            matches!(name, libc::TCP_NODELAY | libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_KEEPIDLE)
        }
        _ => false,
    }
}

/// Sets an option whose value is a number; `SO_LINGER` has two.
pub fn set(socket: &Socket, level: c_int, name: c_int, value: c_int, second: c_int) -> Result<(), Errno> {
    let is_on = value != 0;
    let manager = match (level, name) {
        (SOL_SOCKET, SO_REUSEADDR) => Some(CmOption::ReuseAddress(is_on)),
        (IPPROTO_IPV6, libc::IPV6_V6ONLY) => Some(CmOption::OnlyIpv6(is_on)),
        (IPPROTO_IP, libc::IP_TOS) => Some(CmOption::TypeOfService(value as u8)),
        _ => None,
    };
    if let Some(option) = manager {
        socket.identifier().set(option)?;
    }
    socket.options(|options| {
        match (level, name) {
            (SOL_SOCKET, SO_RCVBUF) => options.receive = ring(value),
            (SOL_SOCKET, SO_SNDBUF) => options.send = ring(value),
            (SOL_SOCKET, SO_LINGER) => {
                let seconds = u64::try_from(second).unwrap_or(0);
                options.linger = is_on.then(|| Duration::from_secs(seconds));
            }
            (SOL_RDMA, RDMA_SQSIZE) => options.sends = entries(value),
            (SOL_RDMA, RDMA_RQSIZE) => options.receives = entries(value),
            (SOL_RDMA, RDMA_INLINE) => options.inline = value.clamp(0, super::pair::INLINE as c_int) as u32,
            // The path and the device determine these.
            (IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            _ if manager.is_some() || is_remembered(level, name) => {
                options.remembered.insert((level, name), value);
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    })
}

pub fn get(socket: &Socket, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
    let number = match (level, name) {
        (SOL_SOCKET, SO_ERROR) => socket.take_error(),
        (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM,
        (SOL_SOCKET, SO_DOMAIN) => socket.family(),
        (SOL_SOCKET, SO_PROTOCOL) => IPPROTO_TCP,
        (SOL_SOCKET, SO_ACCEPTCONN) => socket.is_listening().into(),
        (SOL_SOCKET, SO_LINGER) => return Ok(linger(socket.options(|options| options.linger))),
        (IPPROTO_TCP, libc::TCP_MAXSEG) => socket.identifier().mtu(),
        (IPPROTO_TCP, libc::TCP_INFO) => return Ok(vec![0; size_of::<libc::tcp_info>()]),
        _ => socket.options(|options| stored(options, level, name))?,
    };
    Ok(number.to_ne_bytes().to_vec())
}

fn linger(linger: Option<Duration>) -> Vec<u8> {
    let seconds = linger.map_or(0, |linger| linger.as_secs() as c_int);
    [c_int::from(linger.is_some()).to_ne_bytes(), seconds.to_ne_bytes()].concat()
}

fn stored(options: &Options, level: c_int, name: c_int) -> Result<c_int, Errno> {
    Ok(match (level, name) {
        (SOL_SOCKET, SO_RCVBUF) => options.receive as c_int,
        (SOL_SOCKET, SO_SNDBUF) => options.send as c_int,
        (SOL_RDMA, RDMA_SQSIZE) => options.sends.into(),
        (SOL_RDMA, RDMA_RQSIZE) => options.receives.into(),
        (SOL_RDMA, RDMA_INLINE) => options.inline as c_int,
        (SOL_SOCKET, SO_REUSEADDR)
        | (IPPROTO_IPV6, libc::IPV6_V6ONLY)
        | (IPPROTO_IP, libc::IP_TOS)
        | (IPPROTO_TCP, libc::TCP_CONGESTION) => options.remembered.get(&(level, name)).copied().unwrap_or(0),
        _ if is_remembered(level, name) => options.remembered.get(&(level, name)).copied().unwrap_or(0),
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    })
}
