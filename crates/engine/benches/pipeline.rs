//! Cycles per packet of the packet path without rings: packets come from memory and go to memory.
//!
//! `cargo bench -p engine --bench pipeline -- [PART OF A NAME]`. Nanoseconds are the worker's time on a CPU, which is
//! valid on a busy machine too. The stages are in TSC cycles per packet; `lookup` is everything from the parse to the
//! rewritten header.

mod common;

use common::host::{GATEWAY, GUEST, WIRE, frames, neighbour, tables};
use common::ports::port;
use engine::{Engine, EngineConfig};
use executor::{Executor, StageCycles};
use model::VifId;
use std::time::Duration;

fn measure(name: &str, frames: Vec<Vec<u8>>) {
    let config = EngineConfig {
        flows: tables::FlowLimits { new_per_second: u32::MAX, per_guest: 2 << 20, connections: 2 << 20 },
        ..EngineConfig::default()
    };
    let engine = Engine::new(&config).expect("an engine");
    engine.apply(&tables()).expect("the tables");
    engine.learn_neighbour(&neighbour(), WIRE);
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

/// Returns the CPU time of the worker's thread, in nanoseconds; waits until that thread has its name.
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
    for (name, to, flows, len) in [
        ("guest to guest, 64 B, 64", GUEST, 64, 64),
        ("guest to guest, 64 B, 10 k", GUEST, 10_000, 64),
        ("guest to guest, 64 B, 500 k", GUEST, 500_000, 64),
        ("guest to guest, 1514 B, 1 k", GUEST, 1_000, 1514),
        ("MPLS over UDP, 64 B, 64", GATEWAY, 64, 64),
        ("MPLS over UDP, 64 B, 10 k", GATEWAY, 10_000, 64),
    ] {
        if name.contains(&only) {
            measure(name, frames(to, flows, len));
        }
    }
}
