//! Instructions per packet in rings, counted by callgrind: a burst taken from a guest and returned, and one stored for
//! a guest, also while pages written are logged for the VMM (`logged`), as during a migration. It works like
//! `crates/engine/benches/instructions.rs` and shares its baseline.

#![allow(missing_docs)] // the macros' output has none
#![allow(clippy::duplicate_mod)] // the driver, which the crate uses only in its tests

mod rings;

// The crate's sources refer to each other by these names.
use rings::sources::*;

use gungraun::{
    Callgrind, EntryPoint, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use rings::Guest;
use rings::callgrind::counted;

/// Number of packets that every benchmark counts.
const PACKETS: usize = 10_240;

/// Makes glibc choose the same copies and comparisons on every CPU: those that need only SSE2.
const SAME_ON_EVERY_CPU: &str =
    "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-ERMS,-FSRM";

#[library_benchmark]
#[bench::split(Guest::new(false, false))]
#[bench::packed(Guest::new(true, false))]
#[bench::split_logged(Guest::new(false, true))]
#[bench::packed_logged(Guest::new(true, true))]
fn take_from_ring(mut guest: Guest) -> Guest {
    for _ in 0..PACKETS / mem::BURST {
        guest.send_burst();
        assert_eq!(counted(|| guest.device.receive()), mem::BURST);
        guest.reclaim();
    }
    guest
}

#[library_benchmark]
#[bench::split(Guest::new(false, false))]
#[bench::packed(Guest::new(true, false))]
#[bench::split_logged(Guest::new(false, true))]
#[bench::packed_logged(Guest::new(true, true))]
fn put_into_ring(mut guest: Guest) -> Guest {
    for _ in 0..PACKETS / mem::BURST {
        guest.offer_burst();
        assert_eq!(counted(|| guest.device.send()), mem::BURST);
        guest.reclaim();
    }
    guest
}

library_benchmark_group!(
    name = virtqueues;
    benchmarks = take_from_ring, put_into_ring
);

main!(
    config = LibraryBenchmarkConfig::default()
        .env("GLIBC_TUNABLES", SAME_ON_EVERY_CPU)
        .tool(Callgrind::with_args(["--collect-atstart=no", "--cache-sim=no"]).entry_point(EntryPoint::None));
    library_benchmark_groups = virtqueues
);
