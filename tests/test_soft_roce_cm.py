"""The connection manager of a verbs device and Linux's, of a guest with rdma_rxe: each asks the other."""

import pytest

from lab import Failed, eventually
from lab.soft_roce import guests as soft_roce_guests
from lab.topology import SEATS
from lab.vm import RDMA_IMAGES

pytestmark = pytest.mark.nightly

VM, OURS = SEATS["a1"].address, SEATS["a2"].address
LONG = "-T v -I 2 -C 2 -S 300000"
# Program; what its server and its client are told.
RUNS = {
    "rping": ("rping", "-s -a {server} -V -C 5", "-c -a {server} -V -C 5"),
    "rping of long messages": ("rping", "-s -a {server} -V -C 3 -S 60000", "-c -a {server} -V -C 3 -S 60000"),
    "ucmatose": ("ucmatose", "-b {server} -c 4", "-s {server} -c 4"),
    "udaddy": ("udaddy", "-b {server} -c 2", "-s {server} -c 2"),
    "rstream": ("rstream", "-T v -b {server} -I 3 -C 10", "-T v -s {server} -I 3 -C 10"),
    "rstream of long messages": ("rstream", f"{LONG} -b {{server}}", f"{LONG} -s {{server}}"),
}
# Between its two connections a server of perftest listens to nobody for a while. Of a guest in software that is long
# enough for the client to be refused, so that they are asked by the guest only.
PERFTEST = {
    "ib_send_bw": "ib_send_bw -x 1 -F -R -n 50",
    "ib_write_bw": "ib_write_bw -x 1 -F -R -n 50",
    "ib_read_bw": "ib_read_bw -x 1 -F -R -n 50",
    "datagrams": "ib_send_bw -x 1 -F -R -n 50 -c UD -s 512",
}


class Linux:
    """Programs in the guest with rxe0."""

    address, device = VM, "rxe0"

    def __init__(self, vm):
        self.vm = vm

    def listens(self):
        return "LISTEN" in self.vm.shell("/bin/rdma resource show cm_id").stdout

    def joined(self):
        # 239.1.2.3, whose members the kernel tells routers of.
        return "030201EF" in self.vm.shell("cat /proc/net/igmp").stdout

    def start(self, program, options):
        words = f"/bin/{program} {options}"
        self.vm.shell(f"rm -f /tmp/status; ({words} > /tmp/said 2>&1; echo $? > /tmp/status) &")

    def status(self):
        status = self.vm.shell("cat /tmp/status", check=False).stdout.strip()
        return int(status) if status.isdecimal() else None

    def said(self):
        return self.vm.shell("cat /tmp/said", check=False).stdout

    def stop(self, program):
        self.vm.shell(f"kill -9 $(pidof {program})", check=False)

    def counted(self):
        """Counts the messages of each kind that its manager has sent and received."""
        directory = "/sys/class/infiniband/rxe0/ports/1"
        lines = self.vm.shell(f"cd {directory} && grep . cm_tx_msgs/* cm_rx_msgs/*").stdout.splitlines()
        return {name.removeprefix("cm_"): int(number) for name, number in (line.split(":") for line in lines)}


class Device:
    """Programs that use the verbs device."""

    address, device = OURS, "viaduct0"

    def __init__(self, verbs):
        self.verbs = verbs
        self.running = None

    def listens(self):
        return any(
            row["state"] == "listen" for row in self.verbs.host.viaduct("rdma", "cm", "--device", self.verbs.device)
        )

    def joined(self):
        return "joined dgid" in self.said()

    def start(self, program, options):
        program = RDMA_IMAGES / "greet" if program == "greet" else program
        # Lines of mckey are looked at while it runs.
        prefix = ["stdbuf", "-oL"] if program == "mckey" else []
        self.running = self.verbs.start([*prefix, program, *options.split()])

    def status(self):
        return None if self.running.running() else self.running.process.returncode

    def said(self):
        return self.running.text()

    def stop(self, _program):
        self.running.stop()


@pytest.fixture(scope="module")
def guests(shared_lab):
    vm, verbs = soft_roce_guests(shared_lab)
    return Linux(vm), Device(verbs)


@pytest.fixture(params=["linux asks", "linux is asked"])
def ends(request, guests):
    """Returns the end that serves, and the one that asks."""
    linux, device = guests
    yield (device, linux) if request.param == "linux asks" else (linux, device)
    device.verbs.expect_free()


def meet(server, client, program, serving, asking):
    """Runs a program by both to its end; returns what they said."""
    try:
        server.start(program, serving)
        eventually(lambda: server.listens() or server.status() is not None, "a listener")
        client.start(program, asking)
        eventually(lambda: client.status() is not None, "the client's end")
        eventually(lambda: server.status() is not None, "the server's end")
        assert (server.status(), client.status()) == (0, 0)
        return server.said(), client.said()
    except (AssertionError, Failed) as failed:
        raise Failed(
            f"{failed}\nserver {server.status()}: {server.said()}\nclient {client.status()}: {client.said()}"
        ) from None
    finally:
        client.stop(program)
        server.stop(program)


@pytest.mark.parametrize("run", RUNS)
def test_programs(ends, run):
    server, client = ends
    program, *options = RUNS[run]
    serving, asking = (words.format(server=server.address) for words in options)
    meet(server, client, program, serving, asking)


@pytest.mark.parametrize("run", PERFTEST)
def test_perftest(guests, run):
    linux, device = guests
    program, options = PERFTEST[run].split(maxsplit=1)
    meet(device, linux, program, f"{options} -d {device.device}", f"{options} -d {linux.device} {device.address}")
    device.verbs.expect_free()


def test_multicast(guests, ends):
    linux, _ = guests
    linux.vm.shell("ip route replace 224.0.0.0/4 dev eth0")
    receiver, sender = ends
    words = "-m 239.1.2.3 -C 5 -b"
    try:
        receiver.start("mckey", f"{words} {receiver.address}")
        eventually(lambda: receiver.joined() or receiver.status() is not None, "a member")
        sender.start("mckey", f"{words} {sender.address} -s")
        eventually(lambda: (receiver.status(), sender.status()) == (0, 0), "the end of mckey")
    except Failed as failed:
        raise Failed(f"{failed}\n{receiver.said()}\n{sender.said()}") from None
    finally:
        receiver.stop("mckey")
        sender.stop("mckey")


def greet(ends, options="", wait=""):
    """Returns what both ends of a conversation hear, and which messages Linux's manager sent and received for it."""
    server, client = ends
    linux = next(end for end in ends if isinstance(end, Linux))
    before = linux.counted()
    said = meet(server, client, "greet", f"{options} {wait} -s {server.address}", f"{options} -c {server.address}")
    heard = [end.replace("\0", "").split("\n") for end in said]
    return *heard, {name for name, number in linux.counted().items() if number != before[name]}


def messages(ends, asked, answered):
    """Returns how Linux counts these messages, of the end that asks and of the other."""
    sent, received = ("tx", "rx") if isinstance(ends[1], Linux) else ("rx", "tx")
    return {f"{sent}_msgs/{name}" for name in asked.split()} | {f"{received}_msgs/{name}" for name in answered.split()}


RESOLVED = ["RDMA_CM_EVENT_ADDR_RESOLVED 0 ", "RDMA_CM_EVENT_ROUTE_RESOLVED 0 "]
ASKED = "RDMA_CM_EVENT_CONNECT_REQUEST 0 may I?"
END = ["end", ""]
CONNECTED = (
    [ASKED, "RDMA_CM_EVENT_ESTABLISHED 0 ", "RDMA_CM_EVENT_DISCONNECTED 0 ", *END],
    [*RESOLVED, "RDMA_CM_EVENT_ESTABLISHED 0 gladly", "RDMA_CM_EVENT_DISCONNECTED 0 ", *END],
)


def test_a_connection_with_private_data(ends):
    assert greet(ends) == (*CONNECTED, messages(ends, "req rtu dreq", "rep drep"))


def test_datagrams_with_private_data(ends):
    heard = [ASKED, *END], [*RESOLVED, "RDMA_CM_EVENT_ESTABLISHED 0 gladly", *END]
    assert greet(ends, "-u") == (*heard, messages(ends, "sidr_req", "sidr_rep"))


def test_a_program_refuses(ends):
    heard = [ASKED, *END], [*RESOLVED, "RDMA_CM_EVENT_REJECTED 28 no, thank you", *END]
    assert greet(ends, "", "-r") == (*heard, messages(ends, "req", "rej"))
    heard = [ASKED, *END], [*RESOLVED, "RDMA_CM_EVENT_UNREACHABLE 2 no, thank you", *END]
    assert greet(ends, "-u", "-r") == (*heard, messages(ends, "sidr_req", "sidr_rep"))


def test_a_program_takes_longer_than_a_request_is_waited_for(ends):
    *heard, counted = greet(ends, "", "-d 8")
    assert tuple(heard) == CONNECTED
    assert counted >= messages(ends, "req rtu dreq", "mra rep drep")


@pytest.mark.parametrize("options, told", [("", "REJECTED 8"), ("-u", "UNREACHABLE 1")])
def test_nobody_listens(ends, options, told):
    server, client = ends
    client.start("greet", f"{options} -c {server.address}")
    eventually(lambda: client.status() is not None, "its end")
    assert client.said().split("\n") == [*RESOLVED, f"RDMA_CM_EVENT_{told} ", *END]
