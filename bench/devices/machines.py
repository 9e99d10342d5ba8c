"""Ways between two virtual machines: verbs by windows, Linux's Soft-RoCE, sockets."""

import json
import os
from types import SimpleNamespace

from ..machine import DEVICE_CPU, GENERATOR_CPU
from .verbs import Way

WINDOW_MB = 256
# The niceness of machines: they come before everything except the daemons, for which they wait.
BEHIND = -10
# For KINDS: the title, whether the guests are on two hosts, keys of both, the transport that `viaduct rdma qp` must
# show.
VERBS = {"rdma": True, "window_mb": WINDOW_MB}
KINDS = {
    "vm-common": ("VMs, window in common", False, {**VERBS, "rdma_trust": "bench", "sockets": True}, "shared"),
    "vm-own": ("VMs, windows of their own", False, VERBS, "copy"),
    "vm-hosts": ("VMs of two hosts", True, VERBS, "roce"),
    "vm-rxe": ("VMs, Soft-RoCE", False, {}, None),
    "vm-rxe-hosts": ("VMs of two hosts, Soft-RoCE", True, {}, None),
}
BRIDGED = "vm-bridged"
NAMES = [*KINDS, BRIDGED]


def kind():
    """Returns the class of the machines."""
    from lab.verbs_vm import VerbsVm
    from lab.vm import accelerator

    class Machine(VerbsVm):
        def more_words(self):
            # Under TCG, `rep movsb` goes byte by byte, and libraries and kernels avoid it if told so.
            return [*super().more_words(), *([] if accelerator() == "kvm" else ["-cpu", "max,-erms,-fsrm"])]

    return Machine


class Machines(Way):
    """Programs in two virtual machines with one CPU each, of the same kernel, files and network device."""

    def __init__(self, name, binaries):
        super().__init__(name)
        self.binaries, self.machines = binaries, []
        self.title, two_hosts, self.keys, self.transport = KINDS[name]
        self.places = {"a": ("a1",), "b": ("b1",)} if two_hosts else {"a": ("a1", "a2")}
        where = "two hosts, MPLS over UDP by AF_PACKET" if two_hosts else "one host"
        what = "our libraries" if self.keys else "the guest kernel's rdma_rxe over virtio-net"
        self.conditions = f"two VMs under QEMU, a CPU each; {where}; verbs by {what}"

    def _set_up(self):
        from lab import topology

        os.environ["VIADUCT_BIN"] = str(self.binaries)
        everybody = [guest for guests in self.places.values() for guest in guests]
        for name, guests in self.places.items():
            self.lab.plug(name)
            keys = {guest: {**self.keys, "rdma": guest} if self.keys else {} for guest in guests}
            config = topology.host_config(name, {guest: topology.vhost(guest, **keys[guest]) for guest in guests})
            remotes = [guest for guest in everybody if guest not in guests]
            host = self.lab.host(topology.tunnel_routes(config, "mpls-over-udp", *remotes))
            self.machines += [self.lab.vm(host, guest, kind()) for guest in guests]
        self._boot()
        if self.transport:
            self._check_transport()

    def _boot(self):
        self.client, self.server = (machine.boot(240).programs for machine in self.machines)
        self.address = self.server.address
        self.machines[0].expect_ping(self.address, 1)
        for machine, cpu in zip(self.machines, (GENERATOR_CPU, DEVICE_CPU)):
            for thread in map(int, os.listdir(f"/proc/{machine.qemu.process.pid}/task")):
                os.sched_setaffinity(thread, {cpu})
                os.setpriority(os.PRIO_PROCESS, thread, BEHIND)

    def _check_transport(self):
        """Fails unless a queue pair uses the transport that is to be measured."""
        from lab import Meeting, eventually
        from lab.verbs import DEVICE

        host, guest = self.machines[0].host, self.machines[0].name
        rows = lambda: host.viaduct("rdma", "qp", "--device", guest)
        with Meeting(self.server, self.client, ["ib_write_bw", "-d", DEVICE, "-x", "1", "-F", "-D", "5"]):
            going = lambda: [row["transport"] for row in rows() if row["state"] == "RTS"]
            eventually(lambda: self.transport in going(), f"a queue pair with transport {self.transport}", 60)

    def moved(self):
        """Returns how many connections went to rings."""
        return json.loads(self.machines[0].host.call("--json", "sockets").stdout)["matched"]

    @property
    def pids(self):
        programs = [each for machine in self.machines for each in (machine.qemu, machine.vsock) if each]
        return [*super().pids, *(program.process.pid for program in programs if program.running())]


class Bridged(Machines):
    """Two VMs on two hosts whose networks are the kernel's: a tap of QEMU and a Linux bridge on each."""

    def __init__(self, name):
        Way.__init__(self, name)
        self.machines, self.keys = [], {}
        self.title = "VMs of two hosts, Linux bridges"
        self.conditions = "two VMs under QEMU, a CPU each; virtio-net by QEMU on a tap, a Linux bridge on each host"

    def _set_up(self):
        from lab import topology

        for name, guest in (("a", "a1"), ("b", "b1")):
            host = self.lab.plug(name, mtu=1500)
            host.ip("link add br0 type bridge")
            host.ip("tuntap add tap0 mode tap")
            for device in ("up0", "tap0"):
                host.ip(f"link set {device} up master br0")
            host.ip("link set br0 up")
            config = topology.host_config(name, {guest: topology.vhost(guest)})
            tapped = type("Tapped", (Tapped, kind()), {"prefix": host.words([])})
            self.machines.append(self.lab.vm(SimpleNamespace(name=name, config=config), guest, tapped))
        self._boot()


class Tapped:
    """The network of a machine whose namespace has a tap for it."""

    def net_words(self, queues):
        return ["-netdev", "tap,id=net0,ifname=tap0,script=no,downscript=no"]


def make(name, viaduct_bin):
    """Makes the way of this name."""
    return Bridged(name) if name == BRIDGED else Machines(name, viaduct_bin)
