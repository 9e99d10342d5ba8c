#!/usr/bin/env python3
"""How long packets wait while a new daemon takes over from the running one (`viaductd --replace`), under load.

    VIADUCT_BIN=target/release scripts/as-root bench/replace.py [TIMES [CONNECTIONS]]

Two containers with UDP streams of numbered packets in both directions and a VM's ring served by testpmd; each time is
from the moment at which the old daemon stops its workers to that at which the new one starts its own, by their clock.
Besides, every fifth time opens so many more connections, each of which the new daemons take over until it times out.
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

from lab import Lab, Stream
from lab.topology import SEATS, host_config, tap, vhost

A1, A2, A3 = SEATS["a1"], SEATS["a2"], SEATS["b1"]


def percentile(sorted_times, share):
    """Returns the smallest time that so large a share of all does not exceed."""
    return sorted_times[min(len(sorted_times) - 1, int(share * len(sorted_times)))]


# The daemon's log.
TAKEN = re.compile(r"taken over from the previous daemon connections=(\d+)")

# Sends no more at a time than queues hold beside the streams.
OPEN = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in range(1024, 1024 + int(sys.argv[2])):
    sender.sendto(b"", (sys.argv[1], port))
    if port % 50 == 0:
        time.sleep(0.004)
"""


def main(times, connections):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    with Lab() as lab:
        guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")}
        host = lab.host(host_config("a", guests, wire=False))
        a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
        lab.testpmd(host, "b1", mode="5tswap")
        a1.namespace.ip("neigh replace", A3.address, "lladdr", A3.mac, "dev", a1.device)
        streams = [
            Stream(a1.namespace, a2.namespace, A2.address, rate=5000),
            Stream(a2.namespace, a1.namespace, A1.address, rate=5000),
            Stream(a1.namespace, a1.namespace, A3.address, echo=True, rate=300),
        ]
        waited, known = [], []
        with streams[0], streams[1], streams[2]:
            for number in range(times):
                if number % 5 == 0:
                    # Nobody answers them, so that they time out after 30 seconds.
                    a1.namespace.run([sys.executable, "-c", OPEN, A2.address, str(connections)])
                waited.append(host.replace())
                known.append(int(TAKEN.search(host.daemon.text()).group(1)))
            waited.sort()
            streams[0].wait(500)
        lost = [stream.result().lost for stream in streams]
        print(f"{times} replacements that took over {min(known)} to {max(known)} connections:"
              f" packets waited {percentile(waited, 0.5):.1f} ms (p50),"
              f" {percentile(waited, 0.99):.1f} ms (p99), {waited[0]:.1f} to {waited[-1]:.1f} ms;"
              f" lost of the three streams: {lost}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(50, 0)[len(given):])
