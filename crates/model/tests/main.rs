//! The tests of the crate as programs use it, in one program, because each one more takes seconds to link.

mod allowed;
mod properties;
mod reasons;
mod tables;
mod text;
