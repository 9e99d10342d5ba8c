//! Generation of the committed code and the reference from `proto/viaduct.proto`.

use prost::Message;
use prost_types::FileDescriptorSet;
use std::io::{Error, Result};
use std::path::Path;

#[path = "reference.rs"]
mod reference;

/// Writes the code into `out`. Returns the reference.
pub fn generate(out: &Path) -> Result<String> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let scratch = tempfile::tempdir()?;
    let descriptors = scratch.path().join("descriptors");
    let serde = "#[derive(serde::Serialize, serde::Deserialize)]";
    let hex = "#[serde(with = \"crate::hex\")]";
    tonic_prost_build::configure()
        .out_dir(out)
        .message_attribute(".", serde)
        .message_attribute(".", "#[serde(default)]")
        .enum_attribute(".", serde)
        .enum_attribute("viaduct.v1.Object.object", "#[serde(rename_all = \"snake_case\")]")
        .field_attribute("viaduct.v1.DroppedPacket.head", hex)
        .field_attribute("viaduct.v1.CapturedPacket.data", hex)
        .field_attribute("viaduct.v1.Explanation.frame", hex)
        .field_attribute("viaduct.v1.Network.tcp_midstream", "#[serde(with = \"crate::midstream\")]")
        .file_descriptor_set_path(&descriptors)
        .compile_protos(&[proto.join("viaduct.proto")], &[proto])?;
    let set = FileDescriptorSet::decode(&*std::fs::read(descriptors)?).map_err(Error::other)?;
    Ok(set.file.iter().map(reference::reference).collect())
}
