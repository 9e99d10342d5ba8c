//! Generates `src/generated` from `proto/viaduct.proto`. Needs protoc.

use std::io::Result;
use std::path::Path;

#[path = "../tests/common/generate.rs"]
mod generate;

fn main() -> Result<()> {
    generate::generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated"))
}
