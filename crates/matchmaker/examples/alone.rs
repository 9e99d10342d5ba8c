//! Matches the connections of one host's own network, without a daemon: `alone SOCKET`, for trials.

use matchmaker::{GuestSpec, Key, Limits, Service, Ways};
use std::net::SocketAddr;

struct Nothing;

impl Ways for Nothing {
    fn inside(&self, _: &str, _: SocketAddr, _: SocketAddr) -> Option<Key> {
        None
    }

    fn may_share(&self, _: (&str, &str), _: &Key) -> bool {
        false
    }

    fn in_use(&self, _: &Key, _: (u64, u64)) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("alone SOCKET")?.into();
    let service = Service::start(Box::new(Nothing), Limits::default())?;
    service.keep(vec![GuestSpec { guest: "here".into(), socket }], sockets::here());
    for (_, problem) in service.problems() {
        return Err(problem.into());
    }
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let status = service.status();
        println!("{:?} {} pairs, {} offers", status.counts, status.pairs.len(), status.offers);
    }
}
