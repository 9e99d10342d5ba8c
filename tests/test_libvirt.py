"""Domains of a real libvirtd: the XML of docs/libvirt.md, and guests that the hook adds and removes."""

import os
import subprocess

import pytest

from lab import PATIENCE, eventually
from lab.host import REPOSITORY
from lab.libvirt import (CLIENT, HUGE_PAGES, MEMFD, MEMORY, METADATA, NVDIMM, PMEM, SERVER, USER, Domain, Libvirt,
                         metadata, window)
from lab.marks import machines
from lab.shell import run
from lab.topology import SEATS, host_config, tap, vhost

A1, A2 = SEATS["a1"], SEATS["a2"]


@pytest.fixture
def libvirt(lab):
    libvirt = Libvirt(lab, host_config("a", {"b1": tap("b1")}, wire=False))
    lab.container(libvirt.host, "b1")
    return libvirt


@pytest.fixture
def huge_pages():
    """Reserves enough for a domain, while the test runs."""
    count = "/proc/sys/vm/nr_hugepages"
    with open(count, encoding="ascii") as file:
        before = file.read()
    run(["sh", "-c", f"echo {int(before) + MEMORY // 2} > {count}"])
    yield
    run(["sh", "-c", f"echo {before.strip()} > {count}"])


# Huge pages are the machine's.
@pytest.mark.takes_long
@pytest.mark.xdist_group("huge pages")
def test_domains_come_and_go_with_their_guests(libvirt, lab, huge_pages):
    """Domains of both modes, with memfd and huge pages, and with several queues, outlive a restart of the daemon."""
    host, container = libvirt.host, lab.namespace("b1")
    client = Domain(libvirt, A1, CLIENT, MEMFD, metadata(A1)).define().start()
    server = Domain(libvirt, A2, SERVER, HUGE_PAGES, metadata(A2, label="777")).define().start()
    assert {"a1", "a2", "b1"} == libvirt.guest_names()
    shown = host.viaduct("guest", "show", "a2")
    assert shown["label"] == 777 and shown["queues"] == 2, shown
    for domain in (client, server):
        domain.boot()
        domain.expect_ping(SEATS["b1"].address)
    client.expect_ping(A2.address)

    host.stop()
    host.start()
    eventually(lambda: client.reaches(A2.address, 1), "the VMs' way after a restart of the daemon")

    libvirt.virsh("destroy", "a1")
    eventually(lambda: libvirt.guest_names() == {"a2", "b1"}, "the guest's end")
    libvirt.virsh("destroy", "a2")
    eventually(lambda: libvirt.guest_names() == {"b1"}, "the guest's end")
    libvirt.virsh("undefine", "a1")
    libvirt.virsh("undefine", "a2")
    assert container.run(["ip", "link"], check=False).returncode == 0


@machines
def test_a_domain_has_the_window_of_its_guest(lab):
    guest = vhost("a1", rdma="a1", window_mb=64, owner=f"{USER}:kvm")
    libvirt = Libvirt(lab, host_config("a", {"a1": guest}, wire=False))
    # Not every libvirt can start it, and not every kernel has the module for vsock.
    Domain(libvirt, A1, CLIENT, **window(PMEM, "a1", 64)).define()
    words = libvirt.virsh("domxml-to-native", "qemu-argv", "--domain", "a1").stdout
    assert "vhost-vsock-pci" in words and "virtio-pmem-pci" in words, words
    libvirt.virsh("undefine", "a1")
    domain = Domain(libvirt, A1, CLIENT, **window(NVDIMM, "a1", 64)).define().start()
    attached = lambda: [row["attached"] for row in libvirt.host.viaduct("rdma", "windows")]
    eventually(lambda: attached() == [["a1"]], "the window is the VM's")
    domain.boot()


@pytest.mark.parametrize("wrong, said", [
    (metadata(A1).replace("network='blue'", ""), "a guest needs the attribute network"),
    (metadata(A1).replace("network='blue'", "network='pink'"), 'there is no network "pink"'),
    (metadata(A1, colour="red"), "unknown attribute colour"),
    (metadata(A2), f"no <interface type='vhostuser'> of MAC {A2.mac}"),
    (metadata(A1).replace(A1.address, "10.1.1.999"), "10.1.1.999"),
])
def test_malformed_metadata(libvirt_once, wrong, said):
    libvirt = libvirt_once
    domain = Domain(libvirt, A1, CLIENT, MEMFD, wrong)
    done = libvirt.virsh("create", domain.xml, check=False)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert libvirt.guest_names() == {"b1"}


@pytest.fixture(scope="module")
def libvirt_once(shared_lab):
    return Libvirt(shared_lab, host_config("a", {"b1": tap("b1")}, wire=False))


def test_without_a_daemon_a_domain_says_why_it_does_not_start(libvirt):
    libvirt.host.stop()
    domain = Domain(libvirt, A1, CLIENT, MEMFD, metadata(A1)).define()
    done = libvirt.virsh("start", "a1", check=False)
    assert done.returncode != 0 and "guest a1 can't be added: viaduct: no daemon at" in done.stderr, done.stderr
    assert not domain.running()


def test_a_daemon_that_does_not_answer_holds_nobody_up(lab):
    """The hook gives up on a program in place of viaduct that never ends."""
    slow = lab.directory / "viaduct"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    xml = f"<domain><name>a1</name>{METADATA}<devices>{CLIENT}</devices></domain>"
    hook = (REPOSITORY / "dist/libvirt/qemu").read_text().replace("TIMEOUT = 10 ", "TIMEOUT = 0.2 ")
    environment = {**os.environ, "PATH": f"{lab.directory}:{os.environ['PATH']}"}
    done = subprocess.run(["python3", "-c", hook, "a1", "prepare", "begin", "-"], input=xml, text=True,
                          timeout=PATIENCE, capture_output=True, env=environment)
    assert done.returncode == 1 and "does not answer within 0.2 s" in done.stderr, done.stderr
    # A domain that is not ours is left alone.
    foreign = subprocess.run([REPOSITORY / "dist/libvirt/qemu", "x", "prepare", "begin", "-"], text=True,
                             timeout=PATIENCE, input="<domain><name>x</name></domain>", capture_output=True)
    assert foreign.returncode == 0 and not foreign.stderr


def test_a_domain_does_not_take_the_guest_of_another(libvirt_once):
    """The hook tells domains apart whose guests have the same name, and refuses one that is named like an option."""
    libvirt = libvirt_once

    def hook(operation, seat, **attributes):
        interface = CLIENT.replace("02:00:00:00:00:01", seat.mac)
        xml = f"<domain><name>x</name>{metadata(seat, **attributes)}<devices>{interface}</devices></domain>"
        return libvirt.hook("x", operation, xml)

    assert hook("prepare", A1).returncode == 0
    refused = hook("prepare", A2)
    assert refused.returncode == 1 and f"there is one with MAC {A1.mac}" in refused.stderr, refused
    hook("release", A2)
    assert libvirt.host.viaduct("guest", "show", "x")["mac"] == A1.mac
    for name in ("--help", "../x", "x;y"):
        refused = hook("prepare", A2, name=name)
        assert refused.returncode == 1 and "can't be a name" in refused.stderr, refused
    assert hook("prepare", A1).returncode == 0, "one of its own that is left is replaced"
    assert not hook("release", A1).stderr
    assert libvirt.guest_names() == {"b1"} and not libvirt.log()
