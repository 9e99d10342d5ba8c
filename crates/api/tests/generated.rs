//! The committed code and reference are what the protocol file says, and the reference describes each method and field.

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

#[test]
fn each_method_and_field_is_described() {
    let page = include_str!("../../../docs/api-reference.md");
    let (described, _) = page.split_once("## Enumerations").unwrap();
    let bare = |line: &&str| line.starts_with("| `") && line.ends_with("  |");
    let bare: Vec<_> = described.lines().filter(bare).collect();
    assert!(bare.is_empty(), "add comments to viaduct.proto: {bare:#?}");
}
