"""Guests with a user-space driver: DPDK's testpmd over virtio-user."""

import re
from pathlib import Path

from .shell import Background, Failed


class Testpmd:
    """A guest of kind "vhost" that runs testpmd.

    `mode` is testpmd's forwarding mode: `icmpecho` answers ARP and pings, `5tswap` sends every packet back where
    it came from, `txonly` sends UDP datagrams to the MAC `peer`. `ring` takes virtio-user's own options, such as
    `packed_vq=1,mrg_rxbuf=0`. With `vectorized=1`, it fails where DPDK does not receive so. `mac`: where the
    configuration has none.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    def __init__(self, directory: Path, host, guest, *, mode="icmpecho", ring="", core=0, mac=None, peer=None):
        entry = host.config.entry("guest", guest)
        queues = entry.get("queues", 1)
        device = f"net_virtio_user0,path={host.socket(guest)},mac={mac or entry['mac']},queues={queues}"
        if entry.get("role") == "client":
            device += ",server=1"
        if ring:
            device += "," + ring
        directory.mkdir(parents=True, exist_ok=True)
        self.name = guest
        self.words = [
            *(
                "dpdk-testpmd",
                "--lcores",
                f"0@{core},1@{core}",
                "--no-huge",
                "-m",
                "256",
                "--no-pci",
                "--no-telemetry",
                # Packed rings are vectorised by registers of this width only, which DPDK does not use unasked.
                "--force-max-simd-bitwidth=512",
                "--log-level=pmd.net.virtio.init:info",
            ),
            *("--no-shconf", "--file-prefix", f"{host.namespace.name}-{guest}", "--vdev", device, "--"),
            *("--forward-mode", mode, "--rxq", str(queues), "--txq", str(queues), "--total-num-mbufs", "8192"),
            *("--stats-period", "1"),
            *(["--eth-peer", f"0,{peer}"] if peer else []),
        ]
        self.vectorised = "vectorized=1" in ring
        self.log = directory / "testpmd.log"
        self.process = None

    def start(self):
        self.process = Background(self.words, self.log)
        self.process.wait_for("NIC statistics")
        if self.vectorised and not re.search("using .*vectorized Rx path", self.process.text()):
            raise Failed(f"DPDK does not receive by vectors: {self.process.describe()}")
        return self

    def received(self):
        """Returns how many packets it has received, as of its last statistics."""
        counts = re.findall(r"RX-packets: (\d+)", self.process.text())
        return int(counts[-1]) if counts else 0

    def stop(self):
        if self.process and self.process.stop() is None:
            raise Failed(f"testpmd did not end: {self.process.describe()}")
