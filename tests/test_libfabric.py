"""libfabric, unmodified, over verbs devices: endpoints of its provider verbs, and reliable datagrams over them."""

import signal

import pytest

from lab import eventually
from lab.perftest import with_device
from lab.shell import Failed
from lab.topology import SEATS, host_config, tap

# Connected endpoints, datagrams, and both as reliable datagrams.
ENDPOINTS = {
    "msg": "-p verbs -e msg",
    "dgram": "-p verbs -e dgram",
    "rdm over msg": "-p verbs;ofi_rxm -e rdm",
    "rdm over dgram": "-p verbs;ofi_rxd -e rdm",
}
# Where fi_pingpong's server waits for its client, by TCP.
PORT = 47592


@pytest.fixture(scope="module", params=["copy", "shared"])
def guests(request, shared_lab):
    """Two containers with addresses, which libfabric looks for its devices by; who has memory in common shares it, or nobody."""
    keys = {"rdma_trust": "job"} if request.param == "shared" else {}
    config = host_config(f"fi-{request.param}", {guest: {**tap(guest), "rdma": guest, **keys} for guest in ("a1", "a2")}, wire=False)
    host = shared_lab.host(config)
    return [shared_lab.container(host, guest) for guest in ("a1", "a2")]


def test_what_there_is(guests):
    printed = guests[0].run(with_device(guests[0], ["fi_info", "-p", "verbs"])).stdout
    assert "FI_PROTO_RDMA_CM_IB_RC" in printed and "FI_PROTO_IB_UD" in printed


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_messages_go_and_come(guests, endpoint):
    client, server = guests
    words = ["fi_pingpong", *ENDPOINTS[endpoint].split(), "-I", "10", "-S", "1024", "-c"]
    serving = server.background(with_device(server, words), endpoint.replace(" ", "-"))
    try:
        listens = lambda: f":{PORT} " in server.run(["ss", "-ltn"]).stdout  # noqa: E731
        eventually(lambda: listens() or not serving.running(), "fi_pingpong listening", 30)
        printed = client.run(with_device(client, [*words, str(SEATS["a2"].address)])).stdout
        assert printed.splitlines()[-1].split()[:2] == ["1k", "10"], printed
        eventually(lambda: not serving.running(), "the server's end", 30)
        assert serving.process.returncode == 0
    except (Failed, AssertionError) as why:
        raise Failed(f"{why}\n{serving.describe()}") from None
    finally:
        serving.stop(signal.SIGKILL)
