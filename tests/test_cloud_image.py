"""A machine as Debian's cloud images are, of which nothing is typed: it gets addresses, names, its user data and a way
out from the network, and ends in `apt-get install`."""

import json
import subprocess

import pytest

from lab import Config, Server, eventually
from lab.host import REPOSITORY
from lab.shell import run
from lab.topology import NETWORKS
from lab.vm import Vm

from test_way_out import HERE, HERE6, THERE, THERE6, started

IMAGES = REPOSITORY / ".cache/vm-cloud"
MAC = "02:00:00:00:09:01"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cloud me@here"
# It tells what it has by its serial line.
USER_DATA = f"""#cloud-config
apt:
  preserve_sources_list: false
  conf: |
    Acquire::Languages "none";
  sources_list: |
    deb [trusted=yes] http://{THERE}:8000/ ./
    deb [trusted=yes] http://[{THERE6}]:8000/ ./
write_files:
- path: /root/tell
  content: |
    import json, socket, subprocess
    def said(*words):
        done = subprocess.run(words, capture_output=True, text=True)
        return (done.stdout + done.stderr).strip() if done.returncode else done.stdout.strip()
    link = json.loads(said("ip", "-json", "address", "show", "dev", open("/root/device").read().strip()))[0]
    told = {{
        "hostname": socket.getfqdn(),
        "mtu": link["mtu"],
        "addresses": [a["local"] for a in link["addr_info"] if a["scope"] == "global"],
        "key": said("cat", "/home/debian/.ssh/authorized_keys"),
        "name": said("getent", "ahosts", "vm1.home.internal"),
        "update": said("apt-get", "update", "-o", "APT::Update::Error-Mode=any"),
        "install": said("apt-get", "install", "-y", "greeting"),
        "greeting": said("greeting"),
    }}
    print("told " + json.dumps(told), file=open("/dev/ttyS0", "w"))
runcmd:
- [sh, -c, "ip -o route show default | sed 's/.* dev //; s/ .*//' | head -n 1 >/root/device"]
- [python3, /root/tell]
"""


class CloudVm(Vm):
    """A virtual machine with a disk, which starts like one of a cloud."""

    def more_words(self):
        return [
            *("-kernel", str(IMAGES / "vmlinuz"), "-initrd", str(IMAGES / "initrd.img")),
            *("-append", "root=/dev/vda rw console=ttyS0 no_timer_check mitigations=off"),
            *("-drive", f"file={IMAGES}/disk.ext4,format=raw,if=virtio,snapshot=on"),
            *("-smbios", "type=1,serial=ds=nocloud-net;s=http://169.254.169.254/"),
            *("-device", "virtio-rng-pci"),
        ]

    def told(self, timeout=1800):
        """Waits for what the machine tells of itself."""
        log = self.directory / "serial.log"
        lines = lambda: log.read_text(errors="replace").splitlines() if log.exists() else []
        line = lambda: next((line for line in lines() if line.startswith("told ")), None)
        try:
            return json.loads(eventually(line, "the machine's own report", timeout, 1).removeprefix("told "))
        finally:
            print("\n".join(lines()[-200:]))


@pytest.fixture
def repository(lab):
    """Serves a package to whoever comes, outside."""
    files, package = lab.directory / "repository", lab.directory / "greeting"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "usr/bin").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(
        "Package: greeting\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: one\n"
    )
    (package / "usr/bin/greeting").write_text("#!/bin/sh\necho hello from outside\n")
    (package / "usr/bin/greeting").chmod(0o755)
    files.mkdir()
    run(["dpkg-deb", "--build", "--root-owner-group", package, files])
    index = subprocess.run(["dpkg-scanpackages", "."], cwd=files, capture_output=True, text=True, check=True)
    (files / "Packages").write_text(index.stdout)
    return files


@pytest.mark.nightly
@pytest.mark.alone
def test_a_cloud_image_ends_in_apt(lab, repository):
    run([REPOSITORY / "tests/vm/build-cloud", IMAGES], timeout=900)
    config = Config("a")
    network = {**NETWORKS["blue"], "vni": None, "domain": "home.internal", "snat": "host"}
    pool = ["10.1.1.100-10.1.1.199", "fd00:1::1000/116"]
    config.add("network", name="blue", **network, dhcp=True, ra=True, dns=True, metadata=True, pool=pool, mtu=1400)
    config.add("guest", name="vm1", network="blue", kind="vhost", socket="vm1.sock", user_data=USER_DATA, ssh_keys=[KEY])
    for name in ("a", "c"):
        lab.plug(name, "ext0", mtu=1500, fabric="outside")
    host = started(lab, config)
    server = Server(lab.namespace("c"))
    for namespace, addresses in ((host.namespace, (HERE, HERE6)), (server.namespace, (THERE, THERE6))):
        namespace.ip("addr add", f"{addresses[0]}/24", "dev ext0")
        namespace.ip("addr add", f"{addresses[1]}/64", "dev ext0 nodad")
    host.namespace.sysctl("net.ipv4.ip_forward", 1)
    host.namespace.sysctl("net.ipv6.conf.all.forwarding", 1)
    words = ["python3", "-m", "http.server", "8000", "--bind", "::", "--directory", repository]
    web = server.background(words)
    lab.cleanup.callback(web.stop)
    vm = lab.vm(host, "vm1", CloudVm, memory="1024M", seat={"mac": MAC})
    told = vm.told()
    (lease,) = host.viaduct("lease")
    assert set(lease["addresses"]) <= set(told["addresses"]), told
    assert (told["mtu"], told["hostname"].split(".")[0]) == (1400, "vm1"), told
    assert KEY in told["key"], told
    assert lease["addresses"][0] in told["name"], told
    assert told["greeting"] == "hello from outside", told
    for source in (THERE, f"[{THERE6}]"):
        assert f"http://{source}:8000" in told["update"], told
    for seen in (f"::ffff:{HERE} ", f"{HERE6} "):
        assert seen in web.text(), web.text()
