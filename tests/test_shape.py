"""Shaping: what is over a guest's rate waits instead of being dropped, in both directions."""

import time
import urllib.request

import pytest

from lab import PATIENCE, Stream, eventually
from lab.topology import SEATS, host_config, tap, vhost
from lab.traffic import tcp_rate

A1, A2 = SEATS["a1"], SEATS["a2"]
# A rate is kept within 2 %.
MOST = 1.02


def shaped(lab, a1=None, a2=None, **host):
    """Starts host a with two containers that have these shapers; returns (host, a1, a2)."""
    keys = {"a1": {"shape": a1} if a1 else {}, "a2": {"shape": a2} if a2 else {}}
    config = host_config("a", {name: tap(name) | keys[name] for name in keys}, wire=False, **host)
    started = lab.host(config)
    guests = [lab.container(started, name) for name in keys]
    guests[0].expect_ping(A2.address)
    return started, *guests


def vif(host, name):
    return next(row for row in host.viaduct("vif") if row["name"] == name)


def measured(host, client, server, address, counted, seconds=3):
    """Runs one TCP stream. Returns its goodput, and the rate of all bytes at an interface of the host meanwhile, both in
    Mbit/s. `counted`: name of the interface, and of the counter."""
    name, counter = counted
    before, began = vif(host, name)[counter], time.monotonic()
    goodput = tcp_rate(client, server, address, seconds=seconds)
    # What waited when the stream ended goes on.
    elapsed = time.monotonic() - began
    rate = (vif(host, name)[counter] - before) * 8 / elapsed / 1e6
    print(f"goodput {goodput:.1f}, {counter} of {name} {rate:.1f} Mbit/s")
    return goodput, rate


@pytest.mark.parametrize("mbps", [50, 200])
def test_what_a_container_sends_keeps_to_the_rate(lab, mbps):
    host, a1, a2 = shaped(lab, a1={"out": {"mbps": mbps}})
    rates = measured(host, a1, a2, A2.address, ("a1", "rx_bytes"))
    assert 0 < max(rates) <= mbps * MOST, rates
    shape = vif(host, "a1")["shape"]
    assert shape["out_mbps"] == mbps and shape["out_waited"] > 0
    # The other direction has no shaper, and acknowledgements are few.
    assert max(measured(host, a2, a1, A1.address, ("a2", "rx_bytes"))) > mbps
    assert not {"shaped", "codel", "rate_limited"} & host.drops().keys()


@pytest.mark.parametrize("mbps", [50, 200])
def test_what_comes_to_a_container_keeps_to_the_rate(lab, mbps):
    host, a1, a2 = shaped(lab, a2={"in": {"mbps": mbps}})
    rates = measured(host, a1, a2, A2.address, ("a2", "tx_bytes"))
    assert 0 < max(rates) <= mbps * MOST, rates
    shape = vif(host, "a2")["shape"]
    assert shape["in_mbps"] == mbps and shape["in_waited"] > 0
    eventually(lambda: not vif(host, "a2")["shape"].get("in_packets"), "an empty queue")
    assert max(measured(host, a2, a1, A1.address, ("a2", "rx_bytes"))) > mbps


def test_congestion_is_marked_for_ends_that_do_ecn(lab):
    host, a1, a2 = shaped(lab, a2={"in": {"mbps": 20}})
    for guest in (a1, a2):
        guest.run(["sysctl", "-qw", "net.ipv4.tcp_ecn=1"])
    rates = measured(host, a1, a2, A2.address, ("a2", "tx_bytes"), seconds=4)
    assert 0 < max(rates) <= 20 * MOST, rates
    marked, dropped = vif(host, "a2")["shape"]["in_marked"], host.drops().get("codel", 0)
    # Acknowledgements and what is sent again can't be marked (RFC 3168, 6.1.4 and 6.1.5).
    assert marked > 0 and dropped < marked, (marked, dropped)


def test_shapers_come_change_and_go_while_packets_flow(lab):
    host, a1, a2 = shaped(lab)
    shapes = ({"in": {"mbps": 5}}, {"in": {"mbps": 500}, "out": {"mbps": 9}}, {"out": {"mbps": 7}}, None)
    with Stream(a1.namespace, a2.namespace, A2.address, rate=300) as stream:
        for shape in shapes:
            config = host_config("a", {name: tap(name) | {"shape": shape} for name in ("a1", "a2")}, wire=False)
            host.apply(config)
            stream.wait(100)
            assert (vif(host, "a1").get("shape") is None) == (shape is None)
        host.call("guest", "set", "a1", "shape={ in = { mbps = 8 }, out = { mbps = 7 } }", "--take-over")
        stream.wait(100)
        assert host.viaduct("guest", "show", "a1")["shape"] == {"in": {"mbps": 8}, "out": {"mbps": 7}}
    result = stream.result()
    assert (result.lost, result.duplicates) == (0, 0)


def test_a_new_daemon_keeps_the_rates_and_loses_nothing(lab):
    host, a1, a2 = shaped(lab, a1={"out": {"mbps": 50}}, a2={"in": {"mbps": 40}})
    with Stream(a1.namespace, a2.namespace, A2.address, rate=300) as stream:
        for _ in range(2):
            host.replace()
        stream.wait(100)
    result = stream.result()
    assert (result.lost, result.duplicates) == (0, 0)
    rates = measured(host, a1, a2, A2.address, ("a2", "tx_bytes"))
    assert 0 < max(rates) <= 40 * MOST, rates


def test_a_card_leaves_shaped_guests_to_the_host(lab):
    host, a1, a2 = shaped(lab, a2={"in": {"mbps": 2}}, executor="card-sim")
    rates = measured(host, a1, a2, A2.address, ("a2", "tx_bytes"))
    assert 0 < max(rates) <= 2 * MOST, rates
    assert vif(host, "a2")["shape"]["in_waited"] > 0
    punted = {row["reason"] for row in host.viaduct("status")["card"]["punted"]}
    # What comes to it, and what it sends.
    assert {"nexthop", "host_port"} <= punted, punted


def test_shapers_are_shown(lab):
    host, a1, a2 = shaped(lab, a1={"out": {"mbps": 50}}, a2={"in": {"mbps": 40}}, metrics="127.0.0.1:9101")
    tcp_rate(a1, a2, A2.address, options=("-n", "4M"))
    status = host.call("status").stdout
    assert "a1: out 50 Mbit/s: " in status and "a2: in 40 Mbit/s: " in status, status
    assert "shape" in host.call("export").stdout
    told = host.call("explain", "--in", "a1", f"{A1.address} > {A2.address} / udp 7 > 8").stdout
    assert "from a1" in told and "waits for 50 Mbit/s" in told and "to a2" in told and "40 Mbit/s" in told, told
    with host.namespace.entered():
        text = urllib.request.urlopen("http://127.0.0.1:9101/metrics", timeout=PATIENCE).read().decode()
    assert 'viaduct_shape_out_bits_per_second{vif="a1",network="blue"} 50000000' in text
    assert 'viaduct_shape_in_waited_total{vif="a2"' in text


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (tap("a1") | {"shape": {"in": {"mbps": 0}}}, "use 1 to 100000"),
        (tap("a1") | {"shape": {"out": {"mbps": 5, "guaranteed_mbps": 1}}}, "guaranteed rates are not there yet"),
        (tap("a1") | {"shape": {}}, "neither `in` nor `out`"),
        (vhost("a1", rdma="hca") | {"shape": {"out": {"mbps": 5}}}, "`shape` and `rdma` exclude each other"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(lab, keys, why):
    host, _, _ = shaped(lab)
    config = host_config("a", {"a1": keys, "a2": tap("a2")}, wire=False)
    refused = host.call("check", host.write(config), check=False)
    assert refused.returncode != 0 and why in refused.stdout + refused.stderr, refused
