//! Bytes as hexadecimal text.

use serde::{Deserialize, Deserializer, Serializer};

/// Returns bytes as lower-case hexadecimal digits.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the bytes for which hexadecimal digits stand. Ignores white space and colons between bytes.
/// Returns `None` if the text has other characters, or half a byte.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    let nibble = |c: &char| c.to_digit(16).map(|d| d as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[a, b]| Some(nibble(a)? << 4 | nibble(b)?)).collect())?
}

/// Serialises bytes as text, for serde's `with`.
///
/// # Errors
/// The serialiser's.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(bytes))
}

/// Reads bytes from text, for serde's `with`.
///
/// # Errors
/// The deserialiser's, and text that is not hexadecimal.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| serde::de::Error::custom("not hexadecimal"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_survive_text() {
        assert_eq!(super::decode(&super::encode(&[0, 1, 0xab, 0xff])), Some(vec![0, 1, 0xab, 0xff]));
        assert_eq!(super::decode("00:01 ab\nff"), Some(vec![0, 1, 0xab, 0xff]));
        assert_eq!(super::decode("0"), None);
        assert_eq!(super::decode("0g"), None);
    }
}
