//! Steps that programs repeat.

use crate::devices::ADDRESSES;
use libc::{c_int, c_void};
use rdmacm::abi::{CmEvent, CmId, ConnParam, EventChannel, Qp, QpCap, QpInitAttr};
use rdmacm::{address, *};
use std::net::SocketAddr;
use std::ptr;

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub fn id(channel: *mut EventChannel, ps: u32) -> *mut CmId {
    let mut id = ptr::null_mut();
    // SAFETY: the channel is one of the library's, and there is a place for the result.
    assert_eq!(unsafe { rdma_create_id(channel, &raw mut id, 0x77 as *mut c_void, ps) }, 0);
    id
}

/// Creates a listener at any port; returns it with its address.
pub fn listener(channel: *mut EventChannel, ps: u32, ip: &str) -> (*mut CmId, SocketAddr) {
    let id = id(channel, ps);
    let mut any = address::write(SocketAddr::new(ip.parse().unwrap(), 0));
    // SAFETY: the identifier was just made, and the address is whole.
    assert_eq!(unsafe { rdma_bind_addr(id, (&raw mut any).cast()) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_listen(id, 8) }, 0);
    // SAFETY: as above.
    let port = u16::from_be(unsafe { rdma_get_src_port(id) });
    assert_ne!(port, 0);
    (id, SocketAddr::new(ADDRESSES[1].into(), port))
}

/// Takes the next event, which must be of this kind.
pub fn event(channel: *mut EventChannel, kind: u32) -> *mut CmEvent {
    let mut event: *mut CmEvent = ptr::null_mut();
    // SAFETY: the channel is one of the library's, and there is a place for the result.
    assert_eq!(unsafe { rdma_get_cm_event(channel, &raw mut event) }, 0);
    // SAFETY: the event was just taken, and is whole until it is acknowledged.
    let (got, status) = unsafe { ((*event).event, (*event).status) };
    assert_eq!(got, kind, "status {status}");
    event
}

pub fn acknowledge(event: *mut CmEvent) {
    // SAFETY: nobody looks at it any more.
    assert_eq!(unsafe { rdma_ack_cm_event(event) }, 0);
}

/// Takes and acknowledges the next event, which must be of this kind.
pub fn acknowledged(channel: *mut EventChannel, kind: u32) {
    acknowledge(event(channel, kind));
}

/// Ends a test: destroys its identifiers with their queue pairs, and its channels.
pub fn end(ids: &[*mut CmId], channels: &[*mut EventChannel]) {
    for id in ids {
        // SAFETY: they are the test's, which acknowledged their events, and uses them no more.
        unsafe { rdma_destroy_ep(*id) };
    }
    for channel in channels {
        // SAFETY: the same; no identifier has it any more.
        unsafe { rdma_destroy_event_channel(*channel) };
    }
}

/// Creates an identifier that is ready to connect.
pub fn resolved(channel: *mut EventChannel, ps: u32, to: SocketAddr) -> *mut CmId {
    let id = id(channel, ps);
    let mut from = address::write(SocketAddr::new(ADDRESSES[0].into(), 0));
    let mut to = address::write(to);
    let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
    // SAFETY: the identifier was just made, and the addresses are whole.
    assert_eq!(unsafe { rdma_resolve_addr(id, from, to, 1000) }, 0, "{}", errno());
    acknowledged(channel, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_resolve_route(id, 1000) }, 0);
    acknowledged(channel, 2);
    id
}

pub fn init_attr(qp_type: u32) -> QpInitAttr {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap,
        qp_type,
        sq_sig_all: 0,
    }
}

pub fn queue_pair(id: *mut CmId, qp_type: u32) -> *mut Qp {
    let mut attr = init_attr(qp_type);
    // SAFETY: the identifier is one of the library's, and the attributes are whole.
    assert_eq!(unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut attr) }, 0, "{}", errno());
    // SAFETY: as above.
    unsafe { (*id).qp }
}

pub fn said(private: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 4,
        initiator_depth: 3,
        flow_control: 0,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 0,
        qp_num: 0,
    }
}

/// Returns the private data of a connection's event.
pub fn heard(event: *mut CmEvent) -> Vec<u8> {
    // SAFETY: events of connections have this part, whose private data lie in the event, which is not acknowledged yet.
    unsafe {
        let conn = (*event).param.conn;
        std::slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()).to_vec()
    }
}
