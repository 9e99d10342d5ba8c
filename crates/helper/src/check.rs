//! Checks of requests: a guest may have taken over the daemon.

use crate::bar;
use crate::request::{Refusal, Request};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use wire::{HostForward, HostSide, MAX_QUEUES, Subnet, TapPort, TunnelTraffic, XdpProgram};

/// `PATH_MAX`.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 256;
const MOST_ADDRESSES: usize = 1024;
/// Most neighbours of one request.
const MOST_SOUGHT: usize = 64;
const MOST_WAITING: i32 = 4096;
/// The smallest MTU that a device may have (RFC 791).
const LEAST_MTU: u16 = 68;
/// Most addresses and routes of the host by a tap.
const MOST_OF_HOST: usize = 256;
/// TCP and UDP, whose ports may lead to guests.
const PROTOCOLS: [u8; 2] = [6, 17];
/// Shortest prefix of a network's subnet.
const LEAST_PREFIX: u8 = 8;
/// Index of the loopback device in each network namespace (the kernel's `LOOPBACK_IFINDEX`).
const LOOPBACK: i32 = 1;
/// Number of /dev/net/tun (linux/miscdevice.h).
const TUN: (u32, u32) = (10, 200);

/// Checks a request and its descriptors.
///
/// # Errors
/// The reason to refuse the request.
pub(crate) fn check(request: &Request, descriptors: &[OwnedFd]) -> Result<(), Refusal> {
    let wanted = match request {
        Request::TapState | Request::TapCarrier { .. } | Request::ConfigureTap { .. } => 1,
        Request::AttachXdp(_) | Request::InheritTap { .. } => descriptors.len().clamp(1, MAX_QUEUES),
        Request::ReplaceXdp(_) => 2,
        _ => 0,
    };
    if descriptors.len() != wanted {
        return Err(Refusal::new(format!(
            "the request has {} descriptors; {wanted} are expected",
            descriptors.len()
        )));
    }
    match request {
        Request::Tap(port) => tap(port),
        Request::TapState | Request::TapCarrier { .. } => {
            ensure(is_tap(&descriptors[0]), "the descriptor is not of a tap")
        }
        Request::ConfigureTap { mtu, .. } => {
            ensure(is_tap(&descriptors[0]) && *mtu >= LEAST_MTU, "the descriptor is not of a tap, or no MTU")
        }
        Request::Config | Request::Included { .. } => Ok(()),
        Request::Packet { index, sockets, tunnels } => {
            let possible = is_wire(*index) && within(*sockets, 1, MAX_QUEUES);
            ensure(possible, "no interface, or too many sockets")
                .and(tunnels.iter().try_for_each(tunnel_traffic))
        }
        Request::Silence(traffic) => tunnel_traffic(traffic),
        Request::Seek { neighbours } => ensure(
            neighbours.len() <= MOST_SOUGHT && neighbours.iter().all(|(device, _)| is_wire(*device)),
            "no interface, or too many neighbours",
        ),
        Request::XdpSocket
        | Request::ForgetTap { .. }
        | Request::Settle
        | Request::Retire(_)
        | Request::Succeed
        | Request::Machines
        | Request::Peer { .. }
        | Request::Resolver { .. }
        | Request::DhcpServer { .. }
        | Request::MetadataService { .. }
        | Request::Stop => Ok(()),
        Request::InheritTap { .. } => ensure(descriptors.iter().all(is_tap), "a descriptor is not of a tap"),
        Request::AttachXdp(program) => {
            let all_xdp = descriptors.iter().all(is_xdp);
            xdp(program).and(ensure(all_xdp, "a descriptor is not an AF_XDP socket"))
        }
        Request::ReplaceXdp(program) => xdp(program),
        Request::Listen { path, mode, backlog, .. } => {
            let possible = is_mode(*mode) && (1..=MOST_WAITING).contains(backlog);
            is_path(path).and(ensure(possible, "no mode or backlog of a socket"))
        }
        Request::Give { mode, .. } => ensure(is_mode(*mode), "no mode of a socket"),
        Request::Remove { .. } => Ok(()),
        Request::Memory { path, mode, .. } => is_path(path).and(ensure(is_mode(*mode), "no mode of a file")),
        Request::AdoptSocket { path, .. } | Request::RemoveMemory { path } | Request::Connect { path } => {
            is_path(path)
        }
        Request::Owner { names } => {
            let plain = names.len() <= LONGEST_NAME && !names.contains(['\0', '\n', '/']);
            ensure(plain, "no names of user and group")
        }
        Request::Bar { address, number } => ensure(
            is_pci_address(address) && *number == bar::REGISTERS,
            "no address of a PCI device, or not its registers",
        ),
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::new(otherwise)) }
}

fn within(number: u16, least: usize, most: usize) -> bool {
    (least..=most).contains(&usize::from(number))
}

/// Returns whether an interface may be a wire. The loopback device may not: traffic between programs of this
/// host is not the daemon's business.
const fn is_wire(index: i32) -> bool {
    index > LOOPBACK
}

/// Checks the properties of a tap. The kernel must take its name literally; it would expand `tap%d` itself.
fn tap(port: &TapPort) -> Result<(), Refusal> {
    let name = port.device.as_bytes();
    let plain = name.iter().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(byte));
    let is_name = (1..16).contains(&name.len()) && plain && name != b"." && name != b"..";
    ensure(is_name, "not the name of a network device")?;
    ensure(within(port.queues, 1, MAX_QUEUES) && port.mtu >= LEAST_MTU, "no queues or MTU of a tap")?;
    port.host.as_ref().map_or(Ok(()), host_side)
}

/// Checks what makes a tap an interface of the host: it leads to few networks, and never everywhere or to this
/// machine itself.
/// Returns whether an address is in a subnet.
fn has(subnet: Subnet, addr: IpAddr) -> bool {
    match (subnet.addr, addr) {
        (IpAddr::V4(net), IpAddr::V4(addr)) => {
            let other = u32::from(net) ^ u32::from(addr);
            other.checked_shr(32 - u32::from(subnet.len.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(net), IpAddr::V6(addr)) => {
            let other = u128::from(net) ^ u128::from(addr);
            other.checked_shr(128 - u32::from(subnet.len.min(128))).unwrap_or(0) == 0
        }
        _ => false,
    }
}

fn host_side(host: &HostSide) -> Result<(), Refusal> {
    let HostSide { addresses, routes, forwards, .. } = host;
    let count = addresses.len() + routes.len() + forwards.len();
    ensure(count <= MOST_OF_HOST, "too many addresses, routes and ports of the host")?;
    let leads = |forward: &HostForward| {
        let HostForward { protocol, outside, to } = forward;
        let is_possible = outside.is_ipv4() == to.is_ipv4() && outside.port() != 0 && to.port() != 0;
        is_possible && PROTOCOLS.contains(protocol)
    };
    let is_behind = |forward: &HostForward| routes.iter().any(|route| has(route.to, forward.to.ip()));
    let may_lead = host.masquerade || forwards.is_empty();
    ensure(
        may_lead && forwards.iter().all(|forward| leads(forward) && is_behind(forward)),
        "no port of the host that leads to a guest",
    )?;
    let to = routes.iter().map(|route| route.to);
    let possible = addresses.iter().copied().chain(to).all(is_subnet);
    let vias = routes.iter().all(|route| route.via.is_ipv4() == route.to.addr.is_ipv4());
    ensure(possible && vias, "no address or route of a network's guests")
}

fn is_subnet(subnet: Subnet) -> bool {
    let Subnet { addr, len } = subnet;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let is_nobodys = addr.is_loopback() || addr.is_unspecified() || addr.is_multicast();
    let is_mapped = matches!(addr, IpAddr::V6(addr) if addr.to_ipv4().is_some());
    (LEAST_PREFIX..=most).contains(&len) && !is_nobodys && !is_mapped
}

fn xdp(program: &XdpProgram) -> Result<(), Refusal> {
    ensure(
        is_wire(program.index) && program.addresses.len() <= MOST_ADDRESSES,
        "no interface, or too many addresses",
    )
}

/// Checks that tunnels end at few addresses of a host, none of them one by which programs of this host talk.
fn tunnel_traffic(traffic: &TunnelTraffic) -> Result<(), Refusal> {
    let is_of_host =
        |addr: &IpAddr| is_subnet(Subnet { addr: *addr, len: if addr.is_ipv4() { 32 } else { 128 } });
    let addresses = &traffic.addresses;
    ensure(addresses.len() <= 2 && addresses.iter().all(is_of_host), "no addresses at which tunnels end")
}

fn is_mode(mode: u32) -> bool {
    mode & !0o777 == 0
}

/// Checks that a path is absolute and has no `..`.
fn is_path(path: &Path) -> Result<(), Refusal> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let downwards = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    let plain = path.is_absolute() && downwards && bytes.len() < LONGEST_PATH && !bytes.contains(&0);
    ensure(plain && path.file_name().is_some(), "not an absolute path of a socket")
}

fn is_tap(descriptor: &OwnedFd) -> bool {
    fstat(descriptor).is_ok_and(|stat| {
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        is_device && (major(stat.st_rdev), minor(stat.st_rdev)) == TUN
    })
}

fn is_xdp(descriptor: &OwnedFd) -> bool {
    socket_domain(descriptor).is_ok_and(|domain| domain == AddressFamily::XDP)
}

/// Returns whether a text is a PCI address as in `0000:01:00.0`: domain, bus, device and function.
fn is_pci_address(address: &str) -> bool {
    address.len() == 12
        && address.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b':',
            10 => byte == b'.',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn tap_named(device: &str) -> Request {
        Request::Tap(TapPort {
            device: device.to_owned(),
            queues: 1,
            mtu: 1500,
            mac: None,
            offload: true,
            host: None,
        })
    }

    fn listen(path: &str, mode: u32) -> Request {
        Request::Listen { path: path.into(), messages: false, owner: None, mode, backlog: 8 }
    }

    #[track_caller]
    fn refused(request: &Request, descriptors: &[OwnedFd]) {
        assert!(check(request, descriptors).is_err(), "{request:?}");
    }

    #[test]
    fn taps_have_names_queues_and_an_mtu() {
        assert!(check(&tap_named("tap-vm1"), &[]).is_ok());
        for name in ["", "a234567890123456", "a/b", "tap%d", ".", "..", "a b", "a:1", "\u{e9}", "a\0"] {
            refused(&tap_named(name), &[]);
        }
        let tap = TapPort { device: "t".into(), queues: 1, mtu: 1500, mac: None, offload: true, host: None };
        refused(&Request::Tap(TapPort { queues: 0, ..tap.clone() }), &[]);
        refused(&Request::Tap(TapPort { queues: 254, ..tap.clone() }), &[]);
        refused(&Request::Tap(TapPort { mtu: 67, ..tap }), &[]);
        refused(&tap_named("tap-vm1"), &[null()]);
    }

    #[test]
    fn a_tap_leads_the_host_to_networks_only() {
        let subnet = |addr: &str, len| Subnet { addr: addr.parse().unwrap(), len };
        let request = |host| match tap_named("vd0") {
            Request::Tap(tap) => Request::Tap(TapPort { host: Some(host), ..tap }),
            other => other,
        };
        let at = |subnet| request(HostSide { addresses: vec![subnet], ..HostSide::default() });
        let to = |to, via: &str| {
            let routes = vec![wire::HostRoute { to, via: via.parse().unwrap() }];
            request(HostSide { routes, ..HostSide::default() })
        };
        for fine in [subnet("10.1.1.5", 24), subnet("fd00:1::5", 64)] {
            check(&at(fine), &[]).unwrap();
        }
        check(&to(subnet("10.0.0.0", 8), "169.254.1.1"), &[]).unwrap();
        let all = [
            ("0.0.0.0", 0),
            ("0.0.0.0", 8),
            ("128.0.0.0", 1),
            ("127.0.0.0", 8),
            ("10.0.0.0", 33),
            ("224.0.0.0", 8),
        ];
        let v6 = [("::", 0), ("::1", 128), ("ff00::", 8), ("::ffff:127.0.0.1", 128), ("fd00::", 129)];
        for (addr, len) in all.into_iter().chain(v6) {
            refused(&at(subnet(addr, len)), &[]);
            refused(&to(subnet(addr, len), "10.1.1.254"), &[]);
        }
        refused(&to(subnet("10.2.0.0", 16), "fd00:1::1"), &[]);
        let addresses = vec![subnet("10.1.1.5", 24); MOST_OF_HOST + 1];
        refused(&request(HostSide { addresses, ..HostSide::default() }), &[]);
    }

    #[test]
    fn descriptors_are_what_they_must_be() {
        refused(&Request::TapState, &[]);
        refused(&Request::TapState, &[null()]);
        refused(&Request::ConfigureTap { mtu: 1500, mac: None }, &[null()]);
        refused(&Request::ConfigureTap { mtu: 1500, mac: None }, &[]);
        refused(&Request::TapCarrier { up: false }, &[null()]);
        refused(&Request::InheritTap { device: "tap1".into() }, &[]);
        refused(&Request::InheritTap { device: "tap1".into() }, &[null()]);
        refused(&Request::Config, &[null()]);
        let program = XdpProgram { index: 2, mac: [0; 6], addresses: Vec::new(), all: true, several: false };
        refused(&Request::AttachXdp(program.clone()), &[]);
        refused(&Request::AttachXdp(program.clone()), &[null()]);
        refused(&Request::AttachXdp(XdpProgram { index: 1, ..program.clone() }), &[]);
        refused(&Request::ReplaceXdp(program), &[null()]);
    }

    #[test]
    fn interfaces_and_sockets_are_counted() {
        assert!(check(&Request::Packet { index: 2, sockets: 1, tunnels: None }, &[]).is_ok());
        for (index, sockets) in [(0, 1), (-1, 1), (1, 1), (2, 0), (2, 254)] {
            refused(&Request::Packet { index, sockets, tunnels: None }, &[]);
        }
        let traffic = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
            TunnelTraffic { addresses, geneve: false, fragments: false, bfd: false, bfd_of_peers: false }
        };
        let fine = traffic(&["192.0.2.1", "2001:db8::1"]);
        assert!(check(&Request::Silence(fine.clone()), &[]).is_ok());
        refused(&Request::Packet { index: 1, sockets: 1, tunnels: Some(fine) }, &[]);
        for wrong in [&["127.0.0.1"][..], &["0.0.0.0"], &["::"], &["224.0.0.1"], &["192.0.2.1"; 3]] {
            refused(&Request::Silence(traffic(wrong)), &[]);
            refused(&Request::Packet { index: 2, sockets: 1, tunnels: Some(traffic(wrong)) }, &[]);
        }
        let seek =
            |device, count| Request::Seek { neighbours: vec![(device, IpAddr::from([192, 0, 2, 2])); count] };
        assert!(check(&seek(2, MOST_SOUGHT), &[]).is_ok());
        refused(&seek(1, 1), &[]);
        refused(&seek(2, MOST_SOUGHT + 1), &[]);
    }

    #[test]
    fn paths_lead_downwards() {
        assert!(check(&listen("/run/viaduct/vm1.sock", 0o660), &[]).is_ok());
        let long = format!("/{}", "a".repeat(5000));
        for path in ["", "vm1.sock", "/", "/run/../etc/x", "/run/\0", long.as_str()] {
            refused(&listen(path, 0o660), &[]);
            refused(&Request::Connect { path: path.into() }, &[]);
            refused(&Request::AdoptSocket { path: path.into(), owner: None }, &[]);
            refused(&Request::Memory { path: path.into(), owner: None, mode: 0o660, keeps: false }, &[]);
            refused(&Request::RemoveMemory { path: path.into() }, &[]);
        }
        refused(&listen("/run/vm1.sock", 0o4755), &[]);
        refused(&Request::Memory { path: "/run/c1".into(), owner: None, mode: 0o4600, keeps: false }, &[]);
        refused(&Request::Give { file: 1, owner: None, mode: 0o2660 }, &[]);
    }

    #[test]
    fn owners_and_cards_are_named() {
        assert!(check(&Request::Owner { names: "libvirt-qemu:kvm".into() }, &[]).is_ok());
        refused(&Request::Owner { names: "x".repeat(257) }, &[]);
        refused(&Request::Owner { names: "a\nb".into() }, &[]);
        let bar = |address: &str, number| Request::Bar { address: address.into(), number };
        assert!(check(&bar("0000:af:00.1", 2), &[]).is_ok());
        for address in ["", "0000:af:00.1/..", "../../x", "0000:AF:00.1", "0000:af:00-1"] {
            refused(&bar(address, 2), &[]);
        }
        // The registers of its DMA engine are in the first BAR.
        for number in [0, 1, 3, 6] {
            refused(&bar("0000:af:00.1", number), &[]);
        }
    }

    /// `cargo bolero test -p helper check::tests::requests`: no request leads to an action of a kind that is
    /// not permitted.
    #[test]
    fn requests() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(request) = serde_json::from_slice::<Request>(bytes) else { return };
            let descriptors = [null()];
            let takes_one = matches!(
                request,
                Request::TapState
                    | Request::TapCarrier { .. }
                    | Request::ConfigureTap { .. }
                    | Request::AttachXdp(_)
                    | Request::InheritTap { .. }
            );
            let most = usize::from(takes_one);
            if check(&request, &descriptors[..most]).is_err() {
                return;
            }
            match request {
                Request::Tap(tap) => {
                    assert!((1..16).contains(&tap.device.len()) && !tap.device.contains(['/', '%', '\0']));
                    assert!((1..=253).contains(&tap.queues));
                }
                Request::Listen { path, mode, .. } | Request::Memory { path, mode, .. } => {
                    assert!(path.is_absolute() && mode <= 0o777);
                    assert!(!path.components().any(|part| part == Component::ParentDir));
                }
                Request::AdoptSocket { path, .. }
                | Request::RemoveMemory { path }
                | Request::Connect { path } => {
                    assert!(path.is_absolute());
                    assert!(!path.components().any(|part| part == Component::ParentDir));
                }
                Request::Bar { address, .. } => assert!(!address.contains('/')),
                // /dev/null is no tap, and no unix socket.
                Request::TapState
                | Request::TapCarrier { .. }
                | Request::ConfigureTap { .. }
                | Request::AttachXdp(_)
                | Request::InheritTap { .. }
                | Request::ReplaceXdp(_) => unreachable!(),
                _ => {}
            }
        });
    }
}
