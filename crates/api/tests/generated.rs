//! The committed files are what the protocol files say, the reference describes each method and field, and the reader
//! of host.toml knows the same keys.

#[path = "common/generate.rs"]
mod generate;
#[path = "common/keys.rs"]
mod keys;

use generate::schema::Schema;

#[test]
fn generated_files_are_up_to_date() {
    for (path, text) in generate::generate(&Schema::read().unwrap()).unwrap() {
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let wanted = "run `cargo run -p api --example generate` and commit the result";
        assert!(text == committed, "{}: {wanted}", path.display());
    }
}

#[test]
fn each_method_and_field_is_described() {
    let page = include_str!("../../../docs/api-reference.md");
    let (described, _) = page.split_once("## Enumerations").unwrap();
    let bare = |line: &&str| line.starts_with("| `") && line.ends_with("  |");
    let bare: Vec<_> = described.lines().filter(bare).collect();
    assert!(bare.is_empty(), "add comments to viaduct.proto: {bare:#?}");
}
