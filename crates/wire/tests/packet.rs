//! Packet sockets on veth pairs, with the kernel's own TCP at the far ends.

use crate::common::{
    Bridge, Net, came, eventually, experimental, frame, isolate, pair, receive, run, send, tcp_echo, veth,
};
use mem::{Csum, NoRoom, Offload, Opened, Refusal, TxQueue};
use packet::checksum::{L4Check, verify_l4};
use packet::{build, proto};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use wire::{Error, PacketPort, here, open_packet};

fn open(device: &str, queues: u16) -> Opened {
    open_packet(&PacketPort { device: device.into(), queues, tunnels: None }, &here()).unwrap()
}

/// Opens packet sockets at the far end of the pair.
fn open_at(net: &Net) -> Opened {
    net.inside(|| open("eth0", 1)).join().unwrap()
}

#[test]
fn tcp_passes_with_its_large_segments_and_unfinished_checksums() {
    isolate();
    let a = veth("wa", &["10.0.0.1/24", "fd00::1/64"]);
    let b = veth("wb", &["10.0.0.2/24", "fd00::2/64"]);
    let bridge = Bridge::new(open("wa", 1), open("wb", 1));
    tcp_echo(&a, &b, "10.0.0.2", 8 << 20);
    tcp_echo(&a, &b, "fd00::2", 8 << 20);
    assert!(bridge.seen.large.load(Relaxed) > 0, "no large segment came");
    assert!(bridge.seen.partial.load(Relaxed) > 0, "no partial checksum came");
}

#[test]
fn tcp_passes_over_several_queues() {
    isolate();
    let a = veth("wa", &["10.0.0.1/24"]);
    let b = veth("wb", &["10.0.0.2/24"]);
    let bridge = Bridge::new(open("wa", 3), open("wb", 3));
    for _ in 0..4 {
        tcp_echo(&a, &b, "10.0.0.2", 1 << 20);
    }
    // If sent frames were received too, they would circle forever.
    eventually("frames come to rest", || {
        let before = bridge.seen.frames.load(Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(20));
        bridge.seen.frames.load(Relaxed) == before
    });
}

#[test]
fn frames_arrive_as_they_were_sent() {
    isolate();
    let net = veth("wa", &[]);
    let (mut here, mut there) = (open("wa", 1), open_at(&net));
    for len in [60, 61, 1000, 1514] {
        let sent = frame(&vec![0xa5; len - 14]);
        send(&*there.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *here.rx[0], experimental).0, sent);
        send(&*here.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *there.rx[0], experimental).0, sent);
    }
}

#[test]
fn vlan_tags_stay() {
    isolate();
    let net = veth("wa", &[]);
    let (mut here, mut there) = (open("wa", 1), open_at(&net));
    for tags in [
        &[[0x81, 0x00, 0x00, 0x07]][..],
        &[[0x81, 0x00, 0xe0, 0x00]],
        &[[0x88, 0xa8, 0x0f, 0xff]],
        &[[0x81, 0x00, 0x00, 0x07], [0x81, 0x00, 0x00, 0x08]],
    ] {
        let mut tagged = frame(b"tagged");
        for tag in tags.iter().rev() {
            tagged.splice(12..12, *tag);
        }
        let own = |frame: &[u8]| frame.ends_with(&tagged[12..]);
        send(&*there.tx[0], &tagged, Offload::default()).unwrap();
        assert_eq!(receive(&mut *here.rx[0], own).0, tagged);
        send(&*here.tx[0], &tagged, Offload::default()).unwrap();
        assert_eq!(receive(&mut *there.rx[0], own).0, tagged);
    }
}

#[test]
fn own_frames_do_not_come_back() {
    isolate();
    let net = veth("wa", &[]);
    for queues in [1, 2] {
        let (mut here, there) = (open("wa", queues), open_at(&net));
        for tx in &here.tx {
            send(&**tx, &frame(b"ours"), Offload::default()).unwrap();
        }
        send(&*there.tx[0], &frame(b"theirs"), Offload::default()).unwrap();
        let mut all = Vec::new();
        eventually("their frame comes", || {
            for rx in &mut here.rx {
                let mut burst = mem::Burst::new();
                rx.poll(&mut burst, 1 << 20);
                for packet in burst.packets() {
                    let mut bytes = [0; 60];
                    mem::gather(burst.segments(packet), 0, &mut bytes);
                    all.push(bytes);
                }
                rx.release(&mut burst);
            }
            all.iter().any(|bytes| bytes[14..20] == *b"theirs")
        });
        assert!(!all.iter().any(|bytes| bytes[14..18] == *b"ours"), "our own frame came back");
    }
}

#[test]
fn more_than_a_burst_and_more_than_the_memory_is_sent() {
    isolate();
    let net = veth("wa", &[]);
    let (here, mut there) = (open("wa", 1), open_at(&net));
    const COUNT: u8 = 200;
    here.tx[0].burst(&mut |room| {
        for i in 0..COUNT {
            let sent = frame(&[i; 1400]);
            let segments = room.reserve(sent.len(), &Offload::default()).unwrap();
            mem::scatter(&sent, segments, 0);
        }
    });
    for i in 0..COUNT {
        assert_eq!(receive(&mut *there.rx[0], experimental).0[14..], [i; 1400]);
    }
    assert_eq!(here.port.status().refused, 0);
}

/// Makes a tunnel packet from 10.0.0.1 or fd00::1 to 10.0.0.2 or fd00::2.
fn tunnelled(v6: bool, payload: &[u8]) -> Vec<u8> {
    let (dst, src) = (packet::Mac([0xff; 6]), packet::Mac([2, 0, 0, 0, 0, 9]));
    let len = (proto::UDP_LEN + payload.len()) as u16;
    let mut frame = vec![0; 62];
    let ethertype = if v6 { proto::ETHERTYPE_IPV6 } else { proto::ETHERTYPE_IPV4 };
    let mut at = build::ethernet(&mut frame, dst, src, ethertype).unwrap();
    at += if v6 {
        let [src, dst] = ["fd00::1", "fd00::2"].map(|addr| addr.parse().unwrap());
        let (next_header, hop_limit, traffic_class, flow_label, payload_len) = (proto::UDP, 64, 0, 0, len);
        let ip = build::Ipv6 { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len };
        build::ipv6(&mut frame[at..], &ip).unwrap()
    } else {
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse().unwrap());
        let (protocol, ttl, tos, id, dont_fragment) = (proto::UDP, 64, 0, 0, true);
        let len = proto::IPV4_LEN as u16 + len;
        let ip = build::Ipv4 { src, dst, protocol, ttl, tos, id, dont_fragment, len };
        build::ipv4(&mut frame[at..], &ip).unwrap()
    };
    at += build::udp(&mut frame[at..], 50_000, proto::PORT_MPLS, len, 0).unwrap();
    frame.truncate(at);
    frame.extend(payload);
    frame
}

fn send_tunnelled(tx: &dyn TxQueue, v6: bool, payloads: &[Vec<u8>]) {
    assert!(tx.burst(&mut |room| {
        for payload in payloads {
            let sent = tunnelled(v6, payload);
            mem::scatter(&sent, room.reserve(sent.len(), &Offload::default()).unwrap(), 0);
        }
    }));
}

fn payloads() -> Vec<Vec<u8>> {
    (0..40).map(|i| vec![i; if i % 8 == 7 { 500 } else { 1400 }]).collect()
}

#[test]
fn datagrams_that_went_in_one_frame_arrive_one_by_one() {
    isolate();
    let net = veth("wa", &["10.0.0.2/24", "fd00::2/64"]);
    let (here, mut there) = (open("wa", 1), open_at(&net));
    // The sender joins; the receiver, the kernel's UDP, or the device splits, with complete checksums.
    for segments in ["on", "off"] {
        run(&format!("ethtool -K wa tx {segments} tx-udp-segmentation {segments}"));
        for v6 in [false, true] {
            let address: std::net::IpAddr = if v6 { "fd00::2" } else { "10.0.0.2" }.parse().unwrap();
            let bound = move || UdpSocket::bind((address, proto::PORT_MPLS)).unwrap();
            let kernel = net.inside(bound).join().unwrap();
            kernel.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            send_tunnelled(&*here.tx[0], v6, &payloads());
            for payload in payloads() {
                let mut bytes = vec![0; 2000];
                let received = kernel.recv(&mut bytes);
                let what = (segments, address, payload[0], here.port.status().refused);
                let len = received.unwrap_or_else(|error| panic!("{what:?}: {error}"));
                assert_eq!(bytes[..len], payload);

                let (frame, offload) = receive(&mut *there.rx[0], |frame| frame.ends_with(&payload));
                let headers = packet::Headers::ethernet(&frame, 0, frame.len()).unwrap();
                assert_eq!(headers.ip().unwrap().len as usize, frame.len() - proto::ETHERNET_LEN);
                let udp = usize::from(headers.l4_at);
                assert_eq!(frame.len(), udp + proto::UDP_LEN + payload.len());
                if segments == "on" {
                    assert_eq!(offload.csum, Csum::Partial { start: udp as u16, offset: 6 });
                } else {
                    assert_eq!(verify_l4(&frame, &headers), L4Check::Right);
                }
            }
        }
    }
    assert_eq!((here.port.status().refused, there.port.status().malformed), (0, 0));
}

#[test]
fn what_the_kernel_refuses_is_counted_and_told() {
    isolate();
    let net = veth("wa", &[]);
    let (here, mut there) = (open("wa", 1), open_at(&net));
    let mut refused = Vec::new();
    here.tx[0].burst(&mut |room| {
        for len in [100, 2000, 60] {
            let sent = frame(&vec![1; len]);
            mem::scatter(&sent, room.reserve(sent.len(), &Offload::default()).unwrap(), 0);
        }
        assert_eq!(room.reserve(1 << 20, &Offload::default()).unwrap_err(), NoRoom::TooLong);
        let gso = mem::Gso { v6: false, size: 2000, hdr_len: 54, ecn: false };
        let large = Offload { csum: Csum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
        assert_eq!(room.reserve(6054, &large).unwrap_err(), NoRoom::TooLong, "its segments don't fit");
        room.settle(&mut |refusal| refused.push(refusal));
    });
    assert_eq!(refused, [Refusal { frames: 1..2, bytes: 2014, why: NoRoom::TooLong }]);
    assert_eq!(receive(&mut *there.rx[0], experimental).0.len(), 114);
    assert_eq!(receive(&mut *there.rx[0], experimental).0.len(), 74);
    assert_eq!(here.port.status().refused, 1);
}

#[test]
fn what_the_socket_had_no_room_for_is_counted() {
    isolate();
    let net = veth("wa", &[]);
    let (here, there) = (open("wa", 1), open_at(&net));
    eventually("drops are counted", || {
        for _ in 0..1000 {
            send(&*there.tx[0], &frame(&[1; 1400]), Offload::default()).unwrap();
        }
        here.port.status().lost > 0
    });
}

#[test]
fn status_is_that_of_the_device() {
    isolate();
    let _net = veth("wa", &[]);
    run("ip link set wa address 02:00:00:00:00:77 mtu 1400");
    let here = open("wa", 2);
    let status = here.port.status();
    assert_eq!(status.mac, Some([2, 0, 0, 0, 0, 0x77]));
    assert_eq!((status.up, status.mtu, status.queues, status.fault), (true, Some(1400), 2, None));
}

#[test]
fn a_device_may_go_down_and_up_and_vanish_and_return() {
    isolate();
    let net = veth("wa", &[]);
    for queues in [1, 2] {
        let mut here = open("wa", queues);
        let sleeps_on: Vec<_> = here.rx.iter().map(|rx| rx.event_fd().as_raw_fd()).collect();

        run("ip link set wa down");
        eventually("the queue is down", || {
            send(&*here.tx[0], &frame(b"lost"), Offload::default()) == Err(NoRoom::Down)
        });
        assert!(!here.port.status().up);
        run("ip link set wa up");
        exchange(&mut here, &net);

        run("ip link del wa");
        eventually("the queue is down", || {
            send(&*here.tx[0], &frame(b"lost"), Offload::default()) == Err(NoRoom::Down)
        });
        assert!(here.port.status().fault.is_some());
        let mut burst = mem::Burst::new();
        assert_eq!(here.rx[0].poll(&mut burst, 1 << 20), 0);
        pair("wa", &net);
        exchange(&mut here, &net);
        assert_eq!(here.port.status().fault, None);
        assert_eq!(here.rx.iter().map(|rx| rx.event_fd().as_raw_fd()).collect::<Vec<_>>(), sleeps_on);
    }
}

/// Sends frames in both directions until they arrive: the kernel drops some while carriers come up.
fn exchange(here: &mut Opened, net: &Net) {
    let mut there = open_at(net);
    eventually("a frame gets out", || {
        let _ = send(&*here.tx[0], &frame(b"hello"), Offload::default());
        came(&mut there.rx)
    });
    eventually("a frame gets in", || {
        let _ = send(&*there.tx[0], &frame(b"hello"), Offload::default());
        came(&mut here.rx)
    });
    assert!(here.port.status().up);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    isolate();
    let error =
        open_packet(&PacketPort { device: "nope0".into(), queues: 1, tunnels: None }, &here()).err().unwrap();
    assert!(matches!(&error, Error::System { device, .. } if device == "nope0"), "{error}");
}
