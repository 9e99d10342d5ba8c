"""Sockets by RDMA: rstream, and unmodified programs of sockets by rdma-core's librspreload."""

import signal
from pathlib import Path

import pytest

from lab import Failed, eventually
from lab.topology import SEATS, host_config, tunnel_routes, two_verbs_hosts, verbs

PRELOAD = next(iter(Path("/usr/lib").glob("*/rsocket/librspreload.so")), None)
# What rstream is told: calls that wait, do not wait; bytes that are checked.
RSTREAM = {
    "blocking": "-T b -T v -I 20 -C 50",
    "nonblocking": "-T n -T v -I 20 -C 50",
    "asynchronous": "-T a -T v -I 20 -C 50",
    "long messages": "-T v -S 1000000 -I 3 -C 2",
    "small buffers": "-T v -S 65536 -B 4096 -I 3 -C 2",
}


@pytest.fixture(scope="module", params=["copy", "shared"])
def one_host(request, shared_lab):
    keys = {"rdma_trust": "job"} if request.param == "shared" else {}
    host = shared_lab.host(host_config(f"rs-{request.param}", {"a1": verbs(**keys), "a2": verbs(**keys)}, wire=False))
    return [shared_lab.verbs(host, guest) for guest in ("a2", "a1")]


@pytest.fixture(scope="module")
def two_hosts(shared_lab):
    _, devices = two_verbs_hosts(
        shared_lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
    )
    return devices["b1"], devices["a1"]


def meet(server, client, serving, asking, timeout=60, **environment):
    """Runs a program by both to its end, which must be a good one; returns what the client printed."""
    eventually(lambda: not server.answers(), "the end of the listener before")
    programs = [server.start(serving, **environment)]
    try:
        eventually(lambda: server.answers() or not programs[0].running(), f"a listener: {serving}", 20)
        programs.append(client.start(asking, **environment))
        for program in reversed(programs):
            eventually(lambda program=program: not program.running(), "the program's end", timeout)
        assert [program.status for program in programs] == [0, 0]
        return programs[1].text()
    except (Failed, AssertionError) as why:
        raise Failed("\n".join([f"{why}", *(program.describe() for program in programs)])) from None
    finally:
        for program in programs:
            program.stop(signal.SIGKILL)


def rstream(server, client, address, run):
    words = ["rstream", *RSTREAM[run].split()]
    meet(server, client, words, [*words, "-s", str(address)])
    server.expect_free()
    client.expect_free()


@pytest.mark.parametrize("run", RSTREAM)
def test_rstream_on_one_host(one_host, run):
    rstream(*one_host, SEATS["a2"].address, run)


@pytest.mark.parametrize("run", RSTREAM)
def test_rstream_between_hosts(two_hosts, run):
    rstream(*two_hosts, SEATS["b1"].address, run)
