//! The edit for a decision: the rewriter's input from the verdict.

use card::compile::outer_checksum;
use model::{Forward, GATEWAY_MAC, Nat, PacketView, TunnelKind, rewrite};
use packet::{Fragment, Headers, L4, Mac, checksum};
use rtl::RewriterSim;
use std::net::IpAddr;

/// The parts of `edit_t` that are set.
#[derive(Clone, Debug)]
pub enum Edit {
    /// The packet is dropped.
    Drop,
    /// The packet goes to the host, after these bytes.
    Punt {
        /// The words of `punt_meta_t`.
        meta: [u32; 16],
        /// Port that leads to the host.
        port: u16,
    },
    Forward(Box<Forwarded>),
}

#[derive(Clone, Debug)]
pub struct Forwarded {
    pub forward: Forward,
    /// Number of bytes that are kept.
    pub kept: u16,
    /// The headers of the part that is kept.
    pub headers: Headers,
    /// Sum of the kept part, as received.
    pub sum: u16,
}

impl Edit {
    /// Makes the edit for a decision; `None` if the card leaves the packet to the host.
    pub fn of(forward: &Forward, packet: &PacketView<'_>) -> Option<Self> {
        let range = rewrite::kept(forward, packet);
        let body = packet.bytes.get(range.clone())?;
        let mpls = |kind| matches!(kind, TunnelKind::MplsUdp | TunnelKind::MplsGre);
        let network = forward.ethernet.is_some() || forward.encap.is_some_and(|encap| mpls(encap.kind));
        let parse = if network { Headers::network } else { Headers::ethernet };
        let headers = parse(body, 0, body.len()).ok()?;
        let tags = forward.push_vlan.is_some() || forward.pop_tags > 0;
        let gateways = forward.ethernet.is_none_or(|ethernet| ethernet.src == GATEWAY_MAC);
        let known = forward.encap.is_none_or(|encap| number_of(encap.kind).is_some());
        let simple = !tags && gateways && known && forward.strip < 256 && forward.ttl_decrement < 2;
        let kept = u16::try_from(range.len()).ok()?;
        (simple && translates(&forward.nat, &headers, body)).then(|| {
            Self::Forward(Box::new(Forwarded {
                forward: forward.clone(),
                kept,
                headers,
                sum: checksum::sum(body).fold(),
            }))
        })
    }

    pub fn set(&self, sim: &mut RewriterSim) {
        sim.set_drop(matches!(self, Self::Drop));
        sim.set_punt(matches!(self, Self::Punt { .. }));
        match self {
            Self::Drop => {}
            Self::Punt { meta, port } => {
                sim.meta_mut().copy_words(meta);
                sim.set_port(*port);
            }
            Self::Forward(forwarded) => forwarded.set(sim),
        }
    }
}

/// Returns the card's number of an encapsulation, if the card knows it.
const fn number_of(kind: TunnelKind) -> Option<u8> {
    match kind {
        TunnelKind::MplsUdp => Some(0),
        TunnelKind::MplsGre => Some(1),
        TunnelKind::Vxlan => Some(2),
        TunnelKind::Geneve => None,
    }
}

/// Returns whether the card can do this translation, or there is none. It translates no fragments, no packets with IPv4
/// options, and no packets that ICMP errors quote.
fn translates(nat: &Nat, headers: &Headers, body: &[u8]) -> bool {
    let Some(ip) = headers.ip() else { return true };
    let quotes = !matches!(headers.quoted(body, body.len()), Ok(None));
    let plain = ip.src.is_ipv4() && ip.header_len == 20 && ip.fragment == Fragment::Whole;
    *nat == Nat::default() || plain && headers.l3_at == 0 && !quotes
}

impl Forwarded {
    fn set(&self, sim: &mut RewriterSim) {
        let Self { forward, kept, headers, .. } = self;
        sim.set_port(forward.port.0);
        sim.set_strip(forward.strip as u8);
        sim.set_kept(*kept);
        let ip = headers.ip();
        sim.set_ip(ip.is_some());
        sim.set_v6(ip.is_some_and(|ip| ip.src.is_ipv6()));
        sim.set_l3_at(headers.l3_at as u8);
        sim.set_header_len(ip.map_or(0, |ip| ip.header_len.min(60) as u8));
        sim.set_new_tos(forward.tos.is_some());
        sim.set_tos(forward.tos.unwrap_or_else(|| ip.map_or(0, |ip| ip.tos)));
        sim.set_decrement_ttl(forward.ttl_decrement == 1);
        sim.set_nat_src(forward.nat.src.is_some());
        sim.set_nat_dst(forward.nat.dst.is_some());
        sim.set_new_src(forward.nat.src.map_or(0, number) as u32);
        sim.set_new_dst(forward.nat.dst.map_or(0, number) as u32);
        sim.set_l4(match headers.l4 {
            L4::Other => 0,
            L4::Tcp { .. } => 1,
            L4::Udp { .. } => 2,
            L4::Sctp { .. } => 3,
            L4::Icmp { .. } => 4,
        });
        sim.set_ethernet(forward.ethernet.is_some());
        if let Some(ethernet) = &forward.ethernet {
            sim.set_mac(mac(ethernet.dst));
            sim.set_ethertype(ethernet.ethertype);
        }
        self.set_encap(sim);
    }

    fn set_encap(&self, sim: &mut RewriterSim) {
        sim.set_encap(self.forward.encap.is_some());
        let Some(encap) = &self.forward.encap else { return };
        sim.set_tunnel(number_of(encap.kind).unwrap_or_default());
        sim.set_outer_v6(encap.dst.is_ipv6());
        sim.set_id(encap.id);
        sim.outer_src_mut().set(0, 128, number(encap.src));
        sim.outer_dst_mut().set(0, 128, number(encap.dst));
        sim.set_outer_src_mac(mac(encap.src_mac));
        sim.set_outer_dst_mac(mac(encap.dst_mac));
        sim.set_outer_tos(encap.tos);
        sim.set_entropy(encap.entropy);
        let constant = outer_checksum(encap.kind, encap.id, encap.src, encap.dst);
        sim.set_checksum(u32::from(constant) + u32::from(self.sum));
    }
}

fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn mac(mac: Mac) -> u64 {
    mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
