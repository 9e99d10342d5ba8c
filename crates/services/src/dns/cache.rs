//! Answers of resolvers, kept for as long as they say.

use super::Inquiry;
use super::inquiry::lifetime;
use super::wire;
use std::collections::{BTreeMap, HashMap};

/// Most answers that are kept for a network, and for all.
const MOST: usize = 256;
const MOST_OF_ALL: usize = 16_384;
/// Longest answer that is kept, bytes.
const LONGEST: usize = 1500;

/// Answers by network and question.
#[derive(Debug, Default)]
pub(crate) struct Cache(BTreeMap<String, HashMap<Vec<u8>, Kept>>);

#[derive(Debug)]
struct Kept {
    response: Vec<u8>,
    /// When it came, and until when it may be given; seconds.
    since: u64,
    until: u64,
}

impl Cache {
    /// Returns the answer to a question, with the times that are left.
    pub(crate) fn get(&self, inquiry: &Inquiry, now: u64) -> Option<Vec<u8>> {
        let kept = self.0.get(&inquiry.network)?.get(&inquiry.query).filter(|kept| now < kept.until)?;
        let mut response = kept.response.clone();
        let age = u32::try_from(now.saturating_sub(kept.since)).ok()?;
        for (at, ttl) in wire::ttls(&response)? {
            response.get_mut(at..at + 4)?.copy_from_slice(&ttl.saturating_sub(age).to_be_bytes());
        }
        Some(response)
    }

    /// Keeps an answer, if it may be kept.
    pub(crate) fn put(&mut self, inquiry: &Inquiry, response: &[u8], now: u64) {
        let Some(lifetime) = lifetime(response).filter(|_| response.len() <= LONGEST) else { return };
        if self.len() >= MOST_OF_ALL {
            self.0.values_mut().for_each(|own| own.retain(|_, kept| now < kept.until));
            if self.len() >= MOST_OF_ALL {
                return;
            }
        }
        let own = self.0.entry(inquiry.network.clone()).or_default();
        if own.len() >= MOST && !own.contains_key(&inquiry.query) {
            own.retain(|_, kept| now < kept.until);
            let first = own.iter().min_by_key(|(_, kept)| kept.until).map(|(query, _)| query.clone());
            if let Some(first) = first.filter(|_| own.len() >= MOST) {
                own.remove(&first);
            }
        }
        let kept = Kept { response: response.to_vec(), since: now, until: now + u64::from(lifetime) };
        own.insert(inquiry.query.clone(), kept);
    }

    /// Forgets what resolvers said, because they may be others now.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn len(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }
}
