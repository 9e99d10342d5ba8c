//! Decides whether packets may go directly from one verbs device to another, past the workers: only if
//! workers would do nothing but deliver them.

use engine::Engine;
use hca::RoceFlow;
use model::{GATEWAY_MAC, PacketView, Verdict, VifId};
use packet::{Ethernet, Fragment, Headers, Ip, L3, L4, Mac, proto, roce};
use std::net::IpAddr;
use std::sync::Weak;

/// Hops of the packets in the question.
const HOPS: u8 = 64;
/// UDP source port of these packets, one of those that RoCE has (IBTA A17.9.2).
const SOURCE_PORT: u16 = 0xc001;

/// The engine's tables. The reference is weak, because the engine keeps the ports of the devices that ask.
pub struct EngineRules(pub Weak<Engine>);

impl hca::Rules for EngineRules {
    fn lets(&self, from: u16, flow: &RoceFlow, to: u16) -> bool {
        let Some(engine) = self.0.upgrade() else { return false };
        let headers = headers(flow);
        let len = headers.ip().map_or(0, |ip| u32::from(ip.at) + ip.len);
        let packet = PacketView { bytes: &[], len, gso_size: None, headers, checked: true };
        let decision = engine.decide(VifId(from), &packet);
        let effects = &decision.effects;
        let watched =
            !(effects.meters.is_empty() && effects.mirror_in.is_empty() && effects.mirror_out.is_empty());
        matches!(decision.verdict, Verdict::Forward(forward) if forward.port == VifId(to)) && !watched
    }
}

/// Makes the headers of the shortest packet of a flow, as the device sends it to the gateway.
fn headers(flow: &RoceFlow) -> Headers {
    let RoceFlow { mac, source, destination } = *flow;
    let (ethertype, header_len) = match source {
        IpAddr::V4(_) => (proto::ETHERTYPE_IPV4, proto::IPV4_LEN),
        IpAddr::V6(_) => (proto::ETHERTYPE_IPV6, proto::IPV6_LEN),
    };
    let l3_at = proto::ETHERNET_LEN as u16;
    let ip = Ip {
        at: l3_at,
        header_len: header_len as u16,
        len: (header_len + proto::UDP_LEN + roce::BTH_LEN + roce::ICRC_LEN) as u32,
        src: source,
        dst: destination,
        protocol: proto::UDP,
        ttl: HOPS,
        tos: 0,
        fragment: Fragment::Whole,
        dont_fragment: true,
    };
    Headers {
        eth: Some(Ethernet { dst: GATEWAY_MAC, src: Mac(mac), ethertype, ..Ethernet::default() }),
        l3_at,
        l3: L3::Ip(ip),
        l4: L4::Udp { src: SOURCE_PORT, dst: proto::PORT_ROCE },
        l4_at: l3_at + header_len as u16,
        ..Headers::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use packet::build;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    /// Bytes of a RoCE packet behind its UDP header.
    const PAYLOAD: usize = roce::BTH_LEN + roce::ICRC_LEN;

    fn frame(ethertype: u16, ip: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
        let mut frame = vec![0; 200];
        let ip_at = build::ethernet(&mut frame, GATEWAY_MAC, Mac(MAC), ethertype).unwrap();
        let udp_at = ip_at + ip(&mut frame[ip_at..]);
        let udp_len = proto::UDP_LEN + PAYLOAD;
        build::udp(&mut frame[udp_at..], SOURCE_PORT, proto::PORT_ROCE, udp_len as u16, 0).unwrap();
        frame.truncate(udp_at + udp_len);
        frame
    }

    #[test]
    fn the_headers_asked_about_are_those_of_a_frame() {
        let udp_len = proto::UDP_LEN + PAYLOAD;
        let (src, dst) = ("10.1.1.1".parse().unwrap(), "10.1.1.2".parse().unwrap());
        let v4 = build::Ipv4 {
            src,
            dst,
            protocol: proto::UDP,
            ttl: HOPS,
            tos: 0,
            id: 0,
            dont_fragment: true,
            len: (proto::IPV4_LEN + udp_len) as u16,
        };
        let (src6, dst6) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let v6 = build::Ipv6 {
            src: src6,
            dst: dst6,
            next_header: proto::UDP,
            hop_limit: HOPS,
            traffic_class: 0,
            flow_label: 0,
            payload_len: udp_len as u16,
        };
        for (source, destination, frame) in [
            (src.into(), dst.into(), frame(proto::ETHERTYPE_IPV4, |out| build::ipv4(out, &v4).unwrap())),
            (src6.into(), dst6.into(), frame(proto::ETHERTYPE_IPV6, |out| build::ipv6(out, &v6).unwrap())),
        ] {
            let flow = RoceFlow { mac: MAC, source, destination };
            assert_eq!(headers(&flow), Headers::ethernet(&frame, 0, frame.len()).unwrap());
        }
    }
}
