"""Viaduct whose ports an Open vSwitch programs: the flows are OVS's, and Viaduct carries them out."""

import re
import sys
from pathlib import Path

from .. import machine
from ..process import Failed
from ..scenario import REMOTE, UNDERLAY, VNI
from .base import Counters
from .ovs import MODES, PHYSICAL_MAC, TUNNEL_PORT, OvsDpdk
from .viaduct import Viaduct, _table

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "viaduct-ovs-"
OFFLOADED = ("port", "normal", "per-flow", "vxlan", "tunnel")
# Here OVS forwards each packet itself. The names say whose counters count, and who has the device's CPU.
SOFTWARE = ("conntrack", "conntrack-pmd")
# The mode by device. "tunnel" has the rules of "vxlan", but Viaduct has the tunnel, as a port.
MODE = {"tunnel": "vxlan"}


class Controller(OvsDpdk):
    """Open vSwitch with a Viaduct's ports. It runs on the generator's CPU, as far as the generator leaves it a
    share."""

    pmd_cpu = machine.GENERATOR_CPU
    real_time = False

    def __init__(self, name, kind, run_dir):
        super().__init__(name, MODE.get(kind, kind))
        self.kind = kind
        self.run_dir = run_dir

    def _settings(self, scenario):
        # Beside the generator, an idle PMD thread sleeps.
        sleep = ["other_config:pmd-maxsleep=100"] if self.pmd_cpu == machine.GENERATOR_CPU else []
        return [*super()._settings(scenario), "other_config:hw-offload=true", *sleep]

    def _dpdk_extra(self):
        sys.path.insert(0, str(ROOT / "tests/lib"))
        from lab.ovs import plug_in

        return f"{super()._dpdk_extra()} -d {plug_in(ROOT / 'target/ovs-pmd/librte_net_viaduct.so')}"

    def _add_ports(self, scenario):
        if self.kind != "tunnel":
            return super()._add_ports(scenario)
        for number in range(scenario.guests + 1):
            port, options = self._port(number, scenario)
            request = TUNNEL_PORT if port == "tunnel" else number + 1
            options.append(f"ofport_request={request}")
            self._vsctl("add-port", "br0", port, "--", "set", "Interface", port, *options)

    def _port(self, number, scenario):
        wire = "tunnel" if self.kind == "tunnel" else "up"
        port = f"g{number}" if number < scenario.guests else wire
        devargs = f"net_viaduct{number},port={port},socket={self.run_dir}/ovs.sock"
        return port, ["type=dpdk", f"options:dpdk-devargs={devargs}"]

    def offloaded(self):
        """Returns how many flows Viaduct has taken."""
        found = re.search(r"offloaded flows : (\d+)", self._appctl("upcall/show"))
        return int(found[1]) if found else 0

    def flows_in_use(self):
        return self.offloaded()

    def processor_seconds(self):
        """Returns the CPU time that all threads of ovs-vswitchd have used."""
        pid = int((self.directory / "vs.pid").read_text())
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class ViaductOvs(Viaduct):
    """Viaduct with one worker under an Open vSwitch. Its counters are Viaduct's."""

    worker_cpu = machine.DEVICE_CPU

    def __init__(self, name, binaries):
        super().__init__(name, binaries)
        self.kind = name.removeprefix(PREFIX)
        mode = MODES[MODE.get(self.kind, self.kind)]
        self.title = f"Viaduct under {mode.title}"
        self.conditions = f"ports in mode \"ovs\", programmed by OVS-DPDK: {mode.conditions}"
        if self.kind == "tunnel":
            self.title += ", the tunnel a port of Viaduct's"
        self.controller = None

    def host_toml(self, scenario):
        """Makes the guests ports of OVS, without networks."""
        ports = [_table("guest", name=f"g{n}", mode="ovs", kind="vhost") for n in range(scenario.guests)]
        wire = {"name": "up", "driver": "vhost", "device": "wire.sock", "mtu": 1600}
        if self.kind == "tunnel":
            tunnel = {"driver": "vxlan", "remote": REMOTE, "vni": VNI, "mtu": 1500}
            ports.append(_table("wire", **wire, addresses=[f"{UNDERLAY}/24"]))
            ports.append(_table("wire", name="tunnel", mode="ovs", **tunnel))
        elif scenario.tunnel:
            ports.append(_table("wire", **wire, mode="ovs"))
        return "\n".join([f'[host]\nname = "bench"\nworkers = [{self.worker_cpu}]\n', *ports])

    def _start(self, scenario):
        super()._start(scenario)
        self.controller = self._controller()
        self.controller.start(scenario)
        self.children += self.controller.children
        if wrong := self.controller._vsctl("--bare", "--columns=error", "list", "Interface").strip():
            raise Failed(wrong)

    def _controller(self):
        return Controller(f"{self.name}-switch", self.kind, self.directory / "run")

    def _cleanup(self):
        if self.controller:
            self.controller.children = []  # they are this device's
            self.controller.stop()
            self.controller = None

    @property
    def switch(self):
        return self.controller

    @property
    def wire_mac(self):
        return super().wire_mac if self.kind == "tunnel" else PHYSICAL_MAC

    def flows_to(self, port):
        """Returns how many flows of Viaduct send packets to this guest."""
        return sum(flow["actions"] == f"output g{port}" for flow in self.ask("ovs", "flows"))

    def forget_flows(self):
        """Does nothing: OVS keeps its flows, because making many takes it minutes."""

    def counters(self):
        counters: Counters = super().counters()
        counters.details["offloaded flows"] = self.controller.offloaded()
        return counters


class ViaductConntrack(ViaductOvs):
    """OVS forwards each packet in software, and Viaduct carries it to OVS and back. Both poll. The one that is
    measured has the device's CPU, the other the generator's share."""

    def __init__(self, name, binaries):
        super().__init__(name.removesuffix("-pmd"), binaries)
        self.name = name
        self.by_pmd = name.endswith("-pmd")
        self.title += ": OVS's PMD thread" if self.by_pmd else ": Viaduct's worker"
        self.worker_cpu = machine.GENERATOR_CPU if self.by_pmd else machine.DEVICE_CPU

    def _controller(self):
        controller = super()._controller()
        if self.by_pmd:
            controller.pmd_cpu = machine.DEVICE_CPU
        # Like the generator, with which one of the two takes turns.
        controller.real_time = True
        return controller

    def forget_flows(self):
        self.controller.forget_flows()

    def counters(self):
        if self.by_pmd:
            return self.controller.counters()
        counters = super().counters()
        guests = [vif for vif in self.ask("status")["vifs"] if vif["name"].startswith("g") and ":" not in vif["name"]]
        # Each packet passes the worker twice.
        counters.packets = sum(vif["rx_packets"] for vif in guests)
        return counters
