//! Packets that leave the host, and those that come from elsewhere: ordinary packets of the guest's, which the vRouter carries.

use crate::counters::{Counter, Counters};
use crate::fabric::Adapter;
use crate::groups;
use crate::inbox::{Inbox, Packet};
use crate::path::{Network, Path, Way, write_network_header};
use packet::roce::{self, BTH_LEN, ICRC_LEN};
use packet::{Headers, L4, Mac, WriteError, build, neighbour, proto};
use rdmaport::Uplink;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where routed packets go: the vRouter itself (RFC 5798's virtual router MAC).
const ROUTER: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);

/// Frames after which who sleeps is woken for them, though more come.
pub(crate) const FRAMES: u32 = 16;

/// What was wrong with packets that came.
#[derive(Debug, Default)]
pub(crate) struct WireErrors {
    pub icrc: AtomicU64,
    pub malformed: AtomicU64,
    pub unknown_qp: AtomicU64,
}

impl WireErrors {
    pub fn count_into(&self, counters: &mut Counters) {
        let errors = [
            (Counter::Icrc, &self.icrc),
            (Counter::Malformed, &self.malformed),
            (Counter::UnknownQp, &self.unknown_qp),
        ];
        errors.into_iter().for_each(|(counter, value)| counters.add(counter, value.load(Ordering::Relaxed)));
    }
}

/// The UDP source port of packets of a connection: from the flow label, or from both queue pairs' numbers (IBTA A17.9.2
/// wants one for each flow; Linux makes it this way).
pub(crate) const fn source_port(flow_label: u32, qpn: u32, peer_qpn: u32) -> u16 {
    let label = if flow_label != 0 {
        flow_label
    } else {
        let mut mixed = qpn as u64 * peer_qpn as u64;
        mixed ^= mixed >> 20;
        mixed ^= mixed >> 40;
        mixed as u32 & 0xf_ffff
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

/// Sends the payload of a UDP datagram, with room for its ICRC at its end. False where it is lost.
pub(crate) fn send(uplink: &Uplink, path: &Path, source_port: u16, bytes: &[u8]) -> bool {
    let ip_len = if path.network.is_v4() { proto::IPV4_LEN } else { proto::IPV6_LEN };
    let len = proto::ETHERNET_LEN + ip_len + proto::UDP_LEN + bytes.len();
    uplink.send(len, |frame| {
        // There is room for all headers.
        let _ = write_frame(frame, path, source_port, bytes);
    })
}

/// The MAC that packets to an address have: a group's (RFC 1112, 6.4; RFC 2464, 7), or the vRouter's.
fn mac_towards(destination: Ipv6Addr) -> Mac {
    match destination.to_ipv4_mapped().map(|v4| v4.octets()) {
        _ if !groups::is_group(destination) => ROUTER,
        Some([_, b, c, d]) => Mac([0x01, 0, 0x5e, b & 0x7f, c, d]),
        None => neighbour::multicast_mac(destination),
    }
}

fn write_frame(frame: &mut [u8], path: &Path, source_port: u16, bytes: &[u8]) -> Result<(), WriteError> {
    let ethertype = if path.network.is_v4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
    let to = mac_towards(path.network.destination);
    let ip_at = build::ethernet(frame, to, Mac(path.mac), ethertype)?;
    let udp_len = proto::UDP_LEN + bytes.len();
    let udp_at = ip_at + write_network_header(&mut frame[ip_at..], &path.network, udp_len)?;
    // No checksum: the ICRC covers more (IBTA A17.4.5.1).
    let at = udp_at + build::udp(&mut frame[udp_at..], source_port, proto::PORT_ROCE, udp_len as u16, 0)?;
    frame[at..].copy_from_slice(bytes);
    let end = frame.len() - ICRC_LEN;
    if let Some(icrc) = roce::icrc(&frame[ip_at..end]) {
        frame[end..].copy_from_slice(&icrc);
    }
    Ok(())
}

/// A packet as devices send them to each other, in a frame: to ask what becomes of it.
pub(crate) fn example(mac: [u8; 6], (source, destination): (Ipv6Addr, Ipv6Addr)) -> Vec<u8> {
    let network = Network { source, destination, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let path = Path { network, mac, way: Way::Wire };
    let bytes = [0; BTH_LEN + ICRC_LEN];
    let ip_len = if network.is_v4() { proto::IPV4_LEN } else { proto::IPV6_LEN };
    let mut frame = vec![0; proto::ETHERNET_LEN + ip_len + proto::UDP_LEN + bytes.len()];
    // There is room for all headers.
    let _ = write_frame(&mut frame, &path, source_port(0, 1, 1), &bytes);
    frame
}

/// Packets that came on their way to the threads that have their queue pairs.
pub(crate) struct Delivery<'a> {
    adapter: &'a Adapter,
    /// Buffer for the next packet: for each that is given away one comes back.
    spare: &'a mut Vec<u8>,
    /// Who got the packets since it was woken last, and how many.
    inbox: Option<Arc<Inbox>>,
    unannounced: u32,
}

impl<'a> Delivery<'a> {
    pub const fn new(adapter: &'a Adapter, spare: &'a mut Vec<u8>) -> Self {
        Self { adapter, spare, inbox: None, unannounced: 0 }
    }

    /// Gives a packet to the thread that has its queue pair, which is woken once for many.
    pub fn deliver(&mut self, frame: &[u8]) {
        let errors = &self.adapter.errors;
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let Some((network, ip_at, udp_at, end)) = datagram(frame) else { return count(&errors.malformed) };
        if !roce::has_right_icrc(&frame[ip_at..end]) {
            return count(&errors.icrc);
        }
        let bytes = &frame[udp_at + proto::UDP_LEN..end];
        // Its base transport header is there: the ICRC covers it.
        let qpn = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        match (groups::is_group(network.destination), qpn == groups::QPN) {
            (true, true) => {
                self.adapter.groups.give((network, false), bytes, None, self.spare);
                return;
            }
            (false, false) => {}
            // What is for a group is for no queue pair of it, and the other way round (IBTA 10.5.1).
            _ => return count(&errors.malformed),
        }
        let Some(inbox) = self.adapter.owner(qpn) else { return count(&errors.unknown_qp) };
        // What there is no room for is lost.
        self.spare.clear();
        self.spare.extend_from_slice(bytes);
        let packet = Packet { qpn, network, is_local: false, bytes: std::mem::take(self.spare) };
        inbox.put_quietly(packet, self.spare);
        self.gave(inbox);
    }

    fn gave(&mut self, to: Arc<Inbox>) {
        let same = self.inbox.as_ref().is_some_and(|inbox| Arc::ptr_eq(inbox, &to));
        if !same || self.unannounced >= FRAMES {
            self.announce();
        }
        self.inbox = Some(to);
        self.unannounced += 1;
    }

    fn announce(&mut self) {
        self.unannounced = 0;
        if let Some(inbox) = self.inbox.take() {
            inbox.announce();
        }
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        self.announce();
    }
}

/// The network header of a RoCE packet, and where it, the UDP header and the packet's end are.
fn datagram(frame: &[u8]) -> Option<(Network, usize, usize, usize)> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let ip = headers.ip()?;
    if !matches!(headers.l4, L4::Udp { dst: proto::PORT_ROCE, .. }) {
        return None;
    }
    let (ip_at, udp_at) = (usize::from(ip.at), usize::from(headers.l4_at));
    let end = ip_at + ip.len as usize;
    let udp_len = frame.get(udp_at + 4..udp_at + 6).map(|len| u16::from_be_bytes([len[0], len[1]]))?;
    if end > frame.len() || udp_at + usize::from(udp_len) != end || end < udp_at + proto::UDP_LEN {
        return None;
    }
    let gid = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let head = &frame[ip_at..];
    let is_v4 = head[0] >> 4 == 4;
    let network = Network {
        source: gid(ip.src),
        destination: gid(ip.dst),
        traffic_class: if is_v4 { head[1] } else { head[0] << 4 | head[1] >> 4 },
        hop_limit: if is_v4 { head[8] } else { head[7] },
        flow_label: if is_v4 { 0 } else { u32::from_be_bytes([0, head[1] & 15, head[2], head[3]]) },
    };
    Some((network, ip_at, udp_at, end))
}

/// Whether both are addresses of the same IP version.
pub(crate) fn same_version(a: Ipv6Addr, b: Ipv6Addr) -> bool {
    a.to_ipv4_mapped().is_some() == b.to_ipv4_mapped().is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn path(v4: bool) -> Path {
        let address = |n: u8| match v4 {
            true => std::net::Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped(),
            false => format!("fd00::{n}").parse().unwrap(),
        };
        let network = Network {
            source: address(1),
            destination: address(2),
            traffic_class: 0x6a,
            hop_limit: 9,
            flow_label: 0,
        };
        Path { network, mac: [2, 0, 0, 0, 0, 1], way: Way::Wire }
    }

    #[test]
    fn what_is_sent_can_be_received() {
        for v4 in [true, false] {
            let bytes: Vec<u8> = (0..101).collect();
            let mut frame = vec![0; if v4 { 14 + 20 } else { 14 + 40 } + 8 + bytes.len()];
            write_frame(&mut frame, &path(v4), 0xc001, &bytes).unwrap();
            let (network, ip_at, udp_at, end) = datagram(&frame).unwrap();
            assert_eq!((network, end), (path(v4).network, frame.len()));
            assert!(roce::has_right_icrc(&frame[ip_at..end]));
            assert_eq!(frame[udp_at + 8..end - 4], bytes[..97]);
            for len in 0..frame.len() {
                assert!(datagram(&frame[..len]).is_none(), "{len}");
            }
        }
    }

    #[test]
    fn groups_have_macs_of_their_own() {
        for (destination, mac) in [
            ("::ffff:239.129.2.3", "01:00:5e:01:02:03"),
            ("ff0e::1:2", "33:33:00:01:00:02"),
            ("::ffff:10.0.0.2", "00:00:5e:00:01:00"),
            ("fd00::2", "00:00:5e:00:01:00"),
        ] {
            assert_eq!(mac_towards(destination.parse().unwrap()).to_string(), mac);
        }
    }

    #[test]
    fn source_ports_are_those_of_linux() {
        // Seen in captures: queue pairs 17 and 17.
        let mixed: u32 = 17 * 17;
        assert_eq!(source_port(0, 17, 17), 0xc000 | mixed as u16);
        assert_eq!(source_port(0x4_0001, 17, 17), 0xc000 | (1 ^ 0x10));
    }
}
