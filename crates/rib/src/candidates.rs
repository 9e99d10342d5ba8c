//! The routes of several sources for one prefix, the best first.

use crate::SourceId;
use model::NexthopId;
use std::sync::Arc;

/// A route of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The nexthop of its paths.
    pub(crate) nexthop: NexthopId,
    /// The session in which it was sent last.
    pub(crate) session: u16,
    pub(crate) source: SourceId,
}

/// At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    One(Candidate),
    // A thin pointer: nearly all prefixes have one route, and there are a million of them.
    #[allow(clippy::rc_buffer)]
    Several(Arc<Vec<Candidate>>),
}

// A million of them, beside their keys.
const _: () = assert!(size_of::<Candidates>() == 16);

impl Candidates {
    fn as_slice(&self) -> &[Candidate] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.as_slice().iter()
    }

    pub(crate) fn best(&self) -> Candidate {
        self.as_slice()[0]
    }

    pub(crate) fn of(&self, source: SourceId) -> Option<Candidate> {
        self.iter().find(|candidate| candidate.source == source).copied()
    }

    fn from(mut candidates: Vec<Candidate>) -> Option<Self> {
        match candidates.len() {
            0 => None,
            1 => candidates.pop().map(Self::One),
            _ => Some(Self::Several(Arc::new(candidates))),
        }
    }

    /// Returns these with a route of a source in place of the one that it had.
    pub(crate) fn with(&self, new: Candidate, rank: impl Fn(&Candidate) -> u8) -> Self {
        let others = self.iter().filter(|candidate| candidate.source != new.source).copied();
        let mut all: Vec<_> = others.chain([new]).collect();
        all.sort_by_key(|candidate| (rank(candidate), candidate.source));
        Self::from(all).unwrap_or(Self::One(new))
    }

    pub(crate) fn without(&self, source: SourceId) -> Option<Self> {
        Self::from(self.iter().filter(|candidate| candidate.source != source).copied().collect())
    }
}
