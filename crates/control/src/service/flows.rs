use crate::compile::Desired;
use crate::core::View;
use crate::matching::Matching;
use api::v1;
use config::Protocol;
use executor::FlowInfo;
use model::snat::{SharedAddress, tag};
use model::{Binding, Endpoint, FlowKey, Vrf};
use std::collections::HashMap;
use std::net::IpAddr;
use tonic::Status;

/// The floating addresses by their inside address, and the addresses that guests share: connections are known by inside
/// addresses alone.
pub(super) struct Floating {
    of: HashMap<(Vrf, IpAddr), Vec<(Vrf, IpAddr)>>,
    /// By the network of the guests, the family, and the tag.
    shared: HashMap<(Vrf, bool, u16), SharedAddress>,
}

impl Floating {
    pub(super) fn of(tables: &Desired) -> Self {
        let mut of: HashMap<_, Vec<_>> = HashMap::new();
        for floating in tables.floating.values() {
            let inside = (floating.inside_vrf, floating.inside);
            of.entry(inside).or_default().push((floating.outside_vrf, floating.outside));
        }
        let shared = tables.networks.values().flat_map(|network| {
            let key = |addr: IpAddr| (network.vrf, addr.is_ipv4(), tag(addr));
            network.sharing.addresses.iter().map(move |shared| (key(shared.outside), *shared))
        });
        Self { of, shared: shared.collect() }
    }

    /// Returns the ends of a connection as they are outside.
    fn ends_of(&self, flow: &FlowInfo) -> [Option<Endpoint>; 2] {
        let mut ends = self.ends(&flow.key);
        if let Some(binding) = flow.binding {
            let FlowKey { src, dst, .. } = flow.key;
            let guest = if binding.of_destination { dst } else { src };
            ends[usize::from(binding.of_destination)] = self.shared(guest, binding);
        }
        ends
    }

    /// Returns a guest's end by a shared address, if the address is still there.
    fn shared(&self, guest: Endpoint, binding: Binding) -> Option<Endpoint> {
        let key = (guest.vrf, guest.addr.is_ipv4(), binding.tag);
        let SharedAddress { outside_vrf: vrf, outside: addr } = *self.shared.get(&key)?;
        Some(Endpoint { vrf, addr, port: binding.port })
    }

    /// Returns the ends of a connection as they are outside their networks, where they differ. Between two floating
    /// addresses both ends are translated in the network that has both.
    fn ends(&self, key: &FlowKey) -> [Option<Endpoint>; 2] {
        let of = |end: &Endpoint| self.of.get(&(end.vrf, end.addr)).map(Vec::as_slice).unwrap_or_default();
        let end = |this: &Endpoint, other: &Endpoint| {
            let is_seen_in =
                |vrf: Vrf| other.vrf == vrf || of(other).iter().any(|(outside, _)| *outside == vrf);
            let found = of(this).iter().find(|(vrf, _)| this.vrf != other.vrf && is_seen_in(*vrf));
            found.map(|&(vrf, addr)| Endpoint { vrf, addr, port: this.port })
        };
        [end(&key.src, &key.dst), end(&key.dst, &key.src)]
    }
}

fn holds(matching: &Matching, view: &View, floating: &Floating, flow: &FlowInfo) -> bool {
    matching.flow(flow, floating.ends_of(flow), |vrf| view.network_name(vrf))
}

/// Lists the connections that a text selects. They are collected before any is sent, so a slow client holds
/// up nobody.
pub(super) fn list(view: &View, text: &str) -> Result<Vec<FlowInfo>, Status> {
    let matching = Matching::parse(text).and_then(Matching::of_flows).map_err(super::invalid)?;
    let floating = Floating::of(&view.tables);
    view.executor.settle();
    let mut found = Vec::new();
    view.executor.flows(&mut |flow| {
        if holds(&matching, view, &floating, &flow) {
            found.push(flow);
        }
        true
    });
    Ok(found)
}

/// Removes the connections that a text selects, and returns how many.
pub(super) fn flush(view: &View, text: &str) -> Result<u64, Status> {
    let matching = Matching::parse(text).and_then(Matching::of_flows).map_err(super::invalid)?;
    let floating = Floating::of(&view.tables);
    let flushed = view.executor.flush_flows(&mut |flow| holds(&matching, view, &floating, flow));
    Ok(flushed as u64)
}

pub(super) fn message(view: &View, floating: &Floating, flow: &FlowInfo) -> v1::Flow {
    let key = &flow.key;
    let outside = |end: Endpoint| v1::FlowEnd {
        network: view.network_name(end.vrf),
        address: end.addr.to_string(),
        port: end.port.into(),
    };
    let [source_outside, destination_outside] = floating.ends_of(flow).map(|end| end.map(outside));
    v1::Flow {
        network: view.network_name(key.src.vrf),
        source: key.src.addr.to_string(),
        source_port: key.src.port.into(),
        destination_network: view.network_name(key.dst.vrf),
        destination: key.dst.addr.to_string(),
        destination_port: key.dst.port.into(),
        protocol: Protocol(key.protocol).to_string(),
        state: flow.state.to_string(),
        rule: flow.rule.map(|rule| rule.0),
        packets: flow.forward.packets,
        bytes: flow.forward.bytes,
        reply_packets: flow.reply.packets,
        reply_bytes: flow.reply.bytes,
        age: flow.age,
        idle: flow.idle,
        approximate: flow.approximate,
        source_outside,
        destination_outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::tests::flow;
    use model::{FloatingAddress, Network, Sharing};

    #[test]
    fn ends_have_their_floating_addresses_outside_their_network() {
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        let (blue, red, public) = (Vrf(1), Vrf(2), Vrf(9));
        let nats = [
            (blue, "10.1.1.1", public, "203.0.113.7"),
            (red, "10.2.2.1", public, "203.0.113.8"),
            // In a network where the connection is not seen.
            (blue, "10.1.1.1", Vrf(8), "198.51.100.7"),
        ];
        let mut tables = Desired::default();
        for (inside_vrf, inside, outside_vrf, outside) in nats {
            let (inside, outside) = (addr(inside), addr(outside));
            let floating = FloatingAddress { inside_vrf, inside, outside_vrf, outside };
            tables.floating.insert((outside_vrf, outside), floating);
        }
        let floating = Floating::of(&tables);
        let end = |vrf, text, port| Endpoint { vrf, addr: addr(text), port };
        let vm = end(blue, "10.1.1.1", 40000);
        let host = end(public, "203.0.113.200", 80);
        let peer = end(red, "10.2.2.1", 80);
        let ends = |src, dst| floating.ends(&FlowKey { src, dst, protocol: 6 });
        let outside = Some(end(public, "203.0.113.7", 40000));
        assert_eq!(ends(vm, host), [outside, None]);
        assert_eq!(ends(host, vm), [None, outside]);
        assert_eq!(ends(vm, peer), [outside, Some(end(public, "203.0.113.8", 80))]);
        assert_eq!(ends(vm, end(blue, "10.1.1.2", 80)), [None, None]);

        let address = SharedAddress { outside_vrf: public, outside: addr("203.0.113.5") };
        let sharing = Sharing { addresses: vec![address], ..Sharing::default() };
        tables.networks.insert(red, Network { sharing, ..Network::new(red, "red") });
        let shared = Floating::of(&tables);
        let binding =
            Some(Binding { tag: tag(address.outside), port: 2000, of_destination: true, for_all: false });
        let by_port = FlowInfo { key: FlowKey { src: host, dst: peer, protocol: 6 }, binding, ..flow() };
        assert_eq!(shared.ends_of(&by_port), [None, Some(end(public, "203.0.113.5", 2000))]);
        let selects = |text: &str| {
            Matching::parse(text).unwrap().flow(&by_port, shared.ends_of(&by_port), |_| String::new())
        };
        assert!(selects("dst 203.0.113.5 & port 2000") && selects("port 80") && !selects("port 2001"));

        let holds = |text: &str, src, dst| {
            let flow = FlowInfo { key: FlowKey { src, dst, protocol: 6 }, ..flow() };
            Matching::parse(text).unwrap().flow(&flow, floating.ends_of(&flow), |_| String::new())
        };
        for text in ["203.0.113.7", "10.1.1.1", "src 203.0.113.7 and dst 203.0.113.200", "src 10.1.1.1"] {
            assert!(holds(text, vm, host), "{text}");
        }
        for text in ["dst 203.0.113.7", "not 203.0.113.7", "198.51.100.7"] {
            assert!(!holds(text, vm, host), "{text}");
        }
        assert!(holds("dst 203.0.113.7", host, vm) && !holds("dst 203.0.113.200", host, vm));
    }
}
