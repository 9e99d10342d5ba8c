//! Versions of CNI.

use super::Error;
use serde_json::{Value, json};

/// A version of the configuration and of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    V0_3_0,
    V0_3_1,
    V0_4,
    V1_0,
    V1_1,
}

impl Version {
    const ALL: [Self; 5] = [Self::V0_3_0, Self::V0_3_1, Self::V0_4, Self::V1_0, Self::V1_1];
    pub(super) const LATEST: Self = Self::V1_1;

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4 => "0.4.0",
            Self::V1_0 => "1.0.0",
            Self::V1_1 => "1.1.0",
        }
    }

    /// Returns the version of this name.
    ///
    /// # Errors
    /// [`Error::Version`].
    pub(super) fn from_name(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|version| version.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Version(format!("cniVersion {name:?} is not supported; use one of {known}"))
        })
    }
}

/// Returns the version of a configuration, if it can be read.
pub(super) fn of(input: &[u8]) -> Option<Version> {
    let config: Value = serde_json::from_slice(input).ok()?;
    Version::from_name(config.get("cniVersion")?.as_str()?).ok()
}

pub(super) fn supported(input: &[u8]) -> Value {
    json!({
        "cniVersion": of(input).unwrap_or(Version::LATEST).name(),
        "supportedVersions": Version::ALL.map(Version::name),
    })
}
