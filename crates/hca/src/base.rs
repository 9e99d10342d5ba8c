//! Owns what all folders use: numbers of objects, limits and budgets, counters, clock, addresses in packets. Imports no
//! other folder.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod header;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod random;
pub(crate) mod refusal;
pub(crate) mod refusal_log;
pub(crate) mod shaper;
pub(crate) mod spec;
pub(crate) mod threads;
