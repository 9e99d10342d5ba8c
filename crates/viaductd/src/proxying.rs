//! Metadata services outside: a thread that passes requests of guests on, and brings back what they answer.

use crate::serving::Means;
use model::VifId;
use services::{Answer, Proxied};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Most requests under way to a service, of all guests.
const MOST: usize = 64;
/// How long a service has for its response: less than a guest's connection waits.
const PATIENCE: Duration = Duration::from_secs(8);
/// Longest response, bytes.
const LONGEST: u64 = 128 << 10;
/// Threads that wait for the helper.
const WAITING: usize = 4;

/// Starts the thread, and returns the way to it.
pub fn start(means: Means) -> mpsc::UnboundedSender<Box<Proxied>> {
    // A guest has few requests under way.
    let (to, requests) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("metadata".into());
    if let Err(error) = thread.spawn(move || run(&means, requests)) {
        tracing::error!("no metadata service outside is asked: {error}");
    }
    to
}

fn run(means: &Means, mut requests: mpsc::UnboundedReceiver<Box<Proxied>>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = match runtime.enable_all().max_blocking_threads(WAITING).build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!("no metadata service outside is asked: {error}"),
    };
    // As many services as the file names.
    let mut places: HashMap<SocketAddr, Arc<Semaphore>> = HashMap::new();
    // Services about which the log has a warning.
    let told = Arc::new(Mutex::new(HashSet::new()));
    runtime.block_on(async {
        while let Some(asked) = requests.recv().await {
            let places = places.entry(asked.server).or_insert_with(|| Arc::new(Semaphore::new(MOST)));
            let (place, means, told) = (places.clone().try_acquire_owned().ok(), means.clone(), told.clone());
            tokio::spawn(async move {
                let response = match place {
                    Some(_) => timeout(PATIENCE, ask(&means, &asked)).await.unwrap_or_else(|e| Err(e.into())),
                    None => Err(io::Error::other("too many requests are under way")),
                };
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                match &response {
                    Ok(_) => drop(told.remove(&asked.server)),
                    Err(error) if told.insert(asked.server) => {
                        tracing::warn!("the metadata service {} does not answer: {error}", asked.server);
                    }
                    Err(_) => {}
                }
                drop(told);
                answer(&means, &asked, response.ok());
            });
        }
    });
}

/// Returns the response of the service.
async fn ask(means: &Means, asked: &Proxied) -> io::Result<Vec<u8>> {
    let (server, privileges) = (asked.server, means.privileges.clone());
    let opened = tokio::task::spawn_blocking(move || privileges.metadata_service(server)).await;
    let mut stream = TcpStream::from_std(opened.map_err(io::Error::other)??.into())?;
    stream.writable().await?;
    stream.write_all(&asked.request).await?;
    let mut response = Vec::new();
    stream.take(LONGEST + 1).read_to_end(&mut response).await?;
    match u64::try_from(response.len()) {
        Ok(1..=LONGEST) => Ok(response),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends the guest what follows.
fn answer(means: &Means, asked: &Proxied, response: Option<Vec<u8>>) {
    let Means { services, engine, began, .. } = means;
    let answers = services.proxied(asked, response.as_deref(), began.elapsed());
    let Some(engine) = engine.upgrade() else { return };
    for (guest, answer) in answers {
        // A connection has one request, so nothing else follows.
        if let Answer::Frame(frame) = answer
            && !engine.answer(VifId(guest), frame, None)
        {
            services.lost(guest);
        }
    }
}
