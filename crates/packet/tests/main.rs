//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

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
