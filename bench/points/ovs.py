"""Viaduct under an Open vSwitch's rules, against that Open vSwitch by itself."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor

from ..process import Failed
from ..scenario import Scenario
from . import Case, Point, point, wire
from .chain import LONGEST, chain
from .throughput import one_way

ORDER = 10
PATIENCE = 180  # seconds until OVS has made or changed all flows
PER_FLOW = ["viaduct-ovs-per-flow", "ovs-per-flow"]
SLICE = 0.2  # seconds of traffic between two looks at whether flows have changed
LOOK = 0.01  # seconds between two looks at the number of flows, while traffic goes on


def install(session, flows, rate):
    """Makes OVS create its flows, with packets at this rate. Returns how long that took, seconds."""
    switch = session.device.switch
    generator = session.generator(one_way(flows=flows, rate=rate))
    try:
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            while True:
                switch.raise_limit()
                traffic = pool.submit(generator.run, 1, share="naps")
                while not traffic.done():
                    if (there := switch.flows_in_use()) >= flows:
                        return time.monotonic() - began
                    time.sleep(LOOK)
                traffic.result()
                if time.monotonic() - began > PATIENCE:
                    raise Failed(f"{there} of {flows} flows are there after {PATIENCE} s")
    finally:
        generator.stop()


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
                PER_FLOW,
                Scenario(policy="per flow"),
                one_way(flows=flows),
                warm_up=0.5 + flows / 20_000,
                rounds=3,
            )

    def measure(self, session):
        device, flows = session.device, session.case.key["flows"]
        if device.switch is not device:
            if device.switch.flows_in_use() > flows:
                device.switch.purge()
            install(session, flows, 20_000)
        return session.measure_traffic()


@point
class OvsInstalls(Point):
    name = "ovs-installs"
    section = "ovs"
    title = "How fast Open vSwitch makes flows"
    about = (
        "200,000 packets a second, each of another flow of the 5-tuple, until there is a flow of OVS for each; with "
        "Viaduct, until Viaduct has all of them. OVS alone makes flows of nearly all. Generator and PMD thread "
        "share a CPU with Viaduct, whose worker has the other; all other threads use both. The generator sleeps when "
        "it has nothing to send."
    )
    metric = "flows_per_second"
    over = "flows"

    def cases(self, quick):
        for flows in [1_000] if quick else [20_000, 200_000]:
            yield Case({"flows": flows}, PER_FLOW, Scenario(policy="per flow"), rounds=3)

    def measure(self, session):
        flows, switch = session.case.key["flows"], session.device.switch
        session.device.spread()
        switch.purge()
        rate = flows / install(session, flows, 200_000)
        switch.purge()
        return {"flows_per_second": rate}


@point
class OvsChanges(Point):
    name = "ovs-changes"
    section = "ovs"
    title = "How long until a changed rule has changed all flows"
    about = (
        "From the change of the rule until each flow sends to another guest, while packets of all of them pass at "
        "50,000 a second."
    )
    metric = "seconds"
    over = "flows"

    def cases(self, quick):
        for flows in [1_000] if quick else [20_000, 200_000]:
            yield Case({"flows": flows}, PER_FLOW, Scenario(guests=3, policy="per flow"), rounds=3)

    def measure(self, session):
        device, flows = session.device, session.case.key["flows"]
        device.spread()
        device.switch.purge()
        device.switch.redirect(1)
        install(session, flows, 20_000)
        generator = session.generator(one_way(flows=flows, rate=50_000))
        try:
            began = time.monotonic()
            device.switch.redirect(2)
            while True:
                done = generator.run(SLICE, share="naps")
                ended = time.monotonic()
                if ended - began > PATIENCE:
                    raise Failed(f"after {PATIENCE} s, flows still send to the guest of before")
                # Looking at all flows takes a CPU for long. So look only once no packets go to the old guest except
                # those by which guests announce themselves. The time of the look does not count if all flows have
                # changed.
                strays = done["ports"][1]["packets"]
                if strays < session.case.scenario.guests and device.flows_to(2) == flows:
                    return {"seconds": ended - began}
        finally:
            generator.stop()
            device.switch.purge()


@point
class OvsTunnel(Point):
    name = "ovs-vxlan"
    section = "ovs"
    title = "Into VXLAN under Open vSwitch's rules, at 64 bytes"
    about = "The wire is a vhost-user port for both; a rule from the guest to the tunnel's port."
    metric = "cycles"
    over = "flows"
    direction = "out"
    device = "viaduct-ovs-vxlan"

    def cases(self, quick):
        for flows in [1] if quick else [1, 10_000]:
            scenario = Scenario(guests=1, tunnel="vxlan")
            traffic = wire.traffic(self.direction, "vxlan", 64, flows)
            yield Case({"direction": self.direction, "flows": flows}, [self.device, "ovs-vxlan"], scenario, traffic)


@point
class OvsTunnelIn(OvsTunnel):
    name = "ovs-vxlan-in"
    section = "ovs"
    title = "Out of VXLAN under Open vSwitch's rules, at 64 bytes"
    about = "The same the other way. With Viaduct the tunnel is a port of its own, otherwise one of OVS."
    direction = "in"
    device = "viaduct-ovs-tunnel"


@point
class OvsConntrack(Point):
    name = "ovs-ct"
    section = "ovs"
    title = "Connections tracked by Open vSwitch (ct), at 64 bytes"
    about = (
        "OVS does it in software, with Viaduct's ports as by itself. With Viaduct, the cycles of its worker and those "
        "of OVS's PMD thread are measured one after the other; a packet takes both. PMD threads have as much as they "
        "can do; the worker has 500,000 packets a second at most, because the PMD thread has a share of a CPU then."
    )
    metric = "cycles"
    over = "flows"

    def cases(self, quick):
        devices = ["viaduct-ovs-conntrack", "viaduct-ovs-conntrack-pmd", "ovs-conntrack"]
        for flows in [1] if quick else [1, 10_000]:
            traffic = functools.partial(self.traffic, flows)
            yield Case({"flows": flows}, devices, Scenario(policy="stateful"), traffic, warm_up=1, share="turns")

    @staticmethod
    def traffic(flows, device):
        paced = {"rate": 500_000} if device.name == "viaduct-ovs-conntrack" else {}
        return one_way(flows=flows, **paced)


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
