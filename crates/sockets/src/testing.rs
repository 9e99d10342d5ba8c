//! Sockets that take long to close, for tests.

use rustix::io::IoSlice;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// The time for which closing such a socket waits, unless its other end goes.
const LINGER: Duration = Duration::from_secs(3600);

/// Returns both ends of a connection. The first one has data that the other does not read, and lingers on
/// close.
#[must_use]
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 1).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_socket_send_buffer_size(&stream, 1).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    set_socket_linger(&stream, Some(LINGER)).unwrap();
    (stream, other)
}

/// Sends bytes with `count` copies of this descriptor.
///
/// # Errors
/// The kernel's.
pub fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    (descriptor, count): (impl AsFd, usize),
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = vec![descriptor.as_fd(); count];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)
}
