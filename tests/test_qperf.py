"""Sockets and verbs at the same time, on the same addresses: qperf, which opens its verbs connections by them."""

import pytest

from lab import eventually
from lab.perftest import with_device
from lab.topology import SEATS, host_config, tap

pytestmark = pytest.mark.nightly

TESTS = ["tcp_lat", "rc_lat", "rc_bw", "rc_rdma_write_lat", "rc_rdma_read_bw", "rc_compare_swap_mr"]
PORT = 19765


def test_sockets_and_verbs(lab):
    config = host_config("a", {guest: {**tap(guest), "rdma": guest} for guest in ("a1", "a2")}, wire=False)
    host = lab.host(config)
    client, server = (lab.container(host, guest) for guest in ("a1", "a2"))
    serving = server.background(with_device(server, ["qperf"]), "qperf")
    try:
        eventually(lambda: f":{PORT} " in server.run(["ss", "-ltn"]).stdout, "qperf listening")
        for test in TESTS:
            words = ["qperf", "-t", "1", *([] if test == "tcp_lat" else ["-cm", "1"]), str(SEATS["a2"].address), test]
            printed = client.run(with_device(client, words)).stdout
            assert any(f"{kind}  =" in printed for kind in ("latency", "bw", "msg_rate")), printed
    finally:
        serving.stop()
