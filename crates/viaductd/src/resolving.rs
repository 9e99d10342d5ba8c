//! Resolvers outside: a thread that asks them, on behalf of guests.

use crate::serving::Means;
use model::VifId;
use services::{Answer, Inquiry};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Most inquiries under way, of all guests.
const MOST: usize = 512;
/// How long a resolver has for an answer, how many of them are asked, and how often.
const PATIENCE: Duration = Duration::from_millis(1500);
const MOST_SERVERS: usize = 3;
const ROUNDS: usize = 2;
/// Longest answer that is read, bytes.
const LONGEST: usize = 4096;
/// Threads that wait for the helper.
const WAITING: usize = 4;

/// Starts the thread, and returns the way to it.
pub fn start(means: Means) -> mpsc::UnboundedSender<Box<Inquiry>> {
    // A guest has few inquiries under way.
    let (to, inquiries) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("names".into());
    if let Err(error) = thread.spawn(move || Resolving(means).run(inquiries)) {
        tracing::error!("names are not resolved: {error}");
    }
    to
}

#[derive(Clone)]
struct Resolving(Means);

impl Resolving {
    fn run(self, mut inquiries: mpsc::UnboundedReceiver<Box<Inquiry>>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = match runtime.enable_all().max_blocking_threads(WAITING).build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!("names are not resolved: {error}"),
        };
        let places = Arc::new(Semaphore::new(MOST));
        runtime.block_on(async {
            while let Some(inquiry) = inquiries.recv().await {
                let (place, all) = (places.clone().try_acquire_owned().ok(), self.clone());
                tokio::spawn(async move {
                    let mut asked = vec![*inquiry];
                    // By TCP, a client may have asked something else meanwhile.
                    while let Some(inquiry) = asked.pop() {
                        let response = if place.is_some() { all.ask(&inquiry).await } else { None };
                        asked.extend(all.answer(&inquiry, response));
                    }
                });
            }
        });
    }

    /// Sends the answer to the guest, and returns what else it asks.
    fn answer(&self, inquiry: &Inquiry, response: Option<Vec<u8>>) -> Vec<Inquiry> {
        let Means { services, engine, began, .. } = &self.0;
        let answers = services.resolved(inquiry, response.as_deref(), began.elapsed());
        let Some(engine) = engine.upgrade() else { return Vec::new() };
        let mut more = Vec::new();
        for (guest, answer) in answers {
            match answer {
                Answer::Inquiry(inquiry) => more.push(*inquiry),
                Answer::Frame(frame) => {
                    if !engine.answer(VifId(guest), frame, None) {
                        services.lost(guest);
                    }
                }
                // An answer about a name is none of these.
                Answer::Relayed(_) | Answer::Proxied(_) => {}
            }
        }
        more
    }

    /// Asks one resolver after the other.
    async fn ask(&self, inquiry: &Inquiry) -> Option<Vec<u8>> {
        let servers =
            if inquiry.servers.is_empty() { MOST_SERVERS } else { inquiry.servers.len().min(MOST_SERVERS) };
        for number in (0..servers).cycle().take(ROUNDS * servers) {
            let (server, privileges) = (inquiry.servers.get(number).copied(), self.0.privileges.clone());
            let (number, by_tcp) = (u8::try_from(number).unwrap_or_default(), inquiry.is_by_tcp());
            let open = move || privileges.resolver(server, number, by_tcp);
            let opened = tokio::task::spawn_blocking(open).await;
            match opened {
                Ok(Ok(socket)) => {
                    if let Some(response) = exchange(socket, inquiry).await {
                        return Some(response);
                    }
                }
                Ok(Err(error)) => tracing::debug!(?server, "no way to a resolver: {error}"),
                Err(error) => tracing::debug!("no way to a resolver: {error}"),
            }
        }
        None
    }
}

/// Sends the question by a socket of its own, and returns the answer.
async fn exchange(socket: OwnedFd, inquiry: &Inquiry) -> Option<Vec<u8>> {
    let exchanged = async {
        match inquiry.is_by_tcp() {
            true => by_tcp(socket, inquiry).await,
            false => by_udp(socket, inquiry).await,
        }
    };
    timeout(PATIENCE, exchanged).await.ok().flatten()
}

/// Exchanges messages with their length before them (RFC 7766, 8).
async fn by_tcp(socket: OwnedFd, inquiry: &Inquiry) -> Option<Vec<u8>> {
    let mut socket = TcpStream::from_std(socket.into()).ok()?;
    let id = RandomState::new().hash_one(&inquiry.servers) as u16;
    let query = inquiry.query(id);
    let len = u16::try_from(query.len()).ok()?.to_be_bytes();
    socket.writable().await.ok()?;
    socket.write_all(&[&len[..], &query].concat()).await.ok()?;
    let mut bytes = vec![0; usize::from(socket.read_u16().await.ok()?)];
    socket.read_exact(&mut bytes).await.ok()?;
    inquiry.is_answered_by(id, &bytes).then_some(bytes)
}

async fn by_udp(socket: OwnedFd, inquiry: &Inquiry) -> Option<Vec<u8>> {
    let socket = UdpSocket::from_std(socket.into()).ok()?;
    // By a key of the kernel's random numbers.
    let id = RandomState::new().hash_one(&inquiry.servers) as u16;
    socket.send(&inquiry.query(id)).await.ok()?;
    let mut bytes = vec![0; LONGEST];
    loop {
        let len = socket.recv(&mut bytes).await.ok()?;
        if inquiry.is_answered_by(id, &bytes[..len]) {
            bytes.truncate(len);
            return Some(bytes);
        }
    }
}
