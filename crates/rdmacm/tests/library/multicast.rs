//! Programs that join multicast groups.

use crate::devices::ADDRESSES;
use crate::programs::{acknowledge, acknowledged, end, errno, event, id, queue_pair};
use crate::verbs::{FULL, attached, groups_of};
use libc::{c_int, c_void, sockaddr, sockaddr_storage};
use rdmacm::abi::{
    CmId, EventChannel, IBV_QPT_UD, JoinMcAttrEx, RDMA_CM_JOIN_MC_ATTR_ADDRESS,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_PS_TCP, RDMA_PS_UDP,
    event as kind,
};
use rdmacm::{address, *};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

fn group(at: Ipv4Addr) -> sockaddr_storage {
    address::write(SocketAddr::new(at.into(), 7))
}

/// Creates an identifier for which a group was resolved, with its queue pair.
fn member(channel: *mut EventChannel) -> *mut CmId {
    let id = id(channel, RDMA_PS_UDP);
    let mut to = group(GROUP);
    // SAFETY: the identifier was just made, and the address is whole.
    let resolving = unsafe { rdma_resolve_addr(id, ptr::null_mut(), (&raw mut to).cast(), 1000) };
    assert_eq!(resolving, 0, "{}", errno());
    acknowledged(channel, kind::ADDR_RESOLVED);
    queue_pair(id, IBV_QPT_UD);
    id
}

fn join(id: *mut CmId, at: Ipv4Addr, context: usize) -> c_int {
    let mut to = group(at);
    // SAFETY: the identifier is the test's, and the address is whole.
    unsafe { rdma_join_multicast(id, (&raw mut to).cast(), context as *mut c_void) }
}

fn leave(id: *mut CmId, at: Ipv4Addr) -> c_int {
    let mut to = group(at);
    // SAFETY: the identifier is the test's, and the address is whole.
    unsafe { rdma_leave_multicast(id, (&raw mut to).cast()) }
}

fn groups(id: *mut CmId) -> Vec<Ipv6Addr> {
    // SAFETY: the identifier is the test's, and has a queue pair.
    attached(unsafe { (*id).qp })
}

#[test]
fn who_joins_is_attached() {
    let channel = rdma_create_event_channel();
    let member = member(channel);
    assert_eq!(join(member, GROUP, 0x99), 0);
    let joined = event(channel, kind::MULTICAST_JOIN);
    // SAFETY: the event is not acknowledged yet, and of datagrams it has this part.
    let ud = unsafe { (*joined).param.ud };
    assert_eq!((ud.private_data as usize, ud.private_data_len), (0x99, 0));
    assert_eq!((ud.qp_num, ud.qkey, ud.ah_attr.is_global), (0xff_ffff, 0x0123_4567, 1));
    assert_eq!((address::of_gid(ud.ah_attr.grh.dgid), ud.ah_attr.grh.sgid_index), (GROUP.into(), 1));
    acknowledge(joined);
    assert_eq!(groups(member), [GROUP.to_ipv6_mapped()]);
    assert_eq!((leave(member, Ipv4Addr::new(239, 1, 2, 4)), errno()), (-1, libc::EADDRNOTAVAIL));
    assert_eq!(leave(member, GROUP), 0);
    assert!(groups(member).is_empty());
    assert_eq!((leave(member, GROUP), errno()), (-1, libc::EADDRNOTAVAIL));
    end(&[member], &[channel]);
}

#[test]
fn who_only_sends_is_not_attached() {
    let channel = rdma_create_event_channel();
    let member = member(channel);
    let mut to = group(GROUP);
    let comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    let right = JoinMcAttrEx {
        comp_mask,
        join_flags: RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        addr: (&raw mut to).cast::<sockaddr>(),
    };
    let join = |mut attr: JoinMcAttrEx| {
        // SAFETY: the identifier is the test's, and the attributes and their address are whole.
        let joined = unsafe { rdma_join_multicast_ex(member, &raw mut attr, ptr::null_mut()) };
        if joined == 0 { 0 } else { errno() }
    };
    assert_eq!(join(JoinMcAttrEx { comp_mask: comp_mask | 4, ..right }), libc::ENOTSUP);
    assert_eq!(join(JoinMcAttrEx { comp_mask: 2, ..right }), libc::EINVAL);
    assert_eq!(join(JoinMcAttrEx { join_flags: 2, ..right }), libc::EINVAL);
    assert_eq!(join(JoinMcAttrEx { addr: ptr::null_mut(), ..right }), libc::EINVAL);
    assert_eq!(join(right), 0);
    acknowledged(channel, kind::MULTICAST_JOIN);
    assert_eq!((groups(member), leave(member, GROUP)), (vec![], 0));
    end(&[member], &[channel]);
}

/// Linux's library differs: there, the queue pair stays in the group.
#[test]
fn who_destroys_its_queue_pair_leaves_with_it() {
    let channel = rdma_create_event_channel();
    let member = member(channel);
    assert_eq!(join(member, GROUP, 0), 0);
    acknowledged(channel, kind::MULTICAST_JOIN);
    assert_eq!(groups(member), [GROUP.to_ipv6_mapped()]);
    // SAFETY: the identifier is the test's; the number is read before the queue pair goes.
    let number = unsafe { (*(*member).qp).qp_num };
    // SAFETY: as above.
    unsafe { rdma_destroy_qp(member) };
    assert!(groups_of(number).is_empty());
    assert_eq!(leave(member, GROUP), 0);
    end(&[member], &[channel]);
}

#[test]
fn who_left_hears_no_more_of_it() {
    let channel = rdma_create_event_channel();
    let member = member(channel);
    let others = Ipv4Addr::new(239, 1, 2, 9);
    assert_eq!((join(member, GROUP, 0), leave(member, GROUP), join(member, others, 0)), (0, 0, 0));
    acknowledged(channel, kind::MULTICAST_JOIN);
    assert_eq!(groups(member), [others.to_ipv6_mapped()]);
    assert_eq!(leave(member, others), 0);
    end(&[member], &[channel]);
}

#[test]
fn who_cannot_join_is_told_so() {
    let channel = rdma_create_event_channel();
    let member = member(channel);
    assert_eq!((join(member, ADDRESSES[0], 0), errno()), (-1, libc::EINVAL));
    // The queue pair can't be attached.
    assert_eq!(join(member, FULL.to_ipv4_mapped().unwrap(), 0x98), 0);
    let mut got = ptr::null_mut();
    // SAFETY: the channel is the test's, and there is a place for the event.
    unsafe {
        assert_eq!(rdma_get_cm_event(channel, &raw mut got), 0);
        assert_eq!(((*got).event, (*got).status), (kind::MULTICAST_ERROR, -libc::ENOMEM));
        assert_eq!((*got).param.ud.private_data as usize, 0x98);
    }
    acknowledge(got);
    let new = id(channel, RDMA_PS_UDP);
    assert_eq!((join(new, GROUP, 0), errno()), (-1, libc::EINVAL));
    let connects = id(channel, RDMA_PS_TCP);
    let mut to = group(GROUP);
    // SAFETY: the identifier was just made, and the address is whole.
    assert_eq!(unsafe { rdma_resolve_addr(connects, ptr::null_mut(), (&raw mut to).cast(), 1000) }, -1);
    end(&[member, new, connects], &[channel]);
}
