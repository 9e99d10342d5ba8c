//! A table of nf_tables that lets packets from a device out behind the host's own address.
//!
//! Written by hand: nft(8) can't be run by the helper, and a library would bring far more than these messages.

use crate::netlink::octets;
use crate::tap::host::HostForward;
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, send, socket_with,
};
use std::io;
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
/// Bytes of an interface's name in a register.
const NAME: usize = 16;

/// Makes packets that come from a device leave the host behind the address of the device by which they leave.
/// Connections may be opened from the device only, and not to the host itself, except to ports that are forwarded.
/// Returns the socket that owns the rules.
///
/// # Errors
/// If the kernel has no nf_tables, or permission is missing (CAP_NET_ADMIN).
pub(crate) fn masquerade(device: &str, forwards: &[HostForward]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let no_tables = |e: io::Error| {
        io::Error::other(format!(
            "the kernel takes no rules for the way out ({e}): load nf_tables and nft_masq"
        ))
    };
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER));
    let socket = socket.map_err(|e| no_tables(e.into()))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let own = SocketAddrNetlink::try_from(getsockname(&socket)?)?.pid();
    send(&socket, &batch(device, own, forwards), SendFlags::empty())?;
    // The kernel has worked when `send` returns, and answers only what it refuses.
    let mut answer = [0u8; 512];
    loop {
        match recv(&socket, answer.as_mut_slice(), RecvFlags::empty()) {
            Err(Errno::WOULDBLOCK) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok((len, _)) => {
                if let Some(errno) = refusal(&answer[..len.min(answer.len())]) {
                    return Err(no_tables(io::Error::from_raw_os_error(errno)));
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

/// Returns the messages that make the table of a device. The number of the socket, which nobody else has at the time,
/// makes its name unique.
fn batch(device: &str, own: u32, forwards: &[HostForward]) -> Vec<u8> {
    let table = format!("viaduct-{device}-{own}");
    let mut bytes = message(BATCH_BEGIN, 0, SUBSYSTEM, &[]);
    bytes.extend(message(NEW_TABLE, INET, 0, &[text(1, &table), number(2, OWNER)].concat()));
    let (came, leaves) = (name(IN_NAME, device), name(OUT_NAME, device));
    let out = [&came[..], &expression("masq", &[])].concat();
    let to_guests = vec![accept_translated(&leaves), drop_unknown(&leaves)];
    let chains = [
        ("prerouting", "nat", PREROUTING, DESTINATION_NAT, forwards.iter().map(forward).collect()),
        ("postrouting", "nat", POSTROUTING, SOURCE_NAT, vec![out]),
        ("forward", "filter", FORWARD, FILTER, to_guests),
        ("input", "filter", INPUT, FILTER, vec![drop_unknown(&came)]),
    ];
    for (chain, kind, hook, priority, rules) in chains {
        let hook = nested(4, &[number(1, hook), number(2, priority)].concat());
        let attributes = [text(1, &table), text(3, chain), hook, text(7, kind)].concat();
        bytes.extend(message(NEW_CHAIN, INET, 0, &attributes));
        for expressions in rules {
            let attributes = [text(1, &table), text(2, chain), nested(4, &expressions)].concat();
            bytes.extend(message(NEW_RULE, INET, 0, &attributes));
        }
    }
    bytes.extend(message(BATCH_END, 0, SUBSYSTEM, &[]));
    bytes
}

/// Returns the expressions that end a rule for packets by other devices.
fn name(key: u32, device: &str) -> Vec<u8> {
    let mut padded = [0; NAME];
    padded.iter_mut().zip(device.bytes()).for_each(|(to, from)| *to = from);
    [meta(key), equals(&padded)].concat()
}

/// Returns a rule that drops packets of no known connection among those that a name selects.
fn drop_unknown(selected: &[u8]) -> Vec<u8> {
    let unknown = [connection(CT_STATE, KNOWN), compared(EQUAL, &[0; 4]), verdict(DROP)];
    [selected, &unknown.concat()].concat()
}

/// Returns a rule that accepts packets of connections whose destination was translated among those that a name selects.
fn accept_translated(selected: &[u8]) -> Vec<u8> {
    let translated = [connection(CT_STATUS, TRANSLATED), compared(NOT_EQUAL, &[0; 4]), verdict(ACCEPT)];
    [selected, &translated.concat()].concat()
}

/// Returns a rule that leads a port of the host elsewhere.
fn forward(forward: &HostForward) -> Vec<u8> {
    let (family, offset) = if forward.outside.is_ipv4() { (IPV4, 16) } else { (IPV6, 24) };
    let addr = octets(forward.outside.ip());
    let to = [
        number(1, TO_DESTINATION),
        number(2, family.into()),
        number(3, REGISTER),
        number(4, REGISTER),
        number(5, SECOND),
        number(6, SECOND),
    ];
    [
        meta(FAMILY),
        equals(&[family]),
        payload(NETWORK_HEADER, offset, addr.len() as u32),
        equals(&addr),
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
    let masked = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, 4),
        value(4, &bits.to_ne_bytes()),
        value(5, &[0; 4]),
    ];
    [expression("ct", &loaded), expression("bitwise", &masked.concat())].concat()
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
