//! Flows of Open vSwitch as lines of text.

use super::setup::{Setup, Words, must, value};
use crate::ovs::{Action, Change, Flow, FlowId, Key, Match, Outer};
use crate::{Tunnel, Vif, VifId, VifKind, text};
use packet::{Mac, TunnelKind};
use std::net::IpAddr;
use std::sync::Arc;

/// The ports that an Open vSwitch programs, and their flows.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    flows: Vec<Arc<Flow>>,
}

impl Flows {
    pub fn changes(&self) -> Vec<Change> {
        self.flows.iter().cloned().map(Change::Add).collect()
    }
}

impl Setup {
    /// Reads `ovs NAME [mtu N] [rate BITS/S BYTES] [rules NETWORK]`: a guest that an Open vSwitch programs.
    /// Its OVS side is `NAME:ovs`.
    pub(super) fn ovs_port(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        let side_name = format!("{name}:ovs");
        let (id, side) = (self.vif_id(&name), self.vif_id(&side_name));
        let mut vif = Vif { ovs: Some(side), ..Vif::new(id, &name, VifKind::Vhost) };
        while let Some(word) = words.next() {
            match word {
                "mtu" => vif.mtu = value(words)?,
                "rules" => vif.rules = Some(self.vrf(words)?),
                "rate" => vif.meter = Some(self.meter(words)?),
                other => return Err(format!("'{other}' is not understood")),
            }
        }
        self.put_vif(Vif { ovs: Some(id), ..Vif::new(side, &side_name, VifKind::Ovs) });
        self.put_vif(vif);
        Ok(())
    }

    /// Reads `ovs-tunnel NAME vxlan|geneve REMOTE VNI [mtu N]`: the port of a tunnel. Its OVS side is
    /// `NAME:ovs`.
    pub(super) fn ovs_tunnel(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        let side_name = format!("{name}:ovs");
        let (id, side) = (self.vif_id(&name), self.vif_id(&side_name));
        let kind = if words.next() == Some("geneve") { TunnelKind::Geneve } else { TunnelKind::Vxlan };
        let tunnel = Tunnel { kind, remote: value(words)?, id: value(words)?, mac: None };
        let mut vif = Vif { ovs: Some(side), ..Vif::new(id, &name, VifKind::Tunnel(tunnel)) };
        if words.next_if_eq(&"mtu").is_some() {
            vif.mtu = value(words)?;
        }
        self.put_vif(Vif { ovs: Some(id), ..Vif::new(side, &side_name, VifKind::Ovs) });
        self.put_vif(vif);
        Ok(())
    }

    /// Reads `flow PORT [FIELD VALUE[/MASK]]... > ACTION [, ACTION]...`.
    pub(super) fn flow(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let port = self.vif(words)?;
        let (mut key, mut mask) = (Key::default(), Key::default());
        while words.peek().is_some_and(|word| *word != ">") {
            field(words, &mut key, &mut mask)?;
        }
        must(words, ">")?;
        let rest: Vec<_> = words.by_ref().collect();
        let rest = rest.join(" ");
        let actions = rest.split(',').map(|action| self.action(action.trim())).collect::<Result<_, _>>()?;
        let number = self.ovs.flows.len() as u32 + 1;
        let matching = Match::new(&key, &mask);
        self.ovs.flows.push(Arc::new(Flow {
            id: FlowId(number.into()),
            counter: number,
            port,
            matching,
            actions,
        }));
        Ok(())
    }

    fn action(&mut self, text: &str) -> Result<Action, String> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Ok(match word {
            "output" => Action::Output(self.output(rest)),
            "drop" => Action::Drop,
            "mark" => Action::Mark,
            "eth-src" => Action::SetMacSrc(parsed(rest)?),
            "eth-dst" => Action::SetMacDst(parsed(rest)?),
            "src" => Action::SetIpSrc(parsed(rest)?),
            "dst" => Action::SetIpDst(parsed(rest)?),
            "ttl" => Action::SetTtl(parsed(rest)?),
            "dscp" => Action::SetDscp(parsed(rest)?),
            "sport" => Action::SetPortSrc(parsed(rest)?),
            "dport" => Action::SetPortDst(parsed(rest)?),
            "push" => Action::PushVlan { service: rest == "service" },
            "vid" => Action::SetVlanVid(parsed(rest)?),
            "pcp" => Action::SetVlanPcp(parsed(rest)?),
            "pop" => Action::PopVlan,
            "encap" => {
                let bytes = text::parse(rest).map_err(|error| error.to_string())?;
                Action::Encap(Outer::new(&bytes).map_err(|error| error.to_string())?)
            }
            other => return Err(format!("'{other}' is no action")),
        })
    }

    fn output(&mut self, name: &str) -> VifId {
        self.vif_id(name)
    }
}

fn parsed<V: std::str::FromStr>(text: &str) -> Result<V, String> {
    text.parse().map_err(|_| format!("'{text}' is not understood"))
}

fn number(text: &str) -> Result<u16, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}

/// Reads a field into the key and the mask.
fn field(words: &mut Words<'_>, key: &mut Key, mask: &mut Key) -> Result<(), String> {
    let name = words.next().unwrap_or_default();
    if name == "untagged" {
        mask.vlan_tci |= Key::TAGGED;
        return Ok(());
    }
    let text: String = value(words)?;
    let (value, bits) = text.split_once('/').map_or((&*text, None), |(value, bits)| (value, Some(bits)));
    let two =
        |all: u16| -> Result<(u16, u16), String> { Ok((number(value)?, bits.map_or(Ok(all), number)?)) };
    let mac =
        || -> Result<(Mac, Mac), String> { Ok((parsed(value)?, bits.map_or(Ok(Mac::BROADCAST), parsed)?)) };
    let byte = || two(u8::MAX.into()).map(|(value, mask)| (value as u8, mask as u8));
    match name {
        "eth-src" => (key.eth_src, mask.eth_src) = mac()?,
        "eth-dst" => (key.eth_dst, mask.eth_dst) = mac()?,
        "type" => (key.eth_type, mask.eth_type) = two(u16::MAX)?,
        "vlan-type" => (key.vlan_type, mask.vlan_type) = two(u16::MAX)?,
        "vlan" => {
            let (value, bits) = two(0xfff)?;
            (key.vlan_tci, mask.vlan_tci) = (value | Key::TAGGED, bits | Key::TAGGED);
        }
        "src" => (key.ip_src, mask.ip_src) = address(value, bits)?,
        "dst" => (key.ip_dst, mask.ip_dst) = address(value, bits)?,
        "proto" => (key.ip_proto, mask.ip_proto) = byte()?,
        "tos" => (key.ip_tos, mask.ip_tos) = byte()?,
        "ttl" => (key.ip_ttl, mask.ip_ttl) = byte()?,
        "frag" => {
            (key.ip_fragment, mask.ip_fragment) = match value {
                "no" => (0, Key::FRAGMENT),
                "yes" => (Key::FRAGMENT, Key::FRAGMENT),
                "first" => (Key::FRAGMENT, Key::FRAGMENT | Key::LATER),
                "later" => (Key::FRAGMENT | Key::LATER, Key::FRAGMENT | Key::LATER),
                other => return Err(format!("'{other}' is not understood")),
            };
        }
        "sport" => (key.l4_src, mask.l4_src) = two(u16::MAX)?,
        "dport" => (key.l4_dst, mask.l4_dst) = two(u16::MAX)?,
        "flags" => (key.tcp_flags, mask.tcp_flags) = byte()?,
        other => return Err(format!("'{other}' is no field")),
    }
    Ok(())
}

/// Returns an address, and a mask for the length of its prefix.
fn address(value: &str, len: Option<&str>) -> Result<(u128, u128), String> {
    let (bits, width) = match parsed(value)? {
        IpAddr::V4(addr) => (u128::from(addr.to_bits()), 32),
        IpAddr::V6(addr) => (addr.to_bits(), 128),
    };
    let len: u32 = len.map_or(Ok(width), parsed)?;
    let mask = match (len, width) {
        (0, _) => 0,
        (len, 32) => u128::from(u32::MAX << (32 - len.min(32))),
        (len, _) => u128::MAX << (128 - len.min(128)),
    };
    Ok((bits, mask))
}
