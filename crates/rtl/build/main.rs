//! Verilates the tops of `tops.rs`, compiles them, and writes their Rust structs. Without the feature it does nothing.

#[cfg(feature = "verilate")]
mod generate;
#[cfg(feature = "verilate")]
mod tops;
#[cfg(feature = "verilate")]
mod verilate;

fn main() {
    #[cfg(feature = "verilate")]
    if let Err(error) = verilate::run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
