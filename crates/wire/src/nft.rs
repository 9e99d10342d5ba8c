//! Tables of nf_tables for interfaces of the host: what may pass through the host by them, and behind which address.
//!
//! Written by hand: nft(8) can't be run by the helper, and a library would bring far more than these messages.

use crate::netlink::{Subnet, octets};
use crate::tap::host::{HostForward, HostSide};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, send, socket_with,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

// Message types (linux/netfilter/nfnetlink.h, nf_tables.h).
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;

/// The family of tables for IPv4 and IPv6 (linux/netfilter.h).
const INET: u8 = 1;
/// The table ends with the socket that created it (since Linux 5.12).
const OWNER: u32 = 2;

// Hooks (linux/netfilter.h) and priorities (linux/netfilter_ipv4.h).
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const POSTROUTING: u32 = 4;
const PREROUTING: u32 = 0;
const FILTER: u32 = 0;
const SOURCE_NAT: u32 = 100;
/// Behind all that changes addresses.
const LAST: u32 = 300;
/// -300: before connections are known.
const RAW: u32 = 300_u32.wrapping_neg();
/// -100: destination NAT.
const DESTINATION_NAT: u32 = 100_u32.wrapping_neg();

// Registers, keys and operators of expressions (linux/netfilter/nf_tables.h).
const VERDICT: u32 = 0;
const REGISTER: u32 = 1;
/// The second of four registers of 16 bytes.
const SECOND: u32 = 2;
const IN_NAME: u32 = 6;
const OUT_NAME: u32 = 7;
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
const IN_GROUP: u32 = 21;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const TO_DESTINATION: u32 = 1;
/// Families of addresses (linux/netfilter.h).
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Bit of connections whose destination was translated (linux/netfilter/nf_conntrack_common.h).
const TRANSLATED: u32 = 1 << 5;
/// Bits of the states established and related (linux/netfilter/nf_conntrack_common.h), in the host's byte order.
const KNOWN: u32 = 0b110;
/// Bits of these, and of the state new. Other packets are of no connection, and no address of theirs is translated.
const TRACKED: u32 = 0b1110;
/// The group of the host's interfaces that are Viaduct's (`ip link show group`).
pub(crate) const GROUP: u32 = 0x5669;
/// Bytes of an interface's name in a register.
const NAME: usize = 16;

/// Makes the rules for a device that is an interface of the host. With `masquerade`, packets that come from it leave
/// the host behind the address of the device by which they leave; connections may be opened from it only, from
/// addresses behind it, and not to the host itself, except to ports that are forwarded. Without, the host passes nothing
/// on that comes from it, nor anything to it from other such devices. Returns the socket that owns the rules.
///
/// # Errors
/// If the kernel has no nf_tables, or permission is missing (CAP_NET_ADMIN).
pub(crate) fn protect(device: &str, host: &HostSide) -> io::Result<OwnedFd> {
    let chains = if host.masquerade { way_out(device, host) } else { member(device) };
    create(device, &chains)
        .map_err(|e| no_tables("for an interface of the host", &e, "nf_tables and nft_masq"))
}

/// Makes rules that drop GRE, and UDP to these ports, to these addresses of the host, before the kernel tracks connections:
/// each source port of a tunnel would be one. They drop what leaves the host from these addresses as well, after
/// addresses are translated: peers take it for Viaduct's, whose own packets pass no rules. Returns the socket that owns
/// them.
///
/// # Errors
/// As for [`protect`].
pub(crate) fn drop_tunnels(addresses: &[IpAddr], ports: &[u16]) -> io::Result<OwnedFd> {
    let of = |selected: Vec<u8>| {
        let gre = drop_protocol(&selected, packet::proto::GRE, None);
        let udp = ports.iter().map(|port| drop_protocol(&selected, packet::proto::UDP, Some(*port)));
        std::iter::once(gre).chain(udp).collect::<Vec<_>>()
    };
    let come = addresses.iter().flat_map(|addr| of(to_address(*addr))).collect();
    let leave = addresses.iter().flat_map(|addr| of(from_address(*addr))).collect();
    let chains =
        [("tunnels", "filter", PREROUTING, RAW, come), ("forgeries", "filter", POSTROUTING, LAST, leave)];
    create("tunnels", &chains).map_err(|e| no_tables("against tunnel packets", &e, "nf_tables"))
}

fn no_tables(rules: &str, e: &io::Error, modules: &str) -> io::Error {
    io::Error::other(format!("the kernel takes no rules {rules} ({e}): load {modules}"))
}

/// Makes a table of these chains. Returns the socket that owns it.
fn create(what: &str, chains: &[Chain]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let own = SocketAddrNetlink::try_from(getsockname(&socket)?)?.pid();
    send(&socket, &batch(what, own, chains), SendFlags::empty())?;
    // The kernel has worked when `send` returns, and answers only what it refuses.
    let mut answer = [0u8; 512];
    loop {
        match recv(&socket, answer.as_mut_slice(), RecvFlags::empty()) {
            Err(Errno::WOULDBLOCK) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok((len, _)) => {
                if let Some(errno) = refusal(&answer[..len.min(answer.len())]) {
                    return Err(io::Error::from_raw_os_error(errno));
                }
            }
        }
    }
}

/// Returns the error in an answer, if it tells of one.
fn refusal(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (i32::from(kind) == libc::NLMSG_ERROR && code != 0).then_some(-code)
}

/// Returns the messages that make the table of something. The number of the socket, which nobody else has at the time,
/// makes its name unique.
fn batch(what: &str, own: u32, chains: &[Chain]) -> Vec<u8> {
    let table = format!("viaduct-{what}-{own}");
    let mut bytes = message(BATCH_BEGIN, 0, SUBSYSTEM, &[]);
    bytes.extend(message(NEW_TABLE, INET, 0, &[text(1, &table), number(2, OWNER)].concat()));
    for (chain, kind, hook, priority, rules) in chains {
        let hook = nested(4, &[number(1, *hook), number(2, *priority)].concat());
        let attributes = [text(1, &table), text(3, chain), hook, text(7, kind)].concat();
        bytes.extend(message(NEW_CHAIN, INET, 0, &attributes));
        for expressions in rules {
            let attributes = [text(1, &table), text(2, chain), nested(4, expressions)].concat();
            bytes.extend(message(NEW_RULE, INET, 0, &attributes));
        }
    }
    bytes.extend(message(BATCH_END, 0, SUBSYSTEM, &[]));
    bytes
}

/// A chain: its name, kind, hook, priority and rules.
type Chain = (&'static str, &'static str, u32, u32, Vec<Vec<u8>>);

fn way_out(device: &str, host: &HostSide) -> Vec<Chain> {
    let (came, leaves) = (name(IN_NAME, device), name(OUT_NAME, device));
    let out = [&came[..], &expression("masq", &[])].concat();
    let mut sources: Vec<_> = host.routes.iter().map(|route| accept_from(&came, route.to)).collect();
    sources.push([&came[..], &verdict(DROP)].concat());
    let passes = vec![drop_unless(&came, TRACKED), accept_translated(&leaves), drop_unless(&leaves, KNOWN)];
    vec![
        ("sources", "filter", PREROUTING, RAW, sources),
        ("prerouting", "nat", PREROUTING, DESTINATION_NAT, host.forwards.iter().map(forward).collect()),
        ("postrouting", "nat", POSTROUTING, SOURCE_NAT, vec![out]),
        ("forward", "filter", FORWARD, FILTER, passes),
        ("input", "filter", INPUT, FILTER, vec![drop_unless(&came, KNOWN)]),
    ]
}

fn member(device: &str) -> Vec<Chain> {
    let (came, leaves) = (name(IN_NAME, device), name(OUT_NAME, device));
    let ours = [meta(IN_GROUP), equals(&GROUP.to_ne_bytes()), leaves].concat();
    let passes = vec![drop_unless(&came, KNOWN), drop_unless(&ours, KNOWN)];
    vec![("forward", "filter", FORWARD, FILTER, passes)]
}

/// Returns the expressions that end a rule for packets by other devices.
fn name(key: u32, device: &str) -> Vec<u8> {
    let mut padded = [0; NAME];
    padded.iter_mut().zip(device.bytes()).for_each(|(to, from)| *to = from);
    [meta(key), equals(&padded)].concat()
}

/// Returns a rule that drops packets whose connection has none of these states among those that are selected.
fn drop_unless(selected: &[u8], states: u32) -> Vec<u8> {
    let other = [connection(CT_STATE, states), compared(EQUAL, &[0; 4]), verdict(DROP)];
    [selected, &other.concat()].concat()
}

/// Returns a rule that accepts packets from the addresses of a subnet among those that are selected.
fn accept_from(selected: &[u8], subnet: Subnet) -> Vec<u8> {
    let (family, offset) = if subnet.addr.is_ipv4() { (IPV4, 12) } else { (IPV6, 8) };
    let addr = octets(subnet.addr);
    let len = addr.len() as u32;
    let bits = |index: usize| u32::from(subnet.len).saturating_sub(8 * index as u32).min(8);
    let mask: Vec<u8> = (0..addr.len()).map(|index| (0xff00_u32 >> bits(index)) as u8).collect();
    let network: Vec<u8> = addr.iter().zip(&mask).map(|(byte, mask)| byte & mask).collect();
    [
        selected,
        &meta(FAMILY),
        &equals(&[family]),
        &payload(NETWORK_HEADER, offset, len),
        &masked(&mask),
        &equals(&network),
        &verdict(ACCEPT),
    ]
    .concat()
}

/// Returns a rule that accepts packets of connections whose destination was translated among those that a name selects.
fn accept_translated(selected: &[u8]) -> Vec<u8> {
    let translated = [connection(CT_STATUS, TRANSLATED), compared(NOT_EQUAL, &[0; 4]), verdict(ACCEPT)];
    [selected, &translated.concat()].concat()
}

/// Returns a rule that drops packets of a protocol among those that are selected, and with `port` only those to it.
fn drop_protocol(selected: &[u8], protocol: u8, port: Option<u16>) -> Vec<u8> {
    let to = port.map(|port| [payload(TRANSPORT_HEADER, 2, 2), equals(&port.to_be_bytes())].concat());
    [selected, &meta(PROTOCOL), &equals(&[protocol]), &to.unwrap_or_default(), &verdict(DROP)].concat()
}

/// Returns the expressions that select packets to an address.
fn to_address(addr: IpAddr) -> Vec<u8> {
    address_at(addr, 16, 24)
}

/// Returns the expressions that select packets from an address.
fn from_address(addr: IpAddr) -> Vec<u8> {
    address_at(addr, 12, 8)
}

/// Returns the expressions that select packets with an address at these places of the headers of IPv4 and IPv6.
fn address_at(addr: IpAddr, v4: u32, v6: u32) -> Vec<u8> {
    let (family, offset) = if addr.is_ipv4() { (IPV4, v4) } else { (IPV6, v6) };
    let addr = octets(addr);
    let loaded = payload(NETWORK_HEADER, offset, addr.len() as u32);
    [meta(FAMILY), equals(&[family]), loaded, equals(&addr)].concat()
}

/// Returns a rule that leads a port of the host elsewhere.
fn forward(forward: &HostForward) -> Vec<u8> {
    let family = if forward.outside.is_ipv4() { IPV4 } else { IPV6 };
    let to = [
        number(1, TO_DESTINATION),
        number(2, family.into()),
        number(3, REGISTER),
        number(4, REGISTER),
        number(5, SECOND),
        number(6, SECOND),
    ];
    [
        to_address(forward.outside.ip()),
        meta(PROTOCOL),
        equals(&[forward.protocol]),
        payload(TRANSPORT_HEADER, 2, 2),
        equals(&forward.outside.port().to_be_bytes()),
        constant(REGISTER, &octets(forward.to.ip())),
        constant(SECOND, &forward.to.port().to_be_bytes()),
        expression("nat", &to.concat()),
    ]
    .concat()
}

/// Returns the expressions that load a property of the connection, and keep these bits of it.
fn connection(key: u32, bits: u32) -> Vec<u8> {
    let loaded = [number(1, REGISTER), number(2, key)].concat();
    [expression("ct", &loaded), masked(&bits.to_ne_bytes())].concat()
}

/// Returns the expression that keeps these bits of what is loaded.
fn masked(bits: &[u8]) -> Vec<u8> {
    let masked = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, bits.len() as u32),
        value(4, bits),
        value(5, &vec![0; bits.len()]),
    ];
    expression("bitwise", &masked.concat())
}

fn verdict(code: u32) -> Vec<u8> {
    let verdict = nested(2, &nested(2, &number(1, code)));
    expression("immediate", &[number(1, VERDICT), verdict].concat())
}

fn constant(register: u32, bytes: &[u8]) -> Vec<u8> {
    expression("immediate", &[number(1, register), value(2, bytes)].concat())
}

fn meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(1, REGISTER), number(2, key)].concat())
}

fn payload(header: u32, offset: u32, len: u32) -> Vec<u8> {
    expression(
        "payload",
        &[number(1, REGISTER), number(2, header), number(3, offset), number(4, len)].concat(),
    )
}

fn equals(wanted: &[u8]) -> Vec<u8> {
    compared(EQUAL, wanted)
}

fn compared(operator: u32, to: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, REGISTER), number(2, operator), value(3, to)].concat())
}

fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)].concat())
}

fn value(kind: u16, bytes: &[u8]) -> Vec<u8> {
    nested(kind, &attribute(1, bytes))
}

fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | libc::NLA_F_NESTED as u16, attributes)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns a message: struct nlmsghdr, struct nfgenmsg with this family and resource, and attributes.
fn message(kind: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let flags = libc::NLM_F_REQUEST
        | match kind {
            NEW_TABLE | NEW_CHAIN => libc::NLM_F_CREATE | libc::NLM_F_EXCL,
            NEW_RULE => libc::NLM_F_CREATE | libc::NLM_F_APPEND,
            _ => 0,
        };
    let len = 20 + attributes.len() as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}
