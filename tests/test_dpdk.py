"""Guests with a user-space driver (DPDK virtio-user) in every kind of ring."""

import os
from pathlib import Path

import pytest

from lab import Stream
from lab.marks import at_night
from lab.topology import SEATS, host_config, tap, vhost

pytestmark = pytest.mark.alone

A1, A2 = SEATS["a1"], SEATS["a2"]
RINGS = {
    "split": "mrg_rxbuf=0,in_order=0,packed_vq=0",
    "split-mergeable": "mrg_rxbuf=1,in_order=0,packed_vq=0",
    "split-in-order": "mrg_rxbuf=0,in_order=1,packed_vq=0",
    "split-in-order-mergeable": "mrg_rxbuf=1,in_order=1,packed_vq=0",
    "split-vectorised": "mrg_rxbuf=0,in_order=0,packed_vq=0,vectorized=1",
    "packed": "mrg_rxbuf=0,in_order=0,packed_vq=1",
    "packed-mergeable": "mrg_rxbuf=1,in_order=0,packed_vq=1",
    "packed-in-order": "mrg_rxbuf=0,in_order=1,packed_vq=1",
    "packed-in-order-mergeable": "mrg_rxbuf=1,in_order=1,packed_vq=1",
    "small": "mrg_rxbuf=1,queue_size=64",
    "large": "mrg_rxbuf=1,queue_size=1024",
}
# DPDK has vectors for packed rings on CPUs with AVX-512 only.
if "avx512f" in Path("/proc/cpuinfo").read_text():
    RINGS["packed-vectorised"] = "mrg_rxbuf=0,in_order=1,packed_vq=1,vectorized=1"
# The others have each two of these properties together: mergeable, in order, packed.
AT_NIGHT = ("split-mergeable", "split-in-order", "packed", "packed-in-order-mergeable", "large")


def host_with_testpmd(lab, *, mode="icmpecho", ring="", **keys):
    """Starts host a with container a1 and testpmd as guest a2."""
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2", **keys)}, wire=False))
    return host, lab.container(host, "a1"), lab.testpmd(host, "a2", mode=mode, ring=ring)


@pytest.mark.parametrize("ring", [at_night(ring) if ring in AT_NIGHT else ring for ring in RINGS])
def test_ring(lab, ring):
    host, a1, testpmd = host_with_testpmd(lab, ring=RINGS[ring])
    a1.expect_ping(A2.address)
    for size in (18, 56, 300, 1400):
        a1.expect_ping(A2.address, 50, size=size, interval=0.002)
    # These go round the ring several times, each as soon as the one before is answered.
    received, output = a1.ping(A2.address, 1500, interval=0.002, size=100, options=["-A"])
    assert received == 1500, output[-300:]


@pytest.mark.parametrize("packed", [0, 1], ids=["split", "packed"])
def test_two_queues(lab, packed):
    host, a1, testpmd = host_with_testpmd(lab, ring=f"packed_vq={packed}", mode="5tswap", queues=2)
    streams = [
        Stream(a1.namespace, a1.namespace, A2.address, port=7000 + number, rate=200, echo=True) for number in range(4)
    ]
    for stream in streams:
        stream.__enter__()
    for stream in streams:
        stream.wait(500)
    for stream in streams:
        stream.__exit__()
        assert stream.result().lost == 0
        assert stream.result().reordered == 0, "a flow must stay on one queue"


def test_more_workers_than_one(lab):
    assert len(os.sched_getaffinity(0)) > 1, "two workers need two CPUs"
    config = host_config("a", {"a1": tap("a1"), "a2": vhost("a2", queues=2)}, wire=False, workers=[0, 1])
    host = lab.host(config)
    a1 = lab.container(host, "a1")
    lab.testpmd(host, "a2", mode="5tswap")
    with Stream(a1.namespace, a1.namespace, A2.address, echo=True) as stream:
        stream.wait(1000)
    result = stream.result()
    assert (result.lost, result.duplicates, result.reordered) == (0, 0, 0)


def test_viaductd_as_client(lab):
    """The VMM listens: `ready` doesn't wait for it, and the guest works once it is there."""
    host, a1, testpmd = host_with_testpmd(lab, role="client")
    a1.expect_ping(A2.address)


def test_guest_comes_and_goes(lab):
    host, a1, testpmd = host_with_testpmd(lab)
    for _ in range(3):
        a1.expect_ping(A2.address)
        testpmd.stop()
        a1.expect_no_ping(A2.address, 1)
        testpmd.start()
    a1.expect_ping(A2.address)


def test_guest_that_dies_harms_nobody_else(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": vhost("a2"), "a3": {**tap("a3"), "network": "blue",
                         "mac": "02:00:00:00:01:07", "addresses": ["10.1.1.7"]}}, wire=False)
    host = lab.host(config)
    a1, third = lab.container(host, "a1"), lab.container(host, "a3")
    testpmd = lab.testpmd(host, "a2")
    a1.expect_ping(A2.address)
    with Stream(third.namespace, a1.namespace, A1.address, rate=1000) as stream:
        stream.wait(200)
        testpmd.process.stop(9)
        stream.wait(500)
    assert stream.result().lost == 0
    testpmd.start()
    a1.expect_ping(A2.address)
