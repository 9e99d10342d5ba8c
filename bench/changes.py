#!/usr/bin/env python3
"""What one change by the API costs the daemon, beside many objects.

    VIADUCT_BIN=target/release scripts/as-root bench/changes.py [RULES [ROUTES]]

Counts the CPU time of all threads of the daemon from before an `Add` of one object, or the `Remove` of a guest, to after
it: the median of five, and the least and the most. The worker sleeps, since no packet comes. (The command `viaduct`
costs more: it lists objects.)
"""

import statistics
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/lib"))

import grpc

from lab import Lab
from lab.shell import run
from lab.topology import host_config, tap

TIMES = 5


def cpu(pid):
    """Returns the CPU time of a process in milliseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def client(host, directory):
    """Returns the messages of the API, and a client of this host."""
    words = [f"--python_out={directory}", f"--grpc_out={directory}", "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin"]
    run(["protoc", "-I", REPOSITORY / "crates/api/proto", *words, "viaduct.proto"])
    sys.path.insert(0, str(directory))
    import viaduct_pb2 as api
    from viaduct_pb2_grpc import ViaductStub

    options = [("grpc.default_authority", "viaduct")]
    return api, ViaductStub(grpc.insecure_channel(f"unix:{host.run_dir}/viaduct.sock", options=options))


def changes(api, number):
    """Returns one object of each kind."""
    target = api.Target(tunnel="mpls-over-udp", remote="192.0.2.9", label=2000 + number)
    guest = {"kind": "vhost", "socket": f"new{number}.sock", "mac": f"02:00:00:00:0a:{number:02x}"}
    rule = {"network": "blue", "protocol": "tcp", "action": "drop"}
    named = api.Rule(priority=9100 + number, name=f"new{number}", **rule)
    return {
        "rule": api.Object(rule=api.Rule(priority=9000 + number, **rule)),
        "rule with a name": api.Object(rule=named),
        "nexthop": api.Object(nexthop=api.Nexthop(name=f"new{number}", to=[target])),
        "guest": api.Object(
            guest=api.Guest(name=f"new{number}", network="blue", addresses=[f"10.1.1.{200 + number}"], **guest)
        ),
        "route": api.Object(route=api.Route(network="blue", prefix=f"10.99.{number}.0/24", to=[target])),
    }


def main(rules, routes):
    with Lab() as lab:
        lab.plug("a")
        config = host_config("a", {"a1": tap("a1")})
        for n in range(rules):
            to = {"cidr": f"10.{n % 200}.{n // 200 % 256}.0/24"}
            config.rule("blue", n % 9000, "allow", to=to, protocol="tcp", ports=str(1 + n))
        for n in range(routes):
            prefix = f"11.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}/32"
            config.add("route", network="blue", prefix=prefix, to="drop")
        host = lab.host(config)
        pid = host.viaduct("status")["pid"]
        api, stub = client(host, lab.directory)
        took = {}
        for number in range(TIMES):
            added = changes(api, number)
            requests = {kind: (stub.Add, api.AddRequest(objects=[one])) for kind, one in added.items()}
            gone = api.Key(kind=api.KIND_GUEST, name=added["guest"].guest.name)
            requests["guest that goes"] = (stub.Remove, api.RemoveRequest(keys=[gone]))
            for kind, (call, request) in requests.items():
                before = cpu(pid)
                call(request)
                took.setdefault(kind, []).append(cpu(pid) - before)
        print(f"one change beside {rules} rules and {routes} routes, ms of the daemon's CPU: median (least to most)")
        for kind, times in took.items():
            print(f"  {kind:<16} {statistics.median(times):6.1f} ({min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(32_000, 100_000)[len(given):])
