//! The executor of a host with a card: the card in front, the engine behind it.
//!
//! Owns: the thread that carries packets between ports, card and engine ([`CardExecutor`]); the decision when a flow
//! goes onto the card and when it leaves it; the failover to the engine alone when the card fails.
//!
//! Must not know: the format of the card's tables, how packets are decided.
//!
//! The card punts packets that it can't decide to the host. For each port there is a pair of rings to the engine, which
//! stands for the port. The host puts a punted packet into the ring of the port by which it came in. The engine decides
//! the packet and sends it into a ring; the card then sends it unchanged. If the decision allows that, the flow then
//! goes onto the card. No packet overtakes an earlier one of its flow: the card holds the flow's packets until the
//! engine has finished the earlier ones.
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
