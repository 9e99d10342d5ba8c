//! The CNI plug-in. As `viaduct-cni restore` it plugs the taps of a restarted daemon into their containers again.
#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    cni::cni::main()
}
