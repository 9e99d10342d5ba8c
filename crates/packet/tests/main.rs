//! The tests of the crate as programs use it, in one program, because each one more takes seconds to link.

#[path = "../../../tests/captures/captures.rs"]
mod captures;
mod checksum;
mod common;
mod edit;
mod entropy;
mod fuzz;
mod parse;
mod properties;
mod reply;
mod roce;
mod tunnel;
