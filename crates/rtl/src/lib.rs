//! The modules of `rtl/` as Rust structs, simulated clock by clock.
//!
//! Owns: their translation by Verilator, and the structs made of it. Must not know: the purpose of the modules.
//!
//! With Verilator, the build translates the tops listed in `build/tops.rs` whose features are on. It compiles each, and
//! makes a struct of it: `skid` becomes [`Skid`]. A struct derefs to [`Model`] for everything that tops have in common
//! (`clock`, `eval`, `reset`), and has two methods per port: `s_valid()` and, for inputs, `set_s_valid(value)`. A port
//! of one bit is a `bool`, a port of up to 64 bits an unsigned integer, a wider one [`Bits`].
//!
//! Without a feature this crate is empty, and nobody needs Verilator.
//!
//! # Adding a top
//!
//! 1. Put the module into a file of its name anywhere below `rtl/` (if only simulation needs it, below `rtl/sim/`).
//! 2. Add a line to `build/tops.rs`: its name, and packages it needs (in order) or parameters (`-GWidth=64`).
//!
//! # Seeing waves
//!
//! `VIADUCT_RTL_TRACE=/tmp/waves cargo test -p rtl --features rtl/units` builds the models with tracing, and leaves a
//! VCD file of every model in that directory, named after the thread (hence the test) and the top.

#![cfg(feature = "verilate")]

mod bits;
mod model;

pub use bits::{Bits, BitsMut};
pub use model::Model;

include!(concat!(env!("OUT_DIR"), "/tops.rs"));
