# SPDX-License-Identifier: Apache-2.0
"""Memories, counted by width, depth and ports: what each would take, as a rule and not as a tool's finding.

One copy for each read port that reads at the same time. Asynchronous reads, at most 64 words, or at most 4 Kibit:
distributed RAM (RAM32M16, RAM64M8, RAM64X1D). From 4096 words of 64 bits on, and from 1 Mibit on: UltraRAM, 4096 x 72.
Else block RAM, in halves of a BRAM36: 512 x 36, 1024 x 18, 2048 x 9, 4096 x 4, 8192 x 2, 16384 x 1. Write ports that
never write at the same time count as one.
"""
import re
from math import ceil

BRAM18 = [(512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1)]


def memory(name, width, depth, reads, clocked):
    one = {"luts": 0, "bram": 0, "uram": 0}
    if not clocked or depth <= 64 or width * depth <= 4096:
        one["luts"] = 8 * ceil(width / 14) if depth <= 32 else (
            ceil(depth / 64) * min(8 * ceil(width / 7), 2 * width))
    elif depth >= 4096 and width >= 64 or width * depth >= 1 << 20:
        one["uram"] = ceil(depth / 4096) * ceil(width / 72)
    else:
        one["bram"] = min(ceil(depth / words) * ceil(width / bits) for words, bits in BRAM18) / 2
    copies = {kind: count * reads for kind, count in one.items()}
    return {"name": name, "width": width, "depth": depth, "reads": reads, **copies}


def of_dump(text):
    """Those that Yosys left as `$mem_v2`."""
    found = []
    for name, body in re.findall(r"cell \$mem_v2 (\S+)\n(.*?)\n\s*end\n", text, re.S):
        value = dict(re.findall(r"parameter \\(\w+) (?:\d+')?(\S+)", body))
        found.append(memory(name.lstrip("\\"), int(value["WIDTH"]), int(value["SIZE"]), int(value["RD_PORTS"]),
                            set(value["RD_CLK_ENABLE"]) <= {"1"}))
    return found


def of_hierarchy(netlist):
    """Those in `table_ram` and `counter_ram`, by the widths of their ports."""
    found = []
    for module, body in netlist["modules"].items():
        kind, _, path = module.partition("$")
        width = {name: len(port["bits"]) for name, port in body["ports"].items()}
        if kind == "table_ram":
            found.append(memory(path, width["data"], 1 << width["address"], 1, True))
        elif kind == "counter_ram" and path:
            found.append(memory(path, width["rd_packets"] + width["rd_bytes"], 1 << width["number"], 1, True))
    return found
