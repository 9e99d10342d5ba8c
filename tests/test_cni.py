"""The CNI plug-in: called as runtimes call it, by the CNI project's own tool, and interrupted anywhere."""

import copy
import hashlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import Container, Failed, eventually, run
from lab.config import Config
from lab.containers import Refused, Runtime, example

BLUE = json.loads(example("blue.conflist"))
RED = json.loads(re.search(r"config: \|\n(.*)", example("red.yaml"), re.S)[1])


def config(version="1.1.0", **keys):
    """Returns the configuration of one call, as a runtime derives it of the example's list."""
    plugin = {key: value for key, value in copy.deepcopy(BLUE["plugins"][0]).items() if key != "capabilities"}
    return {**plugin, "cniVersion": version, "name": "blue", **keys}


@pytest.fixture
def runtime(lab):
    return Runtime(lab, lab.host(example_host()))


def example_host():
    """Reads the example's file."""
    text = example("host.toml")
    host = Config("a")
    host.text = lambda: text
    return host


def guest(runtime, container):
    """Returns a container with a shell."""
    inside = Container.__new__(Container)
    inside.namespace, inside.name = runtime.lab.namespace(container), container
    return inside


def address(result, version=4, interface=None):
    found = [ip for ip in result["ips"] if (":" in ip["address"]) == (version == 6)]
    if interface:
        found = [ip for ip in found if result["interfaces"][ip["interface"]]["name"] == interface]
    return found[0]["address"].split("/")[0]


def refused(code, message, function, *arguments, **keys):
    """Fails unless the call is refused with that code, and a message that matches."""
    with pytest.raises(Refused) as caught:
        function(*arguments, **keys)
    assert caught.value.error["code"] == code and re.search(message, caught.value.error["msg"]), caught.value.error
    assert caught.value.error["cniVersion"]


def interfaces(runtime, container):
    devices = json.loads(runtime.lab.namespace(container).run(["ip", "-json", "link"]).stdout)
    return {device["ifname"] for device in devices} - {"lo"}


def test_cnitool_with_the_example(runtime):
    runtime.configure("10-blue.conflist", {**BLUE, "cniVersion": "1.1.0"})
    runtime.cnitool("status", "blue", "c1")
    one, two = [json.loads(runtime.cnitool("add", "blue", name).stdout) for name in ("c1", "c2")]
    for version in (4, 6):
        guest(runtime, "c1").expect_ping(address(two, version))
        guest(runtime, "c2").expect_ping(address(one, version))
    guest(runtime, "c1").expect_ping("10.1.1.254")
    assert one["interfaces"][0]["mtu"] == 1500
    for name in ("c1", "c2"):
        runtime.cnitool("check", "blue", name)
    runtime.cnitool("del", "blue", "c1")
    runtime.cnitool("del", "blue", "c1")
    assert len(runtime.guests()) == 1 and interfaces(runtime, "c1") == set()
    # It removes what it knows by DEL, then names no attachments to keep.
    refused = runtime.cnitool("gc", "blue", "c2", check=False)
    assert "valid-attachments is missing" in refused.stderr and runtime.leftovers() == []


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_results_are_of_the_version_of_the_configuration(runtime, version):
    assert version in runtime.call("VERSION", {"cniVersion": version})["supportedVersions"]
    result = runtime.call("ADD", config(version))
    assert result["cniVersion"] == version
    assert ("version" in result["ips"][0]) == (version < "1.0.0")
    assert ("mtu" in result["interfaces"][0]) == (version == "1.1.0")
    if version >= "0.4.0":
        runtime.call("CHECK", config(version, prevResult=result))
    else:
        refused(1, "no such command", runtime.call, "CHECK", config(version, prevResult=result))
    runtime.call("DEL", config(version, prevResult=result))
    assert runtime.leftovers() == []


def test_addresses_that_the_runtime_asks_for(runtime):
    asked = {"ipam": {"type": "static"}, "runtimeConfig": {"ips": ["10.1.1.55/24", "fd00:1::55/64"]}}
    runtime.call("ADD", config("1.0.0", **asked))
    guest(runtime, "c1").expect_ping("10.1.1.254")
    guest(runtime, "c1").expect_ping("fd00:1::ffff")


def test_many_at_a_time(runtime):
    names = [f"c{number}" for number in range(8)]
    for name in names:
        runtime.netns(name)
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda name: runtime.call("ADD", config(), container=name), names))
        assert len({address(result) for result in results}) == len(names)
        guest(runtime, "c0").expect_ping(address(results[7]))
        list(pool.map(lambda name: runtime.call("DEL", config(), container=name), names))
    assert runtime.leftovers() == []


def test_a_namespace_that_only_a_process_has(runtime):
    """A namespace without a name, as a Docker container without a network has one, gets an interface."""
    runtime.configure("10-blue.conflist", BLUE)
    process = runtime.lab.namespace("c1").background(["unshare", "--net", "sleep", "60"])
    path = f"/proc/{process.process.pid}/ns/net"
    eventually(lambda: "sleep" in Path(f"/proc/{process.process.pid}/comm").read_text(), "the container's process")
    runtime.cnitool("add", "blue", path)
    shell = ["nsenter", f"--net={path}"]
    assert "1 received" in run([*shell, "ping", "-c", "1", "10.1.1.254"]).stdout
    process.stop()
    runtime.cnitool("del", "blue", path)
    assert runtime.leftovers() == []


def test_in_a_chain(runtime):
    """The plug-in works behind one that makes eth0, and before one that changes the interface that Viaduct made."""
    bridge = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.9.9.0/24"}}
    ours = {**BLUE["plugins"][0], "interface": "net1", "mtu": 1400}
    tuning = {"type": "tuning", "sysctl": {"net.ipv4.conf.net1.arp_filter": "1"}}
    runtime.configure("10-chain.conflist", {"cniVersion": "1.0.0", "name": "chain", "plugins": [bridge, ours, tuning]})
    result = json.loads(runtime.cnitool("add", "chain", "c1").stdout)
    assert {"eth0", "net1"} <= {interface["name"] for interface in result["interfaces"]}
    assert address(result, interface="eth0").startswith("10.9.9.")
    # Not by cnitool: the bridge's own CHECK takes all addresses of the chain for those of its interface.
    container = "cnitool-" + hashlib.sha512(runtime.netns("c1").encode()).hexdigest()[:20]
    check = {**ours, "cniVersion": "1.0.0", "name": "chain", "prevResult": result}
    runtime.call("CHECK", check, container=container, CNI_NETNS=runtime.netns("c1"))
    guest(runtime, "c1").expect_ping("10.1.1.254", options=("-I", "net1"))
    assert runtime.lab.namespace("c1").run(["cat", "/sys/class/net/net1/mtu"]).stdout.strip() == "1400"
    runtime.cnitool("del", "chain", "c1")
    assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set()


def test_as_a_secondary_network(runtime):
    """A container gets a second interface in another network, by its own configuration, as Multus asks for it."""
    red = {key: value for key, value in RED.items() if key != "capabilities"}
    red["runtimeConfig"] = {"mac": "02:00:00:00:02:01"}
    pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=app;K8S_POD_INFRA_CONTAINER_ID=c1"
    runtime.call("ADD", config("1.0.0"), CNI_ARGS=pod)
    first = runtime.call("ADD", red, ifname="net1", CNI_ARGS=pod)
    assert first["interfaces"][0]["mac"] == "02:00:00:00:02:01"
    red["runtimeConfig"] = {"mac": "02:00:00:00:02:02"}
    second = runtime.call("ADD", red, container="c2", ifname="net1")
    guest(runtime, "c1").expect_ping(address(second))
    runtime.call("DEL", red, ifname="net1")
    assert interfaces(runtime, "c1") == {"eth0"}
    guest(runtime, "c1").expect_ping("10.1.1.254")


@pytest.mark.parametrize(
    "damage, message",
    [
        ("ip link set eth0 down", "is down"),
        ("ip addr del 10.1.1.100/24 dev eth0", "address 10.1.1.100/24 is missing"),
        ("ip route del default", "route to 0.0.0.0/0 is missing"),
        ("ip link set eth0 address 02:00:00:00:00:99", "its MAC is 02:00:00:00:00:99"),
        ("ip link set eth0 name eth1", "it is gone"),
        ("viaduct", "it is gone"),
    ],
)
def test_check_notices(runtime, damage, message):
    result = runtime.call("ADD", config())
    runtime.call("CHECK", config(prevResult=result))
    if damage == "viaduct":
        runtime.host.call("guest", "del", *runtime.guests())
    else:
        runtime.lab.namespace("c1").run(damage.split())
    refused(102, message, runtime.call, "CHECK", config(prevResult=result))
    runtime.call("DEL", config(prevResult=result))
    assert runtime.leftovers() == []


def test_errors_have_their_codes_and_leave_nothing(runtime):
    call = lambda command="ADD", changes=(), **keys: runtime.call(command, {**config(), **dict(changes)}, **keys)
    refused(4, "CNI_COMMAND", call, "ATTACH")
    refused(4, "CNI_IFNAME", call, ifname="sixteen-letters-")
    refused(4, "CNI_IFNAME", call, ifname="../../etc")
    refused(4, "CNI_CONTAINERID", call, container="../c1", CNI_NETNS=runtime.netns("c1"))
    refused(4, "CNI_NETNS", call, CNI_NETNS="")
    refused(3, "No such file", call, CNI_NETNS="/run/netns/nobody")
    refused(3, "another kind of file", call, CNI_NETNS="/dev/null")
    refused(3, "the host's own", call, CNI_NETNS=f"/run/netns/{runtime.host.namespace.name}")
    refused(1, "9.9.9", call, changes={"cniVersion": "9.9.9"})
    refused(6, "the configuration", runtime.call, "ADD", "{")
    refused(7, "the key \"polciy\"", call, changes={"guest": {"polciy": False}})
    refused(7, "can't be the name of a plug-in", call, changes={"ipam": {"type": "../host-local"}})
    refused(7, "no plug-in", call, changes={"ipam": {"type": "nobody"}})
    refused(7, "an interface of this name", call, ifname="lo")
    refused(100, "no network \"green\"", call, changes={"network": "green"})
    refused(50, "no network \"green\"", call, "STATUS", {"network": "green"})
    assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set()
    assert not list((runtime.directory / "records").iterdir())


def test_addresses_that_are_used_up(runtime):
    only = {"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.7", "rangeEnd": "10.1.1.7"}
    one = {"type": "host-local", "ranges": [[only]]}
    runtime.call("ADD", config(ipam=one))
    refused(999, "host-local: .*no IP addresses available", runtime.call, "ADD", config(ipam=one), container="c2")
    assert interfaces(runtime, "c2") == set() and len(runtime.guests()) == 1
    runtime.call("DEL", config(ipam=one))
    runtime.call("ADD", config(ipam=one), container="c2")


@pytest.mark.parametrize("answer", ["echo '{'", "yes", "echo '{\"ips\": [{\"address\": \"many\"}]}'", "kill -9 $$"])
def test_a_hostile_ipam_plug_in(runtime, answer):
    ipam = runtime.plugins / "ipam"
    ipam.write_text(f"#!/bin/sh\n[ $CNI_COMMAND = DEL ] && exit 0\n{answer}\n")
    ipam.chmod(0o755)
    with pytest.raises(Refused):
        runtime.call("ADD", config(ipam={"type": "ipam"}))
    assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set()


def test_an_ipam_plug_in_that_prints_before_it_reads(runtime):
    """Both sides have more to say than a pipe holds."""
    ipam = runtime.plugins / "ipam"
    result = json.dumps({"cniVersion": "1.1.0", "ips": [{"address": "10.1.1.77/24"}]})
    ipam.write_text(f"#!/bin/sh\nprintf '%200000s' ''\necho '{result}'\ncat >/dev/null\n")
    ipam.chmod(0o755)
    runtime.call("ADD", config(ipam={"type": "ipam"}, args={"cni": {"note": "x" * 200_000}}))
    guest(runtime, "c1").expect_ping("10.1.1.254")


def test_gc_removes_what_is_not_valid_in_its_network_alone(runtime):
    for container in ("c1", "c2", "c3"):
        runtime.call("ADD", config(), container=container)
    red = {key: value for key, value in RED.items() if key != "capabilities"}
    runtime.call("ADD", red, container="c3", ifname="net1")
    with pytest.raises(Refused, match="valid-attachments is missing"):
        runtime.call("GC", config())
    assert interfaces(runtime, "c1") == {"eth0"}, "nothing goes without a list"
    valid = [{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "eth1"}]
    runtime.call("GC", config(**{"cni.dev/valid-attachments": valid}))
    assert interfaces(runtime, "c1") == {"eth0"}
    assert interfaces(runtime, "c2") == set()
    assert interfaces(runtime, "c3") == {"net1"}
    guest(runtime, "c1").expect_ping("10.1.1.254")


# System calls that change something outside of the plug-in, or send something.
CALLS = ["connect", "execve", "mkdir", "rename", "sendto", "setns", "write", "writev"]


def killed(call, n):
    """Returns a command of strace that kills a process at its Nth system call of that name."""
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={n}"]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_left_of_a_call_that_is_killed_anywhere(runtime, call):
    """The plug-in, or the one that it calls, is killed at its Nth system call of a name, for each N until it comes to
    its end. After each, the runtime collects the garbage."""
    for n in range(1, 100):
        try:
            result = runtime.call("ADD", config(), wrapper=killed(call, n))
            break
        except (Failed, Refused):
            runtime.call("GC", config(**{"cni.dev/valid-attachments": []}))
            assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set(), f"{call} {n}"
    assert 1 < n < 99
    runtime.call("CHECK", config(prevResult=result))


@pytest.mark.parametrize("call", ["connect", "execve", "unlink"])
def test_what_is_left_of_a_killed_removal_is_removed_by_the_next(runtime, call):
    for n in range(1, 100):
        runtime.call("ADD", config())
        try:
            runtime.call("DEL", config(), wrapper=killed(call, n))
            break
        except (Failed, Refused):
            runtime.call("DEL", config())
            assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set(), f"{call} {n}"
    assert 1 < n < 99


def test_a_second_attempt_takes_the_place_of_an_interrupted_one(runtime):
    with pytest.raises(Failed):
        runtime.call("ADD", config(), wrapper=killed("rename", 1))
    runtime.call("ADD", config())
    assert len(runtime.guests()) == 1
    guest(runtime, "c1").expect_ping("10.1.1.254")


def test_without_a_daemon(runtime):
    runtime.call("ADD", config())
    runtime.host.stop()
    refused(11, "no daemon", runtime.call, "ADD", config(), container="c2")
    refused(51, "no daemon", runtime.call, "STATUS", config())
    # Its store has the guest still.
    refused(11, "no daemon", runtime.call, "DEL", config())
    runtime.call("DEL", config(), container="c2")
    runtime.host.start()
    runtime.call("DEL", config())
    assert runtime.leftovers() == []


def test_containers_get_their_interfaces_back(runtime):
    """Containers keep their interfaces over a restart. If the helper is killed as well, new ones take their place."""
    results = {name: runtime.call("ADD", config(), container=name) for name in ("c1", "c2", "c3")}
    runtime.host.kill()
    runtime.host.start()
    for name, result in results.items():
        runtime.call("CHECK", config(prevResult=result), container=name)
    helper = runtime.host.viaduct("status")["sandbox"]["helper"]
    runtime.host.kill()
    os.kill(helper, signal.SIGKILL)
    runtime.lab.namespaces["c3"].delete()
    runtime.host.start()
    eventually(lambda: interfaces(runtime, "c1") == set(), "the old taps are gone")
    assert "restore" in runtime.run([runtime.plugins / "viaduct-cni", "--help"]).stdout
    assert "2 interfaces" in runtime.run([runtime.plugins / "viaduct-cni", "restore"]).stdout
    for name in ("c1", "c2"):
        runtime.call("CHECK", config(prevResult=results[name]), container=name)
    guest(runtime, "c1").expect_ping(address(results["c2"]))
    assert "0 interfaces" in runtime.run([runtime.plugins / "viaduct-cni", "restore"]).stdout
