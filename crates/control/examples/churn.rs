//! Puts load on a running daemon's API: adds and removes routes, and says how many changes a second it took.
//!
//!     churn RUN_DIR NETWORK BATCH SECONDS [CHANGES_PER_SECOND]
//!
//! It sends one request after the other on one connection, each with BATCH routes of NETWORK below
//! 100.64.0.0/10, and removes again what it added. It prints a line of JSON: changes, changes per second, and
//! how long requests took, in microseconds.
use api::v1::viaduct_client::ViaductClient;
use api::v1::{self, object::Object};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tonic::transport::Endpoint;

/// Most routes at a time.
const ROUTES: usize = 10_000;

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, run_dir, network, batch, seconds, rate @ ..] = &args[..] else {
        return Err("usage: churn RUN_DIR NETWORK BATCH SECONDS [CHANGES_PER_SECOND]".into());
    };
    let (batch, seconds): (usize, f64) = (batch.parse()?, seconds.parse()?);
    let rate: Option<f64> = rate.first().map(|rate| rate.parse()).transpose()?;
    let mut stream = Some(TokioIo::new(UnixStream::connect(api::socket(run_dir.as_ref())).await?));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("the connection is gone"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://viaduct").connect_with_connector(connector).await?;
    let mut client = ViaductClient::new(channel);

    let (mut took, mut changes, start) = (Vec::new(), 0, Instant::now());
    // Routes are removed in the order in which they were added, the rest at the end.
    let (mut added, mut removed) = (0, 0);
    loop {
        let over = start.elapsed().as_secs_f64() >= seconds;
        let remove = over || added - removed >= ROUTES.max(batch);
        if over && added == removed {
            break;
        }
        if let Some(rate) = rate.filter(|_| !over) {
            let due = Duration::from_secs_f64(changes as f64 / rate);
            tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
        }
        let asked = Instant::now();
        if remove {
            let keys = (removed..removed + batch).map(|n| key(network, n)).collect();
            client.remove(v1::RemoveRequest { keys }).await?;
            removed += batch;
        } else {
            let objects = (added..added + batch).map(|n| object(network, n)).collect();
            client.add(v1::AddRequest { objects }).await?;
            added += batch;
        }
        took.push(asked.elapsed().as_micros());
        changes += batch;
    }
    let per_second = changes as f64 / start.elapsed().as_secs_f64();
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
