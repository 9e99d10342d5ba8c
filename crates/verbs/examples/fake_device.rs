//! A device for programs to try the library with where there is no daemon: `fake_device SOCKET`.

#[path = "../tests/fake/mod.rs"]
mod fake;

fn main() {
    let path = std::env::args_os().nth(1).expect("fake_device SOCKET");
    let _ = std::fs::remove_file(&path);
    let _fake = fake::Fake::start(path.as_ref());
    loop {
        std::thread::park();
    }
}
