"""The Linux bridge."""

from dataclasses import dataclass
from pathlib import Path

from .. import machine
from ..process import run
from ..scenario import guest_mac
from .base import Device

BRIDGE = "vbench"


@dataclass(frozen=True)
class PacketPort:
    """A network device that the generator drives by AF_PACKET."""

    interface: str

    def vdev(self, number, queue_size, ring):
        """Returns the argument of the generator's --vdev."""
        return f"net_af_packet{number},iface={self.interface},framesz=2048,blocksz=65536,framecnt=4096,qdisc_bypass=1"


class LinuxBridge(Device):
    """A bridge between veth pairs, whose receive work is moved to the device's CPU."""

    title = "Linux bridge"
    conditions = (
        "veth pairs with AF_PACKET ends, receive packet steering to the device's CPU; the figure holds all of that "
        "path"
    )

    def _start(self, scenario):
        if scenario.mtu > 1500:
            raise ValueError("AF_PACKET rings here hold frames of up to 2 KB")
        self._cleanup()
        run("ip", "link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        run("ip", "link", "set", BRIDGE, "up")
        for number in range(scenario.guests):
            self._add_port(number)
        self.ports = [PacketPort(f"{BRIDGE}g{number}") for number in range(scenario.guests)]

    def _add_port(self, number):
        guest, port = f"{BRIDGE}g{number}", f"{BRIDGE}p{number}"
        run("ip", "link", "add", guest, "type", "veth", "peer", "name", port)
        for device in (guest, port):
            ipv6 = Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6")
            if ipv6.exists():
                ipv6.write_text("1")
            Path(f"/sys/class/net/{device}/queues/rx-0/rps_cpus").write_text(f"{1 << machine.DEVICE_CPU:x}")
            run("ip", "link", "set", device, "up")
        run("ip", "link", "set", port, "master", BRIDGE)
        run("bridge", "fdb", "replace", guest_mac(number), "dev", port, "master", "static")

    def _cleanup(self):
        for path in Path("/sys/class/net").glob(f"{BRIDGE}p*"):
            run("ip", "link", "del", path.name, check=False)
        run("ip", "link", "del", BRIDGE, check=False)
