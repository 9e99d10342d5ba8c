//! A table of nf_tables that lets packets from a device out behind the host's own address.
//!
//! Written by hand: nft(8) can't be run by the helper, and a library would bring far more than these messages.

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
const FILTER: u32 = 0;
const SOURCE_NAT: u32 = 100;

// Registers, keys and operators of expressions (linux/netfilter/nf_tables.h).
const VERDICT: u32 = 0;
const REGISTER: u32 = 1;
const IN_NAME: u32 = 6;
const OUT_NAME: u32 = 7;
const CT_STATE: u32 = 0;
const EQUAL: u32 = 0;
const DROP: u32 = 0;
/// Bits of the states established and related (linux/netfilter/nf_conntrack_common.h), in the host's byte order.
const KNOWN: u32 = 0b110;
/// Bytes of an interface's name in a register.
const NAME: usize = 16;

/// Makes packets that come from a device leave the host behind the address of the device by which they leave.
/// Connections may be opened from the device only, and not to the host itself. Returns the socket that owns the
/// rules.
///
/// # Errors
/// If the kernel has no nf_tables, or permission is missing (CAP_NET_ADMIN).
pub(crate) fn masquerade(device: &str) -> io::Result<OwnedFd> {
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
    send(&socket, &batch(device, own), SendFlags::empty())?;
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
fn batch(device: &str, own: u32) -> Vec<u8> {
    let table = format!("viaduct-{device}-{own}");
    let mut bytes = message(BATCH_BEGIN, 0, SUBSYSTEM, &[]);
    bytes.extend(message(NEW_TABLE, INET, 0, &[text(1, &table), number(2, OWNER)].concat()));
    let chains = [
        (
            "postrouting",
            "nat",
            POSTROUTING,
            SOURCE_NAT,
            [name(IN_NAME, device), expression("masq", &[])].concat(),
        ),
        ("forward", "filter", FORWARD, FILTER, [name(OUT_NAME, device), drop_unknown()].concat()),
        ("input", "filter", INPUT, FILTER, [name(IN_NAME, device), drop_unknown()].concat()),
    ];
    for (chain, kind, hook, priority, expressions) in chains {
        let hook = nested(4, &[number(1, hook), number(2, priority)].concat());
        let attributes = [text(1, &table), text(3, chain), hook, text(7, kind)].concat();
        bytes.extend(message(NEW_CHAIN, INET, 0, &attributes));
        let attributes = [text(1, &table), text(2, chain), nested(4, &expressions)].concat();
        bytes.extend(message(NEW_RULE, INET, 0, &attributes));
    }
    bytes.extend(message(BATCH_END, 0, SUBSYSTEM, &[]));
    bytes
}

/// Returns the expressions that end a rule for packets by other devices.
fn name(key: u32, device: &str) -> Vec<u8> {
    let mut padded = [0; NAME];
    padded.iter_mut().zip(device.bytes()).for_each(|(to, from)| *to = from);
    let meta = [number(1, REGISTER), number(2, key)].concat();
    [expression("meta", &meta), equals(&padded)].concat()
}

/// Returns the expressions that drop packets of no known connection.
fn drop_unknown() -> Vec<u8> {
    let state = [number(1, REGISTER), number(2, CT_STATE)].concat();
    let masked = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, 4),
        value(4, &KNOWN.to_ne_bytes()),
        value(5, &[0; 4]),
    ];
    let verdict = nested(2, &nested(2, &number(1, DROP)));
    [
        expression("ct", &state),
        expression("bitwise", &masked.concat()),
        equals(&[0; 4]),
        expression("immediate", &[number(1, VERDICT), verdict].concat()),
    ]
    .concat()
}

fn equals(wanted: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, REGISTER), number(2, EQUAL), value(3, wanted)].concat())
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
    let flags = libc::NLM_F_REQUEST | if family == INET { libc::NLM_F_CREATE | libc::NLM_F_EXCL } else { 0 };
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
