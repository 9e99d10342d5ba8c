"""A guest that runs RoCEv2 itself, Linux with rdma_rxe, and a guest with a verbs device: one protocol, two
implementations."""

import itertools

import pytest

from lab import Failed, eventually
from lab.soft_roce import guests as soft_roce_guests
from lab.topology import SEATS
from lab.verbs import listens

pytestmark = pytest.mark.nightly

A1, A2 = SEATS["a1"], SEATS["a2"]
OURS = ["-d", "viaduct0"]
THEIRS = ["-d", "rxe0"]
RUNS = [
    *(
        "ibv_rc_pingpong -g 1 -n 50",
        "ibv_rc_pingpong -g 1 -n 50 -e",
        "ibv_uc_pingpong -g 1 -n 50",
        "ibv_ud_pingpong -g 1 -n 50 -s 1000",
    ),
    *("ibv_srq_pingpong -g 1 -n 50 -q 4", "ib_send_lat -x 1 -F -s 8 -n 50", "ib_send_bw -x 1 -F -s 65536 -n 20"),
    *("ib_write_lat -x 1 -F -s 8 -n 50", "ib_write_bw -x 1 -F -s 65536 -n 20", "ib_read_lat -x 1 -F -s 8 -n 50 -o 8"),
    *(
        "ib_read_bw -x 1 -F -s 65536 -n 20 -o 8",
        "ib_atomic_lat -x 1 -F -n 50 -o 8",
        "ib_send_lat -c UD -x 1 -F -s 512 -n 50",
    ),
]
_ports = itertools.count(21000)


@pytest.fixture(scope="module")
def guests(shared_lab):
    return soft_roce_guests(shared_lab)


@pytest.fixture
def nothing_left(guests):
    yield
    guests[1].expect_free()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("run", RUNS)
def test_soft_roce_asks(guests, run):
    vm, device = guests
    program, port = [*run.split(), "-p", next(_ports)], None
    port = program[-1]
    server = device.start([program[0], *OURS, *program[1:]])
    eventually(lambda: listens(device.namespace, port) or not server.running(), "a listener")
    asked = vm.run([program[0], *THEIRS, *program[1:], A2.address], check=False)
    eventually(lambda: not server.running(), f"the server's end: {server.describe()}\n{asked.stdout}")
    assert (server.process.returncode, asked.returncode) == (0, 0), f"{server.describe()}\n{asked.stdout}"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("run", RUNS)
def test_soft_roce_is_asked(guests, run):
    vm, device = guests
    program = [*run.split(), "-p", next(_ports)]
    words = " ".join(str(word) for word in [f"/bin/{program[0]}", *THEIRS, *program[1:]])
    vm.shell(f"({words} > /tmp/server 2>&1; echo $? > /tmp/status) & ")
    heard = f":{program[-1]:04X} .* 0A "
    eventually(
        lambda: vm.shell(f"grep '{heard}' /proc/net/tcp /proc/net/tcp6", check=False).returncode == 0, "a listener"
    )
    client = device.start([program[0], *OURS, *program[1:], A1.address])
    try:
        eventually(lambda: not client.running(), "the client's end")
        status = eventually(
            lambda: vm.shell("cat /tmp/status 2>/dev/null", check=False).stdout.strip(), "the server's end"
        )
        assert (client.process.returncode, status) == (0, "0"), client.describe()
    except (AssertionError, Failed) as failed:
        raise Failed(f"{failed}\n{client.describe()}\n{vm.shell('cat /tmp/server', check=False).stdout}") from None
    finally:
        client.stop()
        vm.shell(f"kill $(pidof {program[0]}); rm -f /tmp/status /tmp/server", check=False)
