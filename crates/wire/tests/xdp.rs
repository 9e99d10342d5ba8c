//! AF_XDP on veth pairs, with the kernel's own TCP at the far ends and the host's at the near one.

use crate::common::{
    Bridge, Net, came, eventually, experimental, frame, isolate, output, pair, receive, run, send, tcp_echo,
    veth,
};
use mem::{Frozen, NoRoom, Offload, Opened};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use wire::{
    Attachment, Error, Opener, PacketPort, TapPort, TapState, XdpError, XdpPort, XdpProgram, XdpSocket, here,
    open_packet, open_xdp,
};

fn config(device: &str, addresses: &[&str], all: bool) -> XdpPort {
    let addresses = addresses.iter().map(|a| a.parse::<IpAddr>().unwrap()).collect();
    XdpPort { device: device.into(), addresses, all }
}

/// Opens a port that receives everything.
fn open(device: &str) -> Opened {
    open_xdp(&config(device, &[], true), &here()).unwrap()
}

/// Opens a packet socket at the far end of the pair.
fn open_at(net: &Net) -> Opened {
    net.inside(|| {
        open_packet(&PacketPort { device: "eth0".into(), queues: 1, tunnels: None }, &here()).unwrap()
    })
    .join()
    .unwrap()
}

/// Makes a veth pair whose far end completes its checksums.
fn veth_for_xdp(device: &str, addresses: &[&str]) -> Net {
    let net = veth(device, addresses);
    net.exec("ethtool -K eth0 tx off txvlan off");
    net
}

#[test]
fn tcp_passes_between_two_devices() {
    isolate();
    let a = veth_for_xdp("wa", &["10.0.0.1/24", "fd00::1/64"]);
    let b = veth_for_xdp("wb", &["10.0.0.2/24", "fd00::2/64"]);
    let _bridge = Bridge::new(open("wa"), open("wb"));
    tcp_echo(&a, &b, "10.0.0.2", 4 << 20);
    tcp_echo(&a, &b, "fd00::2", 4 << 20);
}

#[test]
fn the_host_keeps_its_own_traffic() {
    isolate();
    let net = veth_for_xdp("wa", &["10.0.0.2/24", "fd00::2/64"]);
    run("sysctl -qw net.ipv6.conf.wa.disable_ipv6=0 net.ipv6.conf.wa.accept_dad=0");
    run("ip addr add 10.0.0.1/24 dev wa");
    run("ip addr add fd00::1/64 dev wa nodad");
    let mut port = open_xdp(&config("wa", &["10.0.0.9", "fd00::9"], false), &here()).unwrap();
    // To the host's addresses: the kernel answers, both neighbour discovery and ping.
    net.exec("ping -c 1 -W 10 10.0.0.1");
    net.exec("ping -c 1 -W 10 fd00::1");
    let mut burst = mem::Burst::new();
    assert_eq!(port.rx[0].poll(&mut burst, 1 << 20), 0, "the host's traffic came to us");
    // To ours: nobody answers, but the question reaches us.
    let asks = |target: &'static str| {
        net.inside(move || _ = std::process::Command::new("ping").args(["-c1", "-W1", target]).output())
    };
    let pings = [asks("10.0.0.9"), asks("fd00::9")];
    receive(&mut *port.rx[0], |frame| frame[12..14] == [0x08, 0x06] && frame[38..42] == [10, 0, 0, 9]);
    receive(&mut *port.rx[0], |frame| frame[12..14] == [0x86, 0xdd] && frame[54] == 135 && frame[77] == 9);
    pings.into_iter().for_each(|ping| ping.join().unwrap());
}

#[test]
fn frames_arrive_as_they_were_sent() {
    isolate();
    let net = veth_for_xdp("wa", &[]);
    let (mut here, mut there) = (open("wa"), open_at(&net));
    let mut tagged = frame(b"tagged");
    tagged.splice(12..12, [0x81, 0x00, 0xe0, 0x07]);
    for sent in [frame(b"short"), frame(&[0xa5; 1500]), tagged] {
        send(&*there.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *here.rx[0], experimental).0, sent);
        send(&*here.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *there.rx[0], experimental).0, sent);
    }
}

#[test]
fn every_frame_of_memory_comes_back() {
    isolate();
    let net = veth_for_xdp("wa", &[]);
    let (mut here, mut there) = (open("wa"), open_at(&net));
    // More packets than there are frames, in both directions.
    for i in 0..5000u32 {
        let sent = frame(&i.to_be_bytes());
        send(&*there.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *here.rx[0], experimental).0, sent);
        send(&*here.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *there.rx[0], experimental).0, sent);
    }
}

#[test]
fn a_burst_goes_out_whole() {
    isolate();
    let net = veth_for_xdp("wa", &[]);
    let (here, mut there) = (open("wa"), open_at(&net));
    here.tx[0].burst(&mut |room| {
        for i in 0..200 {
            let sent = frame(&[i; 1400]);
            mem::scatter(&sent, room.reserve(sent.len(), &Offload::default()).unwrap(), 0);
        }
    });
    for i in 0..200 {
        assert_eq!(receive(&mut *there.rx[0], experimental).0[14..], [i; 1400]);
    }
}

fn kernel() -> (u32, u32) {
    let release = output("uname -r");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn jumbo_frames_take_several_buffers_or_are_refused() {
    isolate();
    let net = veth_for_xdp("wa", &[]);
    run("ip link set wa mtu 9000");
    net.exec("ip link set eth0 mtu 9000");
    let mut here = match open_xdp(&config("wa", &[], true), &here()) {
        Err(Error::Mtu { mtu: 9000, limit: 3818, .. }) if kernel() < (6, 6) => return,
        opened => opened.unwrap(),
    };
    let mut there = open_at(&net);
    for len in [60, 3840, 3841, 4096, 4097, 9014] {
        let sent = frame(&(0..len - 14).map(|i| i as u8).collect::<Vec<_>>());
        send(&*there.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *here.rx[0], experimental).0, sent);
        send(&*here.tx[0], &sent, Offload::default()).unwrap();
        assert_eq!(receive(&mut *there.rx[0], experimental).0, sent);
    }
}

#[test]
fn all_queues_of_the_device_are_served() {
    isolate();
    let net = Net::new();
    run(&format!("ip link add wa numrxqueues 2 numtxqueues 2 type veth peer name eth0 netns {}", net.name()));
    net.exec("ip link set eth0 up");
    run("ip link set wa up");
    let mut here = open("wa");
    assert_eq!((here.rx.len(), here.tx.len(), here.port.status().queues), (2, 2, 2));
    let mut there = open_at(&net);
    for tx in &here.tx {
        eventually("a frame gets out", || {
            let _ = send(&**tx, &frame(b"hello"), Offload::default());
            came(&mut there.rx)
        });
    }
    eventually("a frame gets in", || {
        let _ = send(&*there.tx[0], &frame(b"hello"), Offload::default());
        came(&mut here.rx)
    });
}

#[test]
fn status_is_that_of_the_device() {
    isolate();
    let _net = veth_for_xdp("wa", &[]);
    run("ip link set wa address 02:00:00:00:00:77 mtu 1400");
    let status = open("wa").port.status();
    assert_eq!(status.mac, Some([2, 0, 0, 0, 0, 0x77]));
    assert_eq!((status.up, status.mtu, status.fault), (true, Some(1400), None));
    assert_eq!(status.features, ["af-xdp", "native", "copy"]);
}

#[test]
fn the_program_goes_with_the_port() {
    isolate();
    let _net = veth_for_xdp("wa", &[]);
    let port = open("wa");
    assert!(output("ip link show wa").contains("xdp"));
    assert!(open_xdp(&config("wa", &[], true), &here()).is_err(), "only one can have it");
    drop(port);
    // A command that another test is starting may hold the descriptors a moment longer.
    eventually("the program is gone", || !output("ip link show wa").contains("xdp"));
}

#[test]
fn a_peer_that_leaves_checksums_unfinished_is_refused() {
    isolate();
    run("ip link add wa type veth peer name wb");
    run("ip link set wa up");
    run("ip link set wb up");
    let error = open_xdp(&config("wa", &[], true), &here()).err().unwrap();
    assert!(matches!(&error, Error::PeerChecksums { peer, .. } if peer == "wb"), "{error}");
    assert!(error.to_string().contains("ethtool -K wb tx off"));
    run("ethtool -K wb tx off");
    open("wa");
}

#[test]
fn the_program_follows_the_devices_address() {
    isolate();
    let net = veth_for_xdp("wa", &["10.0.0.2/24"]);
    let mut here = open_xdp(&config("wa", &["10.0.0.9"], false), &here()).unwrap();
    run("ip link set wa address 02:00:00:00:00:77");
    net.exec("ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:77 dev eth0");
    let mut burst = mem::Burst::new();
    eventually("a packet to the new address comes", || {
        net.inside(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"hello", "10.0.0.9:9").unwrap();
        })
        .join()
        .unwrap();
        let came = here.rx[0].poll(&mut burst, 1 << 20) > 0;
        here.rx[0].release(&mut burst);
        came
    });
}

#[test]
fn a_device_may_go_down_and_up_and_vanish_and_return() {
    isolate();
    let net = veth_for_xdp("wa", &[]);
    let mut here = open("wa");
    let sleeps_on = here.rx[0].event_fd().as_raw_fd();
    exchange(&mut here, &net);

    run("ip link set wa down");
    eventually("the queue is down", || {
        send(&*here.tx[0], &frame(b"lost"), Offload::default()) == Err(NoRoom::Down)
    });
    run("ip link set wa up");
    exchange(&mut here, &net);

    run("ip link del wa");
    eventually("the queue is down", || {
        send(&*here.tx[0], &frame(b"lost"), Offload::default()) == Err(NoRoom::Down)
    });
    assert!(here.port.status().fault.is_some());
    pair("wa", &net);
    exchange(&mut here, &net);
    assert_eq!(here.rx[0].event_fd().as_raw_fd(), sleeps_on);
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
}

#[test]
fn a_device_that_is_ours_alone_takes_frames_for_all_addresses() {
    isolate();
    let _net = veth_for_xdp("wa", &[]);
    let promiscuity = || output("ip -d link show wa").contains("promiscuity 1");
    let port = open_xdp(&config("wa", &["10.0.0.9"], false), &here()).unwrap();
    assert!(!promiscuity());
    drop(port);
    let _port = eventually_open("wa");
    assert!(promiscuity());
}

/// Opens AF_XDP ports with the descriptors that a different port shares.
struct Heir(Mutex<Vec<OwnedFd>>);

impl Opener for Heir {
    fn tap(&self, tap: &TapPort) -> io::Result<Vec<OwnedFd>> {
        here().tap(tap)
    }

    fn tap_state(&self, tap: BorrowedFd<'_>) -> io::Result<TapState> {
        here().tap_state(tap)
    }

    fn configure_tap(&self, tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        here().configure_tap(tap, mtu, mac)
    }

    fn tap_carrier(&self, tap: BorrowedFd<'_>, up: bool) -> io::Result<()> {
        here().tap_carrier(tap, up)
    }

    fn packet(
        &self,
        index: i32,
        sockets: u16,
        tunnels: Option<&wire::TunnelTraffic>,
    ) -> io::Result<Vec<OwnedFd>> {
        here().packet(index, sockets, tunnels)
    }

    fn silence(&self, tunnels: &wire::TunnelTraffic) -> io::Result<Vec<OwnedFd>> {
        here().silence(tunnels)
    }

    fn seek(&self, neighbours: &[(i32, std::net::IpAddr)]) -> io::Result<()> {
        here().seek(neighbours)
    }

    fn xdp_socket(&self) -> io::Result<XdpSocket> {
        here().xdp_socket()
    }

    fn shared_xdp(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn attach_xdp(&self, program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Attachment, XdpError> {
        here().attach_xdp(program, sockets)
    }

    fn replace_xdp(&self, program: &XdpProgram, attachment: &Attachment) -> Result<(), XdpError> {
        here().replace_xdp(program, attachment)
    }
}

/// Opens the port that `from` shares.
fn inherit(config: &XdpPort, from: &Opened) -> Result<Opened, Error> {
    let opener: Arc<dyn Opener> = Arc::new(Heir(Mutex::new(from.port.share().unwrap())));
    open_xdp(config, &opener)
}

#[test]
fn a_port_is_handed_over_with_the_frames_that_wait_in_it() {
    if kernel() < (6, 4) {
        return;
    }
    isolate();
    let net = veth_for_xdp("wa", &[]);
    let mut there = open_at(&net);
    let numbered = |n: u32| frame(&n.to_be_bytes());
    let number = |frame: &[u8]| u32::from_be_bytes(frame[14..18].try_into().unwrap());
    let mut own = open("wa");
    let (mut came, mut went) = (0, 0);
    // More rounds than there are frames in a ring; packets take several frames each.
    for round in 0..150 {
        let mut next = inherit(&config("wa", &[], true), &own).unwrap();
        for n in 0..40 {
            send(&*there.tx[0], &numbered(came + n), Offload::default()).unwrap();
        }
        for _ in 0..round % 20 {
            assert_eq!(number(&receive(&mut *own.rx[0], experimental).0), came);
            came += 1;
        }
        let mut out = |port: &Opened, n: u32| {
            (0..n).for_each(|n| send(&*port.tx[0], &numbered(went + n), Offload::default()).unwrap());
            (0..n).for_each(|n| assert_eq!(number(&receive(&mut *there.rx[0], experimental).0), went + n));
            went += n;
        };
        out(&own, 7);
        next.port.adopt(own.port.freeze().unwrap().unwrap()).unwrap();
        if round % 3 == 0 {
            // The other process does not go on after all; this one does.
            drop(next);
            next = inherit(&config("wa", &[], true), &own).unwrap();
            out(&own, 2);
            next.port.adopt(own.port.freeze().unwrap().unwrap()).unwrap();
        }
        next.port.thaw();
        own = next;
        for _ in round % 20..40 {
            assert_eq!(number(&receive(&mut *own.rx[0], experimental).0), came);
            came += 1;
        }
        out(&own, 33);
    }
    assert_eq!(own.port.status().lost, 0);
    assert!(output("ip -d link show wa").contains("promiscuity 1"));
    // The port follows the device like one that was opened here, with a program of its own.
    run("ip link del wa");
    eventually("the queue is down", || {
        send(&*own.tx[0], &frame(b"lost"), Offload::default()) == Err(NoRoom::Down)
    });
    pair("wa", &net);
    exchange(&mut own, &net);
}

#[test]
fn who_takes_over_has_a_program_of_its_own() {
    if kernel() < (6, 4) {
        return;
    }
    isolate();
    let net = veth_for_xdp("wa", &["10.0.0.2/24"]);
    let old = open_xdp(&config("wa", &["10.0.0.8"], false), &here()).unwrap();
    let mut new = inherit(&config("wa", &["10.0.0.9"], false), &old).unwrap();
    new.port.adopt(old.port.freeze().unwrap().unwrap()).unwrap();
    new.port.thaw();
    drop(old);
    let ask = net.inside(|| _ = std::process::Command::new("ping").args(["-c9", "-W1", "10.0.0.9"]).output());
    receive(&mut *new.rx[0], |frame| frame[12..14] == [0x08, 0x06] && frame[38..42] == [10, 0, 0, 9]);
    ask.join().unwrap();
}

#[test]
fn what_a_port_is_handed_over_with_is_checked() {
    if kernel() < (6, 4) {
        return;
    }
    isolate();
    let _net = veth_for_xdp("wa", &[]);
    let own = open("wa");
    let frozen = || own.port.freeze().unwrap().unwrap();
    let text = frozen().state;
    let mut state: serde_json::Value = serde_json::from_str(&text).unwrap();
    state["free"][0][1] = state["free"][0][0].clone();
    let mut cut = frozen();
    cut.descriptors.truncate(2);
    let with = |state: String| Frozen { state, ..frozen() };
    let bad = [
        cut,
        with(String::new()),
        with(state.to_string()),
        with(text.replacen("\"free\":[[", "\"free\":[[5,", 1)),
        with(text.replacen("\"free\":[[", "\"free\":[[],[", 1)),
        Frozen { descriptors: frozen().descriptors.into_iter().rev().collect(), ..frozen() },
    ];
    for (number, bad) in bad.into_iter().enumerate() {
        let next = inherit(&config("wa", &[], true), &own).unwrap();
        assert!(next.port.adopt(bad).is_err(), "{number}");
    }
}

/// Opens a port as soon as the previous one is closed.
fn eventually_open(device: &str) -> Opened {
    let mut opened = None;
    eventually("the last port is gone", || {
        opened = open_xdp(&config(device, &[], true), &here()).ok();
        opened.is_some()
    });
    opened.unwrap()
}
