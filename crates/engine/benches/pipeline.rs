//! Cycles per packet of the packet path without rings: packets come from memory and go to memory.
//!
//! `cargo bench -p engine --bench pipeline -- [PART OF A NAME]`. Nanoseconds are the worker's time on a CPU, which holds on a
//! busy machine too; the stages are TSC cycles a packet: `lookup` is all from the parse to the rewritten header.

use engine::{Engine, EngineConfig};
use ipnet::IpNet;
use mem::{
    Accepts, BURST, Burst, NoRoom, Offload, Opened, Port, PortStatus, Room, RxQueue, Segment, TxQueue,
};
use model::{
    Action, Change, Executor, Host, NeighbourFound, NeighbourScope, Network, Nexthop, NexthopId, StageCycles,
    Tunnel, TunnelKind, Vif, VifId, VifKind, Vrf, WireAttributes,
};
use packet::Mac;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Sends the same packets for ever.
struct Source {
    frames: Vec<Vec<u8>>,
    next: usize,
    event: OwnedFd,
}

impl RxQueue for Source {
    fn poll(&mut self, burst: &mut Burst, _byte_budget: usize) -> usize {
        for _ in 0..BURST.min(self.frames.len()) {
            let frame = &mut self.frames[self.next];
            // SAFETY: the frame lives as long as the queue, and nobody else touches it.
            let segment = unsafe { Segment::new(frame.as_mut_ptr(), frame.len() as u32) };
            burst.push(&[segment], frame.len() as u32, Offload::default());
            self.next = (self.next + 1) % self.frames.len();
        }
        burst.len()
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}
}

/// Takes everything into 256 buffers, one after the other.
struct Sink(Vec<Segment>);

impl TxQueue for Sink {
    fn accepts(&self) -> Accepts {
        Accepts { csum: true, tso4: true, tso6: true, ecn: true }
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        fill(&mut SinkRoom { buffers: &self.0, next: 0, reserved: self.0[0] });
        true
    }
}

struct SinkRoom<'a> {
    buffers: &'a [Segment],
    next: usize,
    reserved: Segment,
}

impl Room for SinkRoom<'_> {
    fn reserve(&mut self, len: usize, _offload: &Offload) -> Result<&[Segment], NoRoom> {
        self.reserved = self.buffers[self.next % self.buffers.len()].slice(0, len);
        self.next += 1;
        Ok(std::slice::from_ref(&self.reserved))
    }
}

struct Device;

impl Port for Device {
    fn status(&self) -> PortStatus {
        PortStatus { up: true, ..PortStatus::default() }
    }
}

fn port(frames: Vec<Vec<u8>>) -> Opened {
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    let memory = Vec::leak(vec![0_u8; 256 * 2048]);
    let buffers = memory.chunks_mut(2048);
    // SAFETY: leaked, so mapped for ever.
    let sink = Sink(buffers.map(|b| unsafe { Segment::new(b.as_mut_ptr(), b.len() as u32) }).collect());
    let rx: Vec<Box<dyn RxQueue>> =
        if frames.is_empty() { Vec::new() } else { vec![Box::new(Source { frames, next: 0, event })] };
    Opened { port: Arc::new(Device), rx, tx: vec![Arc::new(sink)] }
}

const WIRE: VifId = VifId(10);

fn guest(id: u16) -> Vif {
    Vif {
        id: VifId(id),
        name: format!("vm{id}").into(),
        kind: VifKind::Vhost,
        vrf: Some(Vrf(1)),
        mac: Some(Mac([2, 0, 0, 0, 0, id as u8])),
        addresses: Vec::new(),
        allowed: Vec::new(),
        mtu: 1500,
        policy: true,
        meter: None,
        mirror: None,
        rdma: false,
        wire: None,
    }
}

fn tables() -> Vec<Change> {
    let addr = |text: &str| text.parse().expect("an address");
    let net = |text: &str| -> IpNet { text.parse().expect("a prefix") };
    let wire = WireAttributes { addresses: vec![net("192.0.2.1/24")], ..WireAttributes::default() };
    let network = Network {
        vrf: Vrf(1),
        name: "blue".into(),
        gateways: vec![net("10.1.0.1/16")],
        vni: None,
        learning: false,
        mtu: 1500,
        default_action: Action::Allow,
        members: vec![VifId(1), VifId(2)],
        flood: Vec::new(),
        wire: None,
    };
    let tunnel = Tunnel { kind: TunnelKind::MplsUdp, remote: addr("192.0.2.2"), id: 100, mac: None };
    vec![
        Change::SetHost(Host { name: "a".into(), tunnel_source: vec![addr("192.0.2.1")] }),
        Change::PutVif(guest(1)),
        Change::PutVif(guest(2)),
        Change::PutVif(Vif {
            kind: VifKind::Wire,
            vrf: None,
            policy: false,
            mtu: 1600,
            wire: Some(wire),
            ..guest(WIRE.0)
        }),
        Change::PutNetwork(network),
        Change::PutNexthop(NexthopId(1), Nexthop::Tunnel(tunnel)),
        Change::PutRoute { vrf: Vrf(1), prefix: net("10.9.0.0/16"), nexthop: NexthopId(1) },
    ]
}

/// Frames of `flows` UDP flows, `len` bytes each.
fn frames(to: &str, flows: usize, len: usize) -> Vec<Vec<u8>> {
    (0..flows)
        .map(|flow| {
            let (host, sport) = (flow / 50_000 + 5, 1000 + flow % 50_000);
            let text = format!(
                "eth 02:00:00:00:00:01 > {to} / ip4 10.1.0.{host} > {} / udp {sport} > 53 nosum / payload {}",
                if to.starts_with("02") { "10.1.0.2" } else { "10.9.0.2" },
                len - 42
            );
            model::text::parse(&text).expect("a packet")
        })
        .collect()
}

fn measure(name: &str, frames: Vec<Vec<u8>>) {
    let config = EngineConfig {
        flows: tables::FlowLimits { new_per_second: u32::MAX, per_guest: 2 << 20, connections: 2 << 20 },
        ..EngineConfig::default()
    };
    let engine = Engine::new(&config).expect("an engine");
    engine.apply(&tables()).expect("the tables");
    engine.learn_neighbour(&NeighbourFound {
        scope: NeighbourScope::Wire(WIRE),
        addr: "192.0.2.2".parse().expect("an address"),
        mac: Mac([2, 0, 0, 0, 1, 2]),
    });
    engine.attach(VifId(2), port(Vec::new())).expect("a port");
    engine.attach(WIRE, port(Vec::new())).expect("a port");
    let start_ns = on_cpu_ns();
    let flows = frames.len() as u64;
    engine.attach(VifId(1), port(frames)).expect("a port");
    while engine.workers()[0].received.packets < flows {
        std::thread::yield_now();
    }
    let first_ns = on_cpu_ns() - start_ns;
    std::thread::sleep(Duration::from_millis(300));
    let (before, before_ns) = (engine.workers().remove(0), on_cpu_ns());
    std::thread::sleep(Duration::from_secs(1));
    let (after, after_ns) = (engine.workers().remove(0), on_cpu_ns());
    let packets = (after.received.packets - before.received.packets) as f64;
    let of = |stage: fn(&StageCycles) -> u64| (stage(&after.cycles) - stage(&before.cycles)) as f64 / packets;
    println!(
        "{name:28} {:6.1} ns a packet; cycles: receive {:3.0}, lookup {:3.0}, slow {:3.0}, deliver {:3.0}; sent {:.3}, hits {:.3}; {:.0} new flows/s",
        (after_ns - before_ns) as f64 / packets,
        of(|c| c.receive),
        of(|c| c.lookup),
        of(|c| c.slow_path),
        of(|c| c.deliver),
        (after.sent.packets - before.sent.packets) as f64 / packets,
        (after.hits - before.hits) as f64 / packets,
        flows as f64 / (first_ns as f64 / 1e9),
    );
}

/// Time the worker has spent on a CPU, once it has its name.
fn on_cpu_ns() -> u64 {
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("our threads");
        let worker = tasks.flatten().map(|task| task.path()).find(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "worker-0")
        });
        let schedstat = worker.and_then(|task| std::fs::read_to_string(task.join("schedstat")).ok());
        if let Some(ns) = schedstat.and_then(|s| s.split(' ').next()?.parse().ok()) {
            return ns;
        }
        std::thread::yield_now();
    }
}

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let guest = "02:00:00:00:00:02";
    let gateway = "00:00:5e:00:01:00";
    for (name, to, flows, len) in [
        ("guest to guest, 64 B, 64", guest, 64, 64),
        ("guest to guest, 64 B, 10 k", guest, 10_000, 64),
        ("guest to guest, 64 B, 500 k", guest, 500_000, 64),
        ("guest to guest, 1514 B, 1 k", guest, 1_000, 1514),
        ("MPLS over UDP, 64 B, 64", gateway, 64, 64),
        ("MPLS over UDP, 64 B, 10 k", gateway, 10_000, 64),
    ] {
        if name.contains(&only) {
            measure(name, frames(to, flows, len));
        }
    }
}
