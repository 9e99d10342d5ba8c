//! `[[rule]]`: security rules, and the values they share with `[[default]]`.

use super::guest::{BURST_TOO_SMALL, LEAST_BURST_KB, Rate};
use super::{Kind, Place, read_network};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, describe, display, display_some, names, text};
use ipnet::IpNet;
use packet::proto;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The action of a network on traffic that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefaultAction {
    /// Let the packet pass.
    Allow,
    /// Drop the packet.
    Drop,
    /// Drop the packet and inform its sender.
    Reject,
    /// Drop what begins a connection to the network's guests; let all else pass.
    DenyIn,
}

names!(DefaultAction { Allow = "allow", Drop = "drop", Reject = "reject", DenyIn = "deny-in" });

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// Ends the walk: allow, drop or reject, never [`DefaultAction::DenyIn`].
    End(DefaultAction),
    /// Copy the packet to this guest, or to another host ([`super::Tunnel::of_mirror`]); the walk goes on.
    Mirror(String),
    /// Drop the packet if it is over this rate; otherwise the walk goes on.
    Police(Rate),
}

impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End(action) => action.fmt(f),
            Self::Mirror(guest) => write!(f, "mirror:{guest}"),
            Self::Police(Rate { mbps, burst_kb: None }) => write!(f, "police:{mbps}"),
            Self::Police(Rate { mbps, burst_kb: Some(kb) }) => write!(f, "police:{mbps}:{kb}"),
        }
    }
}

impl FromStr for RuleAction {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            Some(("mirror", guest)) if !guest.is_empty() => Ok(Self::Mirror(guest.to_owned())),
            Some(("police", rate)) => police(rate).map(Self::Police).map_err(|why| format!("\"{s}\": {why}")),
            _ => s.parse().ok().filter(|action| *action != DefaultAction::DenyIn).map(Self::End).ok_or_else(|| {
                format!(
                    "\"{s}\" is no action; use allow, drop, reject, mirror:GUEST, mirror:vxlan:ADDRESS:VNI or police:MBPS[:BURST_KB]"
                )
            }),
        }
    }
}

/// Reads `MBPS` or `MBPS:BURST_KB`.
fn police(rate: &str) -> Result<Rate, &'static str> {
    let (mbps, burst) = rate.split_once(':').map_or((rate, None), |(mbps, kb)| (mbps, Some(kb)));
    let mbps = mbps.parse().ok().filter(|mbps| *mbps > 0);
    let mbps = mbps.ok_or("the rate is in Mbit/s, as in \"police:100\"")?;
    let burst_kb =
        burst.map(|kb| kb.parse().map_err(|_| "the burst is in kilobytes, as in \"police:100:2000\""));
    match burst_kb.transpose()? {
        Some(kb) if kb < LEAST_BURST_KB => Err(BURST_TOO_SMALL),
        burst_kb => Ok(Rate { mbps, burst_kb }),
    }
}

impl Value for RuleAction {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        text(value)?.parse()
    }
}

/// Source or destination of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Only addresses in this prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<IpNet>,
    /// Only this guest's addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
}

impl Endpoint {
    /// Returns whether the endpoint matches every address.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.cidr.is_none() && self.guest.is_none()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cidr, &self.guest) {
            (Some(net), _) => net.fmt(f),
            (None, Some(guest)) => f.write_str(guest),
            (None, None) => f.write_str("any"),
        }
    }
}

impl Value for Endpoint {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let cidr = r.get::<Prefix>("cidr").map(|p| p.0);
        let guest = r.get("guest");
        if cidr.is_some() && guest.is_some() {
            r.problem(None, "`cidr` or `guest`, not both");
        }
        r.finish();
        Some(Self { cidr, guest })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        match text(value) {
            Ok("any") => Ok(Self::default()),
            _ => Err(format!(
                "{} is no endpoint; use {{ cidr = \"...\" }}, {{ guest = \"...\" }} or \"any\"",
                describe(value)
            )),
        }
    }
}

/// An IP protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

const PROTOCOLS: [(u8, &str); 5] = [
    (proto::TCP, "tcp"),
    (proto::UDP, "udp"),
    (proto::ICMP, "icmp"),
    (proto::ICMPV6, "icmp6"),
    (proto::SCTP, "sctp"),
];

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let named = PROTOCOLS.iter().find(|(_, name)| *name == s).map(|(number, _)| *number);
        named.or_else(|| s.parse().ok()).map(Self).ok_or_else(|| {
            format!("\"{s}\" is no protocol; use tcp, udp, sctp, icmp, icmp6, 0 to 255 or any")
        })
    }
}

/// A protocol, or any.
struct MaybeProtocol(Option<Protocol>);

impl Value for MaybeProtocol {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Integer(number) => number.to_string().parse().map(|p| Self(Some(p))),
            other => match text(other)? {
                "any" => Ok(Self(None)),
                name => name.parse().map(|p| Self(Some(p))),
            },
        }
    }
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// First.
    pub first: u16,
    /// Last, at least `first`.
    pub last: u16,
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (first, last) = s.split_once('-').unwrap_or((s, s));
        let port = |s: &str| s.trim().parse::<u16>().ok();
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            (Some(first), Some(last)) => Err(format!("ports {first}-{last}: the first is the greater")),
            _ => Err(format!("\"{s}\" is no range of ports; use \"80\" or \"80-443\"")),
        }
    }
}

impl Value for Ports {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Integer(number) => number.to_string().parse(),
            other => text(other)?.parse(),
        }
    }
}

/// A security rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The network whose traffic the rule sees.
    pub network: String,
    /// Name in the network; `None`: the rule is known by its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Priority. Rules with a lower number come first.
    pub priority: u32,
    /// Source.
    #[serde(skip_serializing_if = "Endpoint::is_any")]
    pub from: Endpoint,
    /// Destination.
    #[serde(skip_serializing_if = "Endpoint::is_any")]
    pub to: Endpoint,
    /// Protocol; `None`: any.
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Destination ports; `None`: any.
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// The rule's action.
    #[serde(serialize_with = "display")]
    pub action: RuleAction,
}

/// Displays a rule as in `100 allow tcp from 10.1.1.0/24 to vm1 ports 80-443`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.priority, self.action)?;
        if let Some(protocol) = self.protocol {
            write!(f, " {protocol}")?;
        }
        write!(f, " from {} to {}", self.from, self.to)?;
        match self.ports {
            Some(ports) => write!(f, " ports {ports}"),
            None => Ok(()),
        }
    }
}

impl Rule {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), self.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let priority: Option<u32> = r.require("priority");
        let network = read_network(&mut r, Kind::Rule, priority.as_ref().map(|p| p as _));
        let name: Option<String> = r.get("name");
        if name.as_ref().is_some_and(|name| !is_name(name)) {
            r.problem(
                Some("name"),
                "`name` begins with a letter; letters, digits, '.', '_' and '-' follow, 64 at most",
            );
        }
        let from: Endpoint = r.get("from").unwrap_or_default();
        let to: Endpoint = r.get("to").unwrap_or_default();
        let protocol = r.get::<MaybeProtocol>("protocol").and_then(|p| p.0);
        let ports = r.get("ports");
        let action = r.require("action");
        let has_ports = |p: Protocol| [proto::TCP, proto::UDP, proto::SCTP].contains(&p.0);
        if ports.is_some() && protocol.is_some_and(|p| !has_ports(p)) {
            r.problem(Some("ports"), "`ports` needs protocol tcp, udp or sctp");
        }
        let v4 = [&from, &to].map(|e| e.cidr.map(|net| net.addr().is_ipv4()));
        if let [Some(a), Some(b)] = v4
            && a != b
        {
            r.problem(Some("to"), "`from` and `to` are of different families");
        }
        let wrong = |p: Protocol, v4: bool| p.0 == if v4 { proto::ICMPV6 } else { proto::ICMP };
        if let Some(protocol) = protocol
            && v4.into_iter().flatten().any(|v4| wrong(protocol, v4))
        {
            r.problem(Some("protocol"), format!("{protocol} does not go with addresses of that family"));
        }
        let read = || {
            let (network, priority, action) = (network?, priority?, action?);
            Some(Self { network, name, priority, from, to, protocol, ports, action })
        };
        (read(), r.finish())
    }
}

/// Returns whether a text can be a rule's name: it is never taken for the number of a rule.
fn is_name(text: &str) -> bool {
    let follows = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(follows)
}
