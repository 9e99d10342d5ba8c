#!/usr/bin/env python3
"""How long operators wait beside many routes.

    VIADUCT_BIN=target/release scripts/as-root bench/waiting.py [ROUTES [SECONDS]]

Applies a file with so many routes again, unchanged and with one route changed: the median of five, and the least and
the most. Then asks for the daemon's status again and again for some seconds while another process adds routes by the
API, 500 in a request, and applies the file once more: the median, the least, the most, and the longest of 99 %.
"""

import multiprocessing
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from changes import client
from lab import Lab
from lab.topology import host_config, tap

TIMES, BATCH = 5, 500


def prefix(first, n):
    return f"{first + (n >> 24)}.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}/32"


def timed(action):
    began = time.monotonic()
    action()
    return (time.monotonic() - began) * 1000


def show(what, times):
    times = sorted(times)
    late = times[min(len(times) * 99 // 100, len(times) - 1)]
    spread = f"{times[0]:.0f}-{times[-1]:.0f}; 99 %: {late:.0f}"
    print(f"  {what}: {statistics.median(times):.0f} ms ({spread}), {len(times)} times", flush=True)


def load(host, directory, ends):
    """Adds routes until it is told to end, and applies the file in between."""
    api, stub = client(host, directory)
    target = api.Target(tunnel="mpls-over-udp", remote="192.0.2.9", label=100)
    first = 0
    while not ends.is_set():
        routes = (api.Route(network="blue", prefix=prefix(32, n), to=[target]) for n in range(first, first + BATCH))
        stub.Add(api.AddRequest(objects=[api.Object(route=route) for route in routes]))
        first += BATCH
        if first % 100_000 == 0:
            host.call("apply", host.file)


def main(routes, seconds):
    with Lab() as lab:
        lab.plug("a")
        config = host_config("a", {"a1": tap("a1")})
        for n in range(routes):
            config.add("route", network="blue", prefix=prefix(16, n), to="drop")
        host = lab.host(config)
        print(f"{routes} routes of the file")
        show("apply, unchanged", [timed(lambda: host.call("apply", host.file)) for _ in range(TIMES)])
        times = []
        for n in range(TIMES):
            changed = config.without("route", prefix=prefix(16, n))
            host.write(changed)
            times.append(timed(lambda: host.call("apply", host.file)))
        show("apply, one route changed", times)
        ends = multiprocessing.Event()
        (lab.directory / "load").mkdir()
        adding = multiprocessing.Process(target=load, args=(host, lab.directory / "load", ends))
        adding.start()
        api, stub = client(host, lab.directory)
        until, times = time.monotonic() + seconds, []
        while time.monotonic() < until:
            times.append(timed(lambda: stub.Status(api.StatusRequest())))
            time.sleep(0.01)
        ends.set()
        adding.join()
        show("status meanwhile", times)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*map(int, (*given, *("100000", "30")[len(given):])))
