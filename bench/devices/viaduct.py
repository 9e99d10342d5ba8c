"""Viaduct."""

import json
from collections import Counter

from .. import machine
from ..process import Child, run
from ..scenario import FIRST_PORT, LABEL, REMOTE, REMOTE_MAC, UNDERLAY, VNI, guest_mac
from .base import Counters, Device, VhostPort


def _table(kind, /, **keys):
    lines = [f"{key} = {_value(value)}" for key, value in keys.items()]
    return "\n".join([f"[[{kind}]]", *lines, ""])


def _value(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def host_toml(scenario):
    """Makes host.toml for a scenario."""
    workers = list(range(machine.DEVICE_CPU, machine.DEVICE_CPU + scenario.workers))
    parts = [f'[host]\nname = "bench"\nworkers = {workers}\n']
    network = {"name": "blue", "vrf": 1, "gateways": ["10.1.255.254/16"], "mtu": scenario.mtu}
    if scenario.tunnel:
        del network["mtu"]
        network["vni"] = VNI
        parts.append(_table("wire", name="up", driver="vhost", device="wire.sock", addresses=[f"{UNDERLAY}/24"]))
    parts.append(_table("network", **network))
    for number in range(scenario.guests):
        guest = {"name": f"g{number}", "network": "blue", "kind": "vhost", "mac": guest_mac(number)}
        guest["policy"] = scenario.policy == "stateful"
        if scenario.tunnel == "mpls-over-udp":
            guest |= {"addresses": ["10.1.0.1"], "allowed": ["10.1.0.0/17"], "label": LABEL}
        parts.append(_table("guest", **guest))
    if scenario.tunnel == "vxlan":
        remote = {"tunnel": "vxlan", "remote": REMOTE, "vni": VNI}
        parts.append(_table("mac", network="blue", mac=REMOTE_MAC, to=remote))
    if scenario.tunnel == "mpls-over-udp":
        remote = {"tunnel": "mpls-over-udp", "remote": REMOTE, "label": LABEL}
        parts.append(_table("route", network="blue", prefix="10.2.0.0/16", to=remote))
    if scenario.policy == "stateful":
        rule = {"network": "blue", "priority": 100, "protocol": "udp", "ports": FIRST_PORT, "action": "allow"}
        parts += [_table("rule", **rule), _table("default", network="blue", action="drop")]
    return "\n".join(parts)


def total(counts):
    """Sums dictionaries, key by key."""
    found = Counter()
    for each in counts:
        found.update(each)
    return dict(found)


class Viaduct(Device):
    """Viaduct with as many workers as the scenario has, each on one core."""

    title = "Viaduct"
    conditions = (
        "one worker unless said otherwise, counters on, anti-spoofing by MAC address on; it sleeps after a while "
        "without packets"
    )

    def __init__(self, name, binaries):
        super().__init__(name)
        self.binaries = binaries

    def _start(self, scenario):
        directory = self.directory
        self.tracks_connections = scenario.policy == "stateful"
        (directory / "host.toml").write_text(self.host_toml(scenario))
        daemon = Child(
            self.binaries / "viaductd",
            *("--config", directory / "host.toml", "--run-dir", directory / "run", "--state-dir", directory / "state"),
            log=directory / "log",
        )
        self.children = [daemon]
        names = [f"g{number}.sock" for number in range(scenario.guests)] + ["wire.sock"] * bool(scenario.tunnel)
        self.ports = [VhostPort(directory / "run" / name) for name in names]
        daemon.wait_until(lambda: "ready" in (directory / "log").read_text(), "ready")
        self._make_real_time(daemon)

    def _make_real_time(self, daemon):
        daemon.make_real_time("worker")

    def host_toml(self, scenario):
        """Makes its configuration."""
        return host_toml(scenario)

    def ask(self, *words):
        """Runs the command line, and returns its JSON."""
        return json.loads(run(self.binaries / "viaduct", "--run-dir", self.directory / "run", *words, "--json"))

    @property
    def wire_mac(self):
        return next(vif["mac"] for vif in self.ask("status")["vifs"] if vif["kind"] == "wire")

    def forget_flows(self):
        if self.tracks_connections:
            self.ask("flow", "flush")

    def counters(self):
        workers = self.ask("stats")["workers"]
        cycles = total(worker["cycles"] for worker in workers)
        stages = {name: cycles[name] for name in ("receive", "lookup", "slow_path", "deliver")}
        details = total(
            {name: worker[name] for name in ("packets", "hits", "misses", "drops", "sleeps")} for worker in workers
        )
        packets = details.pop("packets")
        drops = total({reason["reason"]: reason["packets"] for reason in worker["reasons"]} for worker in workers)
        bursts = [sum(column) for column in zip(*(worker["bursts"] for worker in workers))]
        details |= {f"drop {reason}": count for reason, count in drops.items()}
        refused = sum(drops.values()) - drops.get("tx_full", 0)
        return Counters(packets, cycles["busy"], refused, stages, bursts, details, len(workers))
