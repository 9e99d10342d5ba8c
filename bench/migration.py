#!/usr/bin/env python3
"""How long a VM stands still while it migrates live, and what is lost: between two hosts of Viaduct, and between two of
Open vSwitch with DPDK.

    VIADUCT_BIN=target/release scripts/as-root bench/migration.py [--rounds N] [--json]

Each time the VM is new, and its peer is a plain machine on the segment to which both hosts have a wire. The peer loads
it by iperf3, and sends it 1000 numbered datagrams a second, which it returns: those that do not come back are lost, and
most of them in a row are the gap. The switches take turns. QEMU goes on by itself at the destination.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/lib"))

from lab import Lab, Stream, echoes, eventually, run
from lab.ovs import COMMON, DAEMON
from lab.topology import SEATS, host_config, vhost
from lab.vm import accelerator

VM = SEATS["a1"]
RATE = 1000
LOADS = {"TCP": [], "UDP, 64-byte frames": ["-u", "-l", "18", "-b", "720k"]}
SWITCHES = {"Viaduct": {"standby": True}, "OVS-DPDK": {"role": "client"}}
FIGURES = {"qemu": "downtime by QEMU, ms", "gap": "gap at the peer, ms", "lost": "lost of 1000 a second"}
# See tests/test_save.py.
MEMORY = f"{192 * 1024 + 8}K"


def migrate(switch, load):
    """Returns the figures of a migration."""
    with Lab() as lab:
        hosts = []
        for core, name in enumerate(("a", "b")):
            lab.plug(name, mtu=1500)
            config = host_config(name, {"a1": vhost("a1", **SWITCHES[switch])}, mtu=1500)
            config.entry("network", "blue")["wire"] = "up0"
            hosts.append(lab.host(config) if switch == "Viaduct" else lab.ovs(config, core))
        peer = lab.server("peer", "10.1.1.99/24")
        lab.segment("peer")
        vm = lab.vm(hosts[0], "a1", options=COMMON, memory=MEMORY).boot()
        peer.expect_ping(VM.address)
        echoes(vm, VM.address, peer.namespace, lab.directory)
        vm.run(["iperf3", "-s", "-D"])
        with Stream(peer.namespace, None, VM.address, echo=True, rate=RATE, size=18) as stream:
            traffic = peer.background(["iperf3", "-c", VM.address, "-t", "60", "--forceflush", *LOADS[load]])
            traffic.wait_for("1.00-2.00")
            moved, way = lab.destination(vm, hosts[1], paused=False)
            before = len(stream.arrived)
            told = vm.migrate(way)
            eventually(lambda: moved.qmp("query-status")["status"] == "running", "QEMU goes on", 30)
            stream.wait(RATE)
            first = stream.arrived[before]
            traffic.stop()
        missing = [(at, count) for at, count in stream.result().gaps if at > first]
        longest = max((count for _, count in missing), default=0)
        return {"qemu": told["downtime"], "gap": longest * 1000 / RATE, "lost": sum(count for _, count in missing)}


def logging():
    """Returns instructions per packet in a ring, without and with the log of written pages."""
    stages = json.loads((ROOT / "crates/engine/benches/instructions.json").read_text())["stages"]
    return {name: [stages[name], stages[f"{name}_logged"]] for name in stages if f"{name}_logged" in stages}


def main(rounds):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    samples = {load: {switch: [] for switch in SWITCHES} for load in LOADS}
    for number in range(rounds):
        for load in LOADS:
            for switch in list(SWITCHES)[:: 1 if number % 2 == 0 else -1]:
                samples[load][switch].append(migrate(switch, load))
                print(f"round {number + 1}, {load}, {switch}: {samples[load][switch][-1]}", file=sys.stderr, flush=True)
    first_line = lambda *command: run(command).stdout.splitlines()[0]
    versions = [first_line("qemu-system-x86_64", "--version"), first_line(DAEMON, "--version")]
    return {"samples": samples, "logging": logging(), "machine": [f"{os.cpu_count()} CPUs", accelerator(), *versions]}


def show(report):
    print("; ".join(report["machine"]))
    print(f"\n{'load':22}{'':26}" + "".join(f"{switch:>20}" for switch in SWITCHES))
    for load, by_switch in report["samples"].items():
        for figure, title in FIGURES.items():
            cells = ""
            for found in by_switch.values():
                values = [sample[figure] for sample in found]
                cells += f"{f'{median(values):g} ({min(values):g}-{max(values):g})':>20}"
            print(f"{load:22}{title:26}{cells}")
    print(f"\n{'instructions a packet (make bench-instructions)':48}{'not logged':>20}{'logged':>20}")
    for name, (without, logged) in report["logging"].items():
        print(f"{name:48}{without:20}{logged:20}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each switch and load (5)")
    parser.add_argument("--json", action="store_true", help="print every sample")
    given = parser.parse_args()
    measured = main(given.rounds)
    print(json.dumps(measured, indent=2)) if given.json else show(measured)
