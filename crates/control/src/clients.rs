//! Connections of the control socket: limits their number, and closes those of clients that send nothing.

use sockets::{Closing, Untrusted};
use std::io;
use std::os::fd::AsFd;
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

/// Pause after a failed attempt to accept (mostly for want of descriptors), and while all connections are
/// taken.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most connections at a time.
    pub(crate) connections: usize,
    /// How long a client may stay silent after it has connected.
    pub(crate) silence: Duration,
}

impl Bounds {
    /// Bounds of the control socket.
    pub(crate) const DEFAULT: Self = Self { connections: 256, silence: Duration::from_secs(10) };
}

/// A stream of clients as they connect. It never ends.
pub(crate) struct Clients {
    listener: UnixListener,
    bounds: Bounds,
    free: Arc<Semaphore>,
    /// Sockets of clients that left, which are being closed.
    closing: Arc<Closing>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Clients {
    pub(crate) fn new(listener: UnixListener, bounds: Bounds) -> Self {
        let free = Arc::new(Semaphore::new(bounds.connections));
        Self { listener, bounds, free, closing: Arc::default(), pause: None }
    }

    /// Takes a place for a connection. A connection that is being closed still occupies its place.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let others = self.closing.count();
        self.free.clone().try_acquire_owned().ok().filter(|_| self.free.available_permits() >= others)
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
            let Some(place) = self.place() else {
                self.pause = Some(Box::pin(sleep(PAUSE)));
                continue;
            };
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match Client::new(stream, self.bounds.silence, (place, &self.closing)) {
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

/// A connection. Reads from it fail if the client at first sends nothing for too long.
pub(crate) struct Client {
    stream: UnixStream,
    /// Ends when the client has been silent for too long; `None` once it sent something.
    silence: Option<Pin<Box<Sleep>>>,
    /// A second descriptor of the socket, which is closed last.
    socket: Untrusted,
    _place: OwnedSemaphorePermit,
}

impl Client {
    fn new(
        stream: UnixStream,
        silence: Duration,
        (place, closing): (OwnedSemaphorePermit, &Arc<Closing>),
    ) -> io::Result<Self> {
        let socket = Untrusted::new(stream.as_fd().try_clone_to_owned()?, closing)?;
        Ok(Self { stream, silence: Some(Box::pin(sleep(silence))), socket, _place: place })
    }

    /// Reads into `buffer`. Fails if the client sends descriptors, for which it has no reason.
    fn read(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let receive = || Ok(self.socket.receive(buffer.initialize_unfilled())?);
            match self.stream.try_io(Interest::READABLE, receive) {
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

/// The process at the other end of a connection, as the kernel tells (unix(7), SO_PEERCRED).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) uid: Option<u32>,
    /// In the daemon's PID namespace.
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
