"""Cost against the size of tables, and changes of tables under traffic."""

import os
import random
import threading
import time
from ipaddress import IPv4Address

from .. import machine
from ..devices.viaduct import host_toml
from ..generator import MOST_PORTS, Generator, Traffic
from ..process import run
from ..runner import traffic_metrics
from ..scenario import FIRST_PORT, Scenario
from . import Case, Point, point
from .policy import STATEFUL
from .throughput import ALL_NEW, between, one_way
from .wire import NEIGHBOUR, outward

ORDER = 7
# Prefix lengths of the Internet's IPv4 table, roughly, in percent.
LENGTHS = {24: 60, 23: 10, 22: 12, 21: 5, 20: 5, 19: 3, 18: 2, 16: 3}
# Changes of routes in one request, and requests a second.
BATCH, REQUESTS = 1_000, 10
LOAD = 0.8  # of the highest rate at which nothing is lost


def prefixes(count):
    """Makes so many different prefixes, with none of the addresses that traffic uses; always the same ones."""
    chance, found = random.Random(1), {}
    while len(found) < count:
        lengths = chance.choices(list(LENGTHS), LENGTHS.values(), k=count - len(found))
        for length in lengths:
            bits = chance.getrandbits(length) << (32 - length)
            if bits >> 24 not in (0, 10, 127, 172) and bits >> 24 < 224:
                found[f"{IPv4Address(bits)}/{length}"] = None
    return list(found)


class Routes:
    """The routes that a device has besides those of its scenario."""

    def __init__(self, device):
        self.device = device
        self.file = device.directory / "routes.txt"

    def _change(self, action, lines, *words):
        self.file.write_text("\n".join(lines))
        command = [self.device.binaries / "viaduct", "--run-dir", self.device.directory / "run"]
        run(*command, "rt", action, "--network", "blue", "-f", self.file, *words)

    def add(self, lines):
        self._change("add", lines, "--to", "drop")

    def remove(self, lines):
        self._change("del", lines)

    def become(self, count):
        """Adds or removes routes until there are `count`."""
        there = getattr(self.device, "extra_routes", [])
        if len(there) != count:
            wanted = prefixes(count)
            old, new = set(there), set(wanted)
            if gone := [each for each in there if each not in new]:
                self.remove(gone)
            if fresh := [each for each in wanted if each not in old]:
                self.add(fresh)
            self.device.extra_routes = wanted


@point
class ByRoutes(Point):
    name = "routes"
    title = "Guest to wire, MPLS over UDP, by number of routes"
    about = (
        "Routes are looked up for new flows only: one row with 10 k flows, one where every packet begins a flow. No "
        "rules."
    )
    metric = "cycles"
    over = "routes"

    def cases(self, quick):
        for count in [10_000] if quick else [0, 10_000, 100_000, 1_000_000]:
            for flows, text in [(10_000, "10 k")] if quick else [(10_000, "10 k"), (ALL_NEW, "all new")]:
                traffic = Traffic(streams=[outward("mpls-over-udp", 64, flows)], neighbours=[NEIGHBOUR])
                scenario = Scenario(guests=1, tunnel="mpls-over-udp")
                yield Case(
                    {"routes": count, "flows": text}, ["viaduct"], scenario, traffic, rounds=3, share=flows == ALL_NEW
                )

    def measure(self, session):
        Routes(session.device).become(session.case.key["routes"])
        return session.measure_traffic()


@point
class ByRules(Point):
    name = "rules"
    title = "New flows at 64 bytes, by number of rules"
    about = "Every packet begins a flow that the last rule allows; those tried before it name other sources."
    metric = "cycles"
    over = "rules"

    def cases(self, quick):
        for count in [1_000] if quick else [1, 1_000, 8_000, 32_000]:
            yield Case(
                {"rules": count}, ["viaduct"], STATEFUL, one_way(flows=ALL_NEW), seconds=0.5, rounds=3, share=True
            )

    def measure(self, session):
        device, case = session.device, session.case
        rules = [
            f'[[rule]]\nnetwork = "blue"\npriority = 50\nfrom = {{ cidr = "{prefix}" }}\nprotocol = "udp"\n'
            f'ports = {FIRST_PORT}\naction = "drop"\n'
            for prefix in prefixes(case.key["rules"] - 1)
        ]
        file = device.directory / "rules.toml"
        file.write_text("\n".join([host_toml(case.scenario), *rules]))
        run(device.binaries / "viaduct", "--run-dir", device.directory / "run", "apply", file)
        return session.measure_traffic()


@point
class ByGuests(Point):
    name = "guests"
    title = "Guest to guest at 64 bytes, by number of guests attached"
    about = (
        "Two have traffic. The others' rings are up, by the same driver in stopped processes, and are polled in vain."
    )
    metric = "cycles"
    over = "guests"

    def cases(self, quick):
        for guests in [] if quick else [2, 16, 64, 256]:
            yield Case(
                {"guests": guests}, ["viaduct"], Scenario(guests=guests), one_way(flows=1_000), active=2, rounds=3
            )

    def measure(self, session):
        self._attach_idle(session)
        return session.measure_traffic()

    def _attach_idle(self, session):
        """Attaches the guests without traffic, as far as they are not attached yet."""
        device, traffic = session.device, Traffic(queue_size=256, memory=64)
        there = session.case.active + MOST_PORTS * len(device.idle_guests)
        for first in range(there, len(device.ports), MOST_PORTS):
            ports = device.ports[first : first + MOST_PORTS]
            idle = Generator(session.programs, ports, 0, traffic, device.directory / f"idle-{first}.log")
            idle.child.pause()
            device.idle_guests.append(idle)


@point
class ByWorkers(Point):
    name = "workers"
    title = "Guest to guest at 64 bytes, by number of workers"
    about = (
        "For each worker two guests that send to each other, 100 flows each way. One core makes the traffic of all."
    )
    over = "workers"
    needs = "" if os.cpu_count() > 2 else "three CPUs or more, one of them for the generator"

    def cases(self, quick):
        counts = [] if self.needs else [1, 2] if quick else [1, 2, 4, 8]
        for workers in (count for count in counts if count < os.cpu_count()):
            pairs = [(guest, guest ^ 1) for guest in range(2 * workers)]
            traffic = Traffic(streams=between(pairs, flows=100))
            yield Case({"workers": workers}, ["viaduct"], Scenario(guests=2 * workers, workers=workers), traffic)


class Churn:
    """Changes routes and reads the counters, until it is left."""

    def __init__(self, device, changing):
        self.device, self.changing = device, changing
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._read)] + [threading.Thread(target=self._change)] * changing
        self.changes, self.failure = 0, None

    def __enter__(self):
        self.start = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.seconds = time.monotonic() - self.start

    def _read(self):
        while not self.over.wait(1):
            self.device.ask("stats")
            self.device.ask("dropstats")

    def _change(self):
        routes = Routes(self.device)
        lines = [f"100.64.{number >> 8}.{number & 255}/32" for number in range(BATCH)]
        due, there = time.monotonic(), False
        while there or not self.over.wait(max(0, due - time.monotonic())):
            (routes.remove if there else routes.add)(lines)
            there = not there
            self.changes += BATCH
            due += 1 / REQUESTS


@point
class UnderChurn(Point):
    name = "churn"
    title = "Packets lost while tables change"
    about = (
        f"Traffic at 80 % of the highest rate at which nothing was lost, {BATCH * REQUESTS} changes of routes a "
        f"second in requests of {BATCH}, counters read each second; and the same without changes, in turns. The "
        "changing programs share the generator's core: where that leaves the generator too little for the rate, the "
        "sample says so and has no verdict."
    )
    metric = "sent_per_delivered"
    over = "changes"

    def cases(self, quick):
        for changes in (0, BATCH * REQUESTS):
            traffic = one_way(flows=10_000)
            yield Case(
                {"changes": changes}, ["viaduct"], STATEFUL, traffic, seconds=1 if quick else 4, saturates=False
            )

    def measure(self, session):
        device = session.device
        if not hasattr(device, "no_drop"):
            device.no_drop = self._no_drop_rate(session)
        before = device.counters()
        with Churn(device, bool(session.case.key["changes"])) as churn:
            done, others = self._run(session, LOAD * device.no_drop, session.case.seconds)
        after = device.counters()
        metrics = traffic_metrics(done)
        drops = {
            name: count for name, count in after.since(before).details.items() if name.startswith("drop ") and count
        }
        load = metrics["sent"] / done["seconds"] / device.no_drop
        metrics |= {"load": load, "drops": drops, "no_drop": device.no_drop, "generator_bound": load < LOAD - 0.02}
        metrics["changes_per_second"] = churn.changes / churn.seconds
        # At a lower load than intended, it means little that nothing was lost.
        if not metrics["generator_bound"] or metrics["lost"]:
            metrics["sent_per_delivered"] = metrics["sent"] / max(metrics["sent"] - metrics["lost"], 1)
        return metrics | {"others": others, "contaminated": False}

    def _run(self, session, rate, seconds):
        """Makes traffic at a rate; 0: as fast as it goes. Returns the figures of the run, and what others used
        meanwhile."""
        traffic = one_way(flows=10_000, rate=rate)
        generator = session.generator(traffic)
        try:
            generator.run(0.5, share=True)
            generator.run(0.2, share=True)
            with machine.Noise([generator.pid, *session.device.pids]) as noise:
                done = generator.run(seconds, share=True)
        finally:
            generator.stop()
        return done, noise.others

    def _no_drop_rate(self, session):
        """Finds the highest rate at which nothing is lost, in steps of a tenth of the most that gets through."""
        most = traffic_metrics(self._run(session, 0, 0.5)[0])["mpps"] * 1e6
        for tenths in range(10, 1, -1):
            rate = most * tenths / 10
            if not traffic_metrics(self._run(session, rate, 0.5)[0])["lost"]:
                return rate
        return most / 10
