//! Connections of the control socket: limits their number, and closes those of clients that send nothing.

use rustix::io::IoSliceMut;
use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, recvmsg, shutdown};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Pause before the next attempt to accept, after one failed (mostly for want of descriptors) or all connections are
/// taken.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of control data for as many descriptors as a message can have (`SCM_MAX_FD`).
const ANY_FILES: usize = rustix::cmsg_space!(ScmRights(253));

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// At a time.
    pub(crate) connections: usize,
    /// Until a client says something.
    pub(crate) silence: Duration,
}

impl Bounds {
    /// Of the control socket.
    pub(crate) const DEFAULT: Self = Self { connections: 256, silence: Duration::from_secs(10) };
}

/// Clients as they connect. It never ends.
pub(crate) struct Clients {
    listener: UnixListener,
    bounds: Bounds,
    free: Arc<Semaphore>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Clients {
    /// Clients that connect here.
    pub(crate) fn new(listener: UnixListener, bounds: Bounds) -> Self {
        Self { listener, bounds, free: Arc::new(Semaphore::new(bounds.connections)), pause: None }
    }
}

impl Stream for Clients {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let Ok(place) = self.free.clone().try_acquire_owned() else {
                self.pause = Some(Box::pin(sleep(PAUSE)));
                continue;
            };
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match Client::new(stream, self.bounds.silence, place) {
                    Ok(client) => return Poll::Ready(Some(Ok(client))),
                    Err(error) => tracing::warn!("a client of the control socket is disconnected: {error}"),
                },
                Err(error) => {
                    tracing::warn!("a client of the control socket can't be accepted: {error}");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// A connection. It breaks where the client says nothing at first.
pub(crate) struct Client {
    stream: UnixStream,
    /// Ends when the client has been silent for too long; none once it said something.
    silence: Option<Pin<Box<Sleep>>>,
    /// After the stream, so that it is closed here.
    last: Last,
}

impl Client {
    fn new(stream: UnixStream, silence: Duration, place: OwnedSemaphorePermit) -> io::Result<Self> {
        // The kernel would pass over a byte out of band, and close what comes with it here and now.
        set_socket_oobinline(&stream, true)?;
        let last = Last(Some((stream.as_fd().try_clone_to_owned()?, Vec::new(), place)));
        Ok(Self { stream, silence: Some(Box::pin(sleep(silence))), last })
    }

    /// Reads into `buffer`. A client has no reason to send descriptors, which break the connection.
    fn read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let (stream, mut files) = (&self.stream, Vec::new());
            let got = stream
                .try_io(Interest::READABLE, || receive(stream, buffer.initialize_unfilled(), &mut files));
            if !files.is_empty() {
                self.last.0.iter_mut().for_each(|(_, unwanted, _)| unwanted.append(&mut files));
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            match got {
                Ok(len) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Receives bytes, and descriptors into `files`: the kernel would close those without room here and now.
fn receive(stream: &UnixStream, buffer: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); ANY_FILES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok(got?.bytes)
}

/// A connection's socket, which is closed last; descriptors that came; its place. To close what a client sent, or left
/// unread in the socket, may take as long as the client likes (`SO_LINGER`, FUSE). The control plane has one thread, so
/// another one does it, and the client keeps its place until then.
struct Last(Option<(OwnedFd, Vec<OwnedFd>, OwnedSemaphorePermit)>);

impl Drop for Last {
    fn drop(&mut self) {
        let Some((socket, files, place)) = self.0.take() else { return };
        let _ = shutdown(&socket, Shutdown::Both);
        let close = move || {
            drop((socket, files));
            drop(place);
        };
        // Without another thread, this one does it.
        if let Err(error) = std::thread::Builder::new().name("control-close".into()).spawn(close) {
            tracing::warn!("no thread closes what a client of the control socket had: {error}");
        }
    }
}

/// Who is at the other end of a connection, as the kernel says (unix(7), SO_PEERCRED).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) uid: Option<u32>,
    /// As the daemon sees it.
    pub(crate) pid: Option<i32>,
}

impl Connected for Client {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.stream
            .peer_cred()
            .map_or_else(|_| Peer::default(), |peer| Peer { uid: Some(peer.uid()), pid: peer.pid() })
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.read(context, buffer);
        if read.is_ready() {
            self.silence = None;
        } else if let Some(silence) = &mut self.silence {
            ready!(silence.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
