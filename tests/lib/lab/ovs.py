"""Open vSwitch with DPDK: as the switch of a host, the other end of migrations; and as what programs a viaductd."""

import atexit
import functools
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

from .guest import QUEUE, Container
from .host import REPOSITORY
from .shell import Background, Failed, eventually, run

# The CPU on which it polls: not the same for all tests that run at a time.
CORE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % os.cpu_count()
DAEMON = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
# Another system, with the directories of this one in which tests work, whose Open vSwitch is run in place of this
# machine's (`make nightly` has Debian's next one).
ROOT = os.environ.get("VIADUCT_OVS_ROOT")
SYSTEM = ["chroot", ROOT] if ROOT else []
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
# Huge pages are not needed. `pmd-maxsleep` has an idle PMD thread sleep, that others get the CPU.
SETTINGS = {
    "dpdk-init": "true",
    "dpdk-extra": '"--no-huge --legacy-mem -m 512 --no-pci --no-shconf --no-telemetry --file-prefix={prefix}"',
    "pmd-maxsleep": "100",
    "n-handler-threads": "1",
    "n-revalidator-threads": "1",
}
# The work of Debian's units of Open vSwitch, where systemd does not run.
SWITCH = "ovs-vswitchd --pidfile --detach --log-file"
START = f"""rm -rf /etc/openvswitch
mkdir -p /etc/openvswitch /run/openvswitch
ovsdb-tool create /etc/openvswitch/conf.db {SCHEMA}
ovsdb-server --remote=punix:/run/openvswitch/db.sock --pidfile --detach --log-file
ovs-vsctl --no-wait init
{SWITCH}
"""
RESTART = f"""[ "$*" = "restart openvswitch-switch" ]
pid=$(cat /run/openvswitch/ovs-vswitchd.pid)
ovs-appctl exit
tail -f /dev/null --pid="$pid"
{SWITCH}
"""
# For a VM's network device, in QEMU's words: what one of the switches lacks. Open vSwitch offers no offloads for what a
# guest sends unless `userspace-tso-enable` says so; Viaduct does not segment UDP.
COMMON = "csum=off,host_tso4=off,host_tso6=off,guest_ufo=off"


class Ovs:
    """A private instance in the namespace named like the host: a bridge that learns MACs, with the wire up0 and a
    `dpdkvhostuserclient` port for each guest of kind "vhost". VMs take it for a host of Viaduct's."""

    def __init__(self, namespace, directory, config, core=CORE):
        self.namespace = namespace
        self.directory = directory
        self.config = config
        self.core = core
        self.programs = []
        directory.mkdir(parents=True)

    @property
    def name(self):
        return self.config.name

    def start(self):
        self.start_database()
        self.start_switch()
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        wire = f"options:dpdk-devargs=net_af_packet0,iface={self.config.entry('wire', 'up0')['device']}"
        self.vsctl("add-port", "br0", "wire", "--", "set", "Interface", "wire", "type=dpdk", wire)
        for kind, entry in self.config.tables:
            if kind == "guest":
                port, path = entry["name"], f"options:vhost-server-path={self.socket(entry['name'])}"
                words = ["type=dpdkvhostuserclient", path]
                self.vsctl("add-port", "br0", port, "--", "set", "Interface", port, *words)
        wrong = self.vsctl("--bare", "--columns=error", "list", "Interface").stdout.strip()
        if wrong:
            raise Failed(f"Open vSwitch: {wrong}\n{self.programs[-1].describe(60)}")
        return self

    @property
    def other_core(self):
        """Returns a CPU on which it does not poll, where there is one: where threads that poll and threads that nap
        share a CPU, Linux 6.18 may run little else there for minutes ("workqueue lockup")."""
        return (self.core + 1) % os.cpu_count()

    def settings(self):
        """Returns keys of `other_config`."""
        core = hex(1 << self.core)
        return {**SETTINGS, "pmd-cpu-mask": core, "dpdk-lcore-mask": core}

    def serve_database(self, *options):
        here = self.directory
        remote = f"--remote=punix:{here}/db.sock"
        self._run("ovsdb-server", here / "conf.db", remote, f"--unixctl={here}/db.ctl", *options)
        self._wait((here / "db.sock").exists, "the database")

    def start_database(self):
        run([*SYSTEM, "ovsdb-tool", "create", self.directory / "conf.db", SCHEMA])
        self.serve_database()
        prefix = self.namespace.name
        words = [f"other_config:{name}={value.format(prefix=prefix)}" for name, value in self.settings().items()]
        self.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", *words)

    def start_switch(self, *options, database=None):
        here = self.directory
        self._run(DAEMON, database or f"unix:{here}/db.sock", f"--unixctl={here}/vs.ctl", *options)
        self._wait((here / "vs.ctl").exists, "the switch")

    def vsctl(self, *words):
        # The database's socket is there a little before somebody listens.
        command = ["ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--retry", "--timeout=120"]
        return run([*command, *words], timeout=130)

    def appctl(self, *words, check=True):
        return run(["ovs-appctl", "-t", self.directory / "vs.ctl", *words], check=check).stdout

    def socket(self, guest):
        """Returns the path where the VMM listens, and the switch connects to."""
        return self.directory / f"{guest}.sock"

    def stop(self):
        for program in reversed(self.programs):
            if program.stop() is None:
                raise Failed(f"Open vSwitch did not end: {program.describe()}")

    def _run(self, program, *words):
        environment = ["env", f"OVS_RUNDIR={self.directory}", f"RUNTIME_DIRECTORY={self.directory}"]
        pidfile = f"--pidfile={self.directory}/{len(self.programs)}.pid"
        command = [*SYSTEM, *environment, program, *words, "--no-chdir", pidfile]
        log = self.directory / f"program-{len(self.programs)}.log"
        self.programs.append(Background(self.namespace.words(command), log))

    def _wait(self, check, what):
        program = self.programs[-1]
        eventually(lambda: check() or not program.running(), what)
        if not program.running():
            raise Failed(f"ended before {what} was there: {program.describe()}")


class OvsPeer(Ovs):
    """A plain machine on the underlay whose Open vSwitch, by software alone, takes what comes out of a tunnel: for
    tunnels that not every kernel has. Its own end is the device br0."""

    def __init__(self, namespace, directory):
        self.namespace, self.directory, self.programs = namespace, directory, []
        directory.mkdir(parents=True)

    def settings(self):
        return {"n-handler-threads": "1", "n-revalidator-threads": "1"}

    def start(self, underlay, address, mac, *tunnel):
        """Starts it. `underlay` and `address`: the addresses of its two ends, with lengths of prefixes. `tunnel`:
        settings of the port."""
        self.start_database()
        self.start_switch()
        for bridge in ("br-phy", "br0"):
            self.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
        self.vsctl("set", "bridge", "br0", f"other_config:hwaddr={mac}")
        # Only the bridge answers for its address.
        self.namespace.sysctl("net.ipv4.conf.up0.arp_ignore", 1)
        self.vsctl("add-port", "br-phy", "up0")
        self.vsctl("add-port", "br0", "tunnel", "--", "set", "Interface", "tunnel", *tunnel)
        for bridge, own in (("br-phy", underlay), ("br0", address)):
            self.namespace.ip("addr add", own, "dev", bridge)
            self.namespace.ip("link set", bridge, "up")
        return self


@functools.cache
def plug_in(built):
    """Copies the driver to where DPDK loads it: into a directory that only root may write, as those above it."""
    directory = Path(tempfile.mkdtemp(prefix="viaduct-ovs-", dir="/run"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(shutil.copy(built, directory))


class OvsController(Ovs):
    """An unmodified Open vSwitch that programs a viaductd by the driver of `make ovs-pmd`. It has one bridge, br0."""

    PLUG_IN = REPOSITORY / f"target/ovs-pmd{'-next' if ROOT else ''}/librte_net_viaduct.so"
    LOG = ["-vnetdev_offload_dpdk:console:dbg", "-vdpdk:console:info"]

    def __init__(self, host):
        super().__init__(host.namespace, host.directory / "ovs", host.config)
        self.host = host
        self.numbers = {}

    def settings(self):
        if not self.PLUG_IN.exists():
            raise Failed(f"{self.PLUG_IN} is missing: run make ovs-pmd")
        settings = super().settings()
        extra = settings["dpdk-extra"].strip('"')
        # Flows are looked at some time after their last packet.
        idle = {"max-idle": "600000"}
        return {**settings, **idle, "hw-offload": "true", "dpdk-extra": f'"{extra} -d {plug_in(self.PLUG_IN)}"'}

    def start(self):
        self.start_database()
        self.start_switch(*self.LOG)
        self.add_bridge("br0")
        return self

    @property
    def switch(self):
        return self.programs[-1]

    def kill(self):
        """Ends it as a crash would."""
        self.switch.stop(signal.SIGKILL)
        self.programs.pop()
        for name in ("vs.ctl", f"{len(self.programs)}.pid"):
            (self.directory / name).unlink(missing_ok=True)

    def restart(self):
        """Starts it again after `kill`."""
        self.start_switch(*self.LOG)
        self.vsctl("show")

    def add_bridge(self, name):
        self.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev")

    def add_port(self, name, bridge="br0", *, port=None):
        """Adds a port of viaductd's, by default of the same name, to a bridge."""
        number = self.numbers.setdefault(name, len(self.numbers) + 1)
        devargs = f"net_viaduct{number},port={port or name},run-dir={self.host.run_dir}"
        interface = ["--", "set", "Interface", name, "type=dpdk", f"options:dpdk-devargs={devargs}"]
        self.vsctl("add-port", bridge, name, *interface)
        wrong = self.vsctl("--bare", "--columns=error", "list", "Interface", name).stdout.strip()
        if wrong:
            raise Failed(f"Open vSwitch: {wrong}\n{self.switch.describe(40)}")

    def ofctl(self, command, *words):
        """Runs ovs-ofctl COMMAND br0 WORDS."""
        management = f"unix:{self.directory}/br0.mgmt"
        return run(["ovs-ofctl", "-O", "OpenFlow13", "--timeout=120", command, management, *words]).stdout

    def flows(self, *patterns):
        """Returns the datapath's flows whose line has all of these patterns, with what OVS says of each."""
        lines = self.appctl("dpctl/dump-flows", "-m").splitlines()
        return [line for line in lines if "ufid" in line and all(re.search(pattern, line) for pattern in patterns)]

    def offloaded(self, *patterns):
        return self.flows("offloaded:yes", "dp:dpdk", *patterns)

    def received(self):
        """Returns how many packets OVS itself has received from all ports."""
        return sum(int(n) for n in re.findall(r"packets received: (\d+)", self.appctl("dpif-netdev/pmd-stats-show")))


class OvsContainer(Container):
    """A container on a port whose mode is "ovs", with these addresses."""

    def __init__(self, namespace, host, guest, mac, *addresses):
        self.namespace, self.name, self.host = namespace, guest, host
        self.device = host.config.entry("guest", guest)["device"]
        self.addresses, self.mac, self.network = addresses, mac, {}

    def attach(self):
        namespace = self.namespace
        self.host.namespace.ip("link set", self.device, "netns", namespace.name)
        namespace.ip("link set", self.device, "address", self.mac, "txqueuelen", QUEUE, "up")
        for address in self.addresses:
            namespace.ip("addr add", address, "dev", self.device, "nodad" if ":" in address else "")
        return self
