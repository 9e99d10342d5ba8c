//! The expressions that select flows and packets: `10.1.1.1 & tcp & port 80`, and what tcpdump's users write
//! (pcap-filter(7)): `src host 10.1.1.1 and not (tcp port 80 or icmp)`.

mod parse;

use executor::{CaptureFilter, Filter, FlowInfo, Property};
use model::{Endpoint, VifId};
use std::net::IpAddr;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Matching(Filter);

impl Matching {
    /// Parses an expression; an empty text matches everything.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        parse::filter(text).map(Self)
    }

    /// Checks that the expression can be applied to connections.
    pub(crate) fn of_flows(self) -> Result<Self, String> {
        let of_packets = |property: &Property| {
            use Property::{Arp, Dropped, Inbound, Mac, Outbound};
            matches!(property, Arp | Dropped | Inbound | Mac(..) | Outbound)
        };
        match self.0.find(&of_packets) {
            Some(_) => {
                Err("connections have neither arp, ether, inbound, outbound nor dropped: that is for \
                            `viaduct capture`"
                    .to_owned())
            }
            None => Ok(self),
        }
    }

    /// Is true if a connection matches. Its ends may have other addresses `outside` their networks; `network` names the
    /// network of an end.
    pub(crate) fn flow(
        &self,
        flow: &FlowInfo,
        outside: [Option<Endpoint>; 2],
        network: impl Fn(model::Vrf) -> String,
    ) -> bool {
        let (src, dst) = (flow.key.src, flow.key.dst);
        self.0.holds(&|property| match property {
            Property::Net(side, net) => {
                let has = |addr: IpAddr| net.contains(&addr);
                side.has((src, outside[0]), (dst, outside[1]), |(inside, outside)| {
                    has(inside.addr) || outside.is_some_and(|end| has(end.addr))
                })
            }
            Property::Ports(side, ports) => {
                side.has((src, outside[0]), (dst, outside[1]), |(inside, outside)| {
                    ports.contains(&inside.port) || outside.is_some_and(|end| ports.contains(&end.port))
                })
            }
            Property::Protocol(protocol) => *protocol == flow.key.protocol,
            Property::Ip4 => src.addr.is_ipv4(),
            Property::Ip6 => src.addr.is_ipv6(),
            Property::State(state) => *state == flow.state,
            Property::Network(name) => network(src.vrf) == *name || network(dst.vrf) == *name,
            Property::Arp
            | Property::Mac(..)
            | Property::Dropped
            | Property::Inbound
            | Property::Outbound => false,
        })
    }

    pub(crate) fn capture(self, vif: Option<VifId>, snap_len: u32) -> Result<CaptureFilter, String> {
        let of_flows = |property: &Property| matches!(property, Property::State(_) | Property::Network(_));
        match self.0.find(&of_flows) {
            Some(_) => {
                Err("a packet has neither a state nor a network of its own: these are for `viaduct flow`; \
                            choose the interface with --guest"
                    .to_owned())
            }
            None => Ok(CaptureFilter { vif, filter: self.0, snap_len }),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use executor::Counters;
    use model::{Endpoint, FlowKey, FlowState, Vrf};

    /// Makes an established TCP connection from 10.1.1.1.
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
            seen: model::Connection::BOTH_WAYS,
            binding: None,
            tcp: model::Tcp::default(),
            charged: (model::VifId(0), false),
        }
    }

    fn holds(text: &str) -> bool {
        Matching::parse(text).unwrap().flow(&flow(), [None; 2], |_| "blue".to_owned())
    }

    #[test]
    fn all_terms_must_hold() {
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
    fn tcpdumps_words_are_known() {
        for text in [
            "host 10.1.1.1 and tcp port 80",
            "src 10.1.1.1 and dst port 80",
            "src host 10.1.1.1 && dst net 10.1.1.0/24",
            "not udp",
            "!(port 81 or icmp)",
            "port 81 or 80",
            "host 10.9.9.9 or 10.1.1.2",
            "tcp portrange 70-90",
            "udp port 53 or 80 or tcp port 53 or 80",
            "src or dst port 40000",
            "ip and ip proto 6",
            "not ip6",
            // Left to right, as with tcpdump: (udp or tcp) and port 80.
            "udp or tcp and port 80",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in [
            "dst 10.1.1.1",
            "src port 80",
            "udp port 80",
            "not tcp",
            "not (tcp and port 80)",
            "tcp or udp and port 81",
            "ip6",
            "portrange 81-90",
        ] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_would_do() {
        let long = "not ".repeat(1000) + "tcp";
        for text in [
            "tpc",
            "port x",
            "10.1.1.300",
            "port 80 81",
            "foo bar",
            "(tcp",
            "tcp)",
            "tcp and",
            "src",
            "and tcp",
            "portrange 9-1",
            "port",
            &long,
        ] {
            let said = Matching::parse(text).unwrap_err();
            assert!(said.contains(" --help") || said.contains("as in: "), "{text}: {said}");
        }
    }

    #[test]
    fn packets_have_no_state_and_connections_no_direction() {
        let parsed = |text: &str| Matching::parse(text).unwrap();
        assert!(parsed("new or tcp").capture(None, 0).is_err() && parsed("tcp").capture(None, 0).is_ok());
        assert!(parsed("not dropped").of_flows().is_err() && parsed("new or tcp").of_flows().is_ok());
    }
}
