//! The packet path under callgrind, stage by stage.

pub mod callgrind;
pub mod cycles;
pub mod hosts;
pub mod lookups;
pub mod seed;
pub mod sources;
pub mod worker;
