//! The tops that become Rust structs. Each belongs to a feature, as the engine takes minutes to compile.

/// A module with its parameters.
pub struct Top {
    /// Name of the struct, in snake case; for a variant, the function that makes one.
    pub name: &'static str,
    /// The top of which this is a variant. A variant becomes no struct of its own: the struct of that top (before it in
    /// the list) has the same ports, possibly fewer or narrower ones.
    pub variant_of: Option<&'static str>,
    /// Name of the module and of its file.
    pub module: &'static str,
    /// Arguments of `verilator` besides the file: packages that the module uses, each before those that use it, as
    /// paths below `rtl/`, and parameters (`-GWidth=64`). Verilator finds the modules that it instantiates by their
    /// names.
    pub arguments: &'static [&'static str],
}

/// The packages that most modules of the engine use.
const PACKAGES: &[&str] = &["registers_pkg.sv", "viaduct_pkg.sv"];

/// Iterates over the tops whose features are on.
pub fn tops() -> impl Iterator<Item = &'static Top> {
    let groups = [
        (cfg!(feature = "engine"), ENGINE),
        (cfg!(feature = "engine-2x2"), ENGINE_2X2),
        (cfg!(feature = "units"), UNITS),
    ];
    groups.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, tops)| tops)
}

/// The card with one pipe of each direction.
const ENGINE: &[Top] = &[Top {
    name: "engine_sim",
    variant_of: None,
    module: "engine_sim",
    arguments: &["registers_pkg.sv", "viaduct_pkg.sv", "parse/parse_pkg.sv", "pipe/pipe_pkg.sv"],
}];

/// The card with two pipes of each direction.
const ENGINE_2X2: &[Top] = &[Top {
    name: "engine_sim_2x2",
    variant_of: Some("engine_sim"),
    module: "engine_sim",
    arguments: &[
        "-GPipes=2",
        "-GFlowChannels=16",
        "-GBridgeChannels=4",
        "-GRouteChannels=8",
        "-GNexthopChannels=4",
        "registers_pkg.sv",
        "viaduct_pkg.sv",
        "parse/parse_pkg.sv",
        "pipe/pipe_pkg.sv",
    ],
}];

const UNITS: &[Top] = &[
    unit("bridge_unit_sim", PACKAGES),
    unit("commands", &["registers_pkg.sv", "viaduct_pkg.sv", "-GPipes=2"]),
    unit("counter_ram", &["-GEntries=16"]),
    unit("entropy", PACKAGES),
    unit("flow_counters", &["-GFlows=8", "-GPacketsWidth=7", "-GBytesWidth=14", "-GEvents=8"]),
    unit("flow_unit_sim", PACKAGES),
    unit("hold", &["registers_pkg.sv", "viaduct_pkg.sv", "-GReleases=3", "-GDepth=16"]),
    unit("memory32_sim", PACKAGES),
    unit("memory_sim", PACKAGES),
    unit(
        "opennic_box",
        &[
            "-GPipes=1",
            "-GWirePort=101",
            "-GFlowChannels=4",
            "-GBridgeChannels=2",
            "-GRouteChannels=2",
            "-GNexthopChannels=2",
            "-GNexthops=4096",
            "-GFlows=1024",
            "-GFlowBits=16",
            "-GBridgeBits=12",
            "-GRoute6Bits=12",
            "registers_pkg.sv",
            "viaduct_pkg.sv",
            "parse/parse_pkg.sv",
            "pipe/pipe_pkg.sv",
        ],
    ),
    unit("payload_sum", &["registers_pkg.sv", "viaduct_pkg.sv", "-GPackets=64"]),
    unit("parser_top", &["registers_pkg.sv", "viaduct_pkg.sv", "parse/parse_pkg.sv"]),
    unit("probe", &[]),
    unit("rewriter_sim", PACKAGES),
    unit("route_unit_sim", PACKAGES),
    unit("seen_bits", &["-GFlows=256"]),
    unit("skid", &[]),
    unit("window_budget", &["-GEntries=4", "-GWindowBits=5"]),
];

const fn unit(name: &'static str, arguments: &'static [&'static str]) -> Top {
    Top { name, variant_of: None, module: name, arguments }
}
