"""host.toml: what is accepted, what is refused and how it is said; and `apply`: all of it or nothing."""

import re

import pytest

from lab import binary
from lab.shell import run
from lab.topology import SEATS, host_config, one_host, tap

A1, A2 = SEATS["a1"], SEATS["a2"]
GOOD = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}).text()

BAD = {
    "unknown key": (GOOD.replace("vrf = 1", "vfr = 1"), "vfr", ["vrf"]),
    "unknown table": (GOOD + "\n[[gest]]\nname = \"x\"\n", "gest", ["guest"]),
    "unknown key of a tunnel": (
        GOOD
        + '\n[[route]]\nnetwork = "blue"\nprefix = "10.9.0.0/16"\nto = [{ tunnel = "vxlan", remot = "192.0.2.9" }]\n',
        "remot",
        ["remote"],
    ),
    "unknown word": (GOOD.replace('kind = "tap"', 'kind = "tab"', 1), "tab", ["tap"]),
    "missing network": (GOOD.replace('network = "blue"', 'network = "bleu"', 1), "bleu", ["blue"]),
    "wrong type": (GOOD.replace("vrf = 1", 'vrf = "one"'), "vrf", []),
    "bad address": (GOOD.replace(f'"{A1.address}"', '"10.1.1.300"'), "10.1.1.300", []),
    "bad mac": (GOOD.replace(A1.mac, "02:00:00:00:01"), "02:00:00:00:01", []),
    "two guests of one name": (GOOD.replace('name = "a2"', 'name = "a1"'), "a1", []),
    "label out of range": (GOOD.replace(f"label = {A1.label}", "label = 7"), "label", ["16"]),
    "not toml": (GOOD + "\n[[guest\n", "", ["unclosed array table"]),
}


def check(lab, text):
    file = lab.directory / "check.toml"
    file.write_text(text)
    return run([binary("viaductd"), "--config", file, "--check"], check=False)


def test_good_file_passes_the_check(lab):
    done = check(lab, GOOD)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_refused_with_name_and_line(lab, case):
    text, culprit, hints = BAD[case]
    done = check(lab, text)
    assert done.returncode == 2
    assert culprit in done.stderr, done.stderr
    assert "panicked" not in done.stderr
    for hint in hints:
        assert hint in done.stderr, done.stderr
    changed = set(text.splitlines()) - set(GOOD.splitlines())
    lines = [number for number, row in enumerate(text.splitlines(), 1) if row in changed and culprit in row]
    named = {int(number) for number in re.findall(r"(?:line |:)(\d+)", done.stderr)}
    assert set(lines) <= named, f"line {lines} is not named: {done.stderr}"


def test_all_mistakes_are_told_at_once(lab):
    done = check(lab, GOOD.replace("vrf = 1", "vfr = 1").replace('kind = "tap"', 'kind = "tab"', 1))
    assert "vfr" in done.stderr and "tab" in done.stderr, done.stderr


def test_apply_of_a_bad_file_changes_nothing(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    before = host.viaduct("rt", "--network", "blue"), host.viaduct("guest"), host.viaduct("rule")
    bad = host.config.copy().add("route", network="blue", prefix="10.3.0.0/16", to="drop")
    bad.rule("blue", 10, "drop", protocol="icmp")
    bad.add("route", network="nowhere", prefix="10.4.0.0/16", to="drop")
    file = lab.directory / "bad.toml"
    file.write_text(bad.text())
    refused = host.call("apply", file, check=False)
    assert refused.returncode == 1 and "nowhere" in refused.stderr, refused
    assert before == (host.viaduct("rt", "--network", "blue"), host.viaduct("guest"), host.viaduct("rule"))
    a1.expect_ping(A2.address)


def test_apply_of_the_same_file_changes_nothing(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    host.call("apply", host.file)
    assert host.viaduct("diff", host.file) == []
    # Sockets and taps are left alone: the container's address is still there.
    a1.expect_ping(A2.address)


def test_diff_shows_what_apply_would_do(lab):
    host, _ = one_host(lab, "a1")
    wider = host.config.copy().add("route", network="blue", prefix="10.3.0.0/16", to="drop")
    host.write(wider)
    changes = host.viaduct("diff", host.file)
    assert len(changes) == 1 and "10.3.0.0/16" in str(changes), changes
    host.call("apply", host.file)
    assert host.viaduct("diff", host.file) == []


def test_guests_come_and_go_by_apply(lab):
    host, (a1,) = one_host(lab, "a1")
    more = host.config.copy()
    more.add("guest", name="a2", network="blue", mac=A2.mac, addresses=[A2.address], **tap("a2"))
    host.apply(more)
    a2 = lab.container(host, "a2")
    a1.expect_ping(A2.address)
    host.apply(host.config.without("guest", name="a2"))
    assert [row["name"] for row in host.viaduct("guest")] == ["a1"]
    a1.expect_no_ping(A2.address, 1)
    assert a2.device not in a2.run(["ip", "link"]).stdout


def test_removed_route_binds_before_apply_returns(lab):
    host, (a1,) = one_host(lab, "a1")
    a1.namespace.ip("addr add 10.7.1.1/32 dev lo")
    config = host.config.copy()
    config.entry("guest", "a1")["allowed"] = ["10.7.0.0/16"]
    config.add("guest", name="a2", network="blue", mac=A2.mac, addresses=[A2.address], **tap("a2"))
    config.add("route", network="blue", prefix="10.7.0.0/16", to={"guest": "a1"})
    host.apply(config)
    a2 = lab.container(host, "a2")
    a2.expect_ping("10.7.1.1")
    host.apply(config.without("route", prefix="10.7.0.0/16"))
    assert a2.ping("10.7.1.1", 1, timeout=1)[0] == 0
