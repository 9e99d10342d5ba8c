//! The HTTP server for metrics. It answers one request per connection, and bounds the number and duration of
//! connections.

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// Longest request, bytes.
const MAX_REQUEST: usize = 16 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most connections at a time. One more ends the oldest, so silent or slow clients do not block the
    /// others.
    pub(crate) connections: usize,
    /// Longest duration, from the first to the last byte.
    pub(crate) lifetime: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: 64, lifetime: Duration::from_secs(10) }
    }
}

/// Serves the text that `render` makes, at `/metrics`. It renders for one client at a time.
pub(crate) async fn serve(
    listener: TcpListener,
    bounds: Bounds,
    render: Arc<dyn Fn() -> String + Send + Sync>,
) -> ! {
    let rendering = Arc::new(Semaphore::new(1));
    // Dropping this ends them.
    let mut connections = JoinSet::new();
    let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a client of the metrics can't be accepted: {error}");
                tokio::time::sleep(crate::clients::PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest.retain(|connection| !connection.is_finished());
        if oldest.len() >= bounds.connections
            && let Some(connection) = oldest.pop_front()
        {
            connection.abort();
        }
        let (render, rendering) = (render.clone(), rendering.clone());
        oldest.push_back(connections.spawn(async move {
            // A client that takes too long is dropped.
            let _ = tokio::time::timeout(bounds.lifetime, converse(stream, render, rendering)).await;
        }));
    }
}

async fn converse(
    stream: TcpStream,
    render: Arc<dyn Fn() -> String + Send + Sync>,
    rendering: Arc<Semaphore>,
) {
    let answer = service_fn(move |request| answer(request, render.clone(), rendering.clone()));
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_REQUEST);
    // Errors here are the client's fault.
    let _ = http.serve_connection(TokioIo::new(stream), answer).await;
}

async fn answer(
    request: Request<Incoming>,
    render: Arc<dyn Fn() -> String + Send + Sync>,
    rendering: Arc<Semaphore>,
) -> Result<Response<String>, Infallible> {
    let mut response = Response::new(String::new());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    } else if let Ok(turn) = rendering.acquire_owned().await {
        let text = tokio::task::spawn_blocking(move || {
            let text = render();
            drop(turn);
            text
        });
        *response.body_mut() = text.await.unwrap_or_default();
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(3600);

    /// Starts a server; `most` records how many texts were rendered at the same time.
    async fn served(bounds: Bounds, most: Arc<AtomicUsize>) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let now = AtomicUsize::new(0);
        let render = move || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            "viaduct_info 1\n".to_owned()
        };
        let mut server = JoinSet::new();
        server.spawn(async move { serve(listener, bounds, Arc::new(render)).await });
        (addr, server)
    }

    /// Reads the answer until the other side ends the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        // The connection may end with a reset if the server did not read all that was sent.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.unwrap();
        String::from_utf8(text).unwrap()
    }

    async fn ask(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let _ = stream.write_all(request.as_bytes()).await;
        rest(&mut stream).await
    }

    const GET: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

    #[tokio::test]
    async fn metrics_are_at_their_place_only() {
        let (addr, _server) = served(Bounds::default(), Arc::default()).await;
        let text = ask(addr, GET).await;
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\nviaduct_info 1\n"), "{text}");
        assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
        assert!(ask(addr, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
        assert!(ask(addr, "PUT /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.starts_with("HTTP/1.1 405 "));
        assert!(
            !ask(addr, &format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)))
                .await
                .contains("200")
        );
    }

    #[tokio::test]
    async fn the_silent_keep_nobody_out_and_the_oldest_go() {
        let (addr, _server) = served(Bounds { connections: 8, lifetime: LONG }, Arc::default()).await;
        let mut silent = Vec::new();
        for n in 0..100 {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(&GET.as_bytes()[..n % 20]).await.unwrap();
            silent.push(stream);
        }
        assert!(ask(addr, GET).await.contains("viaduct_info"));
        for stream in &mut silent[..92] {
            assert_eq!(rest(stream).await, "");
        }
        let mut byte = [0];
        assert!(silent[99].try_read(&mut byte).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
    }

    #[tokio::test]
    async fn the_slow_have_so_much_time() {
        let bounds = Bounds { connections: 8, lifetime: Duration::from_millis(50) };
        let (addr, _server) = served(bounds, Arc::default()).await;
        let mut slow = TcpStream::connect(addr).await.unwrap();
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        assert_eq!(rest(&mut slow).await, "");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_text_is_made_at_a_time() {
        let most = Arc::new(AtomicUsize::new(0));
        let (addr, _server) = served(Bounds::default(), most.clone()).await;
        let mut clients = JoinSet::new();
        (0..50).for_each(|_| drop(clients.spawn(ask(addr, GET))));
        assert!(clients.join_all().await.iter().all(|text| text.contains("viaduct_info")));
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
}
