#!/usr/bin/env python3
"""How much of a shaper's rate one TCP stream gets, beside Linux's token bucket.

    VIADUCT_BIN=target/release scripts/as-root bench/shape.py [TIMES [SECONDS]]

A container sends to another on the same host, with a rate of 10, 100 and 1000 Mbit/s: by `shape.out` of the sender, by
`shape.in` of the receiver, and by `tc qdisc ... tbf` on the sender's tap, one after the other in each round. Printed
are the medians of the goodput, in percent of the rate, with the least and the most, and the machine's load meanwhile.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

from lab import Lab
from lab.topology import SEATS, host_config, tap
from lab.traffic import tcp_rate

RATES = (10, 100, 1000)
TO = SEATS["a2"].address
# As large as the burst of Viaduct's shapers, and not smaller than a large send.
TBF_BURST_MS, TBF_LEAST = 10.5, 65536


def shaped(host, way, mbps):
    """Gives the guests the shapers of this way."""
    shapes = {"out": ("a1", {"out": {"mbps": mbps}}), "in": ("a2", {"in": {"mbps": mbps}})}
    of, shape = shapes.get(way, (None, None))
    guests = {name: tap(name) | ({"shape": shape} if name == of else {}) for name in ("a1", "a2")}
    host.apply(host_config("a", guests, wire=False))


def bucket(guest, mbps):
    """Puts Linux's token bucket onto a container's tap."""
    burst = max(int(mbps * 1e6 / 8 * TBF_BURST_MS / 1000), TBF_LEAST)
    words = ["tbf", "rate", f"{mbps}mbit", "burst", burst, "latency", "50ms"]
    guest.run(["tc", "qdisc", "replace", "dev", guest.device, "root", *words])


def measure(host, a1, a2, way, mbps, seconds):
    """Returns the goodput of one stream, in percent of the rate."""
    shaped(host, way, mbps)
    if way == "tbf":
        bucket(a1, mbps)
    try:
        return 100 * tcp_rate(a1, a2, TO, seconds=seconds) / mbps
    finally:
        if way == "tbf":
            a1.run(["tc", "qdisc", "del", "dev", a1.device, "root"])


def main(times, seconds):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    with Lab() as lab:
        host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False))
        a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
        a1.expect_ping(TO)
        for mbps in RATES:
            shares, loads = {"out": [], "in": [], "tbf": []}, []
            for _ in range(times):
                for way, of in shares.items():
                    of.append(measure(host, a1, a2, way, mbps, seconds))
                loads.append(os.getloadavg()[0])
            texts = [f"{way} {statistics.median(of):.0f} % ({min(of):.0f}-{max(of):.0f})" for way, of in shares.items()]
            print(f"{mbps} Mbit/s: {', '.join(texts)}; load {min(loads):.1f}-{max(loads):.1f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
