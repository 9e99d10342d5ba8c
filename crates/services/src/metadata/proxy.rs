//! Requests to a metadata service outside. It knows the guest by the headers that OpenStack's metadata agent adds, and
//! by a signature with a common secret that nobody else has added them.

use super::{TOKEN, TOKEN_SECONDS};
use crate::{Binding, MetadataProxy};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// Headers of a guest that the service gets. Others, as those that name another guest, it does not.
const PASSED: [&str; 4] = ["Accept", "User-Agent", TOKEN, TOKEN_SECONDS];

/// A request of a guest to a metadata service outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The service.
    pub server: SocketAddr,
    /// The request. The service closes the connection after its response.
    pub request: Vec<u8>,
    /// The number of the guest's interface, and that of the connection.
    pub(crate) from: (u16, u64),
    pub(crate) guest: String,
    pub(crate) network: String,
}

/// Returns the request to the service. `client`: the guest's address.
pub(super) fn request(
    guest: &Binding,
    proxy: &MetadataProxy,
    client: IpAddr,
    asked: &httparse::Request<'_, '_>,
) -> Vec<u8> {
    let (method, path) = (asked.method.unwrap_or_default(), asked.path.unwrap_or_default());
    let (server, name, tenant) = (proxy.server, &guest.guest, &proxy.tenant);
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Length: 0\r\n\
         X-Forwarded-For: {client}\r\nX-Instance-ID: {name}\r\nX-Tenant-ID: {tenant}\r\n"
    );
    if let Some(signature) = proxy.secret.as_ref().and_then(|secret| signature(secret, name)) {
        _ = write!(head, "X-Instance-ID-Signature: {signature}\r\n");
    }
    let mut bytes = head.into_bytes();
    let is_passed = |name: &str| PASSED.iter().any(|passed| passed.eq_ignore_ascii_case(name));
    for header in asked.headers.iter().filter(|header| is_passed(header.name)) {
        bytes.extend([header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    bytes
}

/// Returns the HMAC-SHA256 of a guest's name (RFC 2104), in hexadecimal digits.
fn signature(secret: &str, name: &str) -> Option<String> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    code.update(name.as_bytes());
    let bytes = code.finalize().into_bytes();
    Some(bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")))
}
