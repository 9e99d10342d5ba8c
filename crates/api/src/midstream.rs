//! The form of a [`TcpMidstream`] in JSON and host.toml: false, true or "reverse".

use crate::v1::TcpMidstream;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Serialises it. A value of a newer release stays a number.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(value: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(number) = *value else { return serializer.serialize_none() };
    match TcpMidstream::try_from(number) {
        Ok(TcpMidstream::False) => serializer.serialize_bool(false),
        Ok(TcpMidstream::True) => serializer.serialize_bool(true),
        Ok(TcpMidstream::Reverse) => serializer.serialize_str("reverse"),
        Err(_) => serializer.serialize_i32(number),
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Flag(bool),
    Name(String),
    Number(i32),
}

/// Reads it.
///
/// # Errors
/// It is no such value.
pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    Ok(match Option::<Form>::deserialize(deserializer)? {
        None => None,
        Some(Form::Flag(flag)) => Some(i32::from(flag)),
        Some(Form::Name(name)) if name == "reverse" => Some(TcpMidstream::Reverse.into()),
        Some(Form::Name(name)) => return Err(D::Error::custom(format!("\"{name}\" is not \"reverse\""))),
        Some(Form::Number(number)) => Some(number),
    })
}
