//! The engine in lock-step with the card's pipe in Rust (`card::expect`), which is held against `decide` elsewhere: what each
//! packet becomes, byte for byte, why it goes to the host, and the order of what leaves.
#![cfg(feature = "card-sim")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod both;
mod host;
#[path = "../decide/talk.rs"]
mod talk;
mod vectors;

pub use host::{Counts, Host};
use model::generate::{Rng, packet};

/// Packets in all; more by the environment.
fn packets() -> usize {
    std::env::var("CARD_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

#[test]
fn random_packets_of_random_tables() {
    let mut counts = Counts::default();
    for seed in 0.. {
        let mut rng = Rng::new(seed);
        let mut host = Host::new(&mut rng, seed % 4 != 3);
        for _ in 0..4 {
            // The host deals with them, then they come again, as fast as they can.
            for _ in 0..120 {
                talk::converse(&mut rng, &mut host, &mut counts);
            }
            for _ in 0..100 {
                host.send(&packet(&mut rng, &host.tables), &mut counts);
            }
            host.rounds(&mut rng, 12, &mut counts);
        }
        if counts.packets >= packets() {
            break;
        }
    }
    println!("{counts:#?}");
    assert!(counts.forwarded * 20 > counts.packets && counts.tracked > 0 && counts.dropped > 0, "{counts:?}");
}
