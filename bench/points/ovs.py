"""Viaduct under an Open vSwitch's rules, against that Open vSwitch by itself."""

import time

from ..process import Failed
from ..scenario import Scenario
from . import Case, Point, point
from .chain import LONGEST, chain
from .throughput import one_way

ORDER = 10
PATIENCE = 120  # seconds until OVS has made all flows


@point
class OvsRules(Point):
    name = "ovs-rules"
    section = "ovs"
    title = "Guest to guest under Open vSwitch's rules, at 64 bytes"
    about = "A rule from port to port, one flow of OVS; cycles of Viaduct's worker, or of OVS's PMD thread."
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [1] if quick else [1, 10_000]:
            yield Case({"flows": flows}, ["viaduct-ovs-port", "ovs-port", "viaduct"], traffic=one_way(flows=flows))


@point
class OvsMegaflows(Point):
    name = "ovs-megaflows"
    section = "ovs"
    title = "The same, by number of Open vSwitch's flows"
    about = (
        "Rules that depend on the whole 5-tuple, so that OVS makes a flow for each; all of them are there before "
        "packets count."
    )
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        for flows in [1_000] if quick else [1_000, 10_000, 100_000]:
            yield Case(
                {"flows": flows},
                ["viaduct-ovs-per-flow", "ovs-per-flow"],
                Scenario(policy="per flow"),
                one_way(flows=flows),
                warm_up=0.5 + flows / 20_000,
                rounds=3,
            )

    def measure(self, session):
        device, flows = session.device, session.case.key["flows"]
        if hasattr(device, "controller"):
            self._install(session, device.controller, flows)
        return session.measure_traffic()

    def _install(self, session, controller, flows):
        """Has OVS make its flows, at a rate at which it can."""
        if controller.offloaded() > flows:
            controller.purge()
        generator = session.generator(one_way(flows=flows, rate=20_000))
        try:
            deadline = time.monotonic() + PATIENCE
            while (there := controller.offloaded()) < flows:
                if time.monotonic() > deadline:
                    raise Failed(f"{there} of {flows} flows are offloaded after {PATIENCE} s")
                controller.raise_limit()
                generator.run(1, share=True)
        finally:
            generator.stop()


@point
class OvsChain(Point):
    name = "ovs-chain"
    section = "ovs"
    title = "Chain of forwarding guests under Open vSwitch's rules"
    about = "Each packet passes the device once more than there are guests; rules from port to port."
    over = "guests"

    def cases(self, quick):
        for length in [1] if quick else range(1, LONGEST + 1):
            scenario = Scenario(guests=2 * LONGEST + 2)
            yield Case({"guests": length}, ["viaduct-ovs-port", "ovs-port"], scenario, chain(length, size=64))


@point
class OvsChainLatency(Point):
    name = "ovs-chain-latency"
    section = "ovs"
    title = "One way through a chain under Open vSwitch's rules, at 1000 packets a second"
    metric = "one_way_p50"
    over = "guests"

    def cases(self, quick):
        for length in [] if quick else (1, 4, 7):
            traffic = chain(length, size=64, rate=1000, stamp=True)
            scenario = Scenario(guests=2 * LONGEST + 2)
            yield Case({"guests": length}, ["viaduct-ovs-port", "ovs-port"], scenario, traffic, saturates=False)


@point
class OvsIdle(Point):
    name = "ovs-cpu"
    section = "ovs"
    title = "Processor time of ovs-vswitchd while Viaduct carries out its flows"
    about = "All its threads, over three seconds, as share of one core; `pmd-maxsleep` is 100 microseconds."
    metric = "percent"
    over = "traffic"

    def cases(self, quick):
        for traffic in ("none", "full"):
            yield Case({"traffic": traffic}, ["viaduct-ovs-port"], seconds=3, traffic=one_way(), rounds=3)

    def measure(self, session):
        case, controller = session.case, session.device.controller
        generator = session.generator()
        try:
            generator.run(1, share=True)
            start, used = time.monotonic(), controller.processor_seconds()
            if case.key["traffic"] == "full":
                done = generator.run(case.seconds, share=True)
                rate = sum(port["packets"] for port in done["ports"]) / done["seconds"] / 1e6
            else:
                time.sleep(case.seconds)
                rate = 0.0
            used, wall = controller.processor_seconds() - used, time.monotonic() - start
        finally:
            generator.stop()
        return {"percent": 100 * used / wall, "mpps": rate}
