//! Packets that leave the host, and those that come from elsewhere: ordinary packets of the guest's, which the
//! vRouter carries.

use crate::client::monotonic;
use crate::counters::{Counter, Counters};
use crate::fabric::Adapter;
use crate::groups::{self, Member, Multicast, Pace, Unfit};
use crate::inbox::{Inbox, Packet};
use crate::path::{Network, Path, Way, write_network_header};
use packet::roce::{self, BTH_LEN, ICRC_LEN};
use packet::{Headers, L4, Mac, WriteError, build, neighbour, proto};
use rdmaport::{Downlink, Uplink};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where routed packets go: the vRouter itself (RFC 5798's virtual router MAC).
const ROUTER: Mac = Mac([0, 0, 0x5e, 0, 1, 0]);

/// Frames after which who sleeps is woken for them, though more come.
pub(crate) const FRAMES: u32 = 16;
/// Frames that a turn brings, with copies of them, and bytes of both: about, since what is begun is done.
const PACKETS: usize = 1024;
const BYTES: usize = 1 << 20;
/// Inboxes that are announced to together.
const TOGETHER: usize = 128;

/// What was wrong with packets that came.
#[derive(Debug, Default)]
pub(crate) struct WireErrors {
    pub icrc: AtomicU64,
    pub malformed: AtomicU64,
    pub unknown_qp: AtomicU64,
    /// Nobody is attached to the group.
    pub unknown_group: AtomicU64,
    /// A program does not take what waits.
    pub no_room: AtomicU64,
    pub queue_key: AtomicU64,
    pub partition: AtomicU64,
    /// More copies than are made in a second.
    pub paced: AtomicU64,
    /// The guest's own address, from elsewhere.
    pub forged: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl WireErrors {
    pub fn count_into(&self, counters: &mut Counters) {
        let errors = [
            (Counter::Icrc, &self.icrc),
            (Counter::Malformed, &self.malformed),
            (Counter::UnknownQp, &self.unknown_qp),
            (Counter::UnknownGroup, &self.unknown_group),
            (Counter::NoRoom, &self.no_room),
            (Counter::QkeyViolation, &self.queue_key),
            (Counter::PkeyViolation, &self.partition),
            (Counter::MulticastPace, &self.paced),
            (Counter::Forged, &self.forged),
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
    spare: Vec<u8>,
    /// Who got packets and was not told yet, and of how many frames.
    untold: Vec<Arc<Inbox>>,
    frames: u32,
    pace: Pace,
}

impl<'a> Delivery<'a> {
    pub fn new(adapter: &'a Adapter) -> Self {
        let untold = Vec::with_capacity(TOGETHER);
        Self { adapter, spare: Vec::new(), untold, frames: 0, pace: Pace::default() }
    }

    /// Delivers what came, as much as is done in a turn. Others that the thread works for have theirs between.
    pub fn turn(&mut self, downlink: &mut Downlink) {
        let now = monotonic();
        let (mut packets, mut bytes) = (0, 0);
        let mut receive = || {
            downlink.receive(|frame| {
                let made = 1 + self.deliver(frame, now);
                packets += made;
                bytes += made * frame.len();
            }) && packets < PACKETS
                && bytes < BYTES
        };
        while receive() {}
        self.announce();
    }

    /// Gives a packet to the threads that have its queue pairs, which are woken once for many. Returns how many
    /// copies were made for members of a group.
    fn deliver(&mut self, frame: &[u8], now: Duration) -> usize {
        let errors = &self.adapter.errors;
        let Some((network, ip_at, udp_at, end)) = datagram(frame) else {
            count(&errors.malformed);
            return 0;
        };
        let is_group = groups::is_group(network.destination);
        // Before anything that costs: whoever floods a group that nobody has gets no more of us.
        let members = if is_group { self.adapter.groups.members(network.destination) } else { None };
        if is_group && members.is_none() {
            count(&errors.unknown_group);
        } else if is_group && !self.pace.may(now) {
            count(&errors.paced);
        } else if !roce::has_right_icrc(&frame[ip_at..end]) {
            count(&errors.icrc);
        } else {
            let bytes = &frame[udp_at + proto::UDP_LEN..end];
            // Its base transport header is there: the ICRC covers it.
            let qpn = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
            match (members, qpn == groups::QPN) {
                (Some(members), true) => return self.copy(&members, network, bytes, now),
                (None, false) => self.hand(qpn, network, bytes),
                // What is for a group is for no queue pair of it, and the other way round (IBTA 10.5.1).
                _ => count(&errors.malformed),
            }
        }
        0
    }

    /// Gives a packet to the thread that has its queue pair.
    fn hand(&mut self, qpn: u32, network: Network, bytes: &[u8]) {
        let errors = &self.adapter.errors;
        let Some(inbox) = self.adapter.owner(qpn) else { return count(&errors.unknown_qp) };
        self.spare.clear();
        self.spare.extend_from_slice(bytes);
        let packet = Packet { qpn, network, is_local: false, bytes: std::mem::take(&mut self.spare) };
        if !inbox.put_quietly(packet, &mut self.spare) {
            return count(&errors.no_room);
        }
        tell_later(&mut self.untold, &inbox);
        self.brought();
    }

    /// Gives copies of a datagram to the members of its group.
    fn copy(&mut self, members: &[Member], network: Network, bytes: &[u8], now: Duration) -> usize {
        let Self { adapter: Adapter { errors, .. }, spare, untold, pace, .. } = self;
        let multicast = match Multicast::new((network, false), bytes) {
            Ok(multicast) => multicast,
            Err(unfit) => {
                count(if unfit == Unfit::Partition { &errors.partition } else { &errors.malformed });
                return 0;
            }
        };
        let copies = multicast.give(members, None, (errors, spare), |inbox| tell_later(untold, inbox));
        pace.spend(now, copies);
        self.brought();
        copies
    }

    fn brought(&mut self) {
        self.frames += 1;
        if self.frames >= FRAMES {
            self.announce();
        }
    }

    fn announce(&mut self) {
        self.frames = 0;
        self.untold.drain(..).for_each(|inbox| inbox.announce());
    }
}

/// Notes who is to be told, once.
fn tell_later(untold: &mut Vec<Arc<Inbox>>, inbox: &Arc<Inbox>) {
    if untold.iter().rev().any(|other| Arc::ptr_eq(other, inbox)) {
        return;
    }
    if untold.len() == TOGETHER {
        untold.drain(..).for_each(|inbox| inbox.announce());
    }
    untold.push(inbox.clone());
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
    use crate::inbox::Arrivals;
    use packet::roce::{Bth, Datagram, Deth, Opcode, Operation, Service};
    use std::sync::atomic::AtomicU32;

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

    const KEY: u32 = 0x1234;

    fn group(number: u8) -> Ipv6Addr {
        std::net::Ipv4Addr::new(239, 129, 2, number).to_ipv6_mapped()
    }

    fn multicast(queue_key: u32, partition: u16, len: usize) -> Vec<u8> {
        multicast_to(group(3), queue_key, partition, len)
    }

    /// A datagram to a group, as it comes by a wire.
    fn multicast_to(group: Ipv6Addr, queue_key: u32, partition: u16, len: usize) -> Vec<u8> {
        let bth = Bth {
            opcode: Opcode::Of(Service::Ud, Operation::SendOnly),
            solicited: false,
            migrated: true,
            partition,
            forward_congestion: false,
            backward_congestion: false,
            destination: groups::QPN,
            acknowledge: false,
            psn: 0,
        };
        let (deth, payload) = (Some(Deth { queue_key, source: 17 }), vec![0; len]);
        let mut bytes = vec![0; len + 64];
        let written = Datagram { deth, ..Datagram::new(bth, &payload) };
        let len = roce::write(&written, &mut bytes).unwrap();
        let mut path = path(true);
        path.network.destination = group;
        let mut frame = vec![0; 14 + 20 + 8 + len];
        write_frame(&mut frame, &path, 0xc001, &bytes[..len]).unwrap();
        frame
    }

    struct Anything;

    impl crate::Rules for Anything {
        fn lets(&self, _: u16, _: &[u8], _: u16) -> bool {
            true
        }
    }

    /// A device with as many members of the group as there may be, of some programs.
    fn device(programs: usize) -> (Adapter, Vec<Arc<Inbox>>) {
        let spec = crate::DeviceSpec {
            guest: "a".into(),
            vrf: 1,
            mac: [2, 0, 0, 0, 0, 2],
            addresses: Vec::new(),
            mtu: 9000,
            limits: crate::Limits::default(),
            trust: None,
            is_watched: false,
            rate: None,
        };
        let adapter = Adapter::new(spec, &crate::Fabric::limited(Box::new(Anything), 1000, 1000));
        let inboxes: Vec<_> =
            (0..programs).map(|_| Arc::new(Inbox::new(adapter.account.clone()).unwrap())).collect();
        inboxes.iter().for_each(|inbox| inbox.open());
        let key = Arc::new(AtomicU32::new(KEY));
        for (qpn, inbox) in (0..groups::MAX_MEMBERS).zip(inboxes.iter().cycle()) {
            adapter.groups.attach(group(3), (qpn, &key), inbox).unwrap();
        }
        (adapter, inboxes)
    }

    /// How many packets are in an inbox that was announced to.
    fn taken(inbox: &Inbox) -> usize {
        let mut taken = Arrivals::default();
        inbox.take(&mut taken);
        taken.packets.len()
    }

    #[test]
    fn a_turn_ends_though_more_comes() {
        for (len, most) in [(4, PACKETS + 128), (4000, 128 * 3)] {
            let (adapter, inboxes) = device(1);
            let port = rdmaport::RdmaPort { mtu: 9000, slots: 64 };
            let (port, _uplink, mut downlink) = rdmaport::open(&port).unwrap();
            let frame = multicast(KEY, 0xffff, len);
            for _ in 0..64 {
                port.tx[0].burst(&mut |room| {
                    room.put(&frame, &[], 0, 0, &mem::Offload::default()).unwrap();
                });
            }
            let mut delivery = Delivery::new(&adapter);
            let mut turns = 0;
            while downlink.arm() {
                downlink.disarm();
                delivery.turn(&mut downlink);
                let copies = taken(&inboxes[0]);
                assert!(copies <= most, "{copies}");
                turns += 1;
            }
            assert!(turns > 3 && adapter.errors.no_room.load(Ordering::Relaxed) == 0, "{turns}");
        }
    }

    #[test]
    fn copies_of_a_second_are_bounded() {
        let (adapter, inboxes) = device(1);
        let mut delivery = Delivery::new(&adapter);
        let frame = multicast(KEY, 0xffff, 4);
        let begin = Duration::from_secs(5);
        let mut copies = 0;
        for millisecond in 0..100 {
            for _ in 0..16 {
                copies += delivery.deliver(&frame, begin + Duration::from_millis(millisecond));
            }
            delivery.announce();
            taken(&inboxes[0]);
        }
        assert!((20_000..24_000 + 128).contains(&copies), "{copies}");
        let paced = adapter.errors.paced.load(Ordering::Relaxed) as usize;
        assert_eq!(copies / 128 + paced, 1600, "what is lost is counted");
    }

    #[test]
    fn who_gets_copies_is_woken_once_for_many_frames() {
        let (adapter, inboxes) = device(128);
        let mut delivery = Delivery::new(&adapter);
        let frame = multicast(KEY, 0xffff, 4);
        for _ in 1..FRAMES {
            assert_eq!(delivery.deliver(&frame, Duration::ZERO), 128);
            assert!(inboxes.iter().all(|inbox| !inbox.set_asleep(true)), "not yet");
        }
        delivery.deliver(&frame, Duration::ZERO);
        assert!(inboxes.iter().all(|inbox| inbox.set_asleep(true) && taken(inbox) == FRAMES as usize));
    }

    #[test]
    fn nothing_is_copied_that_no_queue_pair_takes() {
        let (adapter, inboxes) = device(2);
        let mut delivery = Delivery::new(&adapter);
        let mut connected = multicast(KEY, 0xffff, 4);
        // Of a connection: RC SEND Only.
        connected[14 + 20 + 8] = 4;
        let end = connected.len() - ICRC_LEN;
        let icrc = roce::icrc(&connected[14..end]).unwrap();
        connected[end..].copy_from_slice(&icrc);
        let elsewhere = multicast_to(group(4), KEY, 0xffff, 4);
        for frame in [multicast(KEY ^ 1, 0xffff, 4), multicast(KEY, 0x8001, 4), connected, elsewhere] {
            assert_eq!(delivery.deliver(&frame, Duration::ZERO), 0);
        }
        let mut counters = Counters::default();
        adapter.errors.count_into(&mut counters);
        for (name, count) in [
            ("qkey_violations", 128),
            ("pkey_violations", 1),
            ("rcvd_pkts_malformed", 1),
            ("rcvd_pkts_unknown_group", 1),
            ("rcvd_pkts_no_room", 0),
        ] {
            assert_eq!(counters.get(name), Some(count), "{name}");
        }
        // What a program does not take is lost, and counted; it was copied all the same.
        inboxes.iter().for_each(|inbox| inbox.close());
        assert_eq!(delivery.deliver(&multicast(KEY, 0x7fff, 4), Duration::ZERO), 128);
        assert_eq!(adapter.errors.no_room.load(Ordering::Relaxed), 128);
    }

    #[test]
    fn source_ports_are_those_of_linux() {
        // Seen in captures: queue pairs 17 and 17.
        let mixed: u32 = 17 * 17;
        assert_eq!(source_port(0, 17, 17), 0xc000 | mixed as u16);
        assert_eq!(source_port(0x4_0001, 17, 17), 0xc000 | (1 ^ 0x10));
    }
}
