"""Guest to guest without rules, by frame size and by number of flows."""

from ..generator import Replay, Traffic
from ..scenario import Scenario, guest_mac
from . import Case, Point, point

ORDER = 1
PEERS = ["viaduct", "ovs-normal", "ovs-port", "testpmd"]
ALL_NEW = 30_000_000  # flows: every packet begins one
SIZES = [64, 128, 256, 512, 1024, 1518]


def one_way(size=64, flows=1, **keys):
    """Makes a stream from guest 0 to guest 1."""
    return Traffic(streams=[{"tx": 0, "rx": 1, "size": size, "flows": flows, **keys}])


def between(pairs, **keys):
    """Makes a stream from guest to guest for each (sender, receiver)."""
    return [
        {"tx": tx, "rx": rx, "source": guest_mac(tx), "destination": guest_mac(rx)}
        | {"source_ip": f"10.1.{tx}.1", "destination_ip": f"10.1.{rx}.1", **keys}
        for tx, rx in pairs
    ]


@point
class Sizes(Point):
    name = "throughput"
    title = "Guest to guest, by frame size"
    about = "One direction, one flow, no rules. The bridge's figure holds its AF_PACKET ends."

    def cases(self, quick):
        sizes = [64, 1518] if quick else SIZES
        for size in sizes:
            peers = PEERS[:1] + PEERS[2:] if quick else PEERS + ["bridge"] * (size in (64, 512, 1518))
            yield Case({"size": size}, peers, traffic=one_way(size))
        if not quick:
            yield Case({"size": 9000}, PEERS, Scenario(mtu=9000), one_way(9000))


@point
class Flows(Point):
    name = "flows"
    title = "Guest to guest at 64 bytes, by number of flows"
    about = "Flows differ in source port and address and come one after the other. No rules."
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [10_000] if quick else [1, 1_000, 10_000, 100_000, 1_000_000]:
            peers = ["viaduct", "ovs-normal"] if quick else PEERS + ["ovs-normal-smc"] * (flows >= 100_000)
            yield Case({"flows": flows}, peers, traffic=one_way(flows=flows))


@point
class EqualLoad(Point):
    name = "equal-load"
    title = "Cycles per packet at an equal load of 1 million packets a second"
    about = "Not at saturation, where bursts are full: each device is offered the same."
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [] if quick else [1, 10_000]:
            yield Case({"flows": flows}, PEERS, traffic=one_way(flows=flows, rate=1e6), saturates=False)


@point
class Replayed(Point):
    name = "replay"
    title = "Guest to guest by the ring replayer"
    about = (
        "Not by DPDK's driver but by guests whose packets lie in their rings for good, and who only turn indexes "
        "(bench/replay): the generator's own cost is next to nothing. There are as many flows as the sender has "
        "descriptors, 32768 at most."
    )
    over = "flows"

    def cases(self, quick):
        for size, flows, ring in (
            [(64, 1, 1024)] if quick else [(64, 1, 1024), (64, 1_000, 1024), (64, 10_000, 16384), (1518, 1, 1024)]
        ):
            yield Case(
                {"size": size, "flows": flows},
                PEERS[:1] + PEERS[-1:] if quick else PEERS,
                traffic=Replay(size, flows, ring),
            )
