"""The lab: everything a test or the demo sets up, and its removal."""

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from .capture import Capture
from .guest import Container, Server
from .host import Host
from .netns import Namespace, cable
from .ovn import Ovn
from .ovs import CORE, Ovs, OvsContainer, OvsController, OvsPeer
from .shell import eventually
from .testpmd import Testpmd
from .verbs import Verbs
from .vm import Vm

_labs = 0


class Lab:
    """Owns namespaces, hosts and guests; leaving the `with` block takes them down, the last one first.

    All names carry the process id and a number, so that several labs live side by side.
    """

    def __init__(self):
        global _labs
        _labs += 1
        self.prefix = f"vd{os.getpid()}-{_labs}-"
        self.directory = Path(tempfile.mkdtemp(prefix="viaduct-"))
        self.cleanup = ExitStack()
        self.cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.namespaces = {}
        self.hosts = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cleanup.close()

    def namespace(self, name, kind=Namespace):
        """Returns the namespace of that name, created on first use."""
        if name not in self.namespaces:
            self.namespaces[name] = kind(self.prefix + name, self.directory)
            self.cleanup.callback(self.namespaces[name].delete)
        return self.namespaces[name]

    def plug(self, name, device="up0", mtu=9000, fabric="fabric", mac=None):
        """Gives a namespace a port of the underlay: a Linux bridge in a namespace of its own."""
        namespace, switch = self.namespace(name), self.namespace(fabric)
        if switch.run(["ip", "link", "show", "br0"], check=False).returncode != 0:
            switch.ip("link add br0 type bridge")
            # It must not send packets of its own: neither IPv6 nor multicast housekeeping.
            switch.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
            switch.sysctl("net.ipv6.conf.default.disable_ipv6", 1)
            switch.ip("link set br0 type bridge mcast_snooping 0")
            switch.ip("link set br0 mtu", mtu, "up")
        cable(namespace, device, switch, f"{name}-{device}", mtu, mac)
        switch.ip("link set", f"{name}-{device}", "master br0")
        return namespace

    def segment(self, *names, device="up0"):
        """Makes the devices segment and complete what they send, as a network card does, so that packets captured at
        the other end look as they would on a wire."""
        for name in names:
            self.namespace(name).run(["ethtool", "-K", device, "tx", "off"])

    def host(self, config, start=True):
        """Starts a viaductd with this configuration, in the namespace named like the host."""
        namespace = self.namespace(config.name)
        namespace.sysctl("net.ipv6.conf.all.disable_ipv6", 1)  # the kernel has nothing to say on Viaduct's wires
        host = Host(namespace, self.directory / config.name, config)
        self.hosts[config.name] = host
        self.cleanup.callback(host.forget)
        self.cleanup.callback(host.stop)
        return host.start() if start else host

    def ovs(self, config, core=CORE):
        """Starts a host with Open vSwitch in place of a viaductd."""
        ovs = Ovs(self.namespace(config.name), self.directory / config.name, config, core)
        self.cleanup.callback(ovs.stop)
        return ovs.start()

    def controller(self, host):
        """Starts an Open vSwitch that programs this host."""
        ovs = OvsController(host)
        self.cleanup.callback(ovs.stop)
        return ovs.start()

    def ovn(self):
        """Starts an OVN without hosts yet."""
        ovn = Ovn(self.directory / "ovn")
        self.cleanup.callback(ovn.stop)
        return ovn.start()

    def ovs_peer(self, name, *where):
        """Starts a plain machine on the underlay with the end of a tunnel; see `OvsPeer.start`."""
        peer = OvsPeer(self.plug(name, mtu=1600), self.directory / f"{name}-ovs")
        self.cleanup.callback(peer.stop)
        return peer.start(*where)

    def ovs_container(self, host, guest, mac, *addresses):
        return OvsContainer(self.namespace(guest), host, guest, mac, *addresses).attach()

    def container(self, host, guest):
        return Container(self.namespace(guest), host, guest).attach()

    def server(self, name, *addresses, device="up0"):
        """Makes a plain Linux machine on the underlay."""
        server = Server(self.plug(name, device))
        for address in addresses:
            server.namespace.ip("addr add", address, "dev", device, "nodad" if ":" in address else "")
        return server

    def vm(self, host, guest, kind=Vm, **options):
        """Starts a virtual machine, which boots while the caller continues."""
        vm = kind(self.directory / f"vm-{guest}", host, guest, **options).start()
        self.cleanup.callback(vm.stop)
        return vm

    def migrate(self, vm, host, between=None):
        """Migrates a virtual machine that runs to another host. Returns it there, and what QEMU tells of the way.
        `between` is called when the VM has left and does not go on yet."""
        moved, way = self.destination(vm, host)
        told = vm.migrate(way)
        moved.arrived()
        if between:
            between()
        moved.qmp("cont")
        vm.stop()
        return moved, told

    def destination(self, vm, host, paused=True):
        """Starts a QEMU on another host that waits for a virtual machine's state. Returns it, and the place where it
        waits, for QEMU's `migrate`."""
        moved = type(vm)(Path(tempfile.mkdtemp(dir=self.directory)), host, vm.name, **vm.kept)
        way = moved.directory / "way"
        moved.start(incoming=f"unix:{way}", paused=paused)
        self.cleanup.callback(moved.stop)
        eventually(way.exists, "QEMU listens")
        return moved, f"unix:{way}"

    def verbs(self, host, guest):
        """Returns the verbs device of a guest, for programs in a namespace of their own, `tools`."""
        return Verbs(self.namespace("tools"), host, guest, self.directory)

    def testpmd(self, host, guest, **options):
        testpmd = Testpmd(self.directory / f"testpmd-{guest}", host, guest, **options)
        self.cleanup.callback(testpmd.stop)
        return testpmd.start()

    def capture(self, name, device="up0", expression=""):
        """Captures on a device of the namespace while the `with` block runs."""
        number = len(list(self.directory.glob("*.pcap")))
        return Capture(self.namespace(name), device, self.directory / f"{name}-{device}-{number}.pcap", expression)
