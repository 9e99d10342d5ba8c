//! The kernel's routes and neighbours: by which hops it sends packets to another host, and when that changes.

use crate::device::Device;
use crate::netlink::{self, HEADER, Message, NDA_DST, NDA_LLADDR, RTA_DST, RTA_GATEWAY, RTA_OIF, Subnet};
use crate::netlink::{attribute, number};
use crate::sys;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

// Attributes and flags of routes (linux/rtnetlink.h).
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTM_F_CLONED: u32 = 0x200;
const DEAD: u8 = 1;
const LINK_DOWN: u8 = 16;
/// The group of nexthop objects (linux/rtnetlink.h), which has no bit.
const NEXTHOPS: libc::c_int = 32;
/// Groups of links, neighbours, addresses, routes and rules.
const GROUPS: libc::c_int = libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE
    | 1 << 18;

// Bytes of struct rtmsg, struct ndmsg and struct rtnexthop.
const ROUTE: usize = 12;
const NEIGHBOUR: usize = 12;
const NEXT_HOP: usize = 8;

/// Most events that are read at once.
pub const MOST_EVENTS: usize = 256;
/// Most hops of a route that count.
const MOST_HOPS: usize = 64;

/// Something that may change by which hops packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A route to this prefix.
    Route(Subnet),
    /// A neighbour on the device with this index.
    Neighbour(i32, IpAddr),
    /// Anything else: a link, an address, a rule, or more than the kernel could tell.
    Other,
}

/// The way on which the kernel sends packets to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// There is none.
    None,
    /// The address is the kernel's own.
    Own,
    Hops(Vec<Hop>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index of the device.
    pub device: i32,
    /// The router; `None`: the address is reached without one.
    pub router: Option<IpAddr>,
    /// The share of packets, relative to that of other hops.
    pub weight: u16,
    /// Whether the device has no link, or the hop is not used for another reason.
    pub is_dead: bool,
    /// The route's MTU, bytes, if it has one of its own.
    pub mtu: Option<u16>,
}

/// Asks the kernel about this thread's network namespace. Needs no privileges.
#[derive(Debug)]
pub struct Routes {
    events: OwnedFd,
}

impl Routes {
    /// Opens the socket on which the kernel tells of changes.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn open() -> io::Result<Self> {
        let events = netlink::socket(GROUPS)?;
        // A kernel before 5.3 has no such objects.
        let _ = sys::set(events.as_fd(), libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &NEXTHOPS);
        Ok(Self { events })
    }

    /// Returns a descriptor that polls readable when something changed.
    #[must_use]
    pub fn changes(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Reads what changed, some [`MOST_EVENTS`] at most.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        let (mut events, mut bytes) = (Vec::new(), vec![0; 32 << 10]);
        while events.len() < MOST_EVENTS {
            match recv(&self.events, bytes.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((len, whole)) if whole > len => events.push(Event::Other),
                Ok((len, _)) => read_events(&bytes[..len], &mut events),
                Err(Errno::INTR) => {}
                // There were more than the socket could hold.
                Err(Errno::NOBUFS) => events.push(Event::Other),
                Err(_) => break,
            }
        }
        events
    }

    /// Returns the hops by which packets from an address of this host leave to another one.
    ///
    /// # Errors
    /// If the kernel's answer can't be read, or it has not got the first address.
    pub fn way(&self, from: IpAddr, to: IpAddr) -> io::Result<Way> {
        if self.has(to)? {
            return Ok(Way::Own);
        }
        match netlink::ask(&Message::new(libc::RTM_GETROUTE).about_route(Some(from), to, true)) {
            Ok(answer) => read_way(&answer).ok_or_else(|| sys::invalid("the kernel's answer is not whole")),
            Err(e) if is_no_route(&e) => Ok(Way::None),
            Err(e) => Err(e),
        }
    }

    /// Returns whether an address is the kernel's own.
    ///
    /// # Errors
    /// If the kernel can't be asked.
    pub fn has(&self, addr: IpAddr) -> io::Result<bool> {
        match netlink::ask(&Message::new(libc::RTM_GETROUTE).about_route(None, addr, false)) {
            Ok(answer) => Ok(answer.get(HEADER + 7) == Some(&libc::RTN_LOCAL)),
            Err(e) if is_no_route(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the link-layer address of a neighbour, if the kernel knows it.
    ///
    /// # Errors
    /// If the kernel can't be asked.
    pub fn neighbour(&self, device: i32, addr: IpAddr) -> io::Result<Option<[u8; 6]>> {
        match netlink::ask(&Message::new(libc::RTM_GETNEIGH).about_neighbour(device, addr)) {
            Ok(answer) => Ok(read_neighbour(&answer)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns the index of a device.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(&self, name: &str) -> io::Result<i32> {
        Ok(Device::new(name)?.link()?.index)
    }
}

/// Returns whether an error says that there is no route, or one that refuses packets.
fn is_no_route(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::ESRCH | libc::ENODEV)
    )
}

/// Reads the events in a message of the kernel's.
fn read_events(mut bytes: &[u8], events: &mut Vec<Event>) {
    while let Some(header) = bytes.first_chunk::<HEADER>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(message) = bytes.get(..len).filter(|_| len >= HEADER) else { break };
        events.extend(read_event(kind, message));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn read_event(kind: u16, message: &[u8]) -> Option<Event> {
    match kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => match read_prefix(message) {
            Some((_, true)) => None,
            Some((prefix, false)) => Some(Event::Route(prefix)),
            None => Some(Event::Other),
        },
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
            let device = word(message, HEADER + 4)?;
            let attributes = message.get(HEADER + NEIGHBOUR..)?;
            Some(Event::Neighbour(device, address(attribute(attributes, NDA_DST)?)?))
        }
        _ => Some(Event::Other),
    }
}

/// Returns the prefix of a route, and whether it is a copy of another route.
fn read_prefix(message: &[u8]) -> Option<(Subnet, bool)> {
    let [family, len] = *message.get(HEADER..)?.first_chunk()?;
    let flags = word(message, HEADER + 8)? as u32;
    let nowhere: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let addr = attribute(message.get(HEADER + ROUTE..)?, RTA_DST).map_or(Some(nowhere), address)?;
    Some((Subnet { addr, len }, flags & RTM_F_CLONED != 0))
}

/// Reads the hops of a route.
fn read_way(answer: &[u8]) -> Option<Way> {
    match *answer.get(HEADER + 7)? {
        libc::RTN_UNICAST => {}
        libc::RTN_LOCAL => return Some(Way::Own),
        _ => return Some(Way::None),
    }
    let flags = *answer.get(HEADER + 8)?;
    let attributes = answer.get(HEADER + ROUTE..)?;
    let mtu = attribute(attributes, RTA_METRICS).and_then(|metrics| number(metrics, RTAX_MTU));
    let mtu = mtu.and_then(|mtu| u16::try_from(mtu).ok()).filter(|mtu| *mtu > 0);
    if let Some(several) = attribute(attributes, RTA_MULTIPATH) {
        return read_hops(several, mtu).map(Way::Hops);
    }
    let device = number(attributes, RTA_OIF)?;
    let is_dead = flags & (DEAD | LINK_DOWN) != 0;
    Some(Way::Hops(vec![Hop { device, router: router(attributes), weight: 1, is_dead, mtu }]))
}

fn read_hops(mut bytes: &[u8], mtu: Option<u16>) -> Option<Vec<Hop>> {
    let mut hops = Vec::new();
    while let Some([l0, l1, flags, weight]) = bytes.first_chunk()
        && hops.len() < MOST_HOPS
    {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let hop = bytes.get(..len).filter(|_| len >= NEXT_HOP)?;
        hops.push(Hop {
            device: word(hop, 4)?,
            router: router(&hop[NEXT_HOP..]),
            weight: u16::from(*weight) + 1,
            is_dead: flags & (DEAD | LINK_DOWN) != 0,
            mtu,
        });
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(hops)
}

/// Returns the router among the attributes of a hop. It may be of another family than the route.
fn router(attributes: &[u8]) -> Option<IpAddr> {
    let other = || address(attribute(attributes, RTA_VIA)?.get(2..)?);
    attribute(attributes, RTA_GATEWAY).and_then(address).or_else(other)
}

fn read_neighbour(answer: &[u8]) -> Option<[u8; 6]> {
    let state = u16::from_ne_bytes(*answer.get(HEADER + 8..)?.first_chunk()?);
    let known = libc::NUD_PERMANENT
        | libc::NUD_NOARP
        | libc::NUD_REACHABLE
        | libc::NUD_PROBE
        | libc::NUD_STALE
        | libc::NUD_DELAY;
    let mac = attribute(answer.get(HEADER + NEIGHBOUR..)?, NDA_LLADDR)?;
    mac.try_into().ok().filter(|_| state & known != 0)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER as u32 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    fn route(kind: u8, flags: u32, attributes: &[u8]) -> Vec<u8> {
        let head = [&[2, 24, 0, 0, 254, 3, 0, kind][..], &flags.to_ne_bytes()].concat();
        message(libc::RTM_NEWROUTE, &[&head, attributes].concat())
    }

    fn next_hop(flags: u8, weight: u8, device: i32, attributes: &[u8]) -> Vec<u8> {
        let len = (NEXT_HOP + attributes.len()) as u16;
        [&len.to_ne_bytes()[..], &[flags, weight], &device.to_ne_bytes(), attributes].concat()
    }

    #[test]
    fn hops_of_a_route() {
        let one = route(
            libc::RTN_UNICAST,
            0,
            &[with(RTA_OIF, &[7, 0, 0, 0]), with(RTA_GATEWAY, &[192, 0, 2, 254])].concat(),
        );
        let router = Some("192.0.2.254".parse().unwrap());
        let hop = Hop { device: 7, router, weight: 1, is_dead: false, mtu: None };
        assert_eq!(read_way(&one), Some(Way::Hops(vec![hop])));
        let metrics = with(RTA_METRICS, &with(RTAX_MTU, &1400_u32.to_ne_bytes()));
        let with_mtu =
            route(libc::RTN_UNICAST, 0, &[metrics.clone(), one[HEADER + ROUTE..].to_vec()].concat());
        assert_eq!(read_way(&with_mtu), Some(Way::Hops(vec![Hop { mtu: Some(1400), ..hop }])));
        let mut other = libc::AF_INET6.to_ne_bytes()[..2].to_vec();
        other.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        let several = [
            next_hop(0, 2, 7, &with(RTA_GATEWAY, &[192, 0, 2, 254])),
            next_hop(LINK_DOWN, 0, 8, &with(RTA_VIA, &other)),
            next_hop(0, 255, 9, &[]),
        ];
        let several = with(RTA_MULTIPATH, &several.concat());
        let several = route(libc::RTN_UNICAST, 0, &[metrics, several].concat());
        let via = Some("fe80::1".parse().unwrap());
        let hops = vec![
            Hop { weight: 3, mtu: Some(1400), ..hop },
            Hop { device: 8, router: via, weight: 1, is_dead: true, mtu: Some(1400) },
            Hop { device: 9, router: None, weight: 256, is_dead: false, mtu: Some(1400) },
        ];
        assert_eq!(read_way(&several), Some(Way::Hops(hops)));
        assert_eq!(read_way(&route(libc::RTN_LOCAL, 0, &[])), Some(Way::Own));
        for refuses in [libc::RTN_BLACKHOLE, libc::RTN_UNREACHABLE, libc::RTN_PROHIBIT, libc::RTN_BROADCAST] {
            assert_eq!(read_way(&route(refuses, 0, &[])), Some(Way::None));
        }
    }

    #[test]
    fn events_name_what_changed() {
        let neighbour =
            [&[2, 0, 0, 0][..], &7_i32.to_ne_bytes(), &[2, 0, 0, 1], &with(NDA_DST, &[192, 0, 2, 2])];
        let bytes = [
            route(libc::RTN_UNICAST, 0, &with(RTA_DST, &[198, 51, 100, 0])),
            route(libc::RTN_UNICAST, RTM_F_CLONED, &with(RTA_DST, &[198, 51, 100, 7])),
            message(libc::RTM_NEWNEIGH, &neighbour.concat()),
            message(libc::RTM_NEWLINK, &[0; 16]),
        ];
        let mut events = Vec::new();
        read_events(&bytes.concat(), &mut events);
        let prefix = Subnet { addr: "198.51.100.0".parse().unwrap(), len: 24 };
        let addr = "192.0.2.2".parse().unwrap();
        assert_eq!(events, [Event::Route(prefix), Event::Neighbour(7, addr), Event::Other]);
    }

    #[test]
    fn a_neighbour_that_failed_has_no_address() {
        let answer = |state: u16| {
            let head = [&[2, 0, 0, 0, 7, 0, 0, 0][..], &state.to_ne_bytes(), &[0, 0]].concat();
            let lladdr = with(NDA_LLADDR, &[2, 0, 0, 0, 0, 1]);
            read_neighbour(&message(libc::RTM_NEWNEIGH, &[head, lladdr].concat()))
        };
        assert_eq!(answer(libc::NUD_STALE), Some([2, 0, 0, 0, 0, 1]));
        assert_eq!([answer(libc::NUD_FAILED), answer(libc::NUD_INCOMPLETE), answer(0)], [None; 3]);
    }

    /// `cargo bolero test -p wire routes::tests::any_rtnetlink_message_is_read_or_left`: no message makes the parser panic or go on without end.
    #[test]
    fn any_rtnetlink_message_is_read_or_left() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut events = Vec::new();
            read_events(bytes, &mut events);
            assert!(events.len() <= bytes.len() / HEADER);
            let _ = (read_way(bytes), read_neighbour(bytes));
            for kind in [libc::RTM_NEWROUTE, libc::RTM_NEWNEIGH, libc::RTM_NEWLINK] {
                let _ = read_event(kind, bytes);
            }
            if let Some(hops) = read_hops(bytes, None) {
                assert!(hops.len() <= MOST_HOPS);
            }
        });
    }

    #[test]
    fn the_kernel_is_asked() {
        let routes = Routes::open().unwrap();
        let own = "127.0.0.1".parse().unwrap();
        assert!(routes.has(own).unwrap() && !routes.has("192.0.2.77".parse().unwrap()).unwrap());
        assert_eq!(routes.way(own, own).unwrap(), Way::Own);
        assert_eq!(routes.device("lo").unwrap(), 1);
        assert_eq!(routes.neighbour(1, "192.0.2.77".parse().unwrap()).unwrap(), None);
    }
}
