"""Memory, start, and the cost of an idle host."""

import time
from contextlib import contextmanager
from pathlib import Path

from ..devices.viaduct import Viaduct
from ..generator import Traffic
from ..process import Failed
from ..scenario import Scenario
from . import Case, Point, point
from .policy import STATEFUL
from .scaling import Routes
from .throughput import one_way

ORDER = 8
MANY = 1_000_000
GUESTS = 16


def resident(device):
    """Returns the bytes of memory that the daemon has in use."""
    status = Path(f"/proc/{device.children[0].pid}/status").read_text()
    # Guests' memory is mapped into the daemon too, but is not its own.
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def processor_seconds(pid):
    """Returns the seconds of CPU time that all threads of a process have used, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


@contextmanager
def fresh(session):
    """Gives the session a new device, because memory that was used once is not given back."""
    usual = session.device
    session.device = device = Viaduct("fresh", usual.binaries)
    try:
        device.start(session.case.scenario)
        yield device
    finally:
        device.stop()
        session.device = usual


@point
class Memory(Point):
    name = "memory"
    title = "Memory of the daemon for each flow and route"
    about = (
        "Growth of its anonymous memory over their number. A flow: one direction, tracked, with its share of tables "
        "and counters; the table of connections grows as they come. A route: everything the daemon keeps of it, text "
        "and store included, not the FIB alone."
    )
    metric = "bytes"
    over = "of"

    def cases(self, quick):
        count = MANY // 10 if quick else MANY
        yield Case({"of": "flow", "count": count}, ["viaduct"], STATEFUL, one_way(flows=count), rounds=1)
        yield Case({"of": "route", "count": count}, ["viaduct"], STATEFUL, rounds=1)

    def measure(self, session):
        of, count = session.case.key["of"], session.case.key["count"]
        with fresh(session):
            return {"bytes": self._flows(session, count) if of == "flow" else self._routes(session, count)}

    def _flows(self, session, count):
        generator = session.generator()
        try:
            before = resident(session.device)
            for _ in range(30):
                generator.run(1, share=True)
                there = session.device.ask("status")["flows"]
                if there >= 0.98 * count:
                    return (resident(session.device) - before) / there
        finally:
            generator.stop()
        raise Failed(f"{there} of {count} flows after 30 s")

    def _routes(self, session, count):
        before = resident(session.device)
        Routes(session.device).become(count)
        return (resident(session.device) - before) / count


@point
class Start(Point):
    name = "start"
    title = "Time from start to ready"
    about = f"{GUESTS} guests; without routes, and with those that the store holds."
    metric = "seconds"
    over = "routes"

    def cases(self, quick):
        for routes in [0] if quick else [0, 100_000]:
            yield Case({"routes": routes}, ["viaduct"], Scenario(guests=GUESTS), rounds=3)

    def measure(self, session):
        with fresh(session) as device:
            Routes(device).become(session.case.key["routes"])
            device.children[0].stop()
            start = time.monotonic()
            device._start(session.case.scenario)
            return {"seconds": time.monotonic() - start}


@point
class Idle(Point):
    name = "idle"
    title = f"Processor time of a host with {GUESTS} guests that say nothing"
    about = "The daemon's threads together, over ten seconds, as share of one core."
    metric = "percent"
    over = "guests"

    def cases(self, quick):
        yield Case({"guests": GUESTS}, ["viaduct"], Scenario(guests=GUESTS), Traffic(), seconds=10, rounds=3)

    def measure(self, session):
        pid = session.device.children[0].pid
        generator = session.generator()
        try:
            time.sleep(1)  # it falls asleep
            start, used = time.monotonic(), processor_seconds(pid)
            time.sleep(session.case.seconds)
            used, wall = processor_seconds(pid) - used, time.monotonic() - start
        finally:
            generator.stop()
        return {"percent": 100 * used / wall}
