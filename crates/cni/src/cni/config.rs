//! The configuration of a call.

use super::version::Version;
use crate::attachment::{check_ifname, check_network};
use crate::attend::template;
use crate::error::Error;
use crate::records::DATA_DIR;
use api::v1;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The checked configuration.
pub(super) struct Config {
    pub version: Version,
    pub name: String,
    /// The plug-in that allocates addresses.
    pub ipam: Option<String>,
    pub previous: Option<Value>,
    pub dns: Option<Value>,
    /// Name of the interface, if it differs from `CNI_IFNAME`.
    pub interface: Option<String>,
    /// The keys that all guests have in common.
    pub guest: v1::Guest,
    /// The MAC of this container's guest, if it is given one.
    pub mac: Option<String>,
    pub run_dir: PathBuf,
    pub data_dir: PathBuf,
    /// The attachments that the garbage collection must keep; `None` without the key, which other commands lack.
    pub valid: Option<Vec<Valid>>,
    /// The configuration as it was sent, for other plug-ins.
    pub text: Vec<u8>,
}

/// An attachment that the garbage collection must keep.
#[derive(Deserialize)]
pub(super) struct Valid {
    #[serde(rename = "containerID")]
    pub container: String,
    pub ifname: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    cni_version: String,
    name: String,
    ipam: Option<Ipam>,
    prev_result: Option<Value>,
    dns: Option<Value>,
    runtime_config: Option<RuntimeConfig>,
    network: Option<String>,
    interface: Option<String>,
    mtu: Option<u32>,
    #[serde(default)]
    guest: Map<String, Value>,
    run_dir: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<Valid>>,
    /// The name in runtimes that follow the first text of the specification.
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Vec<Valid>>,
}

#[derive(Deserialize)]
struct Ipam {
    #[serde(default)]
    r#type: String,
}

#[derive(Deserialize)]
struct RuntimeConfig {
    mac: Option<String>,
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`Error::Decode`], [`Error::Version`], [`Error::Config`].
    pub(super) fn read(input: &[u8]) -> Result<Self, Error> {
        let raw: Raw = serde_json::from_slice(input).map_err(|e| Error::Decode("the configuration", e))?;
        let version = Version::from_name(&raw.cni_version)?;
        check_network(&raw.name)?;
        if let Some(interface) = &raw.interface {
            check_ifname(interface).map_err(|reason| Error::Config(format!("interface: {reason}")))?;
        }
        for (key, directory) in [("runDir", &raw.run_dir), ("dataDir", &raw.data_dir)] {
            if directory.as_ref().is_some_and(|directory| !directory.is_absolute()) {
                return Err(Error::Config(format!("{key}: it must be an absolute path")));
            }
        }
        let guest = template(
            raw.network.as_deref().unwrap_or(&raw.name),
            raw.mtu.filter(|mtu| *mtu != 0),
            &raw.guest,
        )?;
        Ok(Self {
            version,
            ipam: raw.ipam.map(|ipam| ipam.r#type).filter(|name| !name.is_empty()),
            previous: raw.prev_result.filter(|result| !result.is_null()),
            dns: raw.dns,
            interface: raw.interface,
            guest,
            mac: raw.runtime_config.and_then(|config| config.mac).filter(|mac| !mac.is_empty()),
            run_dir: raw.run_dir.unwrap_or_else(|| api::RUN_DIR.into()),
            data_dir: raw.data_dir.unwrap_or_else(|| DATA_DIR.into()),
            valid: raw.valid.or(raw.attachments),
            name: raw.name,
            text: input.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> u32 {
        Config::read(text.as_bytes()).err().map_or(0, |e| e.code())
    }

    #[test]
    fn a_wrong_configuration_has_the_code_of_what_is_wrong() {
        let with = |more: &str| code(&format!(r#"{{"cniVersion":"1.1.0","name":"blue"{more}}}"#));
        assert_eq!(with(""), 0);
        assert_eq!(code("{"), 6);
        assert_eq!(code(r#"{"cniVersion":"1.1.0"}"#), 6);
        assert_eq!(code(r#"{"name":"blue"}"#), 1);
        assert_eq!(code(r#"{"cniVersion":"2.0.0","name":"blue"}"#), 1);
        assert_eq!(code(r#"{"cniVersion":"1.1.0","name":"../blue"}"#), 7);
        assert_eq!(with(r#","interface":"a/b""#), 7);
        assert_eq!(with(r#","runDir":"run""#), 7);
        assert_eq!(with(r#","mtu":"big""#), 6);
        assert_eq!(with(r#","guest":{"polciy":false}"#), 7);
        assert_eq!(with(r#","guest":{"name":"x"}"#), 7);
        assert_eq!(with(r#","guest":{"queues":"two"}"#), 7);
        assert_eq!(with(r#","guest":{"policy":false,"rate":{"mbps":100}}"#), 0);
    }

    #[test]
    fn both_names_of_the_valid_attachments_are_known() {
        for key in ["valid-attachments", "attachments"] {
            let text = format!(
                r#"{{"cniVersion":"1.1.0","name":"n","cni.dev/{key}":[{{"containerID":"c","ifname":"eth0"}}]}}"#
            );
            assert_eq!(Config::read(text.as_bytes()).unwrap().valid.unwrap().len(), 1);
        }
    }
}
