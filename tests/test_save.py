"""Guests whose QEMU saves them while packets arrive, and goes on with them: what a live migration does to a back end.

QEMU copies a page again if it was written since it was copied: by the guest's processors, which is QEMU's to see, or
by Viaduct, which marks it in the log. A page in no log has old bytes afterwards, and the test names it.

The guest's memory is no multiple of 256 KiB. Before version 9.0, QEMU without KVM misses what the guest's processors
write to memory that is (its translator goes on with TLB entries from before the log was read; QEMU's commit "physmem:
Fix migration dirty bitmap coherency with TCG memory access"). It reads the log of other memory page by page, and
rightly.
"""

import pytest

from lab import eventually
from lab.topology import SEATS, host_config, tap, vhost

A1, A2 = SEATS["a1"], SEATS["a2"]
PAGE = 4096
MEMORY = f"{192 * 1024 + 8}K"
# A stream of numbered lines, some megabytes a second at most.
SEND = f"""
import itertools, socket, time
out = socket.create_connection(("{A1.address}", 7000), timeout=120)
for i in itertools.count():
    numbers = range(100 * i, 100 * i + 100)
    out.sendall(b"".join(b"line %09d of what a guest receives while it is saved\\n" % number for number in numbers))
    time.sleep(0.002)
"""
# Keeps nothing of it but the number of good lines, or the first bad one.
RECEIVE = """nc -l -p 7000 | awk '
    $2 != sprintf("%09d", NR - 1) || NF != 11 { print "bad line " NR ": " $0 > "/tmp/received"; exit }
    NR % 500 == 0 { print NR > "/tmp/received"; close("/tmp/received") }' &"""


@pytest.fixture
def host(lab):
    lab.plug("a")
    return lab.host(host_config("a", {"a1": vhost("a1", queues=2), "a2": tap("a2")}))


@pytest.mark.parametrize("options", ["", "packed=on", "mrg_rxbuf=off", "guest_announce=off"])
def test_a_guest_is_saved_under_load_and_goes_on(lab, host, tmp_path, options):
    peer = lab.container(host, "a2")
    vm = lab.vm(host, "a1", options=options, memory=MEMORY)
    vm.boot()
    peer.expect_ping(A1.address)
    vm.shell("echo 0 > /tmp/received; " + RECEIVE)
    received = lambda: int(vm.shell("cat /tmp/received").stdout or 0)  # noqa: E731
    eventually(lambda: ":1B58 " in vm.shell("cat /proc/net/tcp*").stdout, "the guest listens")
    peer.background(["/usr/bin/python3", "-c", SEND], "lines")
    eventually(lambda: received() >= 1000, "lines arrive", timeout=60)
    before = received()
    saved = vm.save(tmp_path / "state")

    vm.start(incoming=tmp_path / "state")
    restored = vm.resume()
    assert len(restored) == len(saved)
    old = [hex(at) for at in range(0, len(saved), PAGE) if saved[at : at + PAGE] != restored[at : at + PAGE]]
    assert not old, "these pages were written, but not copied again"
    # The same connection: its other end sends again what got lost.
    eventually(lambda: received() > before + 1000, "the stream goes on", timeout=60)
    vm.expect_ping(A2.address)
