"""DPDK's testpmd, which hands bursts from port to port."""

import re
import subprocess

from .. import machine
from ..process import Child
from .base import Counters, Device, VhostPort


class Testpmd(Device):
    """testpmd in io mode over net_vhost. It looks at no packet, and is the limit of copying twice."""

    title = "testpmd io"
    conditions = "net_vhost ports, --forward-mode=io, 1024 descriptors, burst 32"

    def _start(self, scenario):
        sockets = [self.directory / f"vhost{number}.sock" for number in range(scenario.ports)]
        self.ports = [VhostPort(socket) for socket in sockets]
        words = ["--lcores", f"0@{machine.GENERATOR_CPU},1@{machine.DEVICE_CPU}", "--no-pci", "--in-memory"]
        words += ["--single-file-segments", "-m", 768, f"--file-prefix=viaduct-{self.name}"]
        for number, socket in enumerate(sockets):
            words += ["--vdev", f"net_vhost{number},iface={socket},queues=1"]
        words += ["--", "-i", "--nb-cores=1", "--forward-mode=io", "--rxd=1024", "--txd=1024", "--record-core-cycles"]
        if scenario.mtu > 1500:
            words += ["--mbuf-size=9728", "--total-num-mbufs=16384", f"--max-pkt-len={scenario.mtu + 18}"]
        else:
            words += ["--total-num-mbufs=65536"]
        self.log = self.directory / "log"
        daemon = Child("stdbuf", "-oL", "dpdk-testpmd", *words, "--auto-start", log=self.log, stdin=subprocess.PIPE)
        self.children = [daemon]
        daemon.wait_until(lambda: "testpmd> " in self.log.read_text(), "prompt")
        daemon.make_real_time("rte-worker", "dpdk-worker")

    def _ask(self, command, pattern):
        """Sends a command at the prompt, and waits for an answer of this form."""
        start = self.log.stat().st_size
        stdin = self.children[0].process.stdin
        stdin.write(command + "\n")
        stdin.flush()

        def answer():
            with self.log.open() as log:
                log.seek(start)
                return re.search(pattern, log.read(), re.S)

        return self.children[0].wait_until(answer, f"answer to {command!r}", 5)

    def counters(self):
        totals = r"Accumulated.*?RX-packets:\s*(\d+).*?\+{20,}(.*?)testpmd> "
        found = self._ask("show fwd stats all", totals)
        cycles = re.search(r"total cycles=(\d+)", found[2])
        return Counters(int(found[1]), int(cycles[1]) if cycles else 0)
