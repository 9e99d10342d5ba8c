"""NetPIPE, by TCP and by MPI, and iperf3 between containers: the kernel's TCP over taps."""

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

from . import Case, Point, point

ORDER = 9
LAB = Path(__file__).resolve().parents[2] / "tests/lib"
ADDRESS, PEER = "10.1.1.1", "10.1.1.11"
# Messages of up to a mebibyte, without those a few bytes off that NetPIPE sends beside each size.
SIZES = ["-u", str(1 << 20), "-p", "0"]
# A script that mpirun calls as `agent HOST COMMAND` to start something on the other host: a container with a name of
# its own.
AGENT = """#!/bin/sh
shift
exec ip netns exec {namespace} unshare --uts sh -c "hostname {namespace}; $*"
"""
# Plain TCP, and ranks that leave the CPU to the switch while they wait.
MPI = {"pml": "ob1", "btl": "tcp,self", "mpi_yield_when_idle": 1}


@contextmanager
def all_cpus():
    """Lets whatever is started meanwhile run on every CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def containers(device, hosts):
    """Makes two containers that reach each other: (client, server, address of the server)."""
    sys.path.insert(0, str(LAB))
    import lab as labs
    from lab import topology

    if device.name == "viaduct":
        os.environ["VIADUCT_BIN"] = str(device.binaries)
    with labs.Lab() as lab:
        if device.name == "viaduct" and hosts == 1:
            _, (client, server) = topology.one_host(lab, "a1", "a2")
            address = topology.SEATS["a2"].address
        elif device.name == "viaduct":
            connect = lambda config, *remotes: topology.tunnel_routes(config, "mpls-over-udp", *remotes)
            _, guests = topology.two_hosts(lab, connect)
            client, server, address = guests["a1"], guests["b1"], PEER
        else:
            # Two machines on one bridge.
            client, server = lab.server("one", f"{ADDRESS}/24"), lab.server("two", f"{PEER}/24")
            address = PEER
            for each in (client, server):
                each.namespace.ip("link set up0 mtu 1500")
        if not client.reaches(address):
            raise RuntimeError(f"{device.name}: no echo from {address}")
        yield client, server, address


# The library that makes TCP sockets use rsockets, in the place where this Debian has it.
RSOCKETS = next(iter(Path("/usr/lib").glob("*/rsocket/librspreload.so")), None)


def netpipe(client, server, address, sizes=SIZES, prefixes=((), ()), wait=None):
    """Latency of the smallest message in microseconds, best bandwidth in Gbit/s, both by size.

    `prefixes`: what comes in front of the client's and the server's program. `wait()` waits for a listener, by default
    of TCP.
    """
    listening = server.background([*prefixes[1], "NPtcp", *sizes], "netpipe")
    file = client.namespace.directory / "netpipe.out"
    try:
        wait() if wait else wait_for_port(server, 5002)
        client.run([*prefixes[0], "NPtcp", "-h", address, *sizes, "-o", str(file)], timeout=240)
    finally:
        listening.stop()
    return _figures(file)


def netpipe_mpi(client, server, address):
    """Does the same with MPI: Open MPI over TCP."""
    directory = client.namespace.directory
    agent, file = directory / "agent", directory / "netpipe-mpi.out"
    agent.write_text(AGENT.format(namespace=server.namespace.name))
    agent.chmod(0o755)
    options = [word for name, value in {**MPI, "plm_rsh_agent": agent}.items() for word in ("--mca", name, str(value))]
    start = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", f"localhost,{address}", *options]
    client.run([*start, "NPopenmpi", *SIZES, "-o", str(file)], timeout=240)
    return _figures(file)


def netpipe_curve(text):
    """Reads NetPIPE's output file, by size."""
    rows = [[float(word) for word in line.split()] for line in text.splitlines()]
    return [{"bytes": int(size), "mbps": mbps, "us": seconds * 1e6} for size, mbps, seconds in rows]


def _figures(file):
    curve = netpipe_curve(file.read_text())
    return {"latency": curve[0]["us"], "gbps": max(row["mbps"] for row in curve) / 1000, "curve": curve}


def iperf3(client, server, address, seconds, options=(), prefixes=((), ())):
    """Returns the Gbit/s of iperf3."""
    listening = server.background([*prefixes[1], "iperf3", "-s", "-1"], "iperf3")
    try:
        wait_for_port(server, 5201)
        words = [*prefixes[0], "iperf3", "-J", "-c", address, "-t", str(seconds), *options]
        output = client.run(words, timeout=seconds + 30).stdout
    finally:
        listening.stop()
    return {"gbps": json.loads(output)["end"]["sum_received"]["bits_per_second"] / 1e9}


def wait_for_port(server, port):
    from lab import eventually

    eventually(lambda: f":{port} " in server.run(["ss", "-ltn"]).stdout, f"port {port}")


@point
class Containers(Point):
    name = "containers"
    title = "TCP between two containers (NetPIPE by TCP and by MPI, iperf3)"
    about = (
        "Both ends are the kernel's TCP; with Viaduct over taps, on two hosts over MPLS over UDP by AF_PACKET, with "
        "the Linux bridge over veth pairs, without a tunnel. The latency is NetPIPE's, half a round trip of one "
        "byte. All of it shares all CPUs."
    )
    metric = "gbps"
    over = "hosts"

    def cases(self, quick):
        for tool in [] if quick else ["NetPIPE", "NetPIPE MPI", "iperf3"]:
            for hosts, devices in ((1, ["viaduct", "bridge"]), (2, ["viaduct"])):
                yield Case({"tool": tool, "hosts": hosts}, devices, seconds=5, rounds=3)

    def measure(self, session):
        case = session.case
        with all_cpus(), containers(session.device, case.key["hosts"]) as (client, server, address):
            if case.key["tool"] == "iperf3":
                return iperf3(client, server, address, case.seconds)
            measure = netpipe_mpi if case.key["tool"] == "NetPIPE MPI" else netpipe
            return measure(client, server, address)
