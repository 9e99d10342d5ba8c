//! Opening packet sockets on an interface.

use super::filter;
use crate::shared::TunnelTraffic;
use crate::sys::{self, get, set};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of socket buffer requested for each direction: a few milliseconds at 10 Gbit/s.
const BUFFER: libc::c_int = 4 << 20;

/// All protocols, in network byte order as the kernel requires.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Opens `count` sockets on the interface `index`, for all frames or for tunnel packets alone. The kernel spreads received
/// frames over them by flow.
pub(crate) fn open(index: i32, count: u16, tunnels: Option<&TunnelTraffic>) -> io::Result<Vec<OwnedFd>> {
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(count.into());
    for _ in 0..count {
        let socket = open_one(index, count > 1, tunnels)?;
        if count > 1 {
            join_fanout(socket.as_fd(), sockets.first().map(AsFd::as_fd))?;
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Returns how many frames were dropped since the last call because the socket's buffer was full.
pub(crate) fn take_drops(socket: BorrowedFd<'_>) -> usize {
    get::<libc::tpacket_stats>(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS)
        .map_or(0, |stats| stats.tp_drops as usize)
}

fn open_one(index: i32, several: bool, tunnels: Option<&TunnelTraffic>) -> io::Result<OwnedFd> {
    // No protocol yet: otherwise it would collect frames of all devices until it is bound.
    let socket = sys::socket(AddressFamily::PACKET, SocketType::RAW)?;
    let fd = socket.as_fd();
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, libc::PACKET_IGNORE_OUTGOING] {
        set(fd, libc::SOL_PACKET, option, &1)?;
    }
    match tunnels {
        Some(traffic) => sys::attach_filter(fd, &mut filter::program(traffic))?,
        None if several => ignore_outgoing(fd)?,
        None => {}
    }
    // PACKET_QDISC_BYPASS stays off: with it, the kernel drops large segments that the device can't take instead of
    // segmenting them.
    for (forced, polite) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        set(fd, libc::SOL_SOCKET, forced, &BUFFER).or_else(|_| set(fd, libc::SOL_SOCKET, polite, &BUFFER))?;
    }
    if tunnels.is_none() {
        receive_all(fd, index)?;
    }
    // SAFETY: zeros are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ALL;
    address.sll_ifindex = index;
    sys::bind(fd, &address)?;
    Ok(socket)
}

/// Opens a packet socket that receives nothing, but makes the device accept frames to all addresses.
pub(crate) fn open_promiscuous(index: i32) -> io::Result<OwnedFd> {
    let socket = sys::socket(AddressFamily::PACKET, SocketType::RAW)?;
    receive_all(socket.as_fd(), index)?;
    Ok(socket)
}

/// Makes the device accept frames to all addresses while the socket is open.
fn receive_all(socket: BorrowedFd<'_>, index: i32) -> io::Result<()> {
    let promiscuous = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
}

/// Adds the socket to a set over which the kernel spreads frames: to a new set, or to that of `first`.
fn join_fanout(socket: BorrowedFd<'_>, first: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let value = match first {
        None => libc::PACKET_FANOUT_FLAG_UNIQUEID << 16 | libc::PACKET_FANOUT_HASH << 16,
        Some(first) => {
            let set: libc::c_int = get(first, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
            set as u32 & 0xffff | libc::PACKET_FANOUT_HASH << 16
        }
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &(value as libc::c_int))
}

/// Drops outgoing frames with a filter: before kernel 6.2, a set of sockets receives them in spite of
/// PACKET_IGNORE_OUTGOING.
fn ignore_outgoing(socket: BorrowedFd<'_>) -> io::Result<()> {
    const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, PACKET_TYPE),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::PACKET_OUTGOING.into()),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    sys::attach_filter(socket, &mut filter)
}
