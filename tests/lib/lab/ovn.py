"""OVN: databases and ovn-northd of a cluster, and an ovn-controller at each host's Open vSwitch."""

import shutil
from pathlib import Path

from .host import REPOSITORY
from .shell import Background, Failed, eventually, run

# Where scripts/setup unpacks Debian's packages: installed, they would start daemons of their own.
UNPACKED = REPOSITORY / ".cache/ovn"


def program(name):
    found = UNPACKED / "usr/bin" / name
    path = found if found.exists() else shutil.which(name)
    if not path:
        raise Failed(f"{name} is missing: run scripts/setup test")
    return path


def schema(name):
    found = UNPACKED / "usr/share/ovn" / f"{name}.ovsschema"
    return found if found.exists() else Path("/usr/share/ovn") / f"{name}.ovsschema"


class Ovn:
    """Both databases, and what computes the second from the first."""

    def __init__(self, directory):
        self.directory = directory
        self.programs = []
        directory.mkdir(parents=True)

    def start(self):
        here = self.directory
        for name in ("ovn-nb", "ovn-sb"):
            run(["ovsdb-tool", "create", here / f"{name}.db", schema(name)])
        files = [here / "ovn-nb.db", here / "ovn-sb.db"]
        self._run("ovsdb-server", *files, f"--remote=punix:{here}/ovn.sock", f"--unixctl={here}/ovn.ctl")
        eventually((here / "ovn.sock").exists, "OVN's databases")
        way = f"unix:{here}/ovn.sock"
        self._run(program("ovn-northd"), f"--ovnnb-db={way}", f"--ovnsb-db={way}", f"--unixctl={here}/northd.ctl")
        self.nbctl("init")
        return self

    def nbctl(self, *words):
        """Changes the logical network."""
        return run([program("ovn-nbctl"), f"--db=unix:{self.directory}/ovn.sock", "--timeout=120", *words]).stdout

    def sbctl(self, *words):
        return run([program("ovn-sbctl"), f"--db=unix:{self.directory}/ovn.sock", "--timeout=120", *words]).stdout

    def join(self, ovs, tunnel_source="127.0.0.1"):
        """Makes the host of this Open vSwitch a chassis. Its bridge is br-int."""
        ids = {
            "system-id": ovs.name,
            "ovn-remote": f"unix:{self.directory}/ovn.sock",
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": tunnel_source,
            "ovn-bridge-datapath-type": "netdev",
        }
        ovs.vsctl("set", "Open_vSwitch", ".", *(f"external_ids:{name}={value}" for name, value in ids.items()))
        log = self.directory / f"controller-{ovs.name}.log"
        environment = ["env", f"OVS_RUNDIR={ovs.directory}", f"OVN_RUNDIR={ovs.directory}"]
        database = f"unix:{ovs.directory}/db.sock"
        words = [*environment, program("ovn-controller"), database]
        self.programs.append(Background(ovs.namespace.words(words), log))
        eventually(lambda: "br-int" in ovs.vsctl("list-br").stdout, "OVN's bridge")

    def bind(self, ovs, port, logical=None):
        """Makes a port of the host's a logical port, of the same name by default. Waits until OVN has bound it."""
        ovs.add_port(port, "br-int")
        ovs.vsctl("set", "Interface", port, f"external_ids:iface-id={logical or port}")
        up = lambda: self.nbctl("lsp-get-up", logical or port).strip() == "up"
        try:
            eventually(up, f"{port} is bound")
        except Failed as failed:
            raise Failed(f"{failed}\n" + "\n".join(each.describe(10) for each in self.programs)) from None

    def stop(self):
        for each in reversed(self.programs):
            each.stop()

    def _run(self, *words):
        log = self.directory / f"program-{len(self.programs)}.log"
        self.programs.append(Background(words, log))
