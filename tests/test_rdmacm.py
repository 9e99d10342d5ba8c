"""Programs of librdmacm, unmodified: connections and datagrams by the guests' addresses."""

import signal

import pytest

from lab import eventually
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
        eventually(lambda: not asking.running() and not serving.running(), f"the end of {run}", 60)
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


@pytest.fixture(scope="module", params=["copy", "shared"])
def one_host(request, shared_lab):
    keys = {"rdma_trust": "job"} if request.param == "shared" else {}
    host = shared_lab.host(host_config(f"cm-{request.param}", {"a1": verbs(**keys), "a2": verbs(**keys)}, wire=False))
    return [shared_lab.verbs(host, guest) for guest in ("a2", "a1")]


@pytest.fixture(scope="module")
def two_hosts(shared_lab):
    _, devices = two_verbs_hosts(
        shared_lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
    )
    return devices["b1"], devices["a1"]


@pytest.mark.parametrize("run", RUNS)
def test_on_one_host(one_host, run):
    meet(*one_host, SEATS["a2"].address, run)


@pytest.mark.parametrize("run", RUNS)
def test_between_hosts(two_hosts, run):
    meet(*two_hosts, SEATS["b1"].address, run)


# Programs whose server listens at one address, and whose client asks for another; both are of one guest.
LOOPBACK = {
    "rping": ("rping", "-s -a {listens} -V -C 5", "-c -a {asks} -V -C 5"),
    "ucmatose": ("ucmatose", "-b {listens} -c 2", "-s {asks} -c 2"),
    "udaddy": ("udaddy", "-b {listens} -c 2", "-s {asks} -c 2"),
}


@pytest.mark.parametrize("run", LOOPBACK)
@pytest.mark.parametrize(
    "listens, asks", [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1")]
)
def test_loopback(one_host, run, listens, asks):
    program, *options = LOOPBACK[run]
    device, _ = one_host
    meet_by(device, device, [[program, *words.format(listens=listens, asks=asks).split()] for words in options])


def fi_pingpong(server, client, address):
    words = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "10"]
    serving = server.start(words)
    eventually(lambda: tcp_listens(server.namespace, LIBFABRIC_PORT) or not serving.running(), "a listener")
    asking = client.start([*words, address])
    try:
        eventually(lambda: not asking.running() and not serving.running(), "the end of fi_pingpong", 60)
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


def test_libfabric_without_network_devices(one_host):
    """Without network devices it takes GIDs, as addresses of the family AF_IB."""
    server, client = one_host
    fi_pingpong(server, server, "127.0.0.1")
    fi_pingpong(server, client, "127.0.0.1")


def test_nobody_listens(one_host):
    server, client = one_host
    asking = client.start(["rping", "-c", "-a", str(SEATS["a2"].address), "-C", "1"])
    eventually(lambda: not asking.running(), "its end")
    assert asking.process.returncode != 0 and "REJECTED" in asking.text().upper(), asking.describe()
    server.expect_free()
