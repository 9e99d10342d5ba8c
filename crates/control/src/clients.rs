//! Connections of the control socket: limits their number, for each user as well, and closes those of clients that send
//! nothing. If others need places, the connections go on which no request is under way.

use crate::answers::Held;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::{Request, Response};
use sockets::{Closing, Places, Untrusted};
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::codegen::Service;
use tonic::server::NamedService;
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

/// The use of a connection.
#[derive(Debug)]
pub(crate) struct Usage {
    since: Instant,
    /// Milliseconds after `since` at which something was last received or answered.
    last: AtomicU64,
    /// Requests under way.
    requests: AtomicUsize,
}

impl Usage {
    fn new(since: Instant) -> Arc<Self> {
        let usage = Self { since, last: AtomicU64::new(0), requests: AtomicUsize::new(0) };
        usage.note();
        Arc::new(usage)
    }

    fn note(&self) {
        let last = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(last, Ordering::Relaxed);
    }
}

/// A request under way.
struct Pending(Arc<Usage>);

impl Pending {
    fn new(usage: Arc<Usage>) -> Self {
        usage.requests.fetch_add(1, Ordering::Relaxed);
        Self(usage)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.note();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that has a place.
struct Place {
    user: u32,
    usage: Weak<Usage>,
    /// The connection ends when this is dropped.
    _end: oneshot::Sender<Infallible>,
}

/// A stream of clients as they connect. It never ends.
pub(crate) struct Clients {
    listener: UnixListener,
    bounds: Bounds,
    since: Instant,
    /// The connections, and the places that sockets of clients that left still have while they are being closed.
    taken: Vec<Place>,
    places: Places,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Clients {
    pub(crate) fn new(listener: UnixListener, bounds: Bounds) -> Self {
        let places = Places::new(bounds.connections, || ());
        Self { listener, bounds, since: Instant::now(), taken: Vec::new(), places, pause: None }
    }

    /// Returns whether one more client may be accepted. If there is no place, ends an idle connection.
    fn has_place(&mut self) -> bool {
        self.taken.retain(|place| place.usage.strong_count() > 0);
        self.places.may_come(self.taken.len())
            || self.end_idle(|_| true) && self.places.may_come(self.taken.len())
    }

    /// Takes a place for a user's connection, if need be that of an idle one of the same user. Otherwise returns the counter
    /// for a refused one.
    fn place(&mut self, user: u32) -> Result<Arc<Closing>, Arc<Closing>> {
        loop {
            match self.places.of(user, self.taken.iter().map(|place| place.user)) {
                (closing, false) => return Ok(closing),
                (_, true) if self.end_idle(|other| other == user) => {}
                (closing, true) => return Err(closing),
            }
        }
    }

    /// Ends the connection of such a user that is idle for longest. Returns whether there was one.
    fn end_idle(&mut self, of: impl Fn(u32) -> bool) -> bool {
        let idle = |place: &Place| {
            let usage = place.usage.upgrade()?;
            let is_idle = of(place.user) && usage.requests.load(Ordering::Relaxed) == 0;
            is_idle.then(|| usage.last.load(Ordering::Relaxed))
        };
        let idle = self.taken.iter().enumerate().filter_map(|(i, place)| Some((idle(place)?, i))).min();
        idle.map(|(_, i)| self.taken.swap_remove(i)).is_some()
    }

    /// Gives a connection a place. `None` if its user has too many connections with requests under way.
    fn admit(&mut self, stream: UnixStream) -> io::Result<Option<Client>> {
        let user = stream.peer_cred()?.uid();
        let place = self.place(user);
        let (Ok(closing) | Err(closing)) = &place;
        let socket = Untrusted::new(stream.as_fd().try_clone_to_owned()?, closing)?;
        if place.is_err() {
            // The other descriptor is closed last.
            drop(stream);
            return Ok(None);
        }
        let (usage, (end, ended)) = (Usage::new(self.since), oneshot::channel());
        self.taken.push(Place { user, usage: Arc::downgrade(&usage), _end: end });
        let silence = Some(Box::pin(sleep(self.bounds.silence)));
        Ok(Some(Client { stream, silence, socket, usage, ended }))
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
            if !self.has_place() {
                self.pause = Some(Box::pin(sleep(PAUSE)));
                continue;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match self.admit(stream) {
                    Ok(Some(client)) => return Poll::Ready(Some(Ok(client))),
                    Ok(None) => {}
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
    usage: Arc<Usage>,
    /// Ends when others need the place.
    ended: oneshot::Receiver<Infallible>,
}

impl Client {
    /// Reads into `buffer`. Fails if the client sends descriptors, for which it has no reason.
    fn receive(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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

/// The part of a connection that its requests know.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    usage: Arc<Usage>,
}

impl Connected for Client {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        let peer = self.stream.peer_cred();
        let peer =
            peer.map_or_else(|_| Peer::default(), |peer| Peer { uid: Some(peer.uid()), pid: peer.pid() });
        Connection { peer, usage: self.usage.clone() }
    }
}

/// A service that counts the requests under way of each connection, until their answers are read.
#[derive(Clone)]
pub(crate) struct Counted<S>(pub(crate) S);

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, In> Service<Request<In>> for Counted<S>
where
    S: Service<Request<In>, Response = Response<tonic::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let connection = request.extensions().get::<Connection>();
        let pending = connection.map(|connection| Pending::new(connection.usage.clone()));
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            let held = answer.extensions_mut().remove();
            Ok(answer.map(|body| tonic::body::Body::new(Answer { body, _held: held, _pending: pending })))
        })
    }
}

/// The body of an answer.
struct Answer {
    body: tonic::body::Body,
    /// The memory of a long answer, which is given back with it.
    _held: Option<Arc<Held>>,
    _pending: Option<Pending>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.ended).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let read = self.receive(context, buffer);
        if read.is_ready() {
            self.usage.note();
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio_stream::StreamExt;

    /// Accepts connections from `clients` until this client's connection is ended, and fails if that takes long.
    async fn ends(clients: &mut Clients, client: &mut UnixStream) {
        let mut byte = [0; 1];
        let work = async {
            tokio::select! {
                _ = clients.next() => panic!("it was accepted"),
                read = client.read(&mut byte) => assert!(matches!(read, Ok(0) | Err(_))),
            }
        };
        tokio::time::timeout(Duration::from_secs(20), work).await.unwrap();
    }

    #[tokio::test]
    async fn idle_connections_of_a_user_make_room_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let bounds = Bounds { connections: 4, silence: Duration::from_secs(60) };
        let mut clients = Clients::new(UnixListener::bind(&path).unwrap(), bounds);
        let connect = || UnixStream::connect(&path);
        // One user may have two of the four places.
        let _first = connect().await.unwrap();
        let mut busy = clients.next().await.unwrap().unwrap();
        let request = Pending::new(busy.usage.clone());
        let _second = connect().await.unwrap();
        let mut idle = clients.next().await.unwrap().unwrap();
        let _third = connect().await.unwrap();
        let last = clients.next().await.unwrap().unwrap();
        assert_eq!(idle.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(idle);
        let other = Pending::new(last.usage.clone());
        let mut refused = connect().await.unwrap();
        ends(&mut clients, &mut refused).await;
        // A request under way goes on; once it is done, the connection is idle.
        let going_on = tokio::time::timeout(Duration::from_millis(50), busy.read(&mut [0; 1])).await;
        assert!(going_on.is_err(), "{going_on:?}");
        drop(request);
        let _fifth = connect().await.unwrap();
        let _admitted = clients.next().await.unwrap().unwrap();
        assert_eq!(busy.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(other);
    }
}
