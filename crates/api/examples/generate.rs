//! Generates what is committed and made of the protocol files in `proto`: `tests/common/generate.rs` lists it. Needs
//! protoc.

use std::io::Result;

#[path = "../tests/common/generate.rs"]
mod generate;

fn main() -> Result<()> {
    for (path, text) in generate::generate(&generate::schema::Schema::read()?)? {
        std::fs::write(path, text)?;
    }
    Ok(())
}
