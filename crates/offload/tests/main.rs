//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

#[macro_use]
mod common;

mod carry;
mod moving;
