//! The tests of the crate as programs use it, in one program, because each one more takes seconds to link.

mod port;
mod rates;
mod rules;
