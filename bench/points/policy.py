"""Stateful rules, flows that are decided one by one, and flows that are all new."""

from ..scenario import Scenario
from . import Case, Point, point
from .throughput import ALL_NEW, one_way

ORDER = 2
STATEFUL = Scenario(policy="stateful")


def learning_time(flows):
    """Returns the seconds in which the slowest device has seen that many flows."""
    return 0.4 + flows / 150_000


@point
class Stateful(Point):
    name = "stateful"
    title = "Stateful rules at 64 bytes, by number of flows"
    about = (
        "Connections are tracked; UDP to one port is allowed, everything else is dropped. OVS: conntrack rules of "
        "the same meaning."
    )
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [1_000] if quick else [1, 10_000, 100_000, 1_000_000]:
            devices = ["viaduct", "ovs-conntrack"]
            yield Case({"flows": flows}, devices, STATEFUL, one_way(flows=flows), warm_up=learning_time(flows))


@point
class OneByOne(Point):
    name = "one-by-one"
    title = "Flows decided one by one, at 64 bytes"
    about = (
        "Viaduct decides every flow by itself in any case (here without rules); OVS does where its rules depend on "
        "the whole 5-tuple. At a million flows OVS's upcall handlers share the generator's core, which leaves them "
        "their share there."
    )
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [10_000] if quick else [10_000, 100_000, 1_000_000]:
            many = flows == 1_000_000
            yield Case(
                {"flows": flows},
                ["viaduct", "ovs-per-flow"] + ["ovs-per-flow-smc"] * (flows == 100_000),
                Scenario(policy="per flow"),
                one_way(flows=flows),
                warm_up=15 if many else 0.5 + flows / 20_000,
                share=many,
                rounds=2 if many else None,
            )


@point
class NewFlows(Point):
    name = "new-flows"
    title = "New flows per second, stateful rules"
    about = (
        "Every packet begins a new connection that must be tracked: millions of packets a second are millions of new "
        "flows."
    )

    def cases(self, quick):
        devices, traffic = ["viaduct", "ovs-conntrack"], one_way(flows=ALL_NEW)
        yield Case({"flows": "all new"}, devices, STATEFUL, traffic, warm_up=0.1, seconds=0.5, share=True)
