//! Taps, in the namespace in which they were created and moved to another.

use crate::common::{
    Bridge, Net, came, eventually, experimental, frame, isolate, output, receive, run, send, tcp_echo, veth,
};
use mem::{NoRoom, Offload, Opened};
use std::sync::atomic::Ordering::Relaxed;
use wire::{
    Error, HostForward, HostRoute, HostSide, PacketPort, Subnet, TapPort, here, open_packet, open_tap,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

fn config(device: &str, queues: u16) -> TapPort {
    TapPort { device: device.into(), queues, mtu: 1450, mac: Some(MAC), offload: true, host: None }
}

fn open(device: &str, queues: u16) -> Opened {
    open_tap(&config(device, queues), &here()).unwrap()
}

/// Moves a tap to its own namespace, as a container's `eth0`.
fn plug(tap: &str, address: &str) -> Net {
    let net = Net::new();
    run(&format!("ip link set {tap} netns {} name eth0", net.name()));
    net.exec(&format!("ip addr add {address} dev eth0"));
    net.exec("ip link set eth0 up");
    net
}

#[test]
fn two_containers_talk_over_moved_taps() {
    isolate();
    for queues in [1, 2] {
        let (a, b) = (open("ta", queues), open("tb", queues));
        let (here, there) = (plug("ta", "10.0.0.1/24"), plug("tb", "10.0.0.2/24"));
        there.exec("ip link set eth0 address 02:00:00:00:00:22");
        let bridge = Bridge::new(a, b);
        here.exec("ping -c 1 -W 10 10.0.0.2");
        tcp_echo(&here, &there, "10.0.0.2", 8 << 20);
        assert!(bridge.seen.large.load(Relaxed) > 0, "no large segment came");
    }
}

#[test]
fn a_tap_takes_another_mac_mtu_and_link_where_it_is() {
    isolate();
    let Opened { port, mut rx, .. } = open("ta", 1);
    let shown = || {
        let status = port.status();
        assert_eq!(status.up, port.is_up());
        (status.mac.unwrap(), status.mtu.unwrap(), status.up)
    };
    let other = [2, 0, 0, 0, 0, 0x12];
    port.configure(1400, Some(other)).unwrap();
    port.set_link(false).unwrap();
    assert_eq!(shown(), (other, 1400, false));
    port.set_link(true).unwrap();
    let container = plug("ta", "10.0.0.1/24");
    let refused = port.configure(1300, Some(MAC)).unwrap_err().to_string();
    assert!(refused.contains("ip link set eth0 mtu 1300"), "{refused}");
    assert_eq!(shown(), (MAC, 1400, true), "the MAC goes everywhere");
    for up in [false, true] {
        container.exec(&format!("ip link set eth0 {}", if up { "up" } else { "down" }));
        assert_eq!(shown(), (MAC, 1400, up));
    }
    port.set_link(false).unwrap();
    assert!(!port.status().up);
    // A deleted tap comes back with its configuration.
    drop(container);
    let mut burst = mem::Burst::new();
    eventually("the tap is here again", || {
        rx[0].poll(&mut burst, 1 << 20);
        rx[0].release(&mut burst);
        open_packet(&PacketPort { device: "ta".into(), queues: 1, tunnels: None }, &here()).is_ok()
    });
    eventually("it has no link", || shown() == (MAC, 1300, false));
}

#[test]
fn a_tap_of_the_host_has_addresses_routes_and_a_way_out() {
    isolate();
    run("sysctl -qw net.ipv6.conf.default.disable_ipv6=0");
    let subnet = |addr: &str, len| Subnet { addr: addr.parse().unwrap(), len };
    let route = |to, via: &str| HostRoute { to, via: via.parse().unwrap() };
    let own = HostSide {
        addresses: vec![subnet("10.1.1.5", 24), subnet("fd00:1::5", 64)],
        routes: vec![route(subnet("10.2.0.0", 16), "10.1.1.254")],
        ..HostSide::default()
    };
    let out = HostSide {
        routes: vec![
            route(subnet("10.3.0.0", 16), "169.254.1.1"),
            route(subnet("fd00:3::", 64), "fe80::200:5eff:fe00:100"),
        ],
        router: Some([0, 0, 0x5e, 0, 1, 0]),
        masquerade: true,
        forwards: ["203.0.113.5:8080 10.3.0.1:80", "[2001:db8::5]:53 [fd00:3::1]:5353"]
            .map(|pair| pair.split_once(' ').unwrap())
            .map(|(outside, to)| HostForward {
                protocol: 6,
                outside: outside.parse().unwrap(),
                to: to.parse().unwrap(),
            })
            .to_vec(),
        ..HostSide::default()
    };
    let open = |device, host: &HostSide| {
        open_tap(&TapPort { host: Some(host.clone()), ..config(device, 2) }, &here())
    };
    let (member, way) = (open("vd0", &own).unwrap(), open("vd1", &out).unwrap());
    let shown = ["ip addr", "ip route", "ip -6 route", "ip neigh", "nft list ruleset"].map(output).concat();
    for line in [
        "inet 10.1.1.5/24 scope global vd0",
        "inet6 fd00:1::5/64 scope global",
        "10.2.0.0/16 via 10.1.1.254 dev vd0",
        "10.3.0.0/16 via 169.254.1.1 dev vd1",
        "fd00:3::/64 via fe80::200:5eff:fe00:100 dev vd1",
        "169.254.1.1 dev vd1 lladdr 00:00:5e:00:01:00 PERMANENT",
        "iifname \"vd1\" masquerade",
        "oifname \"vd1\" ct state ! established,related drop",
        "oifname \"vd1\" ct status dnat accept",
        "ip daddr 203.0.113.5 tcp dport 8080 dnat ip to 10.3.0.1:80",
        "ip6 daddr 2001:db8::5 tcp dport 53 dnat ip6 to [fd00:3::1]:5353",
        "iifname \"vd1\" ct state ! established,related drop",
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
    let switch = |of: &str| output(&format!("sysctl -n net.{of}"));
    assert_eq!(switch("ipv6.conf.vd0.accept_ra"), "0\n");
    assert_eq!(switch("ipv4.conf.vd0.forwarding"), "0\n");
    assert_eq!(switch("ipv4.conf.vd1.forwarding"), "1\n");
    let refused = format!("{:?}", open("vd2", &out).err().unwrap());
    assert!(refused.contains("has a route to 10.3.0.0/16 already"), "{refused}");
    drop((member, way));
    assert_eq!(output("nft list tables"), "");
}

#[test]
fn without_offload_every_packet_comes_finished() {
    isolate();
    let plain = |device| open_tap(&TapPort { offload: false, ..config(device, 1) }, &here()).unwrap();
    let (a, b) = (plain("ta"), plain("tb"));
    assert_eq!(a.port.status().features, ["tap"]);
    let (here, there) = (plug("ta", "10.0.0.1/24"), plug("tb", "10.0.0.2/24"));
    there.exec("ip link set eth0 address 02:00:00:00:00:22");
    let bridge = Bridge::new(a, b);
    tcp_echo(&here, &there, "10.0.0.2", 1 << 20);
    assert_eq!((bridge.seen.large.load(Relaxed), bridge.seen.partial.load(Relaxed)), (0, 0));
}

#[test]
fn a_container_talks_to_a_wire() {
    isolate();
    let tap = open("ta", 1);
    let container = plug("ta", "10.0.0.1/24");
    let outside = veth("wa", &["10.0.0.2/24"]);
    let wire = open_packet(&PacketPort { device: "wa".into(), queues: 1, tunnels: None }, &here()).unwrap();
    let _bridge = Bridge::new(tap, wire);
    tcp_echo(&container, &outside, "10.0.0.2", 4 << 20);
    tcp_echo(&outside, &container, "10.0.0.1", 4 << 20);
}

#[test]
fn frames_pass_unchanged_and_tags_stay() {
    isolate();
    let mut tap = open("ta", 1);
    let mut kernel =
        open_packet(&PacketPort { device: "ta".into(), queues: 1, tunnels: None }, &here()).unwrap();
    let mut tagged = frame(b"tagged");
    tagged.splice(12..12, [0x81, 0x00, 0xe0, 0x07]);
    for sent in [frame(b"plain"), tagged] {
        send(&*tap.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *kernel.rx[0], experimental).0, sent);
        send(&*kernel.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *tap.rx[0], experimental).0, sent);
    }
}

#[test]
fn status_follows_the_device_to_another_namespace() {
    isolate();
    let tap = open("ta", 2);
    let status = tap.port.status();
    assert_eq!((status.up, status.mtu, status.mac, status.queues), (true, Some(1450), Some(MAC), 2));
    let net = Net::new();
    run(&format!("ip link set ta netns {} name other", net.name()));
    let status = tap.port.status();
    assert_eq!((status.up, status.fault), (false, None), "a moved device is down until set up");
    net.exec("ip link set other mtu 1300 up");
    let status = tap.port.status();
    assert_eq!((status.up, status.mtu, status.mac), (true, Some(1300), Some(MAC)));
}

#[test]
fn what_the_kernel_refuses_or_drops_is_counted() {
    isolate();
    let tap = open("ta", 1);
    let kernel = open_packet(&PacketPort { device: "ta".into(), queues: 1, tunnels: None }, &here()).unwrap();
    eventually("the device's queue overflows", || {
        for _ in 0..100 {
            let _ = send(&*kernel.tx[0], &frame(b"more"), Offload::default());
        }
        tap.port.status().lost > 0
    });
    run("ip link set ta down");
    let sent = send(&*tap.tx[0], &frame(b"refused"), Offload::default());
    assert_eq!(sent, Err(NoRoom::Down));
    assert_eq!(tap.port.status().refused, 1);
}

#[test]
fn a_deleted_tap_comes_back() {
    isolate();
    let mut tap = open("ta", 2);
    drop(plug("ta", "10.0.0.1/24"));
    let mut burst = mem::Burst::new();
    let mut kernel = None;
    eventually("the tap is here again", || {
        tap.rx.iter_mut().for_each(|rx| _ = rx.poll(&mut burst, 1 << 20));
        tap.rx.iter_mut().for_each(|rx| rx.release(&mut burst));
        kernel = open_packet(&PacketPort { device: "ta".into(), queues: 1, tunnels: None }, &here()).ok();
        kernel.is_some() && tap.port.status().up
    });
    let kernel = kernel.unwrap();
    send(&*tap.tx[1], &frame(b"hello"), Offload::default()).unwrap();
    // The kernel drops frames until it notices the carrier, a little later.
    eventually("a frame comes", || {
        let _ = send(&*kernel.tx[0], &frame(b"hello"), Offload::default());
        came(&mut tap.rx)
    });
}

#[test]
fn a_tap_goes_with_its_port() {
    isolate();
    drop(open("ta", 2));
    // A command that another test is starting may hold the descriptors a moment longer.
    eventually("the tap is gone", || {
        let gone = open_packet(&PacketPort { device: "ta".into(), queues: 1, tunnels: None }, &here());
        matches!(gone.err(), Some(Error::System { .. }))
    });
}

#[test]
fn a_device_that_exists_is_not_taken_over() {
    isolate();
    run("ip tuntap add ta mode tap multi_queue vnet_hdr");
    assert!(open_tap(&config("ta", 1), &here()).is_err());
}

#[test]
fn too_long_a_frame_finds_no_room() {
    isolate();
    let tap = open("ta", 1);
    assert_eq!(send(&*tap.tx[0], &vec![0; 1 << 17], Offload::default()), Err(NoRoom::TooLong));
}
