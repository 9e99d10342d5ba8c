# SPDX-License-Identifier: Apache-2.0
"""The blocks of an engine of two pipes a direction, and how many of each it has."""


def block(top, count, what, without=(), memories=True, **parameters):
    """`without`: modules that are blocks of their own. `memories`: whether its are counted here."""
    return {"top": top, "count": count, "what": what, "without": list(without), "memories": memories,
            "parameters": parameters}


PIPE = ["parser", "entropy", "classify", "flow_lookup", "route_lookup", "bridge_lookup", "nexthop_fetch", "retire",
        "verdict", "punt_budget", "payload_sum", "rewriter"]

BLOCKS = {
    "parser-down": block("parser", 2, "parser of guests' frames", Wire=0),
    "parser-up": block("parser", 2, "parser of tunnels and what is in them", Wire=1),
    "entropy": block("entropy", 4, "hash for the tunnel's source port"),
    "classify-down": block("classify", 2, "port, network; what the sender may", Wire=0),
    "classify-up": block("classify", 2, "port, label, VNI, network", Wire=1),
    "flow": block("flow_lookup", 4, "flow look-up"),
    "route4": block("route4_lookup", 4, "IPv4 trie"),
    "route6": block("route6_lookup", 4, "IPv6 prefixes"),
    "route": block("route_lookup", 4, "either of both", ["route4_lookup", "route6_lookup"]),
    "bridge": block("bridge_lookup", 8, "bridge look-ups: destination, source"),
    "fetch-own": block("nexthop_fetch", 4, "nexthops of flows that are in HBM", Sources=1),
    "fetch": block("nexthop_fetch", 4, "those of bridge, routes and labels", Sources=3),
    "retire": block("retire", 4, "back into order", Tags=1024, Marks=6),
    "verdict-down": block("verdict", 2, "what is done, nexthops", Wire=0),
    "verdict-up": block("verdict", 2, "what is done, nexthops", Wire=1),
    "budget": block("punt_budget", 4, "what the host is not to be asked any more"),
    "payload": block("payload_sum", 4, "sums of payloads"),
    "stripper": block("stripper", 4, "rewriter: bytes off the front"),
    "editor": block("editor", 4, "rewriter: TTL, TOS, NAT, checksums"),
    "headers": block("header_builder", 4, "rewriter: new headers"),
    "joiner": block("joiner", 4, "rewriter: headers and packet", HeaderBytes=84),
    "rewriter": block("rewriter", 4, "rewriter: the rest", ["stripper", "editor", "header_builder", "joiner"]),
    "pipe": block("pipe", 4, "pipe: the rest, with packets and what is kept by tag", PIPE, Wire=1),
    "counters": block("counters", 4, "counters: the rest, with their memories"),
    "counter": block("counter_ram", 20, "counters: one table's adders", memories=False, Entries=1024),
    "bank-flow": block("bank", 16, "a channel of the flow table", Requesters=4, LineBytes=64, LineWidth=24),
    "bank-bridge": block("bank", 4, "a channel of the bridge table", Requesters=16, LineBytes=32, LineWidth=25),
    "bank-route": block("bank", 8, "a channel of the route table", Requesters=20, LineBytes=32, LineWidth=24,
                        CacheLines=1024),
    "bank-nexthop": block("bank", 4, "a channel of the nexthops", Requesters=8, LineBytes=64, LineWidth=25),
    "memory-flow": block("memory", 2, "requesters to banks and back", ["bank"], Requesters=4, Banks=8, LineBytes=64),
    "memory-bridge": block("memory", 1, "likewise", ["bank"], Requesters=16, Banks=4, LineBytes=32),
    "memory-route": block("memory", 1, "likewise", ["bank"], Requesters=20, Banks=8, LineBytes=32),
    "memory-nexthop": block("memory", 1, "likewise", ["bank"], Requesters=8, Banks=4, LineBytes=64),
    "crossbar": block("crossbar", 1, "pipes to outputs", Inputs=4, Outputs=4, Width=545),
    "hold": block("hold", 4, "what waits in front of an output"),
    "registers": block("registers", 1, "AXI4-Lite"),
    "commands": block("commands", 1, "the host's commands", Pipes=4),
    "events": block("flow_events", 1, "events of pipes' counters", Pipes=4),
    "engine": block("engine", 1, "engine: the rest",
                    ["pipe", "counters", "memory", "crossbar", "hold", "registers", "commands",
                     "flow_events"]),
    "opennic": block("opennic_box", 1, "OpenNIC's box around it", ["engine"]),
}

# AMD Alveo U55C (XCU55C).
DEVICE = {"luts": 1_303_680, "ffs": 2_607_360, "bram": 2016, "uram": 960}
