"""Ways between two programs that pass messages: verbs devices, sockets, MPI's own ways, and the best that the machine
can do."""

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from .base import Device

LAB = Path(__file__).resolve().parents[2] / "tests/lib"
# The niceness of programs and daemons, which come before everything else and are equal among each other.
URGENT = -20


# If the kernel groups processes by session, the group's niceness counts between sessions.
GROUP = Path("/proc/self/autogroup")


@contextmanager
def urgent():
    """Lets whatever is started meanwhile run on every CPU, and before everything else."""
    cpus, niceness = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    group = GROUP.read_text().split()[-1] if GROUP.exists() else ""
    os.sched_setaffinity(0, range(os.cpu_count()))
    os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    if group:
        GROUP.write_text(str(URGENT))
    try:
        yield
    finally:
        if group:
            GROUP.write_text(group)
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        os.sched_setaffinity(0, cpus)


class Way(Device):
    """Two places for programs: `client`, `server`, and the server's `address`. `environment` is for the programs."""

    lab = client = server = address = None
    environment = ()

    def words(self, side):
        """Returns the words in front of a program of a side."""
        return []

    def wait_for_port(self, port):
        """Waits until the server listens."""
        from lab import eventually

        eventually(lambda: f":{port} " in self.server.run(["ss", "-ltn"]).stdout, f"port {port}")

    def _start(self, scenario):
        sys.path.insert(0, str(LAB))
        import lab as labs

        with urgent():
            self.lab = labs.Lab()
            self._set_up()

    def _set_up(self):
        """Makes the two places; by default both are one network namespace."""
        from lab import Server

        self.client = self.server = Server(self.lab.namespace("alone"))
        self.address = "127.0.0.1"

    def _cleanup(self):
        if self.lab:
            self.resume()
            self.lab.cleanup.close()
            self.lab = None

    @property
    def hosts(self):
        return list(self.lab.hosts.values()) if self.lab else []

    @property
    def pids(self):
        return [host.daemon.process.pid for host in self.hosts]

    def pause(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def last_words(self):
        return "\n".join(host.daemon.describe(8) for host in self.hosts)


class Overlay(Way):
    """Containers with a verbs device and a tap on the same address, on one host or on two."""

    title = "TCP, two hosts"
    conditions = (
        "NetPIPE and iperf3 between containers on taps without TSO, GSO and GRO; two hosts, MPLS over UDP by AF_PACKET"
    )
    places = {"a": ("a1",), "b": ("b1",)}
    trust = None
    # More keys of the guests.
    keys = {}
    driver = "af-packet"
    # Whether the containers have their offloads of TCP.
    offloads = False

    def __init__(self, name, binaries):
        super().__init__(name)
        self.binaries = binaries

    def _set_up(self):
        from lab import topology

        os.environ["VIADUCT_BIN"] = str(self.binaries)
        containers, everybody = {}, [guest for guests in self.places.values() for guest in guests]
        for name, guests in self.places.items():
            self.lab.plug(name)
            if self.driver == "af-xdp":
                # AF_XDP sees packets as the other end of the veth leaves them, so that end must complete their
                # checksums.
                self.lab.namespace("fabric").run(["ethtool", "-K", f"{name}-up0", "tx", "off", "txvlan", "off"])
            more = {"rdma_trust": self.trust, **self.keys}
            keys = {guest: {**topology.tap(guest), "rdma": guest, **more} for guest in guests}
            config = topology.host_config(name, keys)
            config.entry("wire", "up0")["driver"] = self.driver
            remotes = [guest for guest in everybody if guest not in guests]
            host = self.lab.host(topology.tunnel_routes(config, "mpls-over-udp", *remotes))
            containers |= {guest: self.lab.container(host, guest) for guest in guests}
        for container in containers.values() if not self.offloads else ():
            container.run(["ethtool", "-K", container.device, "tso", "off", "gso", "off", "gro", "off"], check=False)
        self.client, self.server = (containers[guest] for guest in everybody)
        self.address = topology.SEATS[everybody[1]].address
        self.client.expect_ping(self.address, 1)


class Offloading(Overlay):
    title = "TCP with TSO, two hosts"
    conditions = "programs in containers on taps with TSO, GSO and GRO; two hosts, MPLS over UDP by AF_PACKET"
    offloads = True


class Carried(Offloading):
    """The same containers, whose programs take the library, and whose daemons carry the bytes by RoCEv2."""

    title = "Sockets, two hosts"
    conditions = "programs by `viaduct run` with VIADUCT_SOCKETS_HOSTS=on; two hosts, MPLS over UDP by AF_PACKET"
    keys = {"sockets": True}

    def words(self, side):
        words = [self.binaries / "viaduct", "--run-dir", side.host.run_dir, "run", "--guest", side.name, "--"]
        return ["env", "VIADUCT_SOCKETS_HOSTS=on", *words]


class Verbs(Overlay):
    """Verbs over the transport that `viaduct rdma qp` calls `transport`."""

    def __init__(self, name, binaries):
        super().__init__(name, binaries)
        self.transport = name.removeprefix("verbs-")
        told = {
            "shared": ("Verbs, shared memory", "perftest between two containers of one host with the same rdma_trust"),
            "copy": ("Verbs, copied by the daemon", "perftest between two containers of one host without trust"),
            "regions": (
                "Verbs, shared regions",
                "the same, whose regions are moved into files (VIADUCT_RDMA_SHARE=1)",
            ),
            "roce": ("Verbs, two hosts", "perftest over RoCEv2, two hosts, MPLS over UDP by AF_PACKET"),
            "roce-regions": ("Verbs, two hosts, shared regions", "the same, whose regions are moved into files"),
        }
        self.title, self.conditions = told[self.transport]
        if self.transport.endswith("regions"):
            self.transport = "shared" if self.transport == "regions" else "roce"
            self.environment = ("VIADUCT_RDMA_SHARE=1",)
        if self.transport != "roce":
            self.places = {"a": ("a1", "a2")}
        if self.transport == "shared":
            self.trust = "bench"

    def _set_up(self):
        super()._set_up()
        from lab.perftest import perftest

        perftest("ib_write_bw", self.client, self.server, self.address, "-D", 1, meanwhile=self._check_transport)

    def _check_transport(self):
        """Fails unless a queue pair uses the transport that is to be measured."""
        from lab import eventually

        words = lambda: self.client.host.call("rdma", "qp").stdout.split()
        eventually(lambda: self.transport in words(), f"a queue pair with transport {self.transport}")


class Apart(Verbs):
    """Shared regions with a CPU for each program, for points in which otherwise one thread serves both programs."""

    def __init__(self, name, binaries):
        super().__init__("verbs-regions", binaries)
        self.name, self.title = name, "Verbs, shared regions, a CPU each"
        self.conditions += "; both programs poll, each on a CPU of its own"


class Windows(Verbs):
    """Two programs that map windows, as those in two virtual machines do."""

    memory_mb = 512
    # Name of the device of containers whose messages go the same way; title; description.
    FORMS = {
        "verbs-common": ("verbs-regions", "Verbs, window in common", "with the same rdma_trust"),
        "verbs-own": ("verbs-copy", "Verbs, windows of their own", "without trust: the daemon copies"),
        "verbs-own-hosts": ("verbs-roce", "Verbs, windows, two hosts", "of two hosts, MPLS over UDP by AF_PACKET"),
    }

    def __init__(self, name, binaries):
        form, title, how = self.FORMS[name]
        super().__init__(form, binaries)
        self.name, self.title, self.environment = name, title, ()
        self.conditions = f"perftest in two processes that map the windows of two guests {how}"

    def _set_up(self):
        from lab import Beside, topology
        from lab.perftest import perftest

        os.environ["VIADUCT_BIN"] = str(self.binaries)
        keys, everybody = {"window_mb": self.memory_mb, "rdma_trust": self.trust}, []
        wire = len(self.places) > 1
        for name, guests in self.places.items():
            if wire:
                self.lab.plug(name)
            vms = {guest: topology.vhost(guest, rdma=guest, **keys) for guest in guests}
            config = topology.host_config(name, vms, wire=wire)
            remotes = [guest for some in self.places.values() for guest in some if guest not in guests]
            host = self.lab.host(topology.tunnel_routes(config, "mpls-over-udp", *remotes))
            everybody += [Beside(self.lab.namespace("alone"), host, guest) for guest in guests]
        self.client, self.server = everybody
        self.address = "127.0.0.1"
        perftest("ib_write_bw", self.client, self.server, self.address, "-D", 1, meanwhile=self._check_transport)


class MpiVerbs(Verbs):
    """Two ranks of MPI, each on a guest's device."""

    def __init__(self, name, binaries):
        super().__init__("verbs-shared", binaries)
        self.name, self.title = name, "MPI, verbs"
        self.conditions = "NetPIPE by Open MPI over UCX, devices with the same rdma_trust"


class Xdp(Verbs):
    """RoCEv2 between two hosts over AF_XDP."""

    driver = "af-xdp"

    def __init__(self, name, binaries):
        super().__init__("verbs-roce", binaries)
        self.name, self.title = name, "Verbs, two hosts, AF_XDP"
        self.conditions = self.conditions.replace("AF_PACKET", "AF_XDP")


class Lossy(Verbs):
    """RoCEv2 between two hosts over an underlay that loses one frame in a thousand in either direction."""

    def __init__(self, name, binaries):
        super().__init__("verbs-roce", binaries)
        self.name, self.title = name, "Verbs, two hosts, 0.1 % lost"
        self.conditions += (
            ", whose bridge drops one frame in a thousand, by chance, and with it all packets that it carries"
        )

    def _set_up(self):
        super()._set_up()
        switch = self.lab.namespace("fabric")
        switch.run(["nft", "add table bridge loss"])
        switch.run(["nft", "add chain bridge loss forwarded { type filter hook forward priority 0; }"])
        switch.run(["nft", "add rule bridge loss forwarded numgen random mod 1000 lt 1 drop"])


class Within(Overlay):
    title = "TCP, one host"
    conditions = "NetPIPE between containers on taps of one host without TSO, GSO and GRO"
    places = {"a": ("a1", "a2")}


class Rings(Within):
    """Containers whose programs take the library that moves connections to memory in common."""

    title = "Sockets in shared memory"
    conditions = "programs in containers of one host by `viaduct run`, with the same rdma_trust"
    trust, keys = "bench", {"sockets": True}

    def words(self, side):
        run_dir = side.host.run_dir
        return [self.binaries / "viaduct", "--run-dir", run_dir, "run", "--guest", side.name, "--"]


class Rsockets(Verbs):
    """The same containers, whose programs' sockets are rsockets over verbs."""

    def __init__(self, name, binaries):
        super().__init__("verbs-shared", binaries)
        self.name, self.title = name, "rsockets"
        self.conditions = "librspreload over the guests' devices, with the same rdma_trust"

    def words(self, side):
        from lab.perftest import with_device

        from ..points.netpipe import RSOCKETS

        return with_device(side, [f"LD_PRELOAD={RSOCKETS}"])

    def wait_for_port(self, port):
        from lab import eventually

        listens = lambda: "listen" in self.server.host.call("rdma", "cm").stdout.split()
        eventually(listens, "a listener")


class Kernel(Way):
    """Two namespaces, joined by the kernel alone."""

    def __init__(self, name):
        super().__init__(name)
        self.title = {"tcp-veth": "TCP, veth", "tcp-bridge": "TCP, bridge"}[name]
        joined = "by a veth pair" if name == "tcp-veth" else "by veth pairs and a Linux bridge"
        self.conditions = f"NetPIPE between two namespaces, joined {joined}, MTU 1500, with all offloads"

    def _set_up(self):
        from lab import Server, cable

        if self.name == "tcp-veth":
            ends = [self.lab.namespace(name) for name in "ab"]
            cable(ends[0], "up0", ends[1], "up0", 1500)
        else:
            ends = [self.lab.plug(name, mtu=1500) for name in "ab"]
        for number, end in enumerate(ends, 1):
            end.ip(f"addr add 10.9.0.{number}/24 dev up0")
        self.client, self.server = map(Server, ends)
        self.address = "10.9.0.2"
        self.client.expect_ping(self.address, 1)


class Loopback(Way):
    title = "TCP, loopback"
    conditions = "NetPIPE, iperf3 over the loopback device"


class Vader(Way):
    title = "MPI, shared memory"
    conditions = "NetPIPE by Open MPI, ob1 over vader"


class Ucx(Way):
    title = "UCX, shared memory"
    conditions = "ucx_perftest am_lat, posix, short messages"


class Memory(Way):
    """The measurements of `memory`: the least time that is possible on this machine."""

    def __init__(self, name):
        super().__init__(name)
        told = {
            "cache-line": ("Cache line", "two processes store to one cache line in turn; no queue, no message"),
            "memcpy": ("memcpy", "within one process"),
            "proc-mem": ("pwrite, pread", "on /proc/PID/mem of another process, and nothing else"),
            "process-vm": (
                "process_vm_*v",
                "process_vm_writev and process_vm_readv of another process, and nothing else",
            ),
        }
        self.title, self.conditions = told[name]


NAMES = [
    *(
        "verbs-shared",
        "verbs-regions",
        "verbs-regions-apart",
        "verbs-copy",
        "verbs-roce",
        "verbs-roce-regions",
        "verbs-roce-xdp",
        "verbs-lossy",
        "verbs-common",
        "verbs-own",
        "verbs-own-hosts",
    ),
    *("tcp-overlay", "tcp-one-host", "tcp-loopback", "tcp-veth", "tcp-bridge"),
    *("sockets-rings", "sockets-rsockets", "sockets-hosts", "tcp-hosts"),
    *("mpi-verbs", "mpi-vader", "ucx-posix"),
    *("cache-line", "memcpy", "proc-mem", "process-vm"),
]


def make(name, viaduct_bin):
    """Makes the way of this name."""
    own = {"verbs-lossy": Lossy, "verbs-roce-xdp": Xdp, "mpi-verbs": MpiVerbs, "verbs-regions-apart": Apart}
    own |= {"sockets-rings": Rings, "sockets-rsockets": Rsockets} | dict.fromkeys(Windows.FORMS, Windows)
    overlays = {"tcp-overlay": Overlay, "tcp-one-host": Within, "tcp-hosts": Offloading, "sockets-hosts": Carried}
    if name in own:
        return own[name](name, viaduct_bin)
    if name.startswith("verbs-"):
        return Verbs(name, viaduct_bin)
    if name in overlays:
        return overlays[name](name, viaduct_bin)
    if name in ("tcp-veth", "tcp-bridge"):
        return Kernel(name)
    kinds = {"tcp-loopback": Loopback, "mpi-vader": Vader, "ucx-posix": Ucx}
    return kinds.get(name, Memory)(name)


def installed(names):
    """Returns those of the names whose programs this machine has."""
    programs = {"mpi-verbs": "NPopenmpi", "mpi-vader": "NPopenmpi", "ucx-posix": "ucx_perftest", "verbs-lossy": "nft"}
    return [name for name in names if name not in programs or shutil.which(programs[name])]
