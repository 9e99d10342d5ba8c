"""Programs of librdmacm, unmodified: connections and datagrams by the guests' addresses."""

import functools
import signal

import pytest

from lab import eventually
from lab.pairwise import pairwise
from lab.shell import Failed
from lab.topology import SEATS, host_config, tap, tunnel_routes, two_verbs_hosts, verbs
from lab.verbs import listens as tcp_listens

# Where fi_pingpong talks about what it does.
LIBFABRIC_PORT = 47592
PERFTEST = "-d viaduct0 -x 1 -F -R -n 200"
# Program; what its server and its client are told.
RUNS = {
    "rping": ("rping", "-s -a {server} -V -C 20", "-c -a {server} -V -C 20"),
    "rping of long messages": ("rping", "-s -a {server} -V -C 5 -S 60000", "-c -a {server} -V -C 5 -S 60000"),
    "ucmatose": ("ucmatose", "-b {server} -c 4", "-s {server} -c 4"),
    "udaddy": ("udaddy", "-b {server} -c 2", "-s {server} -c 2"),
    "ib_send_lat": ("ib_send_lat", PERFTEST, f"{PERFTEST} {{server}}"),
    "ib_write_bw": ("ib_write_bw", f"{PERFTEST} -s 65536", f"{PERFTEST} -s 65536 {{server}}"),
    "ib_read_bw of four": ("ib_read_bw", f"{PERFTEST} -q 4", f"{PERFTEST} -q 4 {{server}}"),
    "ib_send_bw of datagrams": ("ib_send_bw", f"{PERFTEST} -c UD -s 512", f"{PERFTEST} -c UD -s 512 {{server}}"),
}


def listens(device):
    return any(row["state"] == "listen" for row in device.host.viaduct("rdma", "cm", "--device", device.device))


def meet(server, client, address, run):
    """Runs a program by both; the client's end must be a good one, and the server must end."""
    program, *options = RUNS[run]
    meet_by(server, client, [[program, *words.format(server=address).split()] for words in options])


def meet_by(server, client, commands):
    """Does the same by two command lines."""
    run = " ".join(commands[0])
    eventually(lambda: not listens(server), "the end of the listener before")
    serving = server.start(commands[0])
    asking = None
    try:
        eventually(lambda: listens(server) or not serving.running(), f"a listener: {run}")
        asking = client.start(commands[1])
        eventually(lambda: not asking.running() and not serving.running(), f"the end of {run}")
        assert asking.process.returncode == 0
    except (Failed, AssertionError) as why:
        described = [one.describe() for one in (serving, asking) if one]
        raise Failed("\n".join([f"{run}: {why}", *described])) from None
    finally:
        for one in (serving, asking):
            if one:
                one.stop(signal.SIGKILL)
    server.expect_free()
    client.expect_free()


# Two devices of one host, where the daemon copies, or memory is shared; and of two hosts.
ONE_HOST = ["copy", "shared"]
PLACES = [*ONE_HOST, "two hosts"]
on_one_host = pytest.mark.parametrize("place", ONE_HOST)


@pytest.fixture(scope="module")
def places(shared_lab):
    """Returns a function that returns server, client and the server's address of a place, which is made when first
    asked for."""

    @functools.cache
    def made(place):
        if place == "two hosts":
            connect = lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
            _, devices = two_verbs_hosts(shared_lab, connect)
            return devices["b1"], devices["a1"], SEATS["b1"].address
        keys = {"rdma_trust": "job"} if place == "shared" else {}
        host = shared_lab.host(host_config(f"cm-{place}", {"a1": verbs(**keys), "a2": verbs(**keys)}, wire=False))
        return shared_lab.verbs(host, "a2"), shared_lab.verbs(host, "a1"), SEATS["a2"].address

    return made


def kind(value):
    """Names what a program does: those of perftest do the same, and those of one name. Places are as they
    are."""
    return ["perftest"] if value.startswith("ib_") else [value.removesuffix(" of long messages")]


@pytest.mark.parametrize("place, run", pairwise(PLACES, RUNS, parts=kind))
def test_programs(places, place, run):
    meet(*places(place), run)


# Programs whose server listens at one address, and whose client asks for another; both are of one guest.
LOOPBACK = {
    "rping": ("rping", "-s -a {listens} -V -C 5", "-c -a {asks} -V -C 5"),
    "ucmatose": ("ucmatose", "-b {listens} -c 2", "-s {asks} -c 2"),
    "udaddy": ("udaddy", "-b {listens} -c 2", "-s {asks} -c 2"),
}


ADDRESSES = {"127.0.0.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::1": "::1", "::": "::1"}


@pytest.mark.parametrize("place, run, listens", pairwise(ONE_HOST, LOOPBACK, ADDRESSES))
def test_loopback(places, place, run, listens):
    program, *options = LOOPBACK[run]
    device, *_ = places(place)
    asks = ADDRESSES[listens]
    meet_by(device, device, [[program, *words.format(listens=listens, asks=asks).split()] for words in options])


def fi_pingpong(server, client, address):
    words = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "10"]
    serving = server.start(words)
    eventually(lambda: tcp_listens(server.namespace, LIBFABRIC_PORT) or not serving.running(), "a listener")
    asking = client.start([*words, address])
    try:
        eventually(lambda: not asking.running() and not serving.running(), "the end of fi_pingpong")
        described = serving.describe() + asking.describe()
        assert (serving.process.returncode, asking.process.returncode) == (0, 0), described
    finally:
        asking.stop(signal.SIGKILL)
        serving.stop(signal.SIGKILL)
    server.expect_free()


@pytest.mark.parametrize("address", ["127.0.0.1", SEATS["a1"].address])
def test_libfabric(lab, address):
    """libfabric takes the addresses of network devices that a verbs device has as well: those of a guest with both."""
    host = lab.host(host_config("a", {"a1": {**tap("a1"), "rdma": "a1"}}, wire=False))
    container, device = lab.container(host, "a1"), lab.verbs(host, "a1")
    device.namespace = container.namespace
    fi_pingpong(device, device, address)


@on_one_host
def test_libfabric_without_network_devices(places, place):
    """Without network devices it takes GIDs, as addresses of the family AF_IB."""
    server, client, _ = places(place)
    fi_pingpong(server, server, "127.0.0.1")
    fi_pingpong(server, client, "127.0.0.1")


@on_one_host
def test_nobody_listens(places, place):
    server, client, _ = places(place)
    asking = client.start(["rping", "-c", "-a", str(SEATS["a2"].address), "-C", "1"])
    eventually(lambda: not asking.running(), "its end")
    assert asking.process.returncode != 0 and "REJECTED" in asking.text().upper(), asking.describe()
    server.expect_free()
