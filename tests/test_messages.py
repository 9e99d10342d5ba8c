"""What the daemon's log says, and what it and the command line say where something can't be done."""

import json
import os
import re
import subprocess

import pytest

from lab import PATIENCE, Background, Config, binary, eventually
from lab.topology import SEATS, host_config, one_host, tap

A1, A2 = SEATS["a1"], SEATS["a2"]
NOBODY = 65534


def words_as_nobody(*words):
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *map(str, words)]


def test_the_log_says_what_started_and_who_changed_what(lab):
    host, _ = one_host(lab, "a1", "a2")
    text = host.daemon.text()
    start = next(line for line in text.splitlines() if "viaductd starts" in line)
    assert str(host.file) in start and "version=" in start and str(host.run_dir) in start
    opened = [line for line in text.splitlines() if "port opened" in line]
    assert any('interface="a1"' in line and "tap tapa1" in line for line in opened), text
    host.call("rt", "add", "--network", "blue", "10.60.0.0/16", "--to", "drop")
    host.call("rt", "del", "--network", "blue", "10.60.0.0/16")
    host.daemon.wait_for('add route "10.60.0.0/16" of network "blue" uid=0 pid=')
    host.daemon.wait_for('remove route "10.60.0.0/16" of network "blue" uid=0 pid=')
    host.apply(host.config.without("guest", name="a2"))
    host.daemon.wait_for('remove guest "a2" uid=0')
    host.daemon.wait_for('port closed interface="a2"')


def test_the_log_says_when_a_wire_goes_down(lab):
    lab.plug("a")
    host = lab.host(host_config("a", {"a1": tap("a1")}))
    host.namespace.ip("link set up0 down")
    host.daemon.wait_for("the wire is down: it is switched off, or has no carrier interface=\"up0\"")
    host.namespace.ip("link set up0 up")
    host.daemon.wait_for('the wire is up again interface="up0"')


def test_debug_is_of_viaduct_and_not_of_its_libraries(lab, monkeypatch):
    monkeypatch.setenv("VIADUCT_LOG", "debug")
    host, _ = one_host(lab, "a1")
    host.viaduct("status")
    text = re.sub(r"\x1b\[[0-9;]*m", "", host.daemon.text())
    assert not re.search(r" (h2|hyper|hyper_util|tonic|tower|mio|want)[:\w]*: ", text), text


def test_the_log_may_be_json(lab):
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False), start=False)
    host.options = ["--log-format", "json"]
    host.start()
    lines = [json.loads(line) for line in host.daemon.text().splitlines() if line != "ready"]
    start = next(line for line in lines if line["message"] == "viaductd starts")
    assert start["level"] == "INFO" and start["host"] == "a"


def test_the_journal_gets_priorities(lab):
    file = lab.directory / "host.toml"
    config = Config("a").add("network", name="blue", vrf=1).add("guest", name="g", network="blue", kind="vhost")
    file.write_text(config.text())
    words = [str(binary("viaductd")), "--config", str(file), "--check"]
    for is_journal in (True, False):
        with open(lab.directory / f"log-{is_journal}", "w+b") as log:
            status = os.fstat(log.fileno())
            stream = f"{status.st_dev}:{status.st_ino}" if is_journal else "1:1"
            environment = {**os.environ, "JOURNAL_STREAM": stream}
            subprocess.run(words, stderr=log, env=environment, check=True, timeout=PATIENCE)
            log.seek(0)
            assert log.read().startswith(b"<4>") == is_journal


def test_a_capability_that_lacks_is_named(lab):
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False), start=False)
    host.write()
    program = lab.directory / "viaductd"
    program.write_bytes(binary("viaductd").read_bytes())
    program.chmod(0o755)
    (host.directory / "state").mkdir()
    for directory in (lab.directory, host.directory):
        directory.chmod(0o755)
    for directory in (host.run_dir, host.directory / "state"):
        os.chown(directory, NOBODY, NOBODY)
    words = [program, "--config", host.file, "--run-dir", host.run_dir, "--state-dir", host.directory / "state"]
    words = host.namespace.words(words_as_nobody(*words))
    daemon = Background(words, lab.directory / "nobodys.log")
    try:
        daemon.wait_for("start viaductd as root")
        assert "CAP_NET_ADMIN" in daemon.text(), "it goes on without that port"
    finally:
        daemon.stop()


def test_a_socket_that_may_not_be_opened_is_not_an_absent_daemon(lab):
    host, _ = one_host(lab, "a1")
    for directory in (lab.directory, host.directory):
        directory.chmod(0o755)
    words = words_as_nobody(binary("viaduct"), "--run-dir", host.run_dir, "status")
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and "you may not open" in done.stderr and "no daemon" not in done.stderr, done


def test_the_mtu_of_a_live_tap_is_the_one_shown(lab):
    host, (a1,) = one_host(lab, "a1")
    assert host.viaduct("guest", "show", "a1")["mtu"] == 1500
    assert host.viaduct("status")["warnings"] == []
    a1.namespace.ip("link set", a1.device, "mtu 1300")
    eventually(lambda: host.viaduct("guest", "show", "a1")["mtu"] == 1300, "the device's MTU")
    [warning] = host.viaduct("status")["warnings"]
    assert warning["object"] == 'guest "a1"' and "mtu 1500" in warning["message"]


def test_a_guests_own_route_says_whose_it_is(lab):
    host, _ = one_host(lab, "a1")
    refused = host.call("rt", "del", "--network", "blue", f"{A1.address}/32", check=False)
    assert refused.returncode == 1 and 'that of guest "a1"' in refused.stderr, refused.stderr


@pytest.mark.parametrize("attached", [True, False])
def test_a_guest_that_nobody_outside_can_answer_is_warned_about(lab, attached):
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")})
    wire = {"wire": "up0", "vlan": 9} if attached else {}
    config.add("network", name="public", vrf=9, gateways=["203.0.113.254/24"], **wire)
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
    config.add("nat", network="blue", inside=A1.address, outside="203.0.113.7", outside_network="public")
    host = lab.host(config)
    warned = [row["object"] for row in host.viaduct("status")["warnings"] if "no floating" in row["message"]]
    assert warned == (['guest "a2"'] if attached else [])
