//! The committed code and reference are what the protocol file says.

#[path = "common/generate.rs"]
mod generate;

#[test]
fn generated_code_is_up_to_date() {
    let protoc = std::process::Command::new("protoc").arg("--version").output();
    assert!(
        protoc.is_ok(),
        "no protoc: apt install protobuf-compiler (building needs none, this check does)"
    );
    let out = tempfile::tempdir().unwrap();
    let reference = generate::generate(out.path()).unwrap();
    let fresh = std::fs::read_to_string(out.path().join("viaduct.v1.rs")).unwrap();
    let committed = include_str!("../src/generated/viaduct.v1.rs");
    let wanted = "run `cargo run -p api --example generate` and commit the result";
    assert!(fresh == committed, "{wanted}");
    assert!(reference == include_str!("../../../docs/api-reference.md"), "{wanted}");
}
