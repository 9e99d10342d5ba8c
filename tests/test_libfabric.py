"""libfabric, unmodified, over verbs devices: endpoints of its provider verbs, and reliable datagrams over them."""

import signal

import pytest

from lab import Lab, eventually
from lab.perftest import with_device
from lab.shell import Failed
from lab.topology import SEATS, host_config, tap

pytestmark = pytest.mark.nightly

# Connected endpoints, datagrams, and both as reliable datagrams.
ENDPOINTS = {
    "msg": "-p verbs -e msg",
    "dgram": "-p verbs -e dgram",
    "rdm over msg": "-p verbs;ofi_rxm -e rdm",
    "rdm over dgram": "-p verbs;ofi_rxd -e rdm",
}
# ofi_rxm destroys the queue pair of a peer that disconnected without another look at the completion queue: where its
# process did not get the CPU for a while, the last messages of all, by which both take their leave, are lost.
MAY_END_BADLY = "rdm over msg"
# Where fi_pingpong's server waits for its client, by TCP.
PORT = 47592


@pytest.fixture(scope="module", params=["copy", "shared"])
def guests(request):
    """Starts two containers with addresses, by which libfabric finds devices; the daemon copies, or memory is
    shared."""
    keys = {"rdma_trust": "job"} if request.param == "shared" else {}
    guests = {guest: {**tap(guest), "rdma": guest, **keys} for guest in ("a1", "a2")}
    with Lab() as lab:
        host = lab.host(host_config("a", guests, wire=False))
        yield [lab.container(host, guest) for guest in guests]


def test_what_there_is(guests):
    printed = guests[0].run(with_device(guests[0], ["fi_info", "-p", "verbs"])).stdout
    assert "FI_PROTO_RDMA_CM_IB_RC" in printed and "FI_PROTO_IB_UD" in printed


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_messages_go_and_come(guests, endpoint):
    client, server = guests
    words = ["stdbuf", "-oL", "fi_pingpong", *ENDPOINTS[endpoint].split(), "-I", "10", "-S", "1024", "-c"]
    label = endpoint.replace(" ", "-")
    programs = [server.background(with_device(server, words), label)]
    try:
        eventually(lambda: f":{PORT} " in server.run(["ss", "-ltn"]).stdout, "fi_pingpong listening")
        programs.append(client.background(with_device(client, [*words, str(SEATS["a2"].address)]), label))
        for program in programs:
            eventually(lambda: " =10 " in program.text() or not program.running(), "ten messages")
            assert " =10 " in program.text()
        if endpoint != MAY_END_BADLY:
            for program in programs:
                eventually(lambda: not program.running(), "the program's end")
                assert program.process.returncode == 0
    except (Failed, AssertionError) as why:
        raise Failed("\n".join([str(why), *(program.describe() for program in programs)])) from None
    finally:
        for program in programs:
            program.stop(signal.SIGKILL)
