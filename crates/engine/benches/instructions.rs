//! Instructions per packet in each stage of the packet path, counted by callgrind on fixed inputs.
//!
//! `make bench-instructions` runs this and compares with `instructions.json`. Every benchmark counts 10,240 packets
//! (or look-ups). Hash keys, time and packets are the same in every run, and so are the counts, unless the compiler's
//! version changes.

#![allow(missing_docs)] // the macros' output has none

mod common;
mod stages;

// The engine's sources refer to each other by these names.
use stages::sources::*;

use gungraun::{
    Callgrind, EntryPoint, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use mem::BURST;
use model::{Lookup, RuleQuery, TunnelKind, VifId, Vrf};
use stages::callgrind;
use stages::cycles::Stage;
use stages::hosts::{
    Megaflows, Policy, behind_shared_address, between_guests, from_ovs, into_shaper, into_tunnel,
    out_of_tunnel, tcp_between_guests, under_ovs, with_dscp,
};
use stages::lookups::{self, Asked};
use stages::worker::{PACKETS, Worker};
use std::hint::black_box;
use std::net::IpAddr;

/// Makes glibc choose the same copies and comparisons on every CPU: those that need only SSE2.
const SAME_ON_EVERY_CPU: &str =
    "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-ERMS,-FSRM";

/// Forwards all flows twice, so that the cache knows them (while it grows, it may lose a few), then counts a stage.
fn count_known(mut worker: Worker, stage: Stage) -> Worker {
    worker.forward(PACKETS, None);
    let before = worker.sent();
    worker.forward(PACKETS, None);
    worker.forward(PACKETS, Some(stage));
    assert_eq!(worker.sent(), before + 2 * PACKETS);
    worker
}

#[library_benchmark]
#[bench::heads_of_64_bytes(between_guests(Policy::NoRules, 64))]
fn receive(worker: Worker) -> Worker {
    count_known(worker, Stage::Receive)
}

#[library_benchmark]
#[bench::udp(between_guests(Policy::NoRules, 64))]
fn parse(mut worker: Worker) -> Worker {
    for _ in 0..PACKETS / BURST {
        worker.poll();
        let (core, packets) = (&mut worker.core, worker.burst.packets());
        core.lanes.snapshot(&worker.burst);
        callgrind::counted(|| {
            for (lane, packet) in packets.iter().enumerate() {
                let mut context = contexts::Context::of(VifId(1));
                let (head, fast) = core.lanes.parts(lane);
                let parsed = key::parse(black_box(head), packet.len as usize, false, &mut context, fast);
                assert!(parsed.is_some());
                black_box(&context);
            }
        });
    }
    worker
}

#[library_benchmark]
#[bench::no_rules_64_flows(between_guests(Policy::NoRules, 64))]
#[bench::no_rules_10k_flows(between_guests(Policy::NoRules, PACKETS))]
#[bench::stateful_64_flows(between_guests(Policy::Stateful, 64))]
#[bench::stateful_10k_flows(between_guests(Policy::Stateful, PACKETS))]
#[bench::tcp_64_flows(tcp_between_guests(64))]
#[bench::tcp_10k_flows(tcp_between_guests(PACKETS))]
#[bench::snat_64_flows(behind_shared_address(64))]
#[bench::dscp_64_flows(with_dscp(64))]
#[bench::ovs_one_megaflow(under_ovs(Megaflows::One, 64))]
#[bench::ovs_megaflows_64_flows(under_ovs(Megaflows::Each, 64))]
#[bench::from_ovs(from_ovs(64))]
fn lookup(worker: Worker) -> Worker {
    count_known(worker, Stage::Lookup)
}

#[library_benchmark]
#[bench::mpls_udp(into_tunnel(TunnelKind::MplsUdp, 64))]
#[bench::vxlan(into_tunnel(TunnelKind::Vxlan, 64))]
fn encapsulate(worker: Worker) -> Worker {
    count_known(worker, Stage::Lookup)
}

#[library_benchmark]
#[bench::mpls_udp(out_of_tunnel(TunnelKind::MplsUdp, 64))]
#[bench::vxlan(out_of_tunnel(TunnelKind::Vxlan, 64))]
fn decapsulate(worker: Worker) -> Worker {
    count_known(worker, Stage::Lookup)
}

#[library_benchmark]
#[bench::guest_to_guest(between_guests(Policy::NoRules, 64))]
#[bench::mpls_udp(into_tunnel(TunnelKind::MplsUdp, 64))]
#[bench::vxlan(into_tunnel(TunnelKind::Vxlan, 64))]
fn delivery(worker: Worker) -> Worker {
    count_known(worker, Stage::Deliver)
}

#[library_benchmark]
#[bench::wait(into_shaper(64), Some(Stage::Deliver))]
#[bench::leave(into_shaper(64), None)]
fn shaper(mut worker: Worker, stage: Option<Stage>) -> Worker {
    worker.through_shaper(None, false);
    worker.through_shaper(None, false);
    for _ in 0..PACKETS / BURST {
        worker.through_shaper(stage, stage.is_none());
    }
    worker
}

#[library_benchmark]
#[bench::no_rules(between_guests(Policy::NoRules, PACKETS))]
#[bench::stateful(between_guests(Policy::Stateful, PACKETS))]
fn new_flow(mut worker: Worker) -> Worker {
    worker.forward(PACKETS, Some(Stage::Slow));
    assert_eq!(worker.sent(), PACKETS);
    worker
}

#[library_benchmark]
#[bench::by_rule(between_guests(Policy::Denied, PACKETS))]
fn drop_packet(mut worker: Worker) -> Worker {
    worker.forward(PACKETS, Some(Stage::Slow));
    assert_eq!(worker.sent(), 0);
    worker
}

#[library_benchmark]
#[bench::ipv4_10k_prefixes(lookups::routes(false))]
#[bench::ipv6_10k_prefixes(lookups::routes(true))]
fn route(asked: Asked<IpAddr>) -> Asked<IpAddr> {
    let snapshot = asked.shared.snapshot();
    let view = snapshot.view(asked.shared.flows(), 0);
    callgrind::counted(|| {
        for &addr in &asked.questions {
            assert!(view.route(Vrf(1), black_box(addr)).is_some());
        }
    });
    drop(snapshot);
    asked
}

#[library_benchmark]
#[bench::security_groups_1k_rules(lookups::rules())]
fn classify(asked: Asked<RuleQuery>) -> Asked<RuleQuery> {
    let snapshot = asked.shared.snapshot();
    let view = snapshot.view(asked.shared.flows(), 0);
    callgrind::counted(|| {
        for query in &asked.questions {
            assert!(view.rules(Vrf(1), black_box(query)).rule.is_some());
        }
    });
    drop(snapshot);
    asked
}

library_benchmark_group!(
    name = packet_path;
    benchmarks = receive, parse, lookup, encapsulate, decapsulate, delivery, shaper, new_flow, drop_packet, route, classify
);

main!(
    config = LibraryBenchmarkConfig::default()
        .env("GLIBC_TUNABLES", SAME_ON_EVERY_CPU)
        .tool(Callgrind::with_args(["--collect-atstart=no", "--cache-sim=no"]).entry_point(EntryPoint::None));
    library_benchmark_groups = packet_path
);
