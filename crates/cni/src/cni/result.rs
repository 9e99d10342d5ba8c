//! Results of `ADD` (1.1.0, section 5).

use super::version::Version;
use crate::error::Error;
use crate::interface::Route;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// The interfaces, addresses and routes of an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Outcome {
    pub cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<Ip>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub dns: Value,
    /// All other keys.
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Interface {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ip {
    /// `4` or `6`, in versions before 1.0.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Index into the interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Outcome {
    /// Reads the output of another plug-in.
    pub(super) fn read(of: &'static str, text: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(text).map_err(|e| Error::Decode(of, e))
    }

    /// Returns the result of the plug-in before this one, or of the whole chain.
    pub(super) fn previous(result: &Value) -> Result<Self, Error> {
        serde_json::from_value(result.clone()).map_err(|e| Error::Decode("prevResult", e))
    }

    /// Adds an interface with its addresses and routes.
    pub(super) fn push(&mut self, version: Version, interface: Interface, more: Self) {
        version.name().clone_into(&mut self.cni_version);
        let index = self.interfaces.len();
        self.interfaces.push(interface);
        self.ips.extend(more.ips.into_iter().map(|ip| {
            Ip {
                version: (version < Version::V1_0)
                    .then(|| if ip.address.addr().is_ipv4() { "4" } else { "6" }.to_owned()),
                interface: Some(index),
                ..ip
            }
        }));
        self.routes.extend(more.routes);
        if !more.dns.is_null() {
            self.dns = more.dns;
        }
    }

    /// Returns the routes, each with a gateway: its own, or that of the addresses of its family.
    pub(super) fn whole_routes(&self) -> Vec<Route> {
        let gateway = |dst: &IpNet| {
            let of_family = |ip: &&Ip| ip.address.addr().is_ipv4() == dst.addr().is_ipv4();
            self.ips.iter().filter(of_family).find_map(|ip| ip.gateway)
        };
        self.routes
            .iter()
            .map(|route| Route { gw: route.gw.or_else(|| gateway(&route.dst)), ..route.clone() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_others_said_is_passed_on() {
        let before = json!({
            "cniVersion": "0.4.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x", "pciID": "0000:01:00.0"}],
            "ips": [{"version": "4", "address": "192.0.2.9/24", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1", "via": "somewhere"}],
            "dns": {"nameservers": ["192.0.2.53"]},
            "x-ours": 7,
        });
        let mut outcome = Outcome::previous(&before).unwrap();
        let more = json!({
            "ips": [{"address": "10.1.1.7/24", "gateway": "10.1.1.254"}, {"address": "fd00::7/64"}],
            "routes": [{"dst": "10.0.0.0/8"}],
        });
        let more = Outcome::read("ipam", more.to_string().as_bytes()).unwrap();
        assert_eq!(more.whole_routes()[0].gw, Some("10.1.1.254".parse().unwrap()));
        outcome.push(Version::V0_4, Interface { name: "net1".to_owned(), ..Interface::default() }, more);
        let after = serde_json::to_value(&outcome).unwrap();
        let mut expected = before;
        expected["interfaces"].as_array_mut().unwrap().push(json!({"name": "net1"}));
        expected["routes"].as_array_mut().unwrap().push(json!({"dst": "10.0.0.0/8"}));
        let ips = expected["ips"].as_array_mut().unwrap();
        ips.push(json!({"version": "4", "address": "10.1.1.7/24", "gateway": "10.1.1.254", "interface": 1}));
        ips.push(json!({"version": "6", "address": "fd00::7/64", "interface": 1}));
        assert_eq!(after, expected);
    }
}
