"""host.toml: what is accepted, what is refused and how it is said; and `apply`: all of it or nothing."""

import re
import signal

import pytest

from lab import binary, eventually
from lab.config import toml
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


def test_a_file_includes_others(lab):
    """Jobs have files of their own, below the folder of host.toml."""
    host, (a1,) = one_host(lab, "a1")
    jobs = host.file.parent / "jobs"
    jobs.mkdir()
    host.config.include = ["jobs/*.toml"]
    host.write()
    guest = {"name": "a2", "network": "blue", "mac": A2.mac, "addresses": [A2.address], **tap("a2")}
    keys = (f"{key} = {toml(value)}\n" for key, value in guest.items())
    (jobs / "a2.toml").write_text("[[guest]]\n" + "".join(keys))
    assert host.call("check", host.file).stdout.endswith("is good\n")
    assert [row["object"] for row in host.viaduct("diff", host.file)] == ['guest "a2"']
    host.call("apply", host.file)
    host.config.add("guest", **guest)
    a2 = lab.container(host, "a2")
    host.config = host.config.without("guest", name="a2")
    a1.expect_ping(A2.address)
    assert not host.viaduct("status")["warnings"]
    # The daemon reads them itself: for a reload, and at the start.
    (jobs / "rt.toml").write_text('[[route]]\nnetwork = "blue"\nprefix = "10.3.0.0/16"\nto = "drop"\n')
    assert "10.3.0.0/16" in str(host.viaduct("status")["warnings"])
    host.daemon.process.send_signal(signal.SIGHUP)
    prefixes = lambda: {row["prefix"] for row in host.viaduct("rt")}
    eventually(lambda: "10.3.0.0/16" in prefixes(), "the included route")
    (jobs / "rt.toml").unlink()
    host.kill()
    host.start()
    assert "10.3.0.0/16" not in prefixes() and host.viaduct("guest", "show", "a2")["owner"] == "file"
    a2.expect_ping(A1.address)
    # Errors name file and line.
    (jobs / "twin.toml").write_text((jobs / "a2.toml").read_text())
    twice = re.compile(r"jobs/twin\.toml:\d+: guest \"a2\": is there already \(jobs/a2\.toml, line \d+\)")
    for command in (["check"], ["diff"], ["apply"]):
        refused = host.call(*command, host.file, check=False)
        said = refused.stderr.replace("jobs/twin.toml: line ", "jobs/twin.toml:")
        assert refused.returncode == 1 and twice.search(said), refused
    checked = run([binary("viaductd"), "--config", host.file, "--check"], check=False)
    assert checked.returncode == 2 and twice.search(checked.stderr), checked
    (jobs / "twin.toml").unlink()
    (jobs / "out.toml").symlink_to("/etc/hostname")
    refused = host.call("apply", host.file, check=False)
    assert refused.returncode == 1 and "jobs/out.toml: it leads out" in refused.stderr, refused
