//! Requests that rtnetlink serves and ioctls do not: that a link changed, which link is its peer, links of other
//! namespaces, addresses, routes and neighbours.
//!
//! Written by hand: `netlink-packet-route` parses every attribute of an answer into allocated values, and this module
//! needs only a handful of requests and attributes.

use crate::device::{Device, Link, is_up};
use crate::opener::TapState;
use crate::sys;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, bind, recv, send};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

// Bytes of struct nlmsghdr and struct ifinfomsg (linux/netlink.h, linux/rtnetlink.h).
pub(crate) const HEADER: usize = 16;
const INFO: usize = 16;
/// Bytes of struct rtgenmsg, with its padding.
const GENERIC: usize = 4;

// Attributes of a link (linux/if_link.h).
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_IFALIAS: u16 = 20;
const IFLA_GROUP: u16 = 27;
const IFLA_STATS64: u16 = 23;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;

/// Offset of `tx_dropped` in struct rtnl_link_stats64, bytes.
const TX_DROPPED: usize = 7 * 8;

// Attributes of a namespace's number (linux/net_namespace.h).
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

// Attributes of addresses, routes and neighbours (linux/if_addr.h, rtnetlink.h, neighbour.h).
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
pub(crate) const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
/// The answer is the route itself, with all hops (linux/rtnetlink.h).
const RTM_F_FIB_MATCH: u32 = 0x2000;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
/// The router of a route is reachable without another route (`RTNH_F_ONLINK`).
const ON_LINK: u32 = 4;
pub(crate) const NDA_DST: u16 = 1;
pub(crate) const NDA_LLADDR: u16 = 2;

/// Who made a route, as `ip route` shows it: a number that no other program has (rt_protos).
const PROTOCOL: u8 = 86;

/// An address and the length of its subnet's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    pub addr: IpAddr,
    pub len: u8,
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// Room for an answer about one link, which has a few KiB with all attributes.
const ANSWER: usize = 64 << 10;

/// Opens a socket of NETLINK_ROUTE, whose number is 0.
pub(crate) fn socket(groups: libc::c_int) -> io::Result<OwnedFd> {
    let fd = sys::socket(AddressFamily::NETLINK, SocketType::RAW)?;
    bind(&fd, &SocketAddrNetlink::new(0, groups as u32))?;
    Ok(fd)
}

/// Opens a socket that gets a message for every change of a link in this thread's network namespace.
pub(crate) fn link_events() -> io::Result<OwnedFd> {
    socket(libc::RTMGRP_LINK)
}

/// Reads and discards all messages. It only matters that there were some, even if the kernel had to drop others.
pub(crate) fn drain(links: &OwnedFd) {
    let mut message = [0u8; 64];
    loop {
        match recv(links, message.as_mut_slice(), RecvFlags::TRUNC) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Returns the device to which a device of this thread's network namespace is linked, such as a veth's other end;
/// `None` if that is in a different namespace.
pub(crate) fn linked(device: &Device) -> io::Result<Option<Device>> {
    let answer = ask(&Message::new(libc::RTM_GETLINK).link(device.link()?.index))?;
    let attributes = answer.get(HEADER + INFO..).unwrap_or_default();
    match (number(attributes, IFLA_LINK), number(attributes, IFLA_LINK_NETNSID)) {
        (Some(index), None) => device.by_index(index).map(Some),
        _ => Ok(None),
    }
}

/// Returns the state of the device `name` in a different network namespace. Needs CAP_NET_ADMIN in both namespaces.
/// Does not enter the other namespace, but gives it a number in this one; requests name its devices with that number.
pub(crate) fn link_in(namespace: BorrowedFd<'_>, name: &str) -> io::Result<TapState> {
    let fd = namespace.as_raw_fd().to_ne_bytes();
    let known = |answer: Vec<u8>| {
        number(answer.get(HEADER + GENERIC..).unwrap_or_default(), NETNSA_NSID).filter(|id| *id >= 0)
    };
    let question = Message::new(libc::RTM_GETNSID).generic().attribute(NETNSA_FD, &fd);
    let id = match known(ask(&question)?) {
        Some(id) => id,
        None => {
            let any = (-1_i32).to_ne_bytes();
            let wish = Message::new(libc::RTM_NEWNSID).generic().attribute(NETNSA_FD, &fd);
            match ask(&wish.attribute(NETNSA_NSID, &any)) {
                // Another process was faster.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                other => drop(other?),
            }
            known(ask(&question)?).ok_or_else(|| sys::invalid("a namespace without a number"))?
        }
    };
    let mut zero_ended = name.as_bytes().to_vec();
    zero_ended.push(0);
    let question = Message::new(libc::RTM_GETLINK).link(0).attribute(IFLA_TARGET_NETNSID, &id.to_ne_bytes());
    let answer = ask(&question.attribute(IFLA_IFNAME, &zero_ended))?;
    state(&answer).ok_or_else(|| sys::invalid("the kernel's answer about a device is not whole"))
}

/// Parses the device state in an answer.
fn state(answer: &[u8]) -> Option<TapState> {
    let word = |at: usize| Some(i32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let attributes = answer.get(HEADER + INFO..)?;
    let mac = attribute(attributes, IFLA_ADDRESS)?.try_into().ok()?;
    let mtu = number(attributes, IFLA_MTU)?.unsigned_abs();
    let dropped = attribute(attributes, IFLA_STATS64)?.get(TX_DROPPED..TX_DROPPED + 8)?;
    let link = Link { index: word(HEADER + 4)?, mac, mtu, up: is_up(word(HEADER + 8)?) };
    Some(TapState { link, dropped: u64::from_ne_bytes(dropped.try_into().ok()?), elsewhere: None })
}

/// Has the kernel find out a neighbour's link-layer address, or whether the one that it knows is still right.
pub(crate) fn seek(device: i32, addr: IpAddr) -> io::Result<()> {
    change(&Message::new(libc::RTM_NEWNEIGH).flags(libc::NLM_F_CREATE).used_neighbour(device, addr))
}

/// Makes a change. The kernel's answer says no more than that it was made.
pub(crate) fn change(message: &Message) -> io::Result<()> {
    ask(message).map(drop)
}

/// Returns the alias of a link of this thread's network namespace, if it has one.
pub(crate) fn alias_of(index: i32) -> io::Result<Option<String>> {
    let answer = ask(&Message::new(libc::RTM_GETLINK).link(index))?;
    let alias = attribute(answer.get(HEADER + INFO..).unwrap_or_default(), IFLA_IFALIAS);
    Ok(alias.map(|alias| String::from_utf8_lossy(alias).trim_end_matches('\0').to_owned()))
}

pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(kind: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        // Makes the kernel answer even without data.
        let answers =
            matches!(kind, libc::RTM_GETLINK | libc::RTM_GETNSID | libc::RTM_GETROUTE | libc::RTM_GETNEIGH);
        let flags = if answers { 0 } else { libc::NLM_F_ACK } | libc::NLM_F_REQUEST;
        bytes[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
        Self(bytes)
    }

    /// Makes the change fail if there is such a thing already.
    pub(crate) fn create(self) -> Self {
        self.flags(libc::NLM_F_CREATE | libc::NLM_F_EXCL)
    }

    pub(crate) fn replace(self) -> Self {
        self.flags(libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
    }

    fn flags(mut self, more: libc::c_int) -> Self {
        let flags = u16::from_ne_bytes([self.0[6], self.0[7]]) | more as u16;
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// Adds a struct ifaddrmsg: the link's address. Nobody is asked whether somebody else has it.
    pub(crate) fn address(mut self, index: i32, subnet: Subnet) -> Self {
        self.0.extend([family(subnet.addr), subnet.len, 0, libc::RT_SCOPE_UNIVERSE]);
        self.0.extend(index.to_ne_bytes());
        let addr = octets(subnet.addr);
        let flags = libc::IFA_F_NODAD.to_ne_bytes();
        self.attribute(IFA_LOCAL, &addr).attribute(IFA_ADDRESS, &addr).attribute(IFA_FLAGS, &flags)
    }

    /// Adds a struct rtmsg: a route of the main table by a router. A router `on_link` need be in no subnet of the
    /// link.
    pub(crate) fn route(mut self, index: i32, to: Subnet, via: IpAddr, on_link: bool) -> Self {
        self.0.extend([family(to.addr), to.len, 0, 0, libc::RT_TABLE_MAIN, PROTOCOL, 0, libc::RTN_UNICAST]);
        self.0.extend(if on_link { ON_LINK } else { 0 }.to_ne_bytes());
        let to = self.attribute(RTA_DST, &octets(to.addr));
        to.attribute(RTA_GATEWAY, &octets(via)).attribute(RTA_OIF, &index.to_ne_bytes())
    }

    /// Adds a struct ndmsg: a neighbour whose link-layer address never changes.
    pub(crate) fn neighbour(mut self, index: i32, addr: IpAddr, mac: [u8; 6]) -> Self {
        self.0.extend([family(addr), 0, 0, 0]);
        self.0.extend(index.to_ne_bytes());
        self.0.extend(libc::NUD_PERMANENT.to_ne_bytes());
        self.0.extend([0, 0]);
        self.attribute(NDA_DST, &octets(addr)).attribute(NDA_LLADDR, &mac)
    }

    /// Adds a struct ndmsg: a neighbour to which something is about to be sent.
    fn used_neighbour(mut self, index: i32, addr: IpAddr) -> Self {
        self.0.extend([family(addr), 0, 0, 0]);
        self.0.extend(index.to_ne_bytes());
        self.0.extend([0, 0, libc::NTF_USE, 0]);
        self.attribute(NDA_DST, &octets(addr))
    }

    /// Adds a struct ndmsg: the question is about a neighbour.
    pub(crate) fn about_neighbour(mut self, index: i32, addr: IpAddr) -> Self {
        self.0.extend([family(addr), 0, 0, 0]);
        self.0.extend(index.to_ne_bytes());
        self.0.extend([0; 4]);
        self.attribute(NDA_DST, &octets(addr))
    }

    /// Adds a struct rtmsg: the question is by which route a packet from one address to another leaves, and with `whole`
    /// which hops the route has.
    pub(crate) fn about_route(mut self, from: Option<IpAddr>, to: IpAddr, whole: bool) -> Self {
        let bits = |addr: IpAddr| if addr.is_ipv4() { 32 } else { 128 };
        self.0.extend([family(to), bits(to), from.map_or(0, bits), 0, 0, 0, 0, 0]);
        self.0.extend(if whole { RTM_F_FIB_MATCH } else { 0 }.to_ne_bytes());
        let asked = self.attribute(RTA_DST, &octets(to));
        from.into_iter().fold(asked, |asked, from| asked.attribute(RTA_SRC, &octets(from)))
    }

    pub(crate) fn alias(self, alias: &str) -> Self {
        self.attribute(IFLA_IFALIAS, alias.as_bytes())
    }

    /// Puts the link into a group.
    pub(crate) fn group(self, group: u32) -> Self {
        self.attribute(IFLA_GROUP, &group.to_ne_bytes())
    }

    /// Adds a struct ifinfomsg: the question is about a link.
    pub(crate) fn link(mut self, index: i32) -> Self {
        self.0.extend([0; 4]);
        self.0.extend(index.to_ne_bytes());
        self.0.extend([0; INFO - 8]);
        self
    }

    /// Adds a struct rtgenmsg without an address family.
    fn generic(mut self) -> Self {
        self.0.extend([0; GENERIC]);
        self
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

fn family(addr: IpAddr) -> u8 {
    (if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Returns the bytes of an address, in their order on the wire.
pub(crate) fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// Sends a question and returns the first message of the kernel's answer.
pub(crate) fn ask(message: &Message) -> io::Result<Vec<u8>> {
    let netlink = socket(0)?;
    let mut bytes = message.0.clone();
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    send(&netlink, &bytes, SendFlags::empty())?;
    // The kernel has answered when `send` returns.
    let mut answer = vec![0u8; ANSWER];
    let (len, _) = recv(&netlink, answer.as_mut_slice(), RecvFlags::empty())?;
    answer.truncate(len);
    if let [_, _, _, _, k0, k1, ..] = answer[..]
        && i32::from(u16::from_ne_bytes([k0, k1])) == libc::NLMSG_ERROR
    {
        let code = answer.get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok());
        match code.map_or(libc::EPROTO, |code| -i32::from_ne_bytes(code)) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
    Ok(answer)
}

pub(crate) fn number(attributes: &[u8], kind: u16) -> Option<i32> {
    Some(i32::from_ne_bytes(attribute(attributes, kind)?.try_into().ok()?))
}

pub(crate) fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let [l0, l1, k0, k1, rest @ ..] = attributes {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1])).checked_sub(4)?;
        if u16::from_ne_bytes([*k0, *k1]) == kind {
            return rest.get(..len);
        }
        attributes = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn attributes_are_found_behind_padding() {
        let bytes = [5, 0, 3, 0, b'x', 0, 0, 0, 8, 0, 5, 0, 7, 0, 0, 0];
        assert_eq!(number(&bytes, IFLA_LINK), Some(7));
        assert_eq!(number(&bytes, IFLA_LINK_NETNSID), None);
        assert_eq!(number(&bytes[..14], IFLA_LINK), None);
        assert_eq!(number(&[0; 16], IFLA_LINK), None);
    }

    #[test]
    fn a_namespace_has_a_number_by_which_its_devices_are_found() {
        // As root: only a process that may configure a namespace can give it a number.
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        for _ in 0..2 {
            let found = link_in(here.as_fd(), "lo").unwrap();
            assert_eq!(found.link, Device::new("lo").unwrap().link().unwrap());
        }
        let missing = link_in(here.as_fd(), "no-such-device").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn loopback_is_linked_to_nothing() {
        assert!(linked(&Device::new("lo").unwrap()).unwrap().is_none());
    }
}
