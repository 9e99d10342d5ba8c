//! Tests clients that send descriptors that take long to close.

use super::{client, with_few};
use api::v1;
use rustix::net::SendFlags;
use sockets::testing::{lingering, send_with};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[tokio::test]
async fn descriptors_that_take_long_to_close_hold_up_nobody() {
    with_few(|dir| async move {
        let mut kept = Vec::new();
        // The server runs on this thread and has not started yet, so it will get the last copies of these
        // descriptors.
        for kind in 0..3 {
            let (stream, other) = lingering();
            let mut client = UnixStream::connect(api::socket(dir.path())).unwrap();
            match kind {
                0 => _ = send_with(&client, b"x", (&stream, 253), SendFlags::empty()).unwrap(),
                // Not every kernel supports out-of-band data on unix sockets.
                1 => _ = send_with(&client, b"x", (&stream, 1), SendFlags::OOB),
                // Behind bytes that end the connection.
                _ => {
                    client.write_all(&[b'?'; 64]).unwrap();
                    send_with(&client, b"x", (&stream, 1), SendFlags::empty()).unwrap();
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
