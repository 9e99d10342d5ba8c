//! The engine in lock-step with the card's pipe in Rust (`card::expect`), which other tests compare with `decide`: the
//! fate of each packet, byte for byte, why it is punted, the order of packets that leave, and the counters.
#![cfg(feature = "card-sim")]

mod bad_lines;
mod both;
mod checksums;
mod hops;
mod ledger;
mod lockstep;
mod ovs;
mod random;
mod reasons;
mod storms;
mod subnet;
mod tables;
mod updates;
mod vectors;
mod weather;
