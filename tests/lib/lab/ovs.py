"""A host whose switch is Open vSwitch with DPDK, the other end of migrations."""

from .shell import Background, Failed, eventually, run

DAEMON = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
# Huge pages are not needed. `pmd-maxsleep` has an idle PMD thread sleep, that others get the CPU.
SETTINGS = {
    "dpdk-init": "true",
    "dpdk-extra": '"--no-huge --legacy-mem -m 512 --no-pci --no-shconf --no-telemetry --file-prefix={prefix}"',
    "pmd-maxsleep": "100",
    "n-handler-threads": "1",
    "n-revalidator-threads": "1",
}
# For a VM's network device, in QEMU's words: what one of the switches lacks. Open vSwitch offers no offloads for what a
# guest sends unless `userspace-tso-enable` says so; Viaduct does not segment UDP.
COMMON = "csum=off,host_tso4=off,host_tso6=off,guest_ufo=off"


class Ovs:
    """A private instance in the namespace named like the host: a bridge that learns MACs, with the wire up0 and a
    `dpdkvhostuserclient` port for each guest of kind "vhost". VMs take it for a host of Viaduct's."""

    def __init__(self, namespace, directory, config, core=0):
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
        here = self.directory
        run(["ovsdb-tool", "create", here / "conf.db", SCHEMA])
        self._run("ovsdb-server", here / "conf.db", f"--remote=punix:{here}/db.sock", f"--unixctl={here}/db.ctl")
        self._wait((here / "db.sock").exists, "the database")
        settings = {**SETTINGS, "pmd-cpu-mask": hex(1 << self.core), "dpdk-lcore-mask": hex(1 << self.core)}
        prefix = self.namespace.name
        words = [f"other_config:{name}={value.format(prefix=prefix)}" for name, value in settings.items()]
        self.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", *words)
        self._run(DAEMON, f"unix:{here}/db.sock", f"--unixctl={here}/vs.ctl")
        self._wait((here / "vs.ctl").exists, "the switch")
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

    def vsctl(self, *words):
        return run(["ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=30", *words])

    def socket(self, guest):
        """Where the VMM listens, and the switch connects to."""
        return self.directory / f"{guest}.sock"

    def stop(self):
        for program in reversed(self.programs):
            if program.stop() is None:
                raise Failed(f"Open vSwitch did not end: {program.describe()}")

    def _run(self, program, *words):
        environment = ["env", f"OVS_RUNDIR={self.directory}", f"RUNTIME_DIRECTORY={self.directory}"]
        command = [*environment, program, *words, "--no-chdir", f"--pidfile={self.directory}/{len(self.programs)}.pid"]
        log = self.directory / f"program-{len(self.programs)}.log"
        self.programs.append(Background(self.namespace.words(command), log))

    def _wait(self, check, what):
        program = self.programs[-1]
        eventually(lambda: check() or not program.running(), what, 30)
        if not program.running():
            raise Failed(f"ended before {what} was there: {program.describe()}")
