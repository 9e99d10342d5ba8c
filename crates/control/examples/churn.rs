//! Puts load on a running daemon's API: adds and removes routes, and says how many changes a second it took.
//!
//!     churn RUN_DIR NETWORK BATCH SECONDS [CHANGES_PER_SECOND [CLIENTS]]
//!
//! Each client has a connection and sends one request after the other, each with BATCH routes of NETWORK below
//! 100.64.0.0/10, and removes again what it added. It prints a line of JSON: changes, changes per second (0: as many as
//! possible), and how long requests took, in microseconds.
use api::v1::viaduct_client::ViaductClient;
use api::v1::{self, object::Object};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// Most routes of all clients at a time, and those that there are.
const ROUTES: usize = 10_000;
const ALL: usize = 1 << 22;

fn prefix(n: usize) -> String {
    format!("100.{}.{}.{}/32", 64 + (n >> 16 & 63), n >> 8 & 255, n & 255)
}

fn object(network: &str, n: usize) -> v1::Object {
    let drop = v1::Target { drop: Some(true), ..v1::Target::default() };
    let route = v1::Route { network: network.to_owned(), prefix: prefix(n), to: vec![drop] };
    v1::Object { object: Some(Object::Route(route)) }
}

fn key(network: &str, n: usize) -> v1::Key {
    v1::Key { kind: v1::Kind::Route.into(), network: Some(network.to_owned()), name: prefix(n) }
}

async fn connect(run_dir: &Path) -> Result<ViaductClient<Channel>, Box<dyn Error>> {
    let mut stream = Some(TokioIo::new(UnixStream::connect(api::socket(run_dir)).await?));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("the connection is gone"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://viaduct").connect_with_connector(connector).await?;
    Ok(ViaductClient::new(channel))
}

struct Load {
    network: String,
    batch: usize,
    seconds: f64,
    rate: Option<f64>,
    clients: usize,
    start: Instant,
}

impl Load {
    /// Adds and removes routes from `first` on, and returns how long each request took.
    async fn client(
        self: Arc<Self>,
        mut client: ViaductClient<Channel>,
        first: usize,
    ) -> Result<Vec<u128>, tonic::Status> {
        let Self { network, batch, .. } = &*self;
        let (mut took, most) = (Vec::new(), (ROUTES / self.clients).max(*batch));
        // Routes are removed in the order in which they were added, the rest at the end.
        let (mut added, mut removed) = (0, 0);
        loop {
            let over = self.start.elapsed().as_secs_f64() >= self.seconds;
            if over && added == removed {
                return Ok(took);
            }
            if let Some(rate) = self.rate.filter(|_| !over) {
                let due = Duration::from_secs_f64((took.len() * batch * self.clients) as f64 / rate);
                tokio::time::sleep(due.saturating_sub(self.start.elapsed())).await;
            }
            let asked = Instant::now();
            if over || added - removed >= most {
                let keys = (removed..removed + batch).map(|n| key(network, first + n)).collect();
                client.remove(v1::RemoveRequest { keys }).await?;
                removed += batch;
            } else {
                let objects = (added..added + batch).map(|n| object(network, first + n)).collect();
                client.add(v1::AddRequest { objects }).await?;
                added += batch;
            }
            took.push(asked.elapsed().as_micros());
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, run_dir, network, batch, seconds, more @ ..] = &args[..] else {
        return Err("usage: churn RUN_DIR NETWORK BATCH SECONDS [CHANGES_PER_SECOND [CLIENTS]]".into());
    };
    let rate: Option<f64> = more.first().map(|rate| rate.parse()).transpose()?;
    let clients: usize = more.get(1).map_or(Ok(1), |clients| clients.parse())?;
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(connect(run_dir.as_ref()).await?);
    }
    let (network, batch, rate) = (network.clone(), batch.parse()?, rate.filter(|rate| *rate > 0.0));
    let load = Load { network, batch, seconds: seconds.parse()?, rate, clients, start: Instant::now() };
    let (load, mut running, mut took) = (Arc::new(load), JoinSet::new(), Vec::new());
    for (n, client) in connected.into_iter().enumerate() {
        running.spawn(load.clone().client(client, n * (ALL / clients)));
    }
    while let Some(client) = running.join_next().await {
        took.extend(client??);
    }
    let changes = took.len() * load.batch;
    let per_second = changes as f64 / load.start.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!(
        "{{\"changes\": {changes}, \"per_second\": {per_second:.0}, \"p50_us\": {}, \"p99_us\": {}, \"max_us\": {}}}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    Ok(())
}
