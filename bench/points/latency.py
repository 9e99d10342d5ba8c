"""Round trips between two guests, idle and with traffic of others."""

from ..generator import Traffic
from ..scenario import Scenario, guest_mac
from . import Case, Point, point
from .throughput import between

ORDER = 4
BACKGROUND = 2e6  # packets a second


def probe(size, **keys):
    """Makes a probe from guest 0 to guest 1 and back."""
    return {"a": 0, "b": 1, "size": size, "source": guest_mac(0), "destination": guest_mac(1), **keys}


@point
class PingPong(Point):
    name = "ping-pong"
    title = "Round trip, idle"
    about = (
        "Guest, device, guest, device, guest. Above 40 ms the maximum is the scheduler's limit on real-time threads. "
        "At 1000 round trips a second Viaduct's worker sleeps in between, and what shows is its wake-up."
    )
    metric = "p50"

    def cases(self, quick):
        devices = ["viaduct", "testpmd", "ovs-port"]
        for size in [64] if quick else [64, 256, 512, 1024, 1518]:
            yield Case(
                {"size": size, "rate": "back to back"}, devices, traffic=Traffic(probe=probe(size)), saturates=False
            )
        if not quick:
            yield Case(
                {"size": 64, "rate": "1000/s"},
                devices,
                traffic=Traffic(probe=probe(64, interval=1000)),
                seconds=2,
                saturates=False,
            )


@point
class Loaded(Point):
    name = "ping-pong-loaded"
    title = "Round trip, with 2 million packets a second of four other guests"
    about = (
        "Each of the four sends 100 flows. Probe and background share the generator's core: its own delay is in all "
        "figures alike."
    )
    metric = "p99"

    def cases(self, quick):
        background = between([(2, 3), (3, 2), (4, 5), (5, 4)], flows=100, rate=BACKGROUND / 4)
        for size in [64] if quick else [64, 1518]:
            traffic = Traffic(streams=background, probe=probe(size))
            yield Case(
                {"size": size},
                ["viaduct", "ovs-normal", "ovs-port"],
                Scenario(guests=6),
                traffic,
                seconds=2,
                saturates=False,
            )
