"""Chains of guests that forward to each other through the device."""

from ..generator import Traffic
from ..scenario import Scenario, guest_mac
from . import Case, Point, point

ORDER = 5
LONGEST = 7


def chain(length, **stream):
    """Makes traffic from guest 0 to the last one, through `length` guests with two interfaces each."""
    hops = range(1, 2 * length, 2)
    forwards = [
        {"from": port, "to": port + 1, "source": guest_mac(port + 1), "destination": guest_mac(port + 2)}
        for port in hops
    ]
    return Traffic(streams=[{"tx": 0, "rx": 2 * length + 1, **stream}], forwards=forwards)


@point
class Chain(Point):
    name = "chain"
    title = "Chain of forwarding guests"
    about = (
        "Each packet passes the device once more than there are guests. All guests forward on the generator's core, "
        "in turn."
    )
    over = "guests"

    def cases(self, quick):
        for size in [64] if quick else [64, 1518]:
            for length in [1] if quick else range(1, LONGEST + 1):
                devices = ["viaduct", "ovs-normal", "ovs-port"] + ["bridge"] * (length in (1, 4, 7))
                yield Case(
                    {"size": size, "guests": length},
                    devices,
                    Scenario(guests=2 * LONGEST + 2),
                    chain(length, size=size),
                )


@point
class ChainLatency(Point):
    name = "chain-latency"
    title = "One way through a chain of guests, at 1000 packets a second"
    metric = "one_way_p50"
    over = "guests"

    def cases(self, quick):
        for length in [] if quick else (1, 4, 7):
            traffic = chain(length, size=64, rate=1000, stamp=True)
            yield Case(
                {"guests": length}, ["viaduct", "ovs-port"], Scenario(guests=2 * LONGEST + 2), traffic, saturates=False
            )
