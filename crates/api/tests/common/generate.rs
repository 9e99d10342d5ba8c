//! Generation of what is committed and made of the protocol files.

use schema::{Comment, Schema};
use std::io::Result;
use std::path::{Path, PathBuf};

#[path = "arguments.rs"]
mod arguments;
#[path = "reference.rs"]
mod reference;
#[path = "schema.rs"]
pub mod schema;
#[path = "tables.rs"]
mod tables;

/// Returns the files and their contents.
pub fn generate(schema: &Schema) -> Result<Vec<(PathBuf, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = root.join("docs/configuration.md");
    let tables = tables::tables(&std::fs::read_to_string(&page)?, schema)?;
    Ok(vec![
        (root.join("crates/api/src/generated/viaduct.v1.rs"), code(schema)?),
        (root.join("crates/viaduct/src/args/generated/objects.rs"), arguments::arguments(schema)),
        (root.join("docs/api-reference.md"), reference::reference(&schema.api)?),
        (page, tables),
    ])
}

/// Returns the code of the API.
fn code(schema: &Schema) -> Result<String> {
    let out = tempfile::tempdir()?;
    let serde = "#[derive(serde::Serialize, serde::Deserialize)]";
    let hex = "#[serde(with = \"crate::hex\")]";
    let mut api = schema.api.clone();
    for place in api.source_code_info.iter_mut().flat_map(|info| &mut info.location) {
        place.leading_comments = place.leading_comments.take().map(|comment| plain(&comment)).transpose()?;
    }
    tonic_prost_build::configure()
        .out_dir(out.path())
        .message_attribute(".", serde)
        .message_attribute(".", "#[serde(default)]")
        .enum_attribute(".", serde)
        .enum_attribute("viaduct.v1.Object.object", "#[serde(rename_all = \"snake_case\")]")
        .field_attribute("viaduct.v1.DroppedPacket.head", hex)
        .field_attribute("viaduct.v1.CapturedPacket.data", hex)
        .field_attribute("viaduct.v1.Explanation.frame", hex)
        .field_attribute("viaduct.v1.Network.tcp_midstream", "#[serde(with = \"crate::midstream\")]")
        .compile_fds(prost_types::FileDescriptorSet { file: vec![api] })?;
    std::fs::read_to_string(out.path().join("viaduct.v1.rs"))
}

/// Returns a comment for code: without tags, and without links, which lead to files beside the documentation.
fn plain(comment: &str) -> Result<String> {
    let read = Comment::read(comment)?;
    if read.tags.is_empty() && !comment.contains("](") {
        return Ok(comment.to_owned());
    }
    let mut parts = read.text.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if let (Some(start), Some((_, rest))) = (text.rfind('['), part.split_once(')')) {
            text.remove(start);
            text += rest;
        }
    }
    Ok(format!(" {text}\n"))
}
