//! Names of events, and of addresses.

use rdmacm::abi::{AddrInfo, IBV_QPT_RC, IBV_QPT_UD, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_TCP, RDMA_PS_UDP};
use rdmacm::address::{self, SockaddrIb};
use rdmacm::{rdma_event_str, rdma_freeaddrinfo, rdma_getaddrinfo};
use std::ffi::CStr;
use std::net::SocketAddr;
use std::ptr;

#[test]
fn events_have_names() {
    // SAFETY: names are constants of the library, with a zero at their ends.
    let name = |event| unsafe { CStr::from_ptr(rdma_event_str(event)) }.to_str().unwrap();
    assert_eq!(name(0), "RDMA_CM_EVENT_ADDR_RESOLVED");
    assert_eq!(name(9), "RDMA_CM_EVENT_ESTABLISHED");
    assert_eq!(name(15), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
    assert_eq!(name(16), "UNKNOWN EVENT");
}

#[test]
fn addresses_are_read_as_written() {
    for text in ["10.0.0.1:7174", "[fd00::1]:1", "[::]:0"] {
        let expected: SocketAddr = text.parse().unwrap();
        let storage = address::write(expected);
        // SAFETY: the address is whole.
        assert_eq!(unsafe { address::read((&raw const storage).cast()) }, Some(expected));
        assert_eq!(address::of_gid(address::gid(expected.ip())), expected.ip());
    }
    let none = address::nothing();
    // SAFETY: there is room for the longest address, of no family.
    assert_eq!(unsafe { address::read((&raw const none).cast()) }, None);
    // SAFETY: it may be null.
    assert_eq!(unsafe { address::read(ptr::null()) }, None);
}

/// The result of a look-up: flags, type and port space, source and destination.
type Meaning = (i32, u32, u32, Option<SocketAddr>, Option<SocketAddr>);

fn meaning(node: Option<&CStr>, service: Option<&CStr>, hints: Option<&AddrInfo>) -> Result<Meaning, i32> {
    let (mut found, pointer) =
        (ptr::null_mut(), |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr));
    let hints = hints.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: texts and hints live in the caller or are null, and there is a place for the result.
    match unsafe { rdma_getaddrinfo(pointer(node), pointer(service), hints, &raw mut found) } {
        0 => {}
        error => return Err(error),
    }
    // SAFETY: it was just found, with its addresses, and is freed when they were read.
    unsafe {
        let info = *found;
        let (source, destination) = (address::read(info.ai_src_addr), address::read(info.ai_dst_addr));
        rdma_freeaddrinfo(found);
        Ok((info.ai_flags, info.ai_qp_type as u32, info.ai_port_space as u32, source, destination))
    }
}

fn hints(flags: i32, qp_type: u32, port_space: u32) -> AddrInfo {
    // SAFETY: numbers and pointers, which may all be zero.
    let mut hints: AddrInfo = unsafe { std::mem::zeroed() };
    (hints.ai_flags, hints.ai_qp_type, hints.ai_port_space) = (flags, qp_type as i32, port_space as i32);
    hints
}

#[test]
fn names_are_looked_up() {
    let address = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
    let (node, service) = (Some(c"10.0.0.2"), Some(c"7471"));
    let to = address("10.0.0.2:7471");
    assert_eq!(meaning(node, service, None), Ok((0, IBV_QPT_RC, RDMA_PS_TCP, None, to)));
    let wanted = hints(RAI_NUMERICHOST, 0, RDMA_PS_UDP);
    assert_eq!(meaning(node, service, Some(&wanted)), Ok((0, IBV_QPT_UD, RDMA_PS_UDP, None, to)));
    let wanted = hints(RAI_PASSIVE, IBV_QPT_RC, 0);
    let passive = (RAI_PASSIVE, IBV_QPT_RC, RDMA_PS_TCP);
    let (flags, qp_type, port_space, source, destination) = meaning(None, service, Some(&wanted)).unwrap();
    assert_eq!(((flags, qp_type, port_space), destination), (passive, None));
    assert!(source.unwrap().ip().is_unspecified() && source.unwrap().port() == 7471);
    let mut v6 = hints(RAI_NUMERICHOST, IBV_QPT_UD, 0);
    v6.ai_family = libc::AF_INET6;
    assert_eq!(
        meaning(Some(c"fd00::2"), service, Some(&v6)),
        Ok((0, IBV_QPT_UD, RDMA_PS_UDP, None, address("[fd00::2]:7471")))
    );
    // A source is passed along.
    let mut source = address::write("10.0.0.1:0".parse().unwrap());
    let mut from = hints(0, 0, RDMA_PS_TCP);
    (from.ai_src_addr, from.ai_src_len) = ((&raw mut source).cast(), 16);
    assert_eq!(
        meaning(node, service, Some(&from)),
        Ok((0, IBV_QPT_RC, RDMA_PS_TCP, address("10.0.0.1:0"), to))
    );
    assert_eq!(meaning(None, None, Some(&from)).unwrap().3, address("10.0.0.1:0"));
    assert_eq!(meaning(Some(c"10.0.0.256"), service, Some(&wanted_number())), Err(libc::EAI_NONAME));
    assert_eq!(meaning(None, None, None), Err(-1));
}

/// libfabric does this for a GID that is not a network device's address.
#[test]
fn a_gid_with_a_service_is_an_address_too() {
    for (gid, to) in [("::ffff:10.0.0.2", "10.0.0.2:7471"), ("fd00::2", "[fd00::2]:7471")] {
        let ib = SockaddrIb {
            sib_family: address::AF_IB as u16,
            sib_pkey: 0xffff,
            sib_flowinfo: 0,
            sib_addr: gid.parse::<std::net::Ipv6Addr>().unwrap().into(),
            sib_sid: (0x013f_0000_u64 | 7471).to_be(),
            sib_sid_mask: u64::MAX,
            sib_scope_id: 0,
        };
        // SAFETY: the address is whole.
        assert_eq!(unsafe { address::read((&raw const ib).cast()) }, Some(to.parse().unwrap()));
    }
    // A name is looked up for any kind of address.
    let mut any = hints(RAI_NUMERICHOST, 0, RDMA_PS_TCP);
    any.ai_family = address::AF_IB;
    let found = meaning(Some(c"10.0.0.2"), Some(c"7471"), Some(&any)).unwrap();
    assert_eq!(found.4, Some("10.0.0.2:7471".parse().unwrap()));
}

fn wanted_number() -> AddrInfo {
    hints(RAI_NUMERICHOST, 0, RDMA_PS_TCP)
}
