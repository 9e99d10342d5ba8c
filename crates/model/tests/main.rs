//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

mod allowed;
mod properties;
mod reasons;
mod tables;
mod text;
