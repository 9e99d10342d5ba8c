//! The expressions that select flows and packets: `10.1.1.1 & tcp & port 80`.
//!
//! Terms are joined by `&`, and all must hold: an address or prefix, a protocol, `port N`, `network NAME`, a state
//! (`new`, `established`, `closing`, `closed`), `dropped`.

use config::Protocol;
use executor::{CaptureFilter, FlowInfo};
use ipnet::IpNet;
use model::{FlowState, VifId};
use std::net::IpAddr;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Matching {
    prefixes: Vec<IpNet>,
    protocol: Option<u8>,
    ports: Vec<u16>,
    network: Option<String>,
    state: Option<FlowState>,
    dropped: bool,
}

/// What a term may be, for messages.
const TERMS: &str = "an address, a prefix, a protocol (tcp, udp, icmp, icmp6, sctp), `port N`, `network NAME`, \
     a state (new, established, closing, closed) or `dropped`, joined by &";

impl Matching {
    /// Reads it; an empty text asks for everything.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut matching = Self::default();
        for term in text.split('&').map(str::trim).filter(|term| !term.is_empty()) {
            matching.term(term)?;
        }
        Ok(matching)
    }

    fn term(&mut self, term: &str) -> Result<(), String> {
        let unknown = || format!("\"{term}\" is not understood; use {TERMS}");
        if let Some((word, value)) = term.split_once(char::is_whitespace) {
            match word {
                "port" => self.ports.push(value.trim().parse().map_err(|_| unknown())?),
                "network" => self.network = Some(value.trim().to_owned()),
                "host" | "net" => self.prefixes.push(prefix(value.trim()).ok_or_else(unknown)?),
                _ => return Err(unknown()),
            }
            return Ok(());
        }
        match term {
            "dropped" => self.dropped = true,
            "new" => self.state = Some(FlowState::New),
            "established" => self.state = Some(FlowState::Established),
            "closing" => self.state = Some(FlowState::Closing),
            "closed" => self.state = Some(FlowState::Closed),
            _ => match (prefix(term), term.parse::<Protocol>()) {
                (Some(net), _) => self.prefixes.push(net),
                (None, Ok(protocol)) => self.protocol = Some(protocol.0),
                (None, Err(_)) => return Err(unknown()),
            },
        }
        Ok(())
    }

    /// Whether it asks for a connection; `network` names the network of an endpoint.
    pub(crate) fn flow(&self, flow: &FlowInfo, network: impl Fn(model::Vrf) -> String) -> bool {
        let (src, dst) = (flow.key.src, flow.key.dst);
        self.prefixes.iter().all(|net| net.contains(&src.addr) || net.contains(&dst.addr))
            && self.protocol.is_none_or(|protocol| protocol == flow.key.protocol)
            && self.ports.iter().all(|port| *port == src.port || *port == dst.port)
            && self.state.is_none_or(|state| state == flow.state)
            && self.network.as_ref().is_none_or(|n| network(src.vrf) == *n || network(dst.vrf) == *n)
            && !self.dropped
    }

    /// The same as a filter of captured packets.
    pub(crate) fn capture(&self, vif: Option<VifId>, snap_len: u32) -> Result<CaptureFilter, String> {
        let host = match self.prefixes[..] {
            [] => None,
            [net] if net.prefix_len() == net.max_prefix_len() => Some(net.addr()),
            _ => return Err("a capture takes one address, and no prefix".to_owned()),
        };
        if self.state.is_some() || self.network.is_some() || self.ports.len() > 1 {
            return Err("a capture filters by one address, protocol, one port and `dropped`".to_owned());
        }
        Ok(CaptureFilter {
            vif,
            host,
            protocol: self.protocol,
            port: self.ports.first().copied(),
            dropped_only: self.dropped,
            snap_len,
        })
    }
}

fn prefix(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use executor::Counters;
    use model::{Endpoint, FlowKey, Vrf};

    /// An established TCP connection from 10.1.1.1.
    pub(crate) fn flow() -> FlowInfo {
        let end = |addr: &str, port| Endpoint { vrf: Vrf(1), addr: addr.parse().unwrap(), port };
        FlowInfo {
            key: FlowKey { src: end("10.1.1.1", 40000), dst: end("10.1.1.2", 80), protocol: 6 },
            state: FlowState::Established,
            rule: None,
            forward: Counters::default(),
            reply: Counters::default(),
            approximate: false,
            age: 1,
            idle: 0,
        }
    }

    #[test]
    fn all_terms_must_hold() {
        let holds = |text: &str| Matching::parse(text).unwrap().flow(&flow(), |_| "blue".to_owned());
        for text in [
            "",
            "10.1.1.1 & tcp & port 80",
            "10.1.1.2",
            "10.1.0.0/16&6",
            "established & network blue",
            "port 40000",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in
            ["10.1.1.3", "udp", "port 81", "10.1.1.1 & udp", "new", "network red", "10.1.1.1 & 10.1.1.3"]
        {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_would_do() {
        for text in ["tpc", "port x", "10.1.1.300", "port 80 81", "foo bar"] {
            assert!(Matching::parse(text).unwrap_err().contains("an address"), "{text}");
        }
    }

    #[test]
    fn captures_filter_by_less() {
        let filter =
            Matching::parse("10.1.1.1 & udp & port 53 & dropped").unwrap().capture(None, 96).unwrap();
        assert_eq!((filter.port, filter.dropped_only, filter.snap_len), (Some(53), true, 96));
        assert!(Matching::parse("10.1.0.0/16").unwrap().capture(None, 0).is_err());
    }
}
