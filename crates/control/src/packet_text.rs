//! Packets as operators write them for `explain`: the language of [`model::text`], with abbreviations.
//!
//! `10.1.1.1 > 10.1.1.2 / tcp 40000 > 80 syn` is completed: the IP layer's name follows from the addresses, the
//! Ethernet header from the interface and the tables, TCP flags may be words, and an IP packet with nothing in it
//! becomes a ping.

use crate::core::View;
use model::{GATEWAY_MAC, NeighbourScope, Vif, VifId};
use packet::Mac;
use std::net::IpAddr;

/// The frame that a text describes, as it would come in by an interface.
pub(crate) fn frame(view: &View, ingress: VifId, text: &str) -> Result<Vec<u8>, String> {
    let mut layers: Vec<String> = text.split('/').map(|layer| layer.trim().to_owned()).collect();
    complete(view, ingress, &mut layers);
    model::text::parse(&layers.join(" / "))
        .map_err(|e| format!("{e}\nWrite a packet like: 10.1.1.1 > 10.1.1.2 / tcp 40000 > 80 syn"))
}

fn complete(view: &View, ingress: VifId, layers: &mut Vec<String>) {
    for layer in layers.iter_mut().filter(|layer| layer.starts_with("tcp ")) {
        *layer = tcp_flags(layer);
    }
    let Some(at) = layers.iter().position(|layer| ends(layer).is_some()) else { return };
    let Some((src, dst)) = ends(&layers[at]) else { return };
    if first_word(&layers[at]).parse::<IpAddr>().is_ok() {
        layers[at] = format!("{} {}", if dst.is_ipv4() { "ip4" } else { "ip6" }, layers[at]);
    }
    if at + 1 == layers.len() {
        layers.push(if dst.is_ipv4() { "icmp echo 1 1" } else { "icmp6 echo 1 1" }.to_owned());
    }
    if at == 0 {
        let (from, to) = macs(view, ingress, src, dst);
        layers.insert(0, format!("eth {from} > {to}"));
    }
}

fn first_word(layer: &str) -> &str {
    layer.split_whitespace().next().unwrap_or_default()
}

/// The addresses of an IP layer, with or without its name.
fn ends(layer: &str) -> Option<(IpAddr, IpAddr)> {
    let layer = layer.strip_prefix("ip4 ").or_else(|| layer.strip_prefix("ip6 ")).unwrap_or(layer);
    let (src, rest) = layer.split_once('>')?;
    Some((src.trim().parse().ok()?, first_word(rest).parse().ok()?))
}

/// `syn ack` is `SA`; `ack 7` stays the acknowledgement number.
fn tcp_flags(layer: &str) -> String {
    const FLAGS: [(&str, &str); 8] = [
        ("fin", "F"),
        ("syn", "S"),
        ("rst", "R"),
        ("psh", "P"),
        ("ack", "A"),
        ("urg", "U"),
        ("ece", "E"),
        ("cwr", "C"),
    ];
    let words: Vec<&str> = layer.split_whitespace().collect();
    let flag = |i: usize| {
        let number_follows = words.get(i + 1).is_some_and(|next| next.parse::<u32>().is_ok());
        FLAGS.iter().find(|(name, _)| *name == words[i] && !number_follows).map(|(_, letter)| *letter)
    };
    let flags: String = (0..words.len()).filter_map(flag).collect();
    let mut rest: Vec<&str> = (0..words.len()).filter(|i| flag(*i).is_none()).map(|i| words[i]).collect();
    // Their place is behind the ports: `tcp A > B FLAGS`.
    rest.insert(rest.len().min(4), &flags);
    rest.join(" ").trim_end().to_owned()
}

/// Source and destination MAC that the interface's owner would use.
fn macs(view: &View, ingress: VifId, src: IpAddr, dst: IpAddr) -> (Mac, Mac) {
    const SOMEBODY: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);
    let Some(vif) = view.tables.vifs.get(&ingress) else { return (SOMEBODY, GATEWAY_MAC) };
    match vif.wire {
        Some(_) => (SOMEBODY, vif.mac.unwrap_or(GATEWAY_MAC)),
        None => (vif.mac.unwrap_or(SOMEBODY), neighbour(view, vif, src, dst).unwrap_or(GATEWAY_MAC)),
    }
}

/// The MAC of a host of the guest's own subnet; everything else is behind the gateway.
fn neighbour(view: &View, vif: &Vif, src: IpAddr, dst: IpAddr) -> Option<Mac> {
    let network = view.tables.networks.get(&vif.vrf?)?;
    let on_link = network.gateways.is_empty()
        || network.gateways.iter().any(|net| net.contains(&src) && net.contains(&dst));
    if !on_link || network.is_gateway(dst) {
        return None;
    }
    let guest = view.tables.vifs.values().find(|v| v.vrf == vif.vrf && v.addresses.contains(&dst));
    guest.and_then(|guest| guest.mac).or_else(|| {
        let scope = NeighbourScope::Network(network.vrf);
        let neighbours = view.executor.neighbours();
        neighbours.iter().find(|n| n.scope == scope && n.addr == dst).and_then(|n| n.mac)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_may_be_words() {
        assert_eq!(tcp_flags("tcp 40000 > 80 syn"), "tcp 40000 > 80 S");
        assert_eq!(tcp_flags("tcp 1 > 2 syn ack seq 7"), "tcp 1 > 2 SA seq 7");
        assert!(
            tcp_flags("tcp 1 > 2 A seq 7 ack 9").split_whitespace().eq("tcp 1 > 2 A seq 7 ack 9".split(' '))
        );
        assert_eq!(tcp_flags("tcp 1 > 2"), "tcp 1 > 2");
    }

    #[test]
    fn ip_layers_are_known_by_their_addresses() {
        assert!(ends("10.1.1.1 > 10.1.1.2").is_some());
        assert!(ends("ip6 fd00::1 > fd00::2 ttl 3").is_some());
        assert!(ends("udp 1 > 53").is_none());
        assert!(ends("eth 02:00:00:00:00:01 > 02:00:00:00:00:02").is_none());
    }
}
