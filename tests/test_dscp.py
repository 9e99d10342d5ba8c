"""DSCP of a guest: its packets leave with it, inside and outside of tunnels, and their ECN fields stay."""

import pytest

from lab.topology import SEATS, bridge_entries, host_config, tap, tunnel_routes, two_hosts, vhost

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]
EF, AF41 = "46", "34"


def mpls(family):
    return lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes, family=family)


def classes(seen, display_filter):
    """Returns the DSCPs of packets, the outermost first, and the ECN fields of the innermost."""
    fields = [f"{header}.{field}" for header in ("ip.dsfield", "ipv6.tclass") for field in ("dscp", "ecn")]
    found = []
    for dscp4, ecn4, dscp6, ecn6 in seen.fields(display_filter, *fields):
        # Two headers of one family come in their order.
        found.append((sorted(filter(None, f"{dscp4},{dscp6}".split(","))), {*f"{ecn4},{ecn6}".split(",")} - {""}))
    assert found, display_filter
    return found


@pytest.mark.parametrize(
    ("connect", "family"), [(mpls(4), 4), (mpls(6), 6), (bridge_entries, 4)], ids=["mpls", "mpls-ipv6", "vxlan"]
)
def test_between_hosts_the_outer_header_has_it_too(lab, connect, family):
    hosts, guests = two_hosts(lab, connect, family=family)
    a1, b1 = guests["a1"], guests["b1"]
    a1.expect_ping(B1.address), a1.expect_ping(B1.address6)
    # The tap is the one that was there: the change is made while it is in use.
    hosts["a"].call("guest", "set", "a1", "dscp=ef", "--take-over")
    with lab.capture("b", expression="not arp") as seen, lab.capture("b1", b1.device) as inside:
        # A DSCP of its own, ECT(0); then one without; then fragments.
        a1.expect_ping(B1.address, options=("-Q", "0x0a"))
        a1.expect_ping(B1.address6)
        a1.expect_ping(B1.address, size=20000)
        b1.expect_ping(A1.address6)
    ours = f"(icmp.type == 8 || icmpv6.type == 128) && !(ipv6.src == {B1.address6})"
    assert all(dscps == [EF, EF] for dscps, _ in classes(seen, ours))
    assert all(dscps == [EF] for dscps, _ in classes(inside, ours))
    assert {"2"} in [ecns for _, ecns in classes(inside, "icmp.type == 8")]
    # What b1 asks by itself is not a1's; it answers with the class of the question.
    assert all(dscps == ["0"] for dscps, _ in classes(inside, f"icmpv6.type == 128 && ipv6.src == {B1.address6}"))
    later = f"ip.frag_offset > 0 && ip.src == {A1.address}"
    assert all(dscps == [EF] for dscps, _ in classes(inside, later))
    assert seen.expert() == [] and inside.expert() == []


def test_within_a_host_and_changed_while_packets_flow(lab):
    config = lambda **keys: host_config("a", {"a1": tap("a1") | keys, "a2": tap("a2")}, wire=False)
    host = lab.host(config(dscp=34))
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    assert host.viaduct("guest", "show", "a1")["dscp"] == "af41"
    assert 'dscp = "af41"' in host.call("export").stdout
    told = host.call("explain", "--in", "a1", f"{A1.address} > {A2.address} / udp 7 > 8").stdout
    assert f"dscp {AF41}, ecn 0" in told, told
    for keys, expected in (({"dscp": "af41"}, AF41), ({"dscp": "cs1"}, "8"), ({"dscp": 63}, "63"), ({}, "0")):
        host.apply(config(**keys))
        with lab.capture("a2", a2.device) as seen:
            a1.expect_ping(A2.address), a1.expect_ping(A2.address6)
            # Segments of a large send.
            a1.expect_ping(A2.address, size=1400)
        # Viaduct answers neighbour discovery in the guest's name.
        sent = f"icmp && ip.src == {A1.address} || icmpv6.type == 128 && ipv6.src == {A1.address6}"
        assert all(dscps == [expected] for dscps, _ in classes(seen, sent)), keys
        assert seen.expert() == []


def test_a_card_leaves_such_a_guest_to_the_host(lab):
    config = host_config("a", {"a1": tap("a1") | {"dscp": "ef"}, "a2": tap("a2")}, wire=False, executor="card-sim")
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    with lab.capture("a2", a2.device) as seen:
        a1.expect_ping(A2.address)
    assert all(dscps == [EF] for dscps, _ in classes(seen, "icmp.type == 8"))
    punted = {row["reason"] for row in host.viaduct("status")["card"]["punted"]}
    assert "host_port" in punted, punted


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (tap("a1") | {"dscp": 64}, '"64" is no DSCP'),
        (tap("a1") | {"dscp": "voice"}, '"voice" is no DSCP'),
        ({"network": "", "mode": "ovs", "mac": None, "dscp": "ef"}, "`dscp` has no meaning"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(lab, keys, why):
    host = lab.host(host_config("a", {"a2": tap("a2")}, wire=False))
    config = host_config("a", {"a1": vhost("a1") | keys, "a2": tap("a2")}, wire=False)
    refused = host.call("check", host.write(config), check=False)
    assert refused.returncode != 0 and why in refused.stdout + refused.stderr, refused
