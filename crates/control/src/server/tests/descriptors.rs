//! Clients that send what takes long to close.

use super::{client, with_few};
use api::v1;
use rustix::io::IoSlice;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Two ends of a connection. The first one has data that the other does not read, and lingers on close.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    set_socket_linger(&stream, Some(Duration::from_secs(20))).unwrap();
    (stream, other)
}

/// Sends a byte with this descriptor, so often.
fn send_with(
    client: &UnixStream,
    file: &TcpStream,
    count: usize,
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = vec![file.as_fd(); count];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(client, &[IoSlice::new(b"x")], &mut ancillary, flags)
}

#[tokio::test]
async fn descriptors_that_take_long_to_close_hold_up_nobody() {
    with_few(|dir| async move {
        let mut kept = Vec::new();
        // The server, on this thread, is not there yet: what it gets will be the last ones of these descriptors.
        for kind in 0..3 {
            let (stream, other) = lingering();
            let mut client = UnixStream::connect(api::socket(dir.path())).unwrap();
            match kind {
                0 => _ = send_with(&client, &stream, 253, SendFlags::empty()).unwrap(),
                // Not every kernel has them.
                1 => _ = send_with(&client, &stream, 1, SendFlags::OOB),
                // Behind what ends the connection.
                _ => {
                    client.write_all(&[b'?'; 64]).unwrap();
                    send_with(&client, &stream, 1, SendFlags::empty()).unwrap();
                }
            }
            kept.push((client, other));
        }
        let answer = async { client(dir.path()).await.status(v1::StatusRequest {}).await };
        assert!(tokio::time::timeout(Duration::from_secs(10), answer).await.unwrap().is_ok());
        for (client, _) in kept {
            client.set_nonblocking(true).unwrap();
            let mut client = tokio::net::UnixStream::from_std(client).unwrap();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut client, &mut Vec::new()).await;
        }
    })
    .await;
}
