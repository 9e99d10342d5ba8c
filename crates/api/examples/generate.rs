//! Generates `src/generated` and docs/api-reference.md from `proto/viaduct.proto`. Needs protoc.

use std::io::Result;
use std::path::Path;

#[path = "../tests/common/generate.rs"]
mod generate;

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reference = generate::generate(&here.join("src/generated"))?;
    std::fs::write(here.join("../../docs/api-reference.md"), reference)
}
