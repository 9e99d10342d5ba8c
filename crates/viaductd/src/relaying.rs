//! DHCP servers outside: a thread that sends them what guests ask, and passes on what they answer.

use crate::serving::Means;
use model::VifId;
use services::Relayed;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

/// Most messages under way, of all guests.
const MOST: usize = 512;
/// A socket goes when its server says nothing for so long: the next message asks the file anew.
const IDLE: Duration = Duration::from_secs(60);
/// Longest answer that is read, bytes.
const LONGEST: usize = 4096;

/// Starts the thread, and returns the way to it.
pub fn start(means: Means) -> mpsc::UnboundedSender<Box<Relayed>> {
    // A guest has few messages in a second.
    let (to, messages) = mpsc::unbounded_channel();
    let relaying = Relaying { means, sockets: Arc::default() };
    let thread = std::thread::Builder::new().name("dhcp-relay".into());
    if let Err(error) = thread.spawn(move || relaying.run(messages)) {
        tracing::error!("nothing is relayed to DHCP servers: {error}");
    }
    to
}

#[derive(Clone)]
struct Relaying {
    means: Means,
    sockets: Arc<Mutex<Sockets>>,
}

#[derive(Default)]
struct Sockets {
    open: HashMap<IpAddr, Arc<UdpSocket>>,
    /// Servers about which the log has a warning.
    told: HashSet<IpAddr>,
}

impl Relaying {
    fn run(self, mut messages: mpsc::UnboundedReceiver<Box<Relayed>>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = match runtime.enable_all().max_blocking_threads(1).build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!("nothing is relayed to DHCP servers: {error}"),
        };
        let places = Arc::new(Semaphore::new(MOST));
        runtime.block_on(async {
            while let Some(message) = messages.recv().await {
                match places.clone().try_acquire_owned() {
                    Ok(place) => {
                        let all = self.clone();
                        tokio::spawn(async move {
                            all.send(&message).await;
                            drop(place);
                        });
                    }
                    Err(_) => self.means.services.unreached(&message),
                }
            }
        });
    }

    /// Sends a message to its servers.
    async fn send(&self, message: &Relayed) {
        let mut is_sent = false;
        for &server in &message.servers {
            let sent = async {
                let socket = self.socket(server).await?;
                socket.send(&message.datagram(socket.local_addr()?.ip())).await
            };
            let sent = sent.await;
            is_sent |= sent.is_ok();
            let mut sockets = self.sockets.lock().await;
            match sent {
                Ok(_) => drop(sockets.told.remove(&server)),
                Err(error) if sockets.told.insert(server) => {
                    tracing::warn!("the DHCP server {server} gets nothing of guests: {error}");
                }
                Err(_) => {}
            }
        }
        if !is_sent {
            self.means.services.unreached(message);
        }
    }

    /// Returns the socket to a server, and listens to it.
    async fn socket(&self, server: IpAddr) -> io::Result<Arc<UdpSocket>> {
        let mut sockets = self.sockets.lock().await;
        if let Some(socket) = sockets.open.get(&server) {
            return Ok(socket.clone());
        }
        let privileges = self.means.privileges.clone();
        let opened = tokio::task::spawn_blocking(move || privileges.dhcp_server(server)).await;
        let socket = Arc::new(UdpSocket::from_std(opened.map_err(io::Error::other)??.into())?);
        sockets.open.insert(server, socket.clone());
        tokio::spawn(self.clone().listen(server, socket.clone()));
        Ok(socket)
    }

    /// Passes on what a server answers, as long as it does.
    async fn listen(self, server: IpAddr, socket: Arc<UdpSocket>) {
        let mut bytes = vec![0; LONGEST];
        while let Ok(Ok((len, from))) = timeout(IDLE, socket.recv_from(&mut bytes)).await {
            // Others may have sent before the socket was connected.
            if from.ip() != server {
                continue;
            }
            let Means { services, engine, began, .. } = &self.means;
            let Some((guest, frame)) = services.returned(server, &bytes[..len], began.elapsed()) else {
                continue;
            };
            if engine.upgrade().is_some_and(|engine| !engine.answer(VifId(guest), frame, None)) {
                services.lost(guest);
            }
        }
        self.sockets.lock().await.open.remove(&server);
    }
}
