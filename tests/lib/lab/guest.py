"""The base class of guests, and containers: namespaces with a tap device of viaductd in them."""

import math
import re

from .netns import Namespace
from .shell import PATIENCE, Failed

# Packets that a tap keeps for the daemon.
QUEUE = 10_000


class Guest:
    """Something with a shell that is attached to a network. Subclasses have `run(words)` and `name`."""

    def ping(self, address, count=3, *, size=56, options=(), timeout=None, interval=0.1):
        """Sends echo requests; returns (received, output).

        Waits for all echoes, and with `timeout` only that long where none comes (`-W`): once one has come, ping waits
        for the last ones an interval, or twice the longest round trip, which is too short on a busy machine. With a
        deadline, ping waits for all of them, and sends more meanwhile, which are not counted here.
        """
        deadline = PATIENCE + math.ceil(20 * count * interval)
        waiting = ["-W", timeout] if timeout else ["-w", deadline]
        done = self.run(
            ["ping", "-n", "-c", count, "-i", interval, *waiting, "-s", size, *options, address],
            check=False,
            timeout=20 + (count * (timeout + interval) if timeout else deadline),
        )
        if not re.search(r"\d+ received", done.stdout):
            raise Failed(f"{self.name}: ping {address}: {done.stdout}{done.stderr}")
        answered = {int(number) for number in re.findall(r"icmp_seq=(\d+) ttl=", done.stdout)}
        return len(answered.intersection(range(1, count + 1))), done.stdout

    def reaches(self, address, attempts=60, **options):
        """Says whether an echo to the address comes back; the first ones may wait for neighbours."""
        return any(self.ping(address, 1, timeout=1, **options)[0] for _ in range(attempts))

    def expect_ping(self, address, count=3, **options):
        """Fails unless every echo after the first answered one comes back; returns the output."""
        if not self.reaches(address, options=options.get("options", ())):
            raise Failed(f"{self.name} does not reach {address}")
        received, output = self.ping(address, count, **options)
        if received != count:
            raise Failed(f"{self.name}: {received} of {count} echoes from {address}\n{output}")
        return output

    def expect_no_ping(self, address, count=3):
        received, output = self.ping(address, count, timeout=1)
        if received:
            raise Failed(f"{self.name} reaches {address}, which it must not\n{output}")
        return output


class Container(Guest):
    """A namespace into which the tap device of a guest of kind "tap" was moved."""

    def __init__(self, namespace: Namespace, host, guest):
        self.namespace = namespace
        self.name = guest
        self.host = host
        entry = host.config.entry("guest", guest)
        self.device = entry["device"]
        self.addresses = entry.get("addresses", [])
        self.mac = entry.get("mac")
        self.network = host.config.entry("network", entry["network"])

    def attach(self):
        """Takes the tap out of the host's namespace and gives it the guest's addresses and routes. It keeps packets as
        long as the slowest machine may have no CPU for the daemon."""
        namespace = self.namespace
        self.host.namespace.ip("link set", self.device, "netns", namespace.name)
        namespace.ip("link set", self.device, "txqueuelen", QUEUE)
        if self.mac:
            namespace.ip("link set", self.device, "address", self.mac)
        namespace.ip("link set", self.device, "up")
        for words in address_words(self.device, self.addresses, self.network):
            namespace.ip(*words)
        return self

    @property
    def verbs_device(self):
        """Returns the guest's verbs device, as programs name it (VIADUCT_RDMA)."""
        return self.host.run_dir / "rdma" / self.host.config.entry("guest", self.name)["rdma"]

    def run(self, command, **options):
        return self.namespace.run(command, **options)

    def background(self, command, label=None):
        return self.namespace.background(command, label or f"{self.name}-{command[0]}")

    def flush_neighbours(self):
        self.namespace.ip("neigh flush dev", self.device)


class Server(Container):
    """A plain Linux machine: a namespace unknown to viaductd."""

    def __init__(self, namespace: Namespace):
        self.namespace = namespace
        self.name = namespace.name


class Beside(Server):
    """A place for programs that map the windows of a guest of kind "vhost" as those in its virtual machine do."""

    def __init__(self, namespace: Namespace, host, guest):
        super().__init__(namespace)
        self.name, self.host = guest, host

    @property
    def verbs_device(self):
        entry, directory = self.host.config.entry("guest", self.name), self.host.run_dir / "rdma/vm"
        own, trust = directory / entry["rdma"], entry.get("rdma_trust")
        common = f"+{directory}/trust-{trust}" if trust else ""
        return f"{own}{common}@{own}.vsock_4791"


def address_words(device, addresses, network):
    """Returns the `ip` commands that give a guest its addresses and the network's gateways as default routes."""
    gateways = network.get("gateways", [])
    for address in addresses:
        six = ":" in address
        gateway = next((gateway for gateway in gateways if (":" in gateway) == six), None)
        length = gateway.split("/")[1] if gateway else ("128" if six else "32")
        address = address if "/" in address else f"{address}/{length}"
        yield ("addr add", address, "dev", device, "nodad" if six else "")
        if gateway:
            yield ("-6 route" if six else "route", "replace default via", gateway.split("/")[0], "dev", device)
