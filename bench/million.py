#!/usr/bin/env python3
"""What a million routes cost the daemon: CPU time, memory, the size of a scrape, and changes beside them.

    VIADUCT_BIN=target/release scripts/as-root bench/million.py [ROUTES [LABELS [REMOTES]]]

Adds routes by the API, 500 in a request, to tunnels of so many remotes. With LABELS = `own` each route has a label of
its own, otherwise (`shared`) a remote has one. Then kills the daemon, and starts it again. CPU time is that of all
threads of the daemon; memory is its anonymous memory beyond that of the empty daemon, once what was freed has been
given back. If `cargo build --example churn` has made that program beside the daemon, 16 clients then change one route
after the other for some seconds.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from changes import client, cpu
from lab import Lab
from lab.host import binary
from lab.shell import run
from lab.topology import host_config, tap

BATCH = 500
METRICS = 9590
CLIENTS, SECONDS = 16, 6


def anonymous(pid):
    """Returns the anonymous memory of a process in bytes, once it changes no more."""
    before = None
    while True:
        time.sleep(3)
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        now = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024
        if before is not None and abs(now - before) < 1 << 20:
            return now
        before = now


def scrape():
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics") as reply:
        return len(reply.read())


def objects(api, numbers, own, remotes):
    for n in numbers:
        remote = n % remotes
        label = 16 + n if own else 16 + remote
        to = api.Target(tunnel="mpls-over-udp", remote=f"198.18.{remote >> 8}.{remote & 255}", label=label)
        prefix = f"{16 + (n >> 24)}.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}/32"
        yield api.Object(route=api.Route(network="blue", prefix=prefix, to=[to]))


def churn(host, pid):
    """Changes routes one by one, if the program is there."""
    program = binary("viaductd").parent / "examples/churn"
    if not program.exists():
        return
    before = cpu(pid)
    done = json.loads(run([program, host.run_dir, "blue", "1", str(SECONDS), "0", str(CLIENTS)]).stdout)
    each = (cpu(pid) - before) * 1000 / done["changes"]
    print(f"  one by one, {CLIENTS} clients: {done['per_second']} a second, {each:.0f} us of CPU each", flush=True)


def main(count, labels, remotes):
    own = {"own": True, "shared": False}[labels]
    with Lab() as lab:
        lab.plug("a")
        config = host_config("a", {"a1": tap("a1")})
        config.host["metrics"] = f"127.0.0.1:{METRICS}"
        host = lab.host(config)
        pid = host.viaduct("status")["pid"]
        empty, before = anonymous(pid), cpu(pid)
        api, stub = client(host, lab.directory)
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            stub.Add(api.AddRequest(objects=list(objects(api, numbers, own, remotes))))
        loaded = cpu(pid) - before
        print(f"{count} routes to {remotes} remotes, labels {labels}")
        print(f"  load: {loaded / 1000:.1f} s of CPU, {(anonymous(pid) - empty) / count:.0f} bytes a route", flush=True)
        before = cpu(pid)
        with lab.namespace("a").entered():
            size = scrape()
        print(f"  scrape: {size} bytes, {cpu(pid) - before:.0f} ms of CPU", flush=True)
        host.kill()
        host.start()
        pid = host.viaduct("status")["pid"]
        took = cpu(pid)
        print(f"  start: {took / 1000:.1f} s of CPU, {(anonymous(pid) - empty) / count:.0f} bytes a route", flush=True)
        churn(host, pid)


if __name__ == "__main__":
    given = sys.argv[1:]
    count, labels, remotes = (*given, *("1000000", "shared", "100")[len(given):])
    main(int(count), labels, int(remotes))
