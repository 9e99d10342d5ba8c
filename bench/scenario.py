"""The task of a device under test, independent of any configuration language."""

from dataclasses import dataclass

VNI = LABEL = 1000
REMOTE_MAC = "02:00:00:00:02:01"  # of a guest on the other host
GATEWAY_MAC = "00:00:5e:00:01:00"
UNDERLAY = "172.31.1.1"
REMOTE = "172.31.1.2"
WIRE_MAC = "02:aa:00:00:00:02"  # of the other host
FIRST_PORT = 5001


def guest_mac(number):
    """Returns the MAC address of a guest."""
    high, low = divmod(number + 1, 256)
    return f"02:00:00:00:{high:02x}:{low:02x}"


@dataclass(frozen=True)
class Scenario:
    """Guests on one network, the rules between them, and the wire."""

    guests: int = 2
    # "off": frames are forwarded by MAC address. "stateful": connections are tracked, and UDP to port 5001 is allowed.
    # "per flow": forwarding depends on the whole 5-tuple, as with ECMP, so that each flow is decided separately.
    policy: str = "off"
    # "vxlan" or "mpls-over-udp": a wire follows the guests as the last port.
    tunnel: str = ""
    mtu: int = 1500
    # Guests send and accept TCP frames of up to 64 KB.
    segmentation: bool = False
    # Polling threads of the device, each with its own CPU.
    workers: int = 1

    @property
    def ports(self):
        """Returns how many ports the device has."""
        return self.guests + bool(self.tunnel)
