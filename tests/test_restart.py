"""viaductd dies and comes back: with what was applied last, to guests that notice nothing but a gap."""

import json
import os
import re
import resource
import shutil
import signal
import socket
from pathlib import Path

import pytest

from lab import PATIENCE, Stream, binary, eventually, run
from lab.marks import at_night, machines, polls
from lab.topology import SEATS, host_config, one_host, tap, vhost


A1, A2 = SEATS["a1"], SEATS["a2"]
# The virtio feature bit of packed rings.
PACKED = 34


def sequence_numbers(vm):
    """Returns the answered echoes of the ping that runs in a guest, or is about to."""
    return [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", vm.shell("cat /tmp/ping", check=False).stdout)]


@machines
@pytest.mark.parametrize(
    "how,options,queues",
    [
        ("kill", "packed=on", 4),
        at_night("stop", "", 1),
        at_night("kill", "", 1),
        at_night("stop", "packed=on", 1),
    ],
)
def test_virtual_machines_live_on(lab, how, options, queues):
    """A VM whose QEMU connects and one whose QEMU listens live on."""
    guests = {"a1": vhost("a1", queues=queues), "a2": vhost("a2", role="client", queues=queues)}
    host = lab.host(host_config("a", guests, wire=False))
    one, two = lab.vm(host, "a1", options=options), lab.vm(host, "a2", options=options)
    for vm in (one, two):
        vm.boot()
        vm.shell(f"ethtool -L eth0 combined {queues}")
        assert (PACKED in vm.features()) == bool(options)
    one.expect_ping(A2.address)
    one.shell(f"/bin/ping -n -i 0.1 {A2.address} > /tmp/ping 2>&1 &")
    eventually(lambda: len(sequence_numbers(one)) > 10, "ten echoes before the restart")
    getattr(host, how)()
    host.start()
    last = sequence_numbers(one)[-1]
    eventually(
        lambda: len([number for number in sequence_numbers(one) if number > last]) > 10, "ten echoes after it"
    )
    one.shell("kill $(pidof ping)", check=False)
    numbers = sequence_numbers(one)
    jumps = [(before, after) for before, after in zip(numbers, numbers[1:]) if after != before + 1]
    assert len(jumps) <= 1, f"lost outside of the one gap: {jumps}"
    assert len(numbers) == len(set(numbers))
    two.expect_ping(A1.address)


def link(container):
    """Returns what the kernel says of a container's interface and its addresses, but for its counters."""
    words = ["ip", "-j", "-d", "addr", "show", "dev", container.device]
    (shown,) = json.loads(container.run(words).stdout)
    return shown["ifindex"], shown["address"], shown["mtu"], shown["addr_info"]


def helpers(host):
    """Returns the processes of the host's daemons."""
    pids = run(["ip", "netns", "pids", host.namespace.name]).stdout.split()
    return [pid for pid in pids if "viaductd" in Path(f"/proc/{pid}/comm").read_text()]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_containers_keep_their_interfaces(lab, how):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2") | {"queues": 2}}, wire=False)
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    a1.namespace.ip("link set", a1.device, "mtu 1234")
    before = link(a1), link(a2)
    with Stream(a1.namespace, a2.namespace, A2.address) as stream:
        for _ in range(3):
            getattr(host, how)()
            host.start()
            stream.wait(200)
    assert (link(a1), link(a2)) == before
    assert stream.result().duplicates == 0
    a2.expect_ping(A1.address)
    host.apply(config.without("guest", name="a2"))
    assert a2.device not in a2.run(["ip", "link"]).stdout, "removed as ever"


def test_a_daemon_starts_while_the_killed_one_still_ends(lab):
    """The kernel frees the killed daemon's memory, and its helper has not noticed the end, when the next one asks."""
    host, containers = one_host(lab, "a1", "a2")
    before = [link(container) for container in containers]
    for _ in range(5):
        killed = host.daemon
        killed.process.send_signal(signal.SIGKILL)
        host.start()
        killed.stop(signal.SIGKILL)
        assert [link(container) for container in containers] == before
    containers[0].expect_ping(A2.address)


def test_what_waits_in_containers_finds_the_ports_of_all_open(lab):
    """The ports open in the order of their names: the sender's first, the receiver's last."""
    names = ("a1", "a2", "b1", "b2")
    host, (sender, *_, receiver) = one_host(lab, *names)
    address = (SEATS[names[-1]].address, 7777)
    sender.expect_ping(address[0])
    with sender.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, \
            receiver.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind(("", address[1]))
        there.settimeout(PATIENCE)
        for _ in range(5):
            host.stop()
            for number in range(300):
                here.sendto(b"%d" % number, address)
            host.start()
            assert [int(there.recv(100)) for _ in range(300)] == list(range(300))


def test_interfaces_go_with_who_does_not_want_them(lab):
    """A tap that nobody moved goes with the daemon; one in a container goes with that, or with its guest."""
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False))
    a1 = lab.container(host, "a1")
    host.stop()
    assert "tapa2" not in host.namespace.run(["ip", "link"]).stdout
    assert len(helpers(host)) == 1 and "tapa1" in a1.run(["ip", "link"]).stdout
    a1.namespace.ip("link del", a1.device)
    eventually(lambda: not helpers(host), "the end of the helper that has nothing to keep")
    host.start()
    a1.attach()
    host.kill()
    shutil.rmtree(host.directory / "state")
    host.config = host_config("a", {"a2": tap("a2")}, wire=False)
    host.start()
    eventually(lambda: "tapa1" not in a1.run(["ip", "link"]).stdout, "the end of a tap without a guest")


def test_a_tap_that_is_lost_is_told(lab):
    """Daemon and helper are killed, and the container has no interface; the new tap is where nobody looks for it."""
    host, (a1, a2) = one_host(lab, "a1", "a2")
    told = lambda: [warning["object"] for warning in host.viaduct("status")["warnings"] if "tap" in warning["message"]]
    up = lambda: [vif["name"] for vif in host.viaduct("status")["vifs"] if vif["up"]]
    assert not told()
    host.stop()
    (helper,) = helpers(host)
    os.kill(int(helper), signal.SIGKILL)
    eventually(lambda: not helpers(host), "the helper's end")
    host.start()
    assert told() == ['guest "a1"', 'guest "a2"'] and not up()
    a1.attach()
    assert told() == ['guest "a2"'] and up() == ["a1"]
    a2.attach()
    a1.expect_ping(A2.address)
    assert not told()


def test_the_taps_of_a_daemon_that_runs_are_not_given_away(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as heir:
            heir.settimeout(PATIENCE)
            heir.connect(str(host.run_dir / "taps.sock"))
            assert heir.recv(100) == b""
    a1.expect_ping(A2.address)
    host.kill()
    host.start()
    a1.expect_ping(A2.address)


def test_the_taps_of_a_daemon_that_ended_outlive_who_does_not_wait_for_them(lab):
    host, (a1, _) = one_host(lab, "a1", "a2")
    host.kill()
    (helper,) = helpers(host)
    os.kill(int(helper), signal.SIGSTOP)
    eventually(lambda: "T (stopped)" in Path(f"/proc/{helper}/status").read_text(), "the helper stops")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as heir:
        heir.connect(str(host.run_dir / "taps.sock"))
    os.kill(int(helper), signal.SIGCONT)
    host.start()
    a1.expect_ping(A2.address)


@polls
def test_user_space_driver_reconnects(lab):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2", role="client")}, wire=False))
    a1 = lab.container(host, "a1")
    lab.testpmd(host, "a2")
    a1.expect_ping(A2.address)
    host.kill()
    host.start()
    a1.expect_ping(A2.address, 20)


def test_last_applied_state_comes_back_even_if_the_unchanged_file_says_otherwise(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    host = lab.host(config)
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    other = lab.directory / "other.toml"
    other.write_text(config.copy().rule("blue", 10, "drop", protocol="icmp").text())
    host.call("apply", other)
    a1.expect_no_ping(A2.address, 1)
    host.kill()  # `start` takes the daemon's own file only if that was changed
    host.start()
    a1.expect_no_ping(A2.address, 2)
    host.apply(config)
    a1.expect_ping(A2.address)


def test_what_the_api_added_comes_back_and_survives_apply(lab):
    config = host_config("a", {"a1": tap("a1")}, wire=False)
    host = lab.host(config)
    host.call("rt", "add", "10.99.0.0/16", "--network", "blue", "--to", "drop")
    prefixes = lambda: {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}
    assert "10.99.0.0/16" in prefixes()
    host.apply(config.copy().add("route", network="blue", prefix="10.98.0.0/16", to="drop"))
    assert {"10.98.0.0/16", "10.99.0.0/16"} <= prefixes()
    host.kill()
    host.start()
    assert {"10.98.0.0/16", "10.99.0.0/16"} <= prefixes()
    host.call("rt", "del", "10.99.0.0/16", "--network", "blue")
    assert "10.99.0.0/16" not in prefixes()


def test_restart_of_a_host_is_invisible_to_the_guests_of_another(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    other = lab.host(host_config("b", {"b1": tap("b1")}, wire=False))
    a1.expect_ping(A2.address)
    with Stream(a1.namespace, a2.namespace, A2.address) as stream:
        stream.wait(500)
        other.kill()
        other.start()
        stream.wait(500)
    assert stream.result().lost == 0


def test_a_second_daemon_with_the_same_run_dir_is_refused(lab):
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False))
    words = [
        binary("viaductd"),
        "--config",
        host.file,
        "--run-dir",
        host.run_dir,
        "--state-dir",
        host.directory / "other",
    ]
    refused = run(host.namespace.words(words), check=False, timeout=PATIENCE)
    assert refused.returncode in (1, 2) and str(host.run_dir) in refused.stderr, refused.stderr
    host.viaduct("status")


def test_a_host_of_many_guests_starts_with_the_usual_limit_of_open_files(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    for number in range(300):
        high, low = divmod(number, 256)
        config.add(
            "guest", name=f"many{number}", network="blue", kind="vhost", mac=f"02:00:00:01:{high:02x}:{low:02x}"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        host = lab.host(config)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    assert len(host.viaduct("status")["vifs"]) == 302
