"""Podman with Viaduct as its network: the distribution's own, by its CNI back end, and netavark by itself, called as
Podman calls it."""

import json
import os
import re

import pytest

from lab import Failed
from lab.containers import Runtime, example, rootfs, tool
from lab.host import REPOSITORY, binary
from test_cni import example_host, guest, interfaces

PAGE = (REPOSITORY / "docs/containers.md").read_text()


@pytest.fixture
def runtime(lab):
    return Runtime(lab, lab.host(example_host()))


# On a test machine: no cgroups to divide, and limits that may not be raised. crun refuses a hierarchy of both kinds.
HERE = "--cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
ONE_KIND = "umount /sys/fs/cgroup/unified 2>/dev/null;"


def test_podman_by_its_cni_back_end(runtime):
    """With the example's files, a container reaches another one, and nothing is left of them."""
    runtime.configure("blue.conflist", example("blue.conflist"))
    runtime.mounts[runtime.plugins] = "/usr/local/libexec/cni"
    settings = runtime.directory / "containers.conf"
    settings.write_text(example("containers.conf"))
    podman = f"podman --root {runtime.directory}/storage --runroot {runtime.directory}/run"
    podman += f" --tmpdir {runtime.directory}/tmp --cgroup-manager cgroupfs --events-backend none"
    one, two = [rootfs(runtime.directory / name) for name in ("one", "two")]
    run = f"{podman} run --network blue {HERE}"
    script = f"""{ONE_KIND} set -e
        export CONTAINERS_CONF={settings}
        {run} -d --name one --rootfs {one} /bin/busybox sleep 1000 >&2
        {podman} inspect one
        address=$({podman} inspect --format '{{{{.NetworkSettings.Networks.blue.IPAddress}}}}' one)
        {run} --rm --rootfs {two} /bin/busybox ping -c 3 $address >&2
        {run} --rm --mac-address 02:00:00:00:01:99 --rootfs {two} /bin/busybox ip link show eth0 >&2
        {podman} rm -f -t 0 one >&2
    """
    done = runtime.run(["bash", "-c", script], timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    network = json.loads(done.stdout)[0]["NetworkSettings"]["Networks"]["blue"]
    assert re.fullmatch(r"10\.1\.1\.1\d\d", network["IPAddress"]) and network["Gateway"] == "10.1.1.254"
    assert "3 packets received" in done.stderr and "02:00:00:00:01:99" in done.stderr
    assert runtime.leftovers() == []


class Netavark:
    """netavark with the plug-in, and networks as `podman network create` makes them."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.plugins = runtime.directory / "netavark"
        self.plugins.mkdir()
        (self.plugins / "viaduct").symlink_to(binary("netavark-viaduct"))

    def run(self, action, request, *words):
        command = ["env", "NETAVARK_FW=none", tool("netavark"), "--config", self.runtime.directory / "config"]
        command += ["--plugin-directory", self.plugins, action, *words]
        done = self.runtime.run(command, stdin=json.dumps(request), check=False)
        if done.returncode != 0:
            raise Failed(done.stdout + done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def create(self, **options):
        """Makes a network of two subnets."""
        network = {
            **{"name": "pods", "id": "2f" * 32, "driver": "viaduct", "internal": False, "ipv6_enabled": False},
            **{"dns_enabled": True, "ipam_options": {}, "options": options},
            "subnets": [
                {"subnet": "10.1.1.0/24", "gateway": "10.1.1.254"},
                {"subnet": "fd00:1::/64", "gateway": "fd00:1::ffff"},
            ],
        }
        limits = {"subnet_pools": [], "default_interface_name": None, "check_used_subnets": False}
        used = {"interfaces": [], "names": {}, "subnets": []}
        return self.run("create", {"network": network, "used": used, "options": limits})

    def call(self, action, network, container, addresses, **options):
        request = {
            "container_id": container * 32,
            "container_name": container,
            "networks": {network["name"]: {"interface_name": "eth0", "static_ips": addresses, **options}},
            "network_info": {network["name"]: network},
        }
        status = self.run(action, request, self.runtime.netns(container))
        return status and status[network["name"]]["interfaces"]["eth0"]


def test_netavark(runtime):
    netavark = Netavark(runtime)
    network = netavark.create(network="blue", mtu="1400")
    assert network["ipam_options"] == {"driver": "host-local"}
    assert network["ipv6_enabled"] and not network["dns_enabled"]
    status = netavark.call("setup", network, "c1", ["10.1.1.7", "fd00:1::7"])
    assert status["subnets"][0] == {"ipnet": "10.1.1.7/24", "gateway": "10.1.1.254"}
    status = netavark.call("setup", network, "c2", ["10.1.1.8", "fd00:1::8"], static_mac="02:00:00:00:00:08")
    assert status["mac_address"] == "02:00:00:00:00:08"
    guest(runtime, "c2").expect_ping("10.1.1.7")
    guest(runtime, "c2").expect_ping("fd00:1::7")
    assert "via 10.1.1.254" in runtime.lab.namespace("c2").run(["ip", "route"]).stdout
    assert runtime.lab.namespace("c1").run(["cat", "/sys/class/net/eth0/mtu"]).stdout.strip() == "1400"
    for container, addresses in (("c1", ["10.1.1.7"]), ("c2", ["10.1.1.8"])):
        netavark.call("teardown", network, container, addresses)
    netavark.call("teardown", network, "c2", ["10.1.1.8"])
    assert runtime.leftovers() == [] and interfaces(runtime, "c1") == set()


def test_netavark_shows_what_is_wrong(runtime):
    netavark = Netavark(runtime)
    with pytest.raises(Failed, match="no network \\\\*\"green\\\\*\"; add it first"):
        netavark.create(network="green")
    with pytest.raises(Failed, match="there is no option \\\\*\"vlan"):
        netavark.create(vlan="7")
    network = netavark.create(network="blue")
    with pytest.raises(Failed, match="10.9.9.9 is in no subnet"):
        netavark.call("setup", network, "c1", ["10.9.9.9"])
    netavark.call("setup", network, "c1", ["10.1.1.7"])
    with pytest.raises(Failed, match="address 10.1.1.7"):
        netavark.call("setup", network, "c2", ["10.1.1.7"])
    assert interfaces(runtime, "c2") == set() and len(runtime.guests()) == 1


def test_the_pages_commands_are_those_of_the_tests():
    """The files that the page names are there."""
    for name in re.findall(r"examples/containers/([\w.-]+)", PAGE):
        example(name)
    for path in os.listdir(REPOSITORY / "examples/containers"):
        assert f"examples/containers/{path}" in PAGE, path
