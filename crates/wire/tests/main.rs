//! Tests of the crate through its public interface. They are one program, because each further one takes seconds to link.

mod common;
mod packet;
mod tap;
mod xdp;
