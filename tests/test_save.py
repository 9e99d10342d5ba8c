"""Guests whose QEMU saves them while packets arrive, and goes on with them: what a live migration does to a back end.

QEMU copies a page again if it was written since it was copied: by the guest's processors, which is QEMU's to see, or
by Viaduct, which marks it in the log. A page in no log has old bytes afterwards, and the test names it.

The guest's memory is no multiple of 256 KiB. Before version 9.0, QEMU without KVM misses what the guest's processors
write to memory that is (its translator goes on with TLB entries from before the log was read; QEMU's commit "physmem:
Fix migration dirty bitmap coherency with TCG memory access"). It reads the log of other memory page by page, and
rightly.
"""

import pytest

from lab import Lines
from lab.marks import at_night, machines
from lab.topology import SEATS, host_config, tap, vhost

pytestmark = machines

A1, A2 = SEATS["a1"], SEATS["a2"]
PAGE = 4096
MEMORY = f"{192 * 1024 + 8}K"


OPTIONS = ["packed=on", at_night(""), at_night("mrg_rxbuf=off"), at_night("guest_announce=off")]


@pytest.fixture
def host(lab):
    lab.plug("a")
    return lab.host(host_config("a", {"a1": vhost("a1", queues=2), "a2": tap("a2")}))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_guest_is_saved_under_load_and_goes_on(lab, host, tmp_path, options):
    peer = lab.container(host, "a2")
    vm = lab.vm(host, "a1", options=options, memory=MEMORY)
    vm.boot()
    peer.expect_ping(A1.address)
    lines = Lines(peer, vm, A1.address)
    saved = vm.save(tmp_path / "state")

    vm.start(incoming=f"exec:cat {tmp_path}/state", paused=True)
    restored = vm.resume()
    assert len(restored) == len(saved)
    old = [hex(at) for at in range(0, len(saved), PAGE) if saved[at : at + PAGE] != restored[at : at + PAGE]]
    assert not old, "these pages were written, but not copied again"
    # The same connection: its other end sends again what got lost.
    lines.more()
    vm.expect_ping(A2.address)
