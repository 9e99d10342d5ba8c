"""Programs that use a guest's verbs device: perftest, the ping-pongs, and what tests write themselves."""

import itertools
import os
import signal
import sys
from pathlib import Path

from .host import binary
from .shell import PATIENCE, Background, Failed, eventually

_ports = itertools.count(20000)


# Stands for the device's name in a program's words.
DEVICE = "DEVICE"


class Verbs:
    """The verbs device of a guest, for programs in a namespace in which they find each other by TCP."""

    device_name = "viaduct0"

    def __init__(self, namespace, host, guest, directory: Path, address="localhost"):
        self.address = address
        self.namespace = namespace
        self.host = host
        self.guest = guest
        self.directory = directory
        self.device = host.config.entry("guest", guest).get("rdma", guest)

    @property
    def socket(self):
        return self.host.run_dir / "rdma" / self.device

    def start(self, words, label=None, **environment):
        """Starts a program that finds the device, and our library."""
        library = binary("verbs/libibverbs.so.1").parent
        ours = {"LD_LIBRARY_PATH": str(library), "VIADUCT_RDMA": str(self.socket)}
        environment = {**os.environ, **ours, **environment}
        log = self.directory / f"{self.guest}-{label or Path(str(words[0])).name}-{next(_ports)}.log"
        return Background(self.namespace.words(words), log, env=environment)

    def python(self, script, *words):
        """Starts a program in Python, which may use pyverbs and imports what lies in `tests/lib`."""
        library = Path(__file__).resolve().parents[1]
        prelude = f"import sys; sys.path.insert(0, {str(library)!r})\n"
        return self.start([sys.executable, "-u", "-c", prelude + script, *words], "python")

    def listens(self, port):
        """Says whether a program listens at that TCP port."""
        return listens(self.namespace, port)

    def answers(self):
        """Says whether a program listens by the connection manager."""
        return any(row["state"] == "listen" for row in self.host.viaduct("rdma", "cm", "--device", self.device))

    def shown(self):
        """Returns what `viaduct rdma show` says of it."""
        return self.host.viaduct("rdma", "show", self.device)

    def counter(self, name):
        return self.shown()["counters"][name]

    def queue_pairs(self):
        return self.host.viaduct("rdma", "qp", "--device", self.device)

    def is_free(self):
        """Says whether no program has anything of it any more."""
        shown = self.shown()
        return not any(shown[key] for key in ("clients", "qps", "mrs", "cqs", "registered_bytes"))

    def expect_free(self):
        eventually(self.is_free, f"{self.device} without clients")


class Meeting:
    """A program run twice: as a server by one device, as its client by another."""

    def __init__(self, server: Verbs, client: Verbs, words):
        port = next(_ports)
        words = [*words, "-p", port]
        named = lambda side: [side.device_name if word == DEVICE else word for word in words]
        self.server = server.start(named(server))
        eventually(lambda: server.listens(port) or not self.server.running(), f"a listener: {words}")
        if not self.server.running():
            raise Failed(self.server.describe())
        self.client = client.start([*named(client), server.address])

    @property
    def both(self):
        return (self.server, self.client)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.both:
            program.stop(signal.SIGKILL)

    def statuses(self, timeout=PATIENCE):
        """Returns the exit statuses of both, once they have ended."""
        for program in self.both:
            try:
                eventually(lambda: not program.running(), "the program's end", timeout)
            except Failed as late:
                raise Failed(f"{late}\n{self.describe()}") from None
        return tuple(program.status for program in self.both)

    def expect_success(self, timeout=PATIENCE):
        if self.statuses(timeout) != (0, 0):
            raise Failed(self.describe())
        return self.client.text()

    def describe(self):
        return "\n".join(f"({one.status}) {one.describe()}" for one in self.both)


def meet(server, client, *words, timeout=PATIENCE):
    """Runs a program by both to its end, which must be a good one; returns what the client printed."""
    with Meeting(server, client, words) as meeting:
        return meeting.expect_success(timeout)


def listens(namespace, port):
    """Says whether somebody listens at that TCP port."""
    with namespace.entered():
        tables = Path("/proc/thread-self/net/tcp").read_text() + Path("/proc/thread-self/net/tcp6").read_text()
    rows = [row.split() for row in tables.splitlines()]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows if len(row) > 3)
