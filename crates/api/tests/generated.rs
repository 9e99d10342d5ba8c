//! The committed code is what the protocol file says.

#[path = "common/generate.rs"]
mod generate;

#[test]
fn generated_code_is_up_to_date() {
    if std::process::Command::new("protoc").arg("--version").output().is_err() {
        eprintln!("skipped: no protoc on this machine");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    generate::generate(out.path()).unwrap();
    let fresh = std::fs::read_to_string(out.path().join("viaduct.v1.rs")).unwrap();
    let committed = include_str!("../src/generated/viaduct.v1.rs");
    assert!(fresh == committed, "run `cargo run -p api --example generate` and commit the result");
}
