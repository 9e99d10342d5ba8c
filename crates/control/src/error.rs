//! Why a change is refused.

use crate::store::StoreError;
use config::Problems;
use model::ApplyError;

/// The reason for refusing a change, of which nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// The request contradicts the present state.
    #[error("{0}")]
    Conflict(String),
    /// An object in the request does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The client may not do that.
    #[error("{0}")]
    Denied(String),
    #[error("{0} changes wait to be made: ask again when others are answered")]
    Busy(usize),
    #[error("the host is at revision {present}, not {expected}: look again at what changed")]
    Revision { expected: u64, present: u64 },
    /// One operation of a transaction, counted from 0, is refused.
    #[error("{error}")]
    Operation { index: usize, error: Box<Self> },
    #[error("interface \"{name}\" can't be opened: {reason}")]
    Port { name: String, reason: String },
    #[error("the executor refuses it: {0}")]
    Executor(#[from] ApplyError),
    #[error(transparent)]
    Routes(#[from] rib::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}
