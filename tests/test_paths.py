"""Several wires to one remote: flows take all of them, and leave a path that breaks without a sign."""

import pytest

from lab import eventually
from lab.topology import LOOPBACK, SEATS, two_wires
from lab.traffic import EchoServer
from test_remotes import FLOWS, INTERVAL, PORT, Flows

def used(lab, flows):
    """Sends a packet of each flow, and returns by which fabrics host a sent enough of them."""
    count = lambda: [lab.namespace(f"fabric{index}").counter(f"a-up{index}", "rx_packets") for index in range(2)]
    before = count()
    assert flows.answered() == FLOWS
    # Flows by both are a half each, and the packets of BFD much fewer.
    return [index for index, (now, old) in enumerate(zip(count(), before)) if now - old >= FLOWS / 4]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_flows_take_all_paths_and_leave_a_broken_one(lab, shared):
    hosts, guests = two_wires(lab, shared=shared, tunnel_bfd=INTERVAL, metrics="127.0.0.1:9101")
    a = hosts["a"]
    remote = lambda: next(row for row in a.viaduct("nh") if row["kind"] == "tunnel")
    eventually(lambda: (remote().get("bfd") or {}).get("state") == "Up", "the BFD session")
    told = f"remote {LOOPBACK['b']}: 1 of 2 paths are down by BFD: 192.0.3.2 by up1"
    cut = lambda: lab.namespace("fabric1").ip("link set a-up1 nomaster")

    with EchoServer(guests["b1"], PORT):
        flows = Flows(guests["a1"], str(SEATS["b1"].address))
        eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
        eventually(lambda: used(lab, flows) == [0, 1], "packets by both wires")
        # The link stays up, and the neighbour is known.
        cut()
        eventually(lambda: told in a.call("status").stdout, "the warning")
        eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")
        assert used(lab, flows) == [0]
        assert not remote().get("down")
        question = f"{SEATS['a1'].address} > {SEATS['b1'].address} / udp 20000 > {PORT}"
        assert "down (BFD): used where no other works" in a.call("explain", "--in", "a1", question).stdout
        metrics = a.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
        assert f'viaduct_remote_paths_down{{remote="{LOOPBACK["b"]}"}} 1\n' in metrics
        # The next daemon finds it out by itself.
        a.replace()
        eventually(lambda: told in a.call("status").stdout, "the warning")
        eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")
        lab.namespace("fabric1").ip("link set a-up1 master br0")
        eventually(lambda: told not in a.call("status").stdout, "the end of the warning")
        eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
        eventually(lambda: used(lab, flows) == [0, 1], "packets by both wires")
