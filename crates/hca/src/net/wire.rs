//! Packets to and from the wire: ordinary packets of the guest, which the vRouter carries.

use crate::base::clock::monotonic;
use crate::base::header::{NetworkHeader, is_group};
use crate::base::ids::Qpn;
use crate::inbox::message::Message;
use crate::inbox::{Inbox, Packet};
use crate::net::adapter::Adapter;
use crate::net::frame::{self, FrameHeader, datagram};
use crate::net::groups::{self, CopyRate, Member, Multicast, Unfit};
use crate::net::icmp::{self, Undelivered};
use crate::net::path::Path;
use crate::net::wire_errors::count;
use packet::roce;
use packet::{Mac, proto};
use ringport::{Downlink, Uplink};
use std::sync::Arc;
use std::time::Duration;

/// After this many frames, sleeping threads are woken even if more frames come.
pub(crate) const FRAMES: u32 = 16;
/// About how many frames a turn delivers, copies included, and how many bytes. The last frame may exceed it.
const PACKETS: usize = 1024;
const BYTES: usize = 1 << 20;
/// The most inboxes that are announced together.
const TOGETHER: usize = 128;
/// The most messages of the connection manager of which a turn learns that they can't be delivered.
const UNDELIVERED: usize = 64;

/// Sends the payload of a UDP datagram, with room for its ICRC at its end. False if it is lost.
pub(crate) fn send(uplink: &Uplink, path: &Path, source_port: u16, payload: &[u8]) -> bool {
    uplink.send(frame::len(&path.header, payload.len()), |frame| {
        // There is room for all headers.
        let _ = frame::write(
            frame,
            &FrameHeader { mac: Mac(path.mac), network: &path.header, source_port },
            payload,
        );
    })
}

/// Delivers packets from the wire to the threads that own their queue pairs.
pub(crate) struct Delivery<'a> {
    adapter: &'a Adapter,
    /// Buffer for the next packet. Each inbox returns one for the one that it gets.
    spare: Vec<u8>,
    /// Inboxes with packets that are not announced yet.
    untold: Vec<Arc<Inbox<Message>>>,
    frames: u32,
    copy_rate: CopyRate,
    /// Messages of the connection manager that could not be delivered, for the manager.
    pub undelivered: Vec<Undelivered>,
}

impl<'a> Delivery<'a> {
    pub fn new(adapter: &'a Adapter) -> Self {
        let untold = Vec::with_capacity(TOGETHER);
        let undelivered = Vec::with_capacity(UNDELIVERED);
        Self { adapter, spare: Vec::new(), untold, frames: 0, copy_rate: CopyRate::default(), undelivered }
    }

    /// Delivers at most one turn's packets: the thread has other work as well.
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

    /// Delivers a packet to the threads that own its queue pairs. Threads are woken once for many packets. Returns how
    /// many copies were made for members of a group.
    fn deliver(&mut self, frame: &[u8], now: Duration) -> usize {
        let errors = &self.adapter.errors;
        let Some((header, ip_at, udp_at, end)) = datagram(frame) else {
            self.other(frame);
            return 0;
        };
        let is_multicast = is_group(header.destination);
        // Before anything costly, so that a flood to a group without members costs little.
        let members = if is_multicast { self.adapter.groups.members(header.destination) } else { None };
        if is_multicast && members.is_none() {
            count(&errors.unknown_group);
        } else if is_multicast && !self.copy_rate.may(now) {
            count(&errors.paced);
        } else if !roce::has_right_icrc(&frame[ip_at..end]) {
            count(&errors.icrc);
        } else {
            let bytes = &frame[udp_at + proto::UDP_LEN..end];
            // The base transport header is whole: the ICRC covers it.
            let qpn = Qpn(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]));
            match (members, qpn == groups::QPN) {
                (Some(members), true) => return self.copy(&members, header, bytes, now),
                (None, false) => self.put(qpn, header, bytes),
                // A packet to a group names no queue pair, and a packet to an address must name one (IBTA 10.5.1).
                _ => count(&errors.malformed),
            }
        }
        0
    }

    /// Handles a packet that is no RoCEv2.
    fn other(&mut self, frame: &[u8]) {
        let errors = &self.adapter.errors;
        let Some(undelivered) = icmp::read(frame) else { return count(&errors.malformed) };
        count(&errors.icmp);
        self.undelivered.extend(undelivered.filter(|_| self.undelivered.len() < UNDELIVERED));
    }

    /// Puts a packet into the inbox of the thread that owns its queue pair.
    fn put(&mut self, qpn: Qpn, header: NetworkHeader, bytes: &[u8]) {
        let errors = &self.adapter.errors;
        let Some(inbox) = self.adapter.owner(qpn) else { return count(&errors.unknown_qp) };
        self.spare.clear();
        self.spare.extend_from_slice(bytes);
        let packet = Packet { qpn, header, is_local: false, bytes: std::mem::take(&mut self.spare) };
        if !inbox.put_quietly(packet, &mut self.spare) {
            return count(&errors.no_room);
        }
        tell_later(&mut self.untold, &inbox);
        self.brought();
    }

    /// Copies a datagram to the members of its group.
    fn copy(&mut self, members: &[Member], header: NetworkHeader, bytes: &[u8], now: Duration) -> usize {
        let Self { adapter: Adapter { errors, .. }, spare, untold, copy_rate, .. } = self;
        let multicast = match Multicast::new(header, false, bytes) {
            Ok(multicast) => multicast,
            Err(unfit) => {
                count(if unfit == Unfit::Partition { &errors.partition } else { &errors.malformed });
                return 0;
            }
        };
        let copies = multicast.give(members, None, errors, spare, |inbox| tell_later(untold, inbox));
        copy_rate.spend(now, copies);
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

/// Records an inbox, once, to be announced later.
fn tell_later(untold: &mut Vec<Arc<Inbox<Message>>>, inbox: &Arc<Inbox<Message>>) {
    if untold.iter().rev().any(|other| Arc::ptr_eq(other, inbox)) {
        return;
    }
    if untold.len() == TOGETHER {
        untold.drain(..).for_each(|inbox| inbox.announce());
    }
    untold.push(inbox.clone());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::counters::Counters;
    use crate::base::limits::MAX_MEMBERS;
    use crate::inbox::Arrivals;
    use packet::roce::{Bth, Datagram, Deth, ICRC_LEN, Opcode, Operation, Service};
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::atomic::{AtomicU32, Ordering};

    const KEY: u32 = 0x1234;

    fn group(number: u8) -> Ipv6Addr {
        Ipv4Addr::new(239, 129, 2, number).to_ipv6_mapped()
    }

    fn multicast(queue_key: u32, partition: u16, len: usize) -> Vec<u8> {
        multicast_to(group(3), queue_key, partition, len)
    }

    /// Makes a datagram to a group, as it comes over the wire.
    fn multicast_to(group: Ipv6Addr, queue_key: u32, partition: u16, len: usize) -> Vec<u8> {
        let bth = Bth {
            opcode: Opcode::Of(Service::Ud, Operation::SendOnly),
            solicited: false,
            migrated: true,
            partition,
            forward_congestion: false,
            backward_congestion: false,
            destination: groups::QPN.0,
            acknowledge: false,
            psn: 0,
        };
        let (deth, payload) = (Some(Deth { queue_key, source: 17 }), vec![0; len]);
        let mut bytes = vec![0; len + 64];
        let written = Datagram { deth, ..Datagram::new(bth, &payload) };
        let len = roce::write(&written, &mut bytes).unwrap();
        let source = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        let header =
            NetworkHeader { source, destination: group, traffic_class: 0x6a, hop_limit: 9, flow_label: 0 };
        let mut frame = vec![0; frame::len(&header, len)];
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let headers = FrameHeader { mac, network: &header, source_port: 0xc001 };
        frame::write(&mut frame, &headers, &bytes[..len]).unwrap();
        frame
    }

    struct Anything;

    impl crate::Rules for Anything {
        fn lets(&self, _: u16, _: &crate::RoceFlow, _: u16) -> bool {
            true
        }
    }

    /// Creates a device with as many members of the group as allowed, in several programs.
    fn device(programs: usize) -> (Arc<Adapter>, Vec<Arc<Inbox<Message>>>) {
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
        let adapter = crate::Fabric::limited(Box::new(Anything), 1000, 1000).adapter(spec);
        let inboxes: Vec<_> =
            (0..programs).map(|_| Arc::new(Inbox::new(adapter.budget.clone()).unwrap())).collect();
        inboxes.iter().for_each(|inbox| inbox.open());
        let key = Arc::new(AtomicU32::new(KEY));
        for (qpn, inbox) in (0..MAX_MEMBERS).zip(inboxes.iter().cycle()) {
            let member = Member { qpn: Qpn(qpn), queue_key: key.clone(), inbox: inbox.clone() };
            adapter.groups.attach(group(3), member).unwrap();
        }
        (adapter, inboxes)
    }

    /// Returns how many packets are in an announced inbox.
    fn taken(inbox: &Inbox<Message>) -> usize {
        let mut arrivals = Arrivals::default();
        inbox.take(&mut arrivals);
        arrivals.packets.len()
    }

    #[test]
    fn a_turn_ends_though_more_comes() {
        for (len, most) in [(4, PACKETS + 128), (4000, 128 * 3)] {
            let (adapter, inboxes) = device(1);
            let port = ringport::RingPort { mtu: 9000, slots: 64 };
            let (port, _uplink, mut downlink) = ringport::open(&port).unwrap();
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
            assert!(inboxes.iter().all(|inbox| !inbox.set_asleep()), "not yet");
        }
        delivery.deliver(&frame, Duration::ZERO);
        assert!(inboxes.iter().all(|inbox| inbox.set_asleep() && taken(inbox) == FRAMES as usize));
    }

    #[test]
    fn icmp_is_not_malformed_and_what_it_tells_the_manager_is_bounded() {
        let (adapter, _) = device(1);
        let mut delivery = Delivery::new(&adapter);
        let addresses = ["10.0.0.2", "10.0.0.77", "10.0.0.254"];
        let frame = icmp::tests::answered(addresses, &[0; 300], packet::IcmpError::HostUnreachable);
        for _ in 0..100 {
            delivery.deliver(&frame, Duration::ZERO);
        }
        delivery.deliver(&frame[..frame.len() - 1], Duration::ZERO);
        assert_eq!(delivery.undelivered.len(), UNDELIVERED);
        let errors = [&adapter.errors.icmp, &adapter.errors.malformed];
        assert_eq!(errors.map(|count| count.load(Ordering::Relaxed)), [100, 1]);
    }

    #[test]
    fn nothing_is_copied_that_no_queue_pair_takes() {
        let (adapter, inboxes) = device(2);
        let mut delivery = Delivery::new(&adapter);
        let mut connected = multicast(KEY, 0xffff, 4);
        // A packet of a connection: RC SEND Only.
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
        // Copies that a program does not take are lost and counted. They count as made.
        inboxes.iter().for_each(|inbox| inbox.close());
        assert_eq!(delivery.deliver(&multicast(KEY, 0x7fff, 4), Duration::ZERO), 128);
        assert_eq!(adapter.errors.no_room.load(Ordering::Relaxed), 128);
    }
}
