"""Open vSwitch with DPDK."""

import json
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from .. import machine
from ..process import Child, Failed, run
from ..scenario import FIRST_PORT, REMOTE, UNDERLAY, VNI, WIRE_MAC
from .base import Counters, Device, VhostPort

DAEMON = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
PHYSICAL_MAC = "02:aa:00:00:00:01"
TUNNEL_PORT = 1000
FLOW_LIMIT = 3_000_000

# Counters of pmd-stats-show, and their names in the report.
DETAILS = {
    "emc hits": "exact-match cache hits",
    "smc hits": "signature-match cache hits",
    "megaflow hits": "megaflow hits",
    "miss with success upcall": "upcalls",
    "miss with failed upcall": "failed upcalls",
}


@dataclass(frozen=True)
class Mode:
    """A way to configure Open vSwitch."""

    title: str
    conditions: str
    flows: Callable
    # Signature-match cache instead of the exact-match one, which is too small for many flows.
    signatures: bool = False


def _normal(scenario):
    return ["actions=NORMAL"]


def _port_rules(scenario):
    if scenario.tunnel:
        return [f"in_port=1,actions=output:{TUNNEL_PORT}", f"in_port={TUNNEL_PORT},actions=output:1"]
    pairs = [(number, number ^ 1) for number in range(scenario.guests)]
    return [f"in_port={here + 1},actions=output:{there + 1}" for here, there in pairs]


def _conntrack(scenario):
    established = "table=1,udp,ct_state=+trk+est,actions=NORMAL"
    new = f"table=1,udp,tp_dst={FIRST_PORT},ct_state=+trk+new,actions=ct(commit,zone=1),NORMAL"
    other = [
        "table=0,priority=10,arp,actions=NORMAL",
        "table=0,priority=0,actions=drop",
        "table=1,priority=0,actions=drop",
    ]
    return ["table=0,priority=20,udp,actions=ct(table=1,zone=1)", established, new, *other]


# An action that depends on the whole 5-tuple.
MULTIPATH = "multipath(symmetric_l3l4+udp,50,modulo_n,1,0,NXM_NX_REG0[0..15])"


def _per_flow(scenario):
    return ["priority=0,actions=NORMAL", f"priority=10,udp,actions={MULTIPATH},NORMAL"]


MODES = {
    "normal": Mode("OVS NORMAL", "MAC learning (action NORMAL)", _normal),
    "normal-smc": Mode("OVS NORMAL, SMC", "MAC learning (action NORMAL)", _normal, signatures=True),
    "port": Mode("OVS port rule", "a rule from port to port", _port_rules),
    "conntrack": Mode("OVS conntrack", "connections tracked, new ones allowed to UDP port 5001", _conntrack),
    "per-flow": Mode(
        "OVS megaflow per flow", "multipath over the 5-tuple, then NORMAL: a megaflow for every flow", _per_flow
    ),
    "per-flow-smc": Mode("OVS megaflow per flow, SMC", "the same", _per_flow, signatures=True),
    "vxlan": Mode("OVS VXLAN", "rules from guest to tunnel port and back, wire as vhost-user port", _port_rules),
}


def unixctl(path, command, *words):
    """Does what `ovs-appctl` does, but without a program, which would take a CPU for milliseconds."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(str(path))
        connection.sendall(json.dumps({"id": 0, "method": command, "params": [str(word) for word in words]}).encode())
        parts, answer = [], None
        while answer is None:
            parts.append(connection.recv(1 << 20))
            if not parts[-1]:
                raise Failed(f"{command}: no answer")
            if parts[-1].endswith(b"}"):
                with suppress(ValueError):
                    answer = json.loads(b"".join(parts))
    if answer["error"] is not None:
        raise Failed(f"{command}: {answer['error']}")
    return answer["result"]


class OvsDpdk(Device):
    """A private instance: own database, own network namespace, one PMD thread."""

    pmd_cpu = machine.DEVICE_CPU
    real_time = True

    def __init__(self, name, mode):
        super().__init__(name)
        self.mode = MODES[mode]
        self.title = self.mode.title
        cache = "signature-match cache only" if self.mode.signatures else "exact-match cache on for every flow"
        self.conditions = f"{self.mode.conditions}; one PMD thread, {cache}, 1024 descriptors"

    def _start(self, scenario):
        directory = self.directory
        self.environment = {"OVS_RUNDIR": str(directory), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        run("ovsdb-tool", "create", directory / "conf.db", SCHEMA)
        database = Child(
            *(
                "ovsdb-server",
                directory / "conf.db",
                f"--remote=punix:{directory}/db.sock",
                f"--unixctl={directory}/db.ctl",
            ),
            *("--no-chdir", f"--pidfile={directory}/db.pid"),
            log=directory / "db.log",
        )
        self.children = [database]
        database.wait_until((directory / "db.sock").exists, "database")
        self._vsctl("--no-wait", "init")
        self._vsctl("--no-wait", "set", "Open_vSwitch", ".", *self._settings(scenario))
        # Every instance makes a device called ovs-netdev: it gets a network namespace of its own.
        daemon = Child(
            *(
                "unshare",
                "--net",
                "env",
                f"OVS_RUNDIR={directory}",
                DAEMON,
                f"unix:{directory}/db.sock",
                f"--unixctl={directory}/vs.ctl",
            ),
            *("--no-chdir", f"--pidfile={directory}/vs.pid"),
            log=directory / "vs.log",
        )
        self.children.append(daemon)
        self.daemon = daemon
        daemon.wait_until((directory / "vs.ctl").exists, "control socket")
        self._vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        self._add_ports(scenario)
        self._appctl("upcall/set-flow-limit", FLOW_LIMIT)
        self._set_flows(scenario)
        if self.real_time:
            daemon.make_real_time("pmd")

    def _settings(self, scenario):
        return [
            "other_config:dpdk-init=true",
            *self._memory_settings(scenario),
            f"other_config:pmd-cpu-mask={1 << self.pmd_cpu:#x}",
            f"other_config:dpdk-lcore-mask={1 << machine.GENERATOR_CPU:#x}",
            "other_config:n-handler-threads=1",
            "other_config:n-revalidator-threads=1",
            f"other_config:emc-insert-inv-prob={int(not self.mode.signatures)}",
            f"other_config:smc-enable={str(self.mode.signatures).lower()}",
            f"other_config:flow-limit={FLOW_LIMIT}",
            "other_config:max-idle=600000",
            *(["other_config:userspace-tso-enable=true"] if scenario.segmentation else []),
            # If OVS takes more than half of this time (milliseconds) to look at all flows again, it removes flows
            # with fewer than five packets a second instead of looking at them.
            *(["other_config:max-revalidator=10000"] if self.mode.flows is _per_flow else []),
        ]

    def _memory_settings(self, scenario):
        memory = 768 if scenario.mtu <= 1500 else 1024
        return [
            # Without a limit, it would take all memory and leave nothing to the next instance.
            f"other_config:dpdk-socket-mem={memory}",
            f"other_config:dpdk-socket-limit={memory}",
            f'other_config:dpdk-extra="{self._dpdk_extra()}"',
        ]

    def _dpdk_extra(self):
        return f"--no-pci --in-memory --single-file-segments --file-prefix=viaduct-{self.name}"

    def _add_ports(self, scenario):
        bridges = ["br0"] * scenario.guests + ["br-wire"] * bool(scenario.tunnel)
        if scenario.tunnel:
            wire = ["datapath_type=netdev", f"other_config:hwaddr={PHYSICAL_MAC}"]
            self._vsctl("add-br", "br-wire", "--", "set", "bridge", "br-wire", *wire)
        for number, bridge in enumerate(bridges):
            port, options = self._port(number, scenario)
            options += [f"ofport_request={number + 1}"] if bridge == "br0" else []
            options += [f"mtu_request={scenario.mtu}"] if scenario.mtu != 1500 else []
            self._vsctl("add-port", bridge, port, "--", "set", "Interface", port, *options)
        if scenario.tunnel:
            self._add_tunnel()

    def _port(self, number, scenario):
        """Returns name and settings of a port."""
        port = f"vhost{number}"
        options = ["type=dpdkvhostuser"]
        if scenario.segmentation:  # which OVS offers only where the guest listens
            options = ["type=dpdkvhostuserclient", f"options:vhost-server-path={self.directory / port}"]
        self.ports.append(VhostPort(self.directory / port, guest_listens=scenario.segmentation))
        return port, [*options, "options:n_rxq_desc=1024", "options:n_txq_desc=1024"]

    def _add_tunnel(self):
        options = [f"options:remote_ip={REMOTE}", f"options:local_ip={UNDERLAY}", f"options:key={VNI}"]
        options.append(f"ofport_request={TUNNEL_PORT}")
        self._vsctl("add-port", "br0", "tunnel", "--", "set", "Interface", "tunnel", "type=vxlan", *options)
        inside = ["nsenter", "-t", self.daemon.pid, "--net", "ip"]
        run(*inside, "addr", "add", f"{UNDERLAY}/24", "dev", "br-wire")
        run(*inside, "link", "set", "br-wire", "up")
        self.daemon.wait_until(lambda: UNDERLAY in self._appctl("ovs/route/show"), "route")
        self._appctl("tnl/neigh/set", "br-wire", REMOTE, WIRE_MAC)

    def _set_flows(self, scenario):
        self._ofctl("del-flows")
        for flow in self.mode.flows(scenario):
            self._ofctl("add-flow", flow)

    def _ofctl(self, command, *words):
        return run("ovs-ofctl", command, f"unix:{self.directory}/br0.mgmt", *words, env=self.environment)

    def _vsctl(self, *words):
        return run("ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=30", *words, env=self.environment)

    def _appctl(self, *words):
        return unixctl(self.directory / "vs.ctl", *words)

    @property
    def wire_mac(self):
        return PHYSICAL_MAC

    def counters(self):
        text = self._appctl("dpif-netdev/pmd-stats-show")
        thread = re.search(rf"pmd thread numa_id \d+ core_id {self.pmd_cpu}:(.*?)(?=\n\w|\Z)", text, re.S)[1]

        def value(name):
            found = re.search(rf"^\s*{re.escape(name)}: (\d+)", thread, re.M)
            return int(found[1]) if found else 0

        details = {title: value(name) for name, title in DETAILS.items()}
        details["megaflows"] = self.megaflows()
        refused = details["failed upcalls"]
        return Counters(value("packets received"), value("processing cycles"), refused, details=details)

    @property
    def switch(self):
        """Returns the Open vSwitch whose rules count."""
        return self

    def megaflows(self):
        """Returns how many flows its datapath has."""
        return int(re.search(r"\(current (\d+)\)", self._appctl("upcall/show"))[1])

    def flows_in_use(self):
        """Returns how many flows are where they are carried out."""
        return self.megaflows()

    def flows_to(self, port):
        """Returns how many flows send packets to this guest."""
        flows = self._appctl("dpctl/dump-flows", "--names")
        return len(re.findall(rf"actions:vhost{port}$", flows, re.M))

    def redirect(self, port):
        """Sends all connections to this guest, by a change of the rule that makes a flow of each connection."""
        self._ofctl("add-flow", f"priority=10,udp,actions={MULTIPATH},output:{port + 1}")

    def purge(self):
        """Removes all flows. The threads that remove them may not know a few yet, until they have looked again."""

        def gone():
            self._appctl("revalidator/purge")
            if self.flows_in_use() == 0:
                return True
            self._appctl("revalidator/wait")
            return False

        self.daemon.wait_until(gone, "end of all flows", 180)

    def raise_limit(self):
        """Raises the limit of flows. OVS lowers it by itself, because it takes the time while it was paused for
        overload, and because it takes long with many."""
        self._appctl("upcall/set-flow-limit", FLOW_LIMIT)

    def forget_flows(self):
        self._appctl("revalidator/purge")
        self._appctl("dpctl/flush-conntrack")
        if self.mode.flows is _per_flow:
            self.raise_limit()
