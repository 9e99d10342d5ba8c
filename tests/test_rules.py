"""Rules: what is let through, what is not, and what happens to replies."""

import socket

import pytest

from lab import RawPort
from lab.topology import SEATS, host_config, tap, tunnel_routes, two_hosts
from lab.traffic import (
    PATIENCE,
    EchoServer,
    answers,
    arrived,
    connect,
    connect_in_vain,
    datagram,
    dropping,
    send_in_vain,
    tcp_rate,
)

A1, A2 = SEATS["a1"], SEATS["a2"]
# Bytes of an echo that is longer than those before.
LAST = 100


def with_rules(lab, *rules, guests=("a1", "a2"), default=None, keys=None):
    """Starts host a with containers and these rules of network blue: (priority, action, keys)."""
    entries = {guest: {**tap(guest), **(keys or {}).get(guest, {})} for guest in guests}
    config = host_config("a", entries, wire=False)
    for priority, action, matches in rules:
        config.rule("blue", priority, action, **matches)
    if default:
        config.add("default", network="blue", action=default)
    host = lab.host(config)
    return host, *[lab.container(host, guest) for guest in guests]


def test_drop_by_port_leaves_other_ports_alone(lab):
    host, a1, a2 = with_rules(lab, (10, "drop", {"protocol": "tcp", "ports": "8000-8010"}))
    with EchoServer(a2, 8005), EchoServer(a2, 8011):
        connect_in_vain(host, "rule_drop", a1, A2.address, 8005)
        assert answers(connect(a1, A2.address, 8011))
        assert datagram(a1, A2.address, 8005)


def test_first_match_by_priority_wins(lab):
    host, a1, a2 = with_rules(
        lab,
        (20, "drop", {"protocol": "udp"}),
        (10, "allow", {"protocol": "udp", "ports": "53"}),
    )
    with EchoServer(a2, 53), EchoServer(a2, 54):
        assert datagram(a1, A2.address, 53)
        send_in_vain(host, "rule_drop", a1, A2.address, 54)


def test_replies_of_an_allowed_connection_pass(lab):
    host, a1, a2 = with_rules(
        lab, (10, "allow", {"source": {"guest": "a1"}, "to": {"guest": "a2"}, "protocol": "tcp"}), default="drop"
    )
    with EchoServer(a2, 80), EchoServer(a1, 80):
        assert answers(connect(a1, A2.address, 80))
        # The other direction is not allowed, nor is another protocol.
        connect_in_vain(host, "default_drop", a2, A1.address, 80)
        send_in_vain(host, "default_drop", a1, A2.address, 80)


@pytest.mark.parametrize("address", [A2.address, A2.address6])
def test_reject_answers_at_once(lab, address):
    _, a1, a2 = with_rules(
        lab, (10, "reject", {"protocol": "tcp", "ports": "81"}), (11, "reject", {"protocol": "udp"})
    )
    with pytest.raises(ConnectionRefusedError):
        connect(a1, address, 81)
    # The kernel turns ICMP "prohibited" into an error of the socket; a mere drop would be a time-out.
    with a1.namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE)
        sender.connect((address, 82))
        sender.send(b"x")
        with pytest.raises((ConnectionRefusedError, PermissionError, OSError)) as refused:
            sender.recv(10)
        assert not isinstance(refused.value, TimeoutError)


def test_change_of_rules_cuts_connections_in_both_directions(lab):
    host, a1, a2 = with_rules(lab)
    with EchoServer(a2, 80):
        connection = connect(a1, A2.address, 80)
        assert answers(connection)
        stricter = host.config.copy().rule("blue", 5, "drop", protocol="tcp", ports="80")
        host.apply(stricter)
        with dropping(host, "rule_drop"):
            connection.sendall(b"again")
        assert arrived(connection) is None
        host.apply(host.config.without("rule", priority=5))
        assert connection.recv(100) == b"again", "TCP sends again what was dropped meanwhile"


def test_rules_by_address_and_guest_across_networks(lab):
    config = host_config("a", {"a1": tap("a1"), "a3": tap("a3")}, wire=False)
    config.add("route", network="blue", prefix="10.2.2.0/24", to={"network": "red"})
    config.add("route", network="red", prefix="10.1.1.0/24", to={"network": "blue"})
    config.rule("red", 10, "drop", source={"cidr": "10.1.1.0/24"}, protocol="udp")
    host = lab.host(config)
    a1, a3 = lab.container(host, "a1"), lab.container(host, "a3")
    a3_address = SEATS["a3"].address
    a1.expect_ping(a3_address)
    with EchoServer(a3, 80), EchoServer(a1, 81):
        send_in_vain(host, "rule_drop", a1, a3_address, 80)  # the destination's network has a say too
        assert answers(connect(a1, a3_address, 80))
        assert datagram(a3, A1.address, 81)


def test_guest_without_policy_is_not_asked(lab):
    _, a1, a2 = with_rules(lab, default="drop", keys={"a1": {"policy": False}, "a2": {"policy": False}})
    a1.expect_ping(A2.address)


def test_mirror_copies_both_directions(lab):
    keys = {"a1": {"mirror": "mon"}}
    config = host_config("a", {"a1": {**tap("a1"), **keys["a1"]}, "a2": tap("a2")}, wire=False)
    config.add("network", name="monitors", vrf=9)
    config.add("guest", name="mon", network="monitors", kind="tap", device="tapmon", policy=False)
    host = lab.host(config)
    a1, a2, mon = (lab.container(host, guest) for guest in ("a1", "a2", "mon"))
    a1.expect_ping(A2.address)
    with lab.capture("mon", "tapmon", "icmp") as seen:
        a1.expect_ping(A2.address, 5)
        a1.run(["ping", "-c", 1, "-s", LAST, A2.address])
        for kind in (8, 0):
            seen.wait_for(f"icmp.type == {kind} && frame.len == {LAST + 42}")
    # Each once; there are more where an echo was late.
    for own in (f"icmp.type == 8 && ip.src == {A1.address}", f"icmp.type == 0 && ip.dst == {A1.address}"):
        echoes = seen.fields(own, "icmp.ident", "icmp.seq")
        assert len(echoes) == len({tuple(echo) for echo in echoes}) >= 7, echoes


def test_mirror_by_rule(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    config.add("network", name="monitors", vrf=9)
    config.add("guest", name="mon", network="monitors", kind="tap", device="tapmon", policy=False)
    config.rule("blue", 10, "mirror:mon", protocol="udp", ports="53")
    host = lab.host(config)
    a1, a2, mon = (lab.container(host, guest) for guest in ("a1", "a2", "mon"))
    with EchoServer(a2, 53), EchoServer(a2, 54), RawPort(mon.namespace, "tapmon") as monitor:
        assert datagram(a1, A2.address, 54, b"unseen")
        assert datagram(a1, A2.address, 53, b"seen")
        copy = lambda frame: b"seen" in frame and b"unseen" not in frame
        assert not monitor.before(copy, lambda frame: b"unseen" in frame, "copy")


def test_police_and_rate_drop_what_is_too_much_and_let_the_rest_pass(lab):
    """TCP finds its way below the rates: some of a transfer is dropped, and all of it arrives."""
    keys = {"a1": {"rate": {"mbps": 20, "burst_kb": 64}}}
    host, a1, a2 = with_rules(lab, (10, "police:10", {"source": {"guest": "a2"}, "protocol": "tcp"}), keys=keys)
    a1.expect_ping(A2.address)
    with dropping(host, "rate_limited"):
        tcp_rate(a1, a2, A2.address, options=("-n", "4M"))
    with dropping(host, "policed"):
        tcp_rate(a2, a1, A1.address, options=("-n", "4M"))


def test_a_policed_tcp_stream_has_its_rate(lab):
    """Without a burst in the file: the bucket holds what a stream loses while it waits for a retransmission."""
    keys = {"a1": {"rate": {"mbps": 20}}}
    host, a1, a2 = with_rules(lab, (10, "police:20", {"source": {"guest": "a2"}, "protocol": "tcp"}), keys=keys)
    a1.expect_ping(A2.address)
    for source, sink, address in (a1, a2, A2.address), (a2, a1, A1.address):
        # The first half second's worth comes at once.
        assert 0.9 * 20 < tcp_rate(source, sink, address, seconds=6) < 1.2 * 20
    assert host.drops().get("rate_limited") and host.drops().get("policed")


def test_rules_hold_across_hosts(lab):
    connect_hosts = lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
    hosts, guests = two_hosts(lab, connect_hosts)
    a1, b1 = guests["a1"], guests["b1"]
    a1.expect_ping(SEATS["b1"].address)
    hosts["b"].apply(hosts["b"].config.copy().rule("blue", 10, "drop", to={"guest": "b1"}, protocol="udp"))
    with EchoServer(b1, 80):
        send_in_vain(hosts["b"], "rule_drop", a1, SEATS["b1"].address, 80)
        assert answers(connect(a1, SEATS["b1"].address, 80))


def test_deny_in_lets_guests_out_and_in_only_whom_a_rule_names(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "a3": tap("a3")}, wire=False)
    config.entry("network", "blue")["default"] = "deny-in"
    config.add("route", network="blue", prefix="10.2.2.0/24", to={"network": "red"})
    config.add("route", network="red", prefix="10.1.1.0/24", to={"network": "blue"})
    config.add("rule", name="web-in", network="blue", priority=10, protocol="tcp", ports="80", action="allow")
    host = lab.host(config)
    a1, a2, a3 = [lab.container(host, guest) for guest in ("a1", "a2", "a3")]
    a1.expect_ping(SEATS["a3"].address)
    with EchoServer(a1, 80), EchoServer(a1, 81):
        for client in (a2, a3):
            assert answers(connect(client, A1.address, 80))
            connect_in_vain(host, "rule_drop", client, A1.address, 81)
            send_in_vain(host, "rule_drop", client, A1.address, 81)
        [rule] = host.viaduct("rule")
        assert (rule["name"], rule["packets"] > 0) == ("web-in", True), rule
        host.call("apply", host.write(config.without("rule", name="web-in")))
        connect_in_vain(host, "rule_drop", a2, A1.address, 80)
    host.call("rule", "--network", "blue", "add", "--name", "ssh", "--priority", "5", "--action", "allow")
    host.call("rule", "set", "ssh", "priority=6")
    a2.expect_ping(A1.address)
    host.call("rule", "del", "ssh")
    assert host.viaduct("rule") == []
