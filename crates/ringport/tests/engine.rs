//! Verbs devices on a host with workers: one device receives what a different one sends.

#![allow(clippy::unwrap_used, reason = "tests")]

use engine::{Engine, EngineConfig};
use executor::Executor;
use model::vectors::{Case, Step, load};
use model::{VifId, text};
use ringport::{Downlink, RingPort, Uplink, open};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::Arc;

const TABLES: &str = "
network blue vrf 1 gateway 10.1.1.254/24
guest a in blue mac 02:00:00:00:00:01 address 10.1.1.1 rdma policy
guest b in blue kind rdma mac 02:00:00:00:00:02 address 10.1.1.2 policy
case setup
in a eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46
";

struct Host {
    engine: Arc<Engine>,
    case: Case,
}

impl Host {
    fn new() -> Self {
        let engine =
            Engine::new(&EngineConfig { cache_entries: 1 << 10, ..EngineConfig::default() }).unwrap();
        let case = load(TABLES).unwrap().remove(0);
        for step in &case.steps {
            if let Step::Apply(changes) = step {
                engine.apply(changes).unwrap();
            }
        }
        Self { engine, case }
    }

    fn device(&mut self, name: &str) -> (VifId, Uplink, Downlink) {
        let vif = self.case.setup.vif_id(name);
        let (opened, uplink, downlink) = open(&RingPort { mtu: 1500, slots: 64 }).unwrap();
        self.engine.attach(vif, opened).unwrap();
        (vif, uplink, downlink)
    }
}

/// Builds a packet from one device to a different one, as it is sent.
fn roce(from: u8, to: u8, psn: u32) -> String {
    packet(&format!("02:00:00:00:00:0{from} > 00:00:5e:00:01:00"), (from, to), "", psn)
}

/// Builds the same packet as it arrives.
fn routed(from: u8, to: u8, psn: u32) -> String {
    packet(&format!("00:00:5e:00:01:00 > 02:00:00:00:00:0{to}"), (from, to), " ttl 63", psn)
}

fn packet(macs: &str, (from, to): (u8, u8), ttl: &str, psn: u32) -> String {
    format!(
        "eth {macs} / ip4 10.1.1.{from} > 10.1.1.{to}{ttl} / udp 50000 > 4791 nosum \
         / roce rc send-only > 17 psn {psn} / payload 8"
    )
}

fn send(uplink: &Uplink, packet: &str) {
    let frame = text::parse(packet).unwrap();
    assert!(uplink.send(frame.len(), |out| out.copy_from_slice(&frame)));
    uplink.ring();
}

/// Returns the next frame; may sleep until it comes.
fn receive(downlink: &mut Downlink) -> String {
    let mut shown = None;
    loop {
        if downlink.receive(|frame| shown = Some(text::show(frame))) {
            return shown.unwrap();
        }
        if !downlink.arm() {
            poll(&mut [PollFd::from_borrowed_fd(downlink.event_fd(), PollFlags::IN)], None).unwrap();
        }
        downlink.disarm();
    }
}

#[test]
fn packets_travel_between_devices() {
    let mut host = Host::new();
    let (_, up_a, mut down_a) = host.device("a:rdma");
    let (vif_b, up_b, mut down_b) = host.device("b");
    // More packets than the rings hold, so that slots are reused.
    for psn in 0..500 {
        send(&up_a, &roce(1, 2, psn));
        assert_eq!(receive(&mut down_b), routed(1, 2, psn));
        // The ICRC is still right, or `show` would not recognise it.
        send(&up_b, &roce(2, 1, psn));
        assert_eq!(receive(&mut down_a), routed(2, 1, psn));
    }
    // A spoofed packet is dropped; the one after it arrives.
    send(&up_a, &roce(9, 2, 1));
    send(&up_a, &roce(1, 2, 1000));
    assert!(receive(&mut down_b).contains("psn 1000"));
    assert!(host.engine.detach(vif_b));
}

#[test]
fn what_a_closed_device_was_to_get_is_dropped() {
    let mut host = Host::new();
    let (_, up_a, _down_a) = host.device("a:rdma");
    let (vif_b, _up_b, mut down_b) = host.device("b");
    send(&up_a, &roce(1, 2, 1));
    assert!(receive(&mut down_b).contains("psn 1"));
    assert!(host.engine.detach(vif_b));
    assert!(!host.engine.detach(vif_b));
    send(&up_a, &roce(1, 2, 2));
    let (_, _up, mut again) = host.device("b");
    send(&up_a, &roce(1, 2, 3));
    // The second one may have come in time for the reopened port.
    while !receive(&mut again).contains("psn 3") {}
    assert!(!down_b.receive(|_| ()));
}
