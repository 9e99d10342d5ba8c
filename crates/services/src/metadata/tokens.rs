//! Tokens of IMDSv2. Nothing is remembered of them: each says until when it is right, under a key of this process.

use crate::Binding;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Longest life of a token, seconds.
const LONGEST: u64 = 21_600;

/// The key of tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(RandomState);

impl Tokens {
    fn proof(&self, guest: &Binding, until: u64) -> u64 {
        self.0.hash_one((&guest.guest, &guest.network.name, until))
    }

    /// Returns a token for so many seconds, if they are not too many.
    pub(super) fn token(&self, guest: &Binding, seconds: u64, now: Duration) -> Option<String> {
        let until = now.as_secs() + (1..=LONGEST).contains(&seconds).then_some(seconds)?;
        Some(format!("{until:x}-{:016x}", self.proof(guest, until)))
    }

    /// Returns whether a token is the guest's, and still right.
    pub(super) fn is_right(&self, guest: &Binding, token: &str, now: Duration) -> bool {
        let number = |text| u64::from_str_radix(text, 16).ok();
        let parts = token.split_once('-').and_then(|(until, proof)| Some((number(until)?, number(proof)?)));
        parts.is_some_and(|(until, proof)| now.as_secs() < until && proof == self.proof(guest, until))
    }
}
