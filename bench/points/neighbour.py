"""The cost of a hostile guest for two others."""

import sys
from contextlib import contextmanager
from pathlib import Path

from .. import machine
from ..generator import Traffic
from ..process import Child
from ..scenario import Scenario, guest_mac
from . import Case, Point, point
from .latency import probe

ORDER = 5
REPOSITORY = Path(__file__).resolve().parents[2]
HOSTILE = 2  # its port


@contextmanager
def beside(session, *words):
    """Runs a guest beside the two that are measured, while the block runs."""
    device = session.device
    socket = device.ports[HOSTILE].socket
    log = device.directory / "hostile.log"
    command = [
        "taskset",
        "--cpu-list",
        machine.GENERATOR_CPU,
        "env",
        f"PYTHONPATH={REPOSITORY}",
        sys.executable,
        "-m",
        "bench.hostile",
    ]
    child = Child(*command, socket, guest_mac(HOSTILE), guest_mac(1), *words, log=log)
    try:
        child.wait_until(lambda: "ready" in log.read_text(), "ready")
        yield
        child.require_alive()
    finally:
        child.stop()


@point
class Neighbour(Point):
    name = "neighbour"
    title = "Round trip beside a hostile guest"
    about = (
        "Two guests, 1000 round trips a second; a third one connects, posts malformed chains, has frames cut into "
        "pieces of a byte, floods, lets notifications block, and breaks its rings, over and over. Undisturbed: it "
        "does the same in memory that the device does not look at. testpmd knows no third guest's floods: its ports "
        "are pairs."
    )
    metric = "p99"
    over = "neighbour"

    def cases(self, quick):
        traffic = Traffic(probe=probe(64, interval=1000))
        for neighbour in ("undisturbed", "hostile"):
            yield Case(
                {"neighbour": neighbour},
                ["viaduct"],
                Scenario(guests=HOSTILE + 1),
                traffic,
                active=HOSTILE,
                seconds=3,
                saturates=False,
                share=True,
            )

    def measure(self, session):
        hostile = session.case.key["neighbour"] == "hostile"
        with beside(session, *([] if hostile else ["--harmless"])):
            metrics = session.measure_traffic()
        # The guest beside uses part of a core by design, and its packets are refused. The device also counts these
        # packets and their work, so its counts can't be compared.
        return metrics | {"contaminated": False, "refused": 0} | ({"counts_agree": None} if hostile else {})
