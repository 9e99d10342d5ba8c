//! Random packets of random tables.

use super::lockstep::{Lockstep, Prepared};
use super::weather::Weather;
use crate::host::{tables, talk};
use model::generate::{Rng, packet};

/// Number of packets with the same tables.
const OF_TABLES: usize = 3200;

/// Returns the number of packets in all. The environment may ask for more than the default.
fn packets() -> usize {
    std::env::var("CARD_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// Makes conversations of random guests, and some meaningless packets. The card knows what the host has seen of them.
pub fn traffic(rng: &mut Rng, bench: &mut Lockstep) -> Vec<Prepared> {
    for _ in 0..80 {
        talk::converse(rng, bench);
    }
    for _ in 0..120 {
        let packet = packet(rng, &bench.host.tables);
        talk::Carrier::send(bench, &packet);
    }
    bench.prepared()
}

fn weather(rng: &mut Rng) -> Weather {
    match rng.below(3) {
        0 => Weather::new(rng.next_u64(), 100, 100, 20),
        1 => Weather::new(rng.next_u64(), 90, 80, 5),
        _ => Weather::calm(),
    }
}

#[test]
fn random_packets_of_random_tables() {
    let mut bench = Lockstep::new();
    let mut fetched = 0;
    for seed in 0.. {
        let mut rng = Rng::new(seed);
        bench = bench.renewed();
        let in_memory = seed % 3 == 1;
        if in_memory {
            bench.host.driver.leave_chip();
        }
        let before = bench.counts.forwarded;
        let tables = tables(&mut rng, seed % 4 != 3);
        bench.host.set_up(&mut rng, &tables);
        for _ in 0..2 {
            let packets = traffic(&mut rng, &mut bench);
            bench.host.card().weather = weather(&mut rng);
            bench.round(&mut rng, &packets, OF_TABLES / 2);
            bench.host.card().weather = Weather::calm();
        }
        fetched += if in_memory { bench.counts.forwarded - before } else { 0 };
        if bench.counts.packets >= packets() {
            break;
        }
    }
    bench.ledger.check_all(bench.host.driver.commands());
    let counts = &bench.counts;
    println!("{counts:#?}\n{} % served", counts.served());
    assert!(fetched * 10 > counts.packets, "{fetched} by nexthops in HBM");
    assert!(counts.served() >= 50 && counts.tracked * 10 > counts.packets, "{counts:?}");
}
