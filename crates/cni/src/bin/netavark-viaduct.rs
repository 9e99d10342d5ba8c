#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    cni::netavark::main()
}
