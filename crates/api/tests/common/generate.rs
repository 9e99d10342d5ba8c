//! How the committed code is made.

use std::io::Result;
use std::path::Path;

/// Writes the code for `proto/viaduct.proto` into `out`.
pub fn generate(out: &Path) -> Result<()> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
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
        .compile_protos(&[proto.join("viaduct.proto")], &[proto])
}
