//! The paths of metadata, and what is told there.

use crate::Binding;
use ipnet::IpNet;
use packet::Mac;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// The versions that are listed; any other date is understood as the last one.
const EC2: &str = "2021-03-23";
const OPENSTACK: &str = "2018-08-27";
const LATEST: &str = "latest";

/// The body of an answer.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Text that was made for it.
    Text(String),
    Json(String),
    /// A guest's user data.
    Data(Arc<str>),
}

impl Content {
    pub(super) fn text(text: String) -> Self {
        Self::Text(text)
    }

    fn json(value: &Value) -> Self {
        Self::Json(value.to_string())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) | Self::Json(text) => text.as_bytes(),
            Self::Data(text) => text.as_bytes(),
        }
    }

    /// Returns the type of media (RFC 9110, 8.3).
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text/plain",
            Self::Json(_) => "application/json",
            Self::Data(_) => "application/octet-stream",
        }
    }
}

/// The source of a guest's metadata: its settings, and the way that it asks by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller<'a> {
    pub(super) guest: &'a Binding,
    /// The MAC from which the guest asks.
    pub(super) mac: Mac,
}

impl Teller<'_> {
    /// Returns what is at a path.
    pub(super) fn find(self, path: &[&str]) -> Option<Content> {
        match path {
            [] => Some(lines([EC2, LATEST])),
            // NoCloud, whose seed is the whole address.
            ["meta-data"] => Some(Content::json(&self.nocloud())),
            ["user-data"] => Some(self.user_data().unwrap_or_else(|| Content::text(String::new()))),
            // Without a configuration, the guest asks by DHCP; without the document, it asks for it again and again.
            ["vendor-data" | "network-config"] => Some(Content::text(String::new())),
            ["openstack"] => Some(lines([OPENSTACK, LATEST])),
            ["openstack", version, rest @ ..] if is_version(version) => self.openstack(rest),
            [version, rest @ ..] if is_version(version) => self.ec2(rest),
            _ => None,
        }
    }

    fn ec2(self, path: &[&str]) -> Option<Content> {
        match path {
            [] if self.guest.user_data.is_some() => Some(lines(["meta-data/", "user-data"])),
            [] => Some(lines(["meta-data/"])),
            ["user-data"] => self.user_data(),
            ["meta-data"] => {
                let keys = (!self.guest.ssh_keys.is_empty()).then(|| "public-keys/".to_owned());
                let leaves = self.leaves().into_iter().map(|(name, _)| name.to_owned());
                Some(lines(leaves.chain(keys)))
            }
            ["meta-data", "public-keys"] => {
                // Clients keep one key of each name.
                let numbers = 0..self.guest.ssh_keys.len();
                Some(lines(numbers.map(|number| format!("{number}=key{number}"))))
            }
            ["meta-data", "public-keys", number] => self.key(number).map(|_| lines(["openssh-key"])),
            ["meta-data", "public-keys", number, "openssh-key"] => {
                self.key(number).map(|key| Content::text(key.clone()))
            }
            ["meta-data", name] => {
                let found = self.leaves().into_iter().find(|(leaf, _)| leaf == name);
                found.map(|(_, value)| Content::text(value))
            }
            _ => None,
        }
    }

    /// Returns EC2's names that have a value alone.
    fn leaves(self) -> Vec<(&'static str, String)> {
        let of = |v4: bool| self.guest.addresses.iter().find(|addr| addr.is_ipv4() == v4);
        let mut all = vec![
            ("hostname", self.full_name()),
            ("instance-id", self.guest.guest.clone()),
            ("local-hostname", self.name()),
            ("mac", self.mac.to_string()),
        ];
        all.extend(of(true).map(|addr| ("local-ipv4", addr.to_string())));
        all.extend(of(false).map(|addr| ("ipv6", addr.to_string())));
        all
    }

    fn openstack(self, path: &[&str]) -> Option<Content> {
        match path {
            [] if self.guest.user_data.is_some() => {
                Some(lines(["meta_data.json", "network_data.json", "user_data", "vendor_data.json"]))
            }
            [] => Some(lines(["meta_data.json", "network_data.json", "vendor_data.json"])),
            ["meta_data.json"] => Some(Content::json(&self.openstack_metadata())),
            ["network_data.json"] => Some(Content::json(&self.network_data())),
            ["user_data"] => self.user_data(),
            ["vendor_data.json" | "vendor_data2.json"] => Some(Content::json(&json!({}))),
            _ => None,
        }
    }

    fn openstack_metadata(self) -> Value {
        let named = || self.guest.ssh_keys.iter().enumerate().map(|(n, key)| (format!("key{n}"), key));
        let map: serde_json::Map<String, Value> = named().map(|(name, key)| (name, json!(key))).collect();
        let list: Vec<Value> =
            named().map(|(name, key)| json!({"name": name, "type": "ssh", "data": key})).collect();
        json!({
            "uuid": self.guest.guest,
            "name": self.name(),
            "hostname": self.full_name(),
            "launch_index": 0,
            "public_keys": map,
            "keys": list,
        })
    }

    fn nocloud(self) -> Value {
        json!({
            "instance-id": self.guest.guest,
            "local-hostname": self.full_name(),
            "public-keys": self.guest.ssh_keys,
        })
    }

    /// Returns the guest's interface as OpenStack describes it.
    fn network_data(self) -> Value {
        let network = &self.guest.network;
        let link = json!({
            "id": "eth0", "type": "phy", "ethernet_mac_address": self.mac.to_string(), "mtu": self.guest.mtu,
        });
        let mut networks = Vec::new();
        let subnets = network.gateways.iter().filter(|net| !is_link_local(net));
        for (number, subnet) in subnets.enumerate() {
            let own = self.guest.addresses.iter().filter(|addr| subnet.contains(*addr));
            let id = |kind: &str| json!({"id": format!("network{number}"), "link": "eth0", "type": kind});
            match subnet {
                IpNet::V4(_) if network.dhcp => networks.push(id("ipv4_dhcp")),
                IpNet::V6(_) if network.ra && network.dhcp && !self.guest.addresses.is_empty() => {
                    networks.push(id("ipv6_dhcpv6-stateful"));
                }
                IpNet::V6(_) if network.ra => networks.push(id("ipv6_slaac")),
                _ => networks.extend(own.map(|addr| fixed(id(""), *addr, subnet))),
            }
        }
        networks.dedup_by(|one, other| one["type"] == "ipv4_dhcp" && one["type"] == other["type"]);
        let services: Vec<Value> =
            self.guest.resolvers().iter().map(|addr| json!({"type": "dns", "address": addr})).collect();
        json!({"links": [link], "networks": networks, "services": services})
    }

    fn user_data(self) -> Option<Content> {
        self.guest.user_data.clone().map(Content::Data)
    }

    fn key(&self, number: &str) -> Option<&String> {
        self.guest.ssh_keys.get(number.parse::<usize>().ok()?)
    }

    fn name(self) -> String {
        self.guest.hostname.clone().unwrap_or_else(|| self.guest.guest.clone())
    }

    fn full_name(self) -> String {
        match &self.guest.network.domain {
            Some(domain) => format!("{}.{domain}", self.name()),
            None => self.name(),
        }
    }
}

/// Adds to a network an address that the guest is to set itself.
fn fixed(mut network: Value, addr: IpAddr, subnet: &IpNet) -> Value {
    let (kind, all) = if addr.is_ipv4() { ("ipv4", "0.0.0.0") } else { ("ipv6", "::") };
    network["type"] = json!(kind);
    network["ip_address"] = json!(addr);
    network["netmask"] = json!(subnet.netmask());
    network["routes"] = json!([{"network": all, "netmask": all, "gateway": subnet.addr()}]);
    network
}

fn is_link_local(subnet: &IpNet) -> bool {
    matches!(subnet.addr(), IpAddr::V6(addr) if addr.is_unicast_link_local())
}

/// Returns whether a part of a path names a version: a date, or the latest.
fn is_version(part: &str) -> bool {
    let is_date = |part: &str| {
        part.len() == EC2.len() && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    };
    part == LATEST || part == "1.0" || is_date(part)
}

fn lines<T: Into<String>>(all: impl IntoIterator<Item = T>) -> Content {
    let all: Vec<String> = all.into_iter().map(Into::into).collect();
    Content::text(all.join("\n"))
}
