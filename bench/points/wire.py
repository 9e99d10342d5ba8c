"""Between guests and the wire, in tunnels. The wire is a vhost-user port for every device."""

from ..generator import Traffic
from ..scenario import GATEWAY_MAC, LABEL, REMOTE, REMOTE_MAC, UNDERLAY, VNI, WIRE_MAC, Scenario, guest_mac
from . import Case, Point, point

ORDER = 3
WIRE = 1  # port number, after one guest
NEIGHBOUR = {"port": WIRE, "address": REMOTE, "mac": WIRE_MAC}


def tunnel_of(device, wanted):
    """Returns the tunnel that the device supports: OVS has no MPLS over UDP."""
    return wanted if device.name == "viaduct" else "vxlan"


def outward(tunnel, size, flows):
    """Makes a stream from the guest to a guest of the other host."""
    destination = GATEWAY_MAC if tunnel == "mpls-over-udp" else REMOTE_MAC
    addresses = {"source_ip": "10.1.0.1", "destination_ip": "10.2.0.1"}
    return {
        "tx": 0,
        "rx": WIRE,
        "size": size,
        "flows": flows,
        "source": guest_mac(0),
        "destination": destination,
        **addresses,
    }


def inward(tunnel, size, flows, mac):
    """Makes a stream from a guest of the other host to the guest."""
    outer = {
        "outer_source": WIRE_MAC,
        "outer_destination": mac,
        "outer_source_ip": REMOTE,
        "outer_destination_ip": UNDERLAY,
    }
    inner = {"source": REMOTE_MAC, "destination": guest_mac(0), "source_ip": "10.2.0.1", "destination_ip": "10.1.0.1"}
    number = VNI if tunnel == "vxlan" else LABEL
    return {"tx": WIRE, "rx": 0, "size": size, "flows": flows, "tunnel": tunnel, "id": number, **outer, **inner}


def traffic(direction, wanted, size, flows):
    """Returns a function that makes the traffic once the device is known."""

    def make(device):
        tunnel = tunnel_of(device, wanted)
        streams = []
        if direction in ("out", "both"):
            streams.append(outward(tunnel, size, flows))
        if direction in ("in", "both"):
            streams.append(inward(tunnel, size, flows, device.wire_mac))
        return Traffic(streams=streams, neighbours=[NEIGHBOUR])

    return make


@point
class Wire(Point):
    name = "wire"
    title = "Guest to wire and wire to guest"
    about = (
        "MPLS over UDP is routed, VXLAN bridged; OVS, which has no MPLS over UDP, does VXLAN in both rows. "
        "Sizes are those of the guest's frame."
    )
    metric = "cycles"
    over = "size"

    def cases(self, quick):
        for tunnel in ["mpls-over-udp"] if quick else ["mpls-over-udp", "vxlan"]:
            for direction in ["out", "in"] if quick else ["out", "in", "both"]:
                for size, flows in [(64, 1)] if quick else [(64, 1), (64, 10_000), (1400, 1)]:
                    key = {"tunnel": tunnel, "direction": direction, "size": size, "flows": flows}
                    scenario = Scenario(guests=1, tunnel=tunnel)
                    yield Case(key, ["viaduct", "ovs-vxlan"], scenario, traffic(direction, tunnel, size, flows))
