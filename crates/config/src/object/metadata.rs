//! Metadata of guests: keys of `[[guest]]` and `[[network]]`.

use super::{Guest, Network};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, text};
use ipnet::IpNet;
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The addresses at which guests ask for metadata.
const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];
/// Longest user data, bytes.
const MAX_USER_DATA: usize = 65_536;
/// Longest secret and tenant of a proxy, bytes.
const MAX_PROXY_TEXT: usize = 256;
/// Most keys of a guest, and the longest, bytes.
const MAX_KEYS: usize = 32;
const MAX_KEY: usize = 8192;

/// Text that may hold secrets: the user data of a guest, which programs as cloud-init read, or what two services share.
/// `Debug` shows its length alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Arc<str>);

impl Secret {
    /// Returns the words that stand for the text where it must not be seen.
    #[must_use]
    pub fn hidden(text: &str) -> String {
        format!("({} bytes)", text.len())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::hidden(&self.0))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl Value for Secret {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value).map(|text| Self(text.into()))
    }
}

/// Checks the keys of a guest.
pub(super) fn check(guest: &Guest, r: &Reader<'_>) {
    if let Some(Secret(text)) = guest.user_data.as_ref().filter(|data| data.0.len() > MAX_USER_DATA) {
        let len = text.len();
        r.problem(Some("user_data"), format!("`user_data` has {len} bytes; use {MAX_USER_DATA} at most"));
    }
    let is_key = |key: &String| {
        let words = key.split_ascii_whitespace().count();
        words >= 2 && key.len() <= MAX_KEY && !key.contains(char::is_control)
    };
    if guest.ssh_keys.len() > MAX_KEYS || !guest.ssh_keys.iter().all(is_key) {
        r.problem(
            Some("ssh_keys"),
            format!("`ssh_keys` are lines as in \"ssh-ed25519 AAAA... me\", {MAX_KEYS} at most"),
        );
    }
}

/// Checks that a network with metadata can be asked.
pub(super) fn check_network(network: &Network, r: &Reader<'_>) {
    if network.metadata && network.gateways.is_empty() {
        r.problem(Some("metadata"), "`metadata` needs an address in `gateways`, by which guests reach it");
    }
    match network.metadata_proxy {
        Some(_) if !network.metadata => {
            r.problem(Some("metadata_proxy"), "`metadata_proxy` needs `metadata = true`");
        }
        Some(server) if server.port() == 0 || server.ip().is_unspecified() || server.ip().is_multicast() => {
            r.problem(Some("metadata_proxy"), format!("{server} is no service, as in \"192.0.2.9:8775\""));
        }
        _ => {}
    }
    let (secret, tenant) = (&network.metadata_secret, &network.metadata_tenant);
    let secret = secret.as_ref().map(|Secret(text)| ("metadata_secret", &**text));
    let tenant = tenant.as_ref().map(|text| ("metadata_tenant", text.as_str()));
    for (key, text) in secret.into_iter().chain(tenant) {
        if network.metadata_proxy.is_none() && !r.has("metadata_proxy") {
            r.problem(Some(key), format!("`{key}` is only for the service in `metadata_proxy`; add that"));
        }
        let is_plain = text.chars().all(|c| c.is_ascii_graphic());
        if text.is_empty() || text.len() > MAX_PROXY_TEXT || !is_plain {
            let form = format!("`{key}` is ASCII without spaces, {MAX_PROXY_TEXT} bytes at most");
            r.problem(Some(key), form);
        }
    }
}

impl Network {
    /// Returns the addresses where guests ask for their metadata, besides those in `gateways`: of each family that the
    /// network has.
    pub fn metadata_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let gateways = || self.gateways.iter().map(IpNet::addr);
        let has = move |asked: &IpAddr| {
            gateways().any(|addr| addr.is_ipv4() == asked.is_ipv4()) && !gateways().any(|addr| addr == *asked)
        };
        ADDRESSES.into_iter().filter(move |asked| self.metadata && has(asked))
    }
}
