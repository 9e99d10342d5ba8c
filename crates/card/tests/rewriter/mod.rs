//! The rewriter, the sums at its input and the entropy hash against the model, in simulation.
#![cfg(feature = "card-test")]

mod bench;
mod checksums;
mod decisions;
mod edit;
mod entropy;
mod payload;
mod sizes;
