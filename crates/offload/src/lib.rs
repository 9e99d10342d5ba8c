//! The executor of a host with a card: the card in front, the engine beside it.
//!
//! Owns: the thread that carries packets between ports, card and engine ([`CardExecutor`]); when a flow goes onto the
//! card, and when it leaves it; what happens when the card fails: the engine goes on alone.
//!
//! Must not know: what the card's tables look like, how packets are decided.
//!
//! What the card is not sure of it leaves to the host, which gives it to the engine by a ring that stands for the
//! port it came in by. The engine decides and sends it, by a ring again, and the card lets it out as it is; then the
//! flow goes onto the card, if the decision allows that. Nothing overtakes: the card keeps the flow's packets until
//! the engine is done with those that came before.
#![deny(unsafe_code)]

mod candidates;
mod card_executor;
mod carrier;
mod carry;
mod dropped;
mod fault;
mod flows;
mod install;
mod learned;
mod line;
mod moving;
mod orders;
mod ovs;
mod passage;
mod ports;
mod sleep;
mod stats;
mod traffic;
pub use card_executor::{CardExecutor, LineError, OffloadError};
pub use carry::{Carry, Incoming, Outgoing};
