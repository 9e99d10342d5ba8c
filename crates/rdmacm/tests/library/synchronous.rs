//! Programs whose calls wait: endpoints, as `rdma_server` and `rdma_client` have them.

use crate::devices::ADDRESSES;
use crate::programs::{end, errno, heard, init_attr, listener, queue_pair};
use crate::verbs::modified;
use rdmacm::abi::{AddrInfo, CmId, IBV_QPT_RC, RAI_PASSIVE, RDMA_PS_TCP};
use rdmacm::*;
use std::ffi::{CStr, CString};
use std::ptr;
use uverbs::QpState;

fn resolve(node: Option<&CStr>, service: &CStr, flags: i32) -> *mut AddrInfo {
    // SAFETY: numbers and pointers, which may all be zero.
    let mut hints: AddrInfo = unsafe { std::mem::zeroed() };
    (hints.ai_flags, hints.ai_port_space) = (flags, RDMA_PS_TCP as i32);
    let mut found = ptr::null_mut();
    let node = node.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: texts live in the caller, hints here, and there is a place for the result.
    assert_eq!(unsafe { rdma_getaddrinfo(node, service.as_ptr(), &raw const hints, &raw mut found) }, 0);
    found
}

fn endpoint(addresses: *mut AddrInfo) -> Result<*mut CmId, i32> {
    let (mut id, mut attr) = (ptr::null_mut(), init_attr(0));
    // SAFETY: the addresses were found and not freed, the attributes are whole, and there is a place for the result.
    let made = unsafe { rdma_create_ep(&raw mut id, addresses, ptr::null_mut(), &raw mut attr) };
    let error = errno_of(made);
    // SAFETY: nobody else has them.
    unsafe { rdma_freeaddrinfo(addresses) };
    error.map_or(Ok(id), Err)
}

fn errno_of(returned: i32) -> Option<i32> {
    (returned != 0).then(errno)
}

/// A listener, which one thread hands to another.
struct Listening(*mut CmId);

// SAFETY: the library's identifiers may be used by any thread, and here one has it after the other.
unsafe impl Send for Listening {}

#[test]
fn endpoints_connect() {
    let listening = endpoint(resolve(None, c"0", RAI_PASSIVE)).unwrap();
    // SAFETY: it was just made.
    assert_eq!(unsafe { rdma_listen(listening, 1) }, 0);
    // SAFETY: as above.
    let port = u16::from_be(unsafe { rdma_get_src_port(listening) });
    let there = Listening(listening);
    let server = std::thread::spawn(move || {
        let Listening(listening) = { there };
        let mut id = ptr::null_mut();
        // SAFETY: this thread alone has the identifiers, which live until the end, and looks at events that the next
        // call acknowledges before it.
        unsafe {
            assert_eq!(rdma_get_request(listening, &raw mut id), 0, "{}", errno());
            assert!(heard((*id).event).starts_with(b"\0"));
            assert_eq!((*(*id).qp).context, (*id).verbs);
            // The call waits until the client is ready.
            assert_eq!(rdma_accept(id, ptr::null_mut()), 0, "{}", errno());
            assert_eq!((*(*id).event).event, 9);
            assert_eq!(rdma_disconnect(id), 0, "{}", errno());
            assert_eq!((*(*id).event).event, 10);
            rdma_destroy_ep(id);
            rdma_destroy_ep(listening);
        }
    });
    let node = CString::new(ADDRESSES[1].to_string()).unwrap();
    let service = CString::new(port.to_string()).unwrap();
    let client = endpoint(resolve(Some(&node), &service, 0)).unwrap();
    // SAFETY: the identifier was just made, and lives until the end; it has a queue pair.
    unsafe {
        assert_eq!((*client).qp_type, IBV_QPT_RC);
        assert_eq!(rdma_connect(client, ptr::null_mut()), 0, "{}", errno());
        assert_eq!(modified((*client).qp).last().unwrap().0.qp_state, QpState::ReadyToSend as u32);
        assert_eq!(rdma_disconnect(client), 0, "{}", errno());
        rdma_destroy_ep(client);
    }
    server.join().unwrap();
}

#[test]
fn what_fails_says_why() {
    let node = CString::new(ADDRESSES[1].to_string()).unwrap();
    // Nobody listens at this port.
    let client = endpoint(resolve(Some(&node), c"1", 0)).unwrap();
    // SAFETY: it was just made; without parameters there is nothing to read.
    assert_eq!((unsafe { rdma_connect(client, ptr::null_mut()) }, errno()), (-1, libc::ECONNREFUSED));
    // SAFETY: its last event is there until the next call.
    assert_eq!(unsafe { (*(*client).event).status }, 8);
    end(&[client], &[]);
    let nowhere = CString::new(crate::devices::NOWHERE.to_string()).unwrap();
    assert_eq!(endpoint(resolve(Some(&nowhere), c"1", 0)), Err(libc::EHOSTUNREACH));
}

/// A synchronous identifier that is moved to a channel waits no longer.
#[test]
fn endpoints_become_asynchronous() {
    let channel = rdma_create_event_channel();
    let (listening, to) = listener(channel, RDMA_PS_TCP, "0.0.0.0");
    let node = CString::new(to.ip().to_string()).unwrap();
    let service = CString::new(to.port().to_string()).unwrap();
    let client = endpoint(resolve(Some(&node), &service, 0)).unwrap();
    // SAFETY: it was just made, and so was the channel.
    assert_eq!(unsafe { rdma_migrate_id(client, channel) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { ((*client).channel, (*client).event) }, (channel, ptr::null_mut()));
    // SAFETY: as above; without parameters there is nothing to read.
    assert_eq!(unsafe { rdma_connect(client, ptr::null_mut()) }, 0);
    let request = crate::programs::event(channel, 4);
    // SAFETY: the request is not acknowledged yet.
    let server = unsafe { (*request).id };
    queue_pair(server, IBV_QPT_RC);
    // SAFETY: the identifier came with the request, and is the test's.
    assert_eq!(unsafe { rdma_accept(server, ptr::null_mut()) }, 0);
    crate::programs::acknowledge(request);
    crate::programs::acknowledged(channel, 9);
    crate::programs::acknowledged(channel, 9);
    end(&[client, server, listening], &[channel]);
}
