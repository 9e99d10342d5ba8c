"""Attacks by a verbs program on the device's other programs, on other guests and on the daemon. They hurt nobody else.

It speaks the protocol between library and daemon itself (crates/uverbs/src/message.rs)."""

import array
import ctypes
import fcntl
import json
import os
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_verbs_trouble import VERSION, stranger

from lab import Account, Driver, daemon_pid, eventually, spoil, unharmed
from lab.topology import host_config, tap, verbs, vhost


libc = ctypes.CDLL(None)
PUNCH_HOLE, KEEP_SIZE = 2, 1
# The kernel's vm.max_map_count: a process that has more mappings gets no memory any more.
MAPPINGS = 65_530




@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, two verbs devices, a seat for a VM."""
    guests = {
        "a1": tap("a1"),
        "a2": tap("a2"),
        "b1": verbs(rdma_limits={"mrs": 4096}),
        "b2": verbs(),
        "b3": vhost("b3"),
    }
    host = lab.host(host_config("a", guests, wire=False))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.mean, host.other = lab.verbs(host, "b1"), lab.verbs(host, "b2")
    return host


class Program:
    """A program let in by a device, which keeps every descriptor that it gets."""

    def __init__(self, device):
        self.connection = stranger(device)
        self.descriptors = []
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            self.make({"hello": {"version": VERSION, "token": 1}}, [memory.fileno()])

    def ask(self, request, descriptors=()):
        """Returns the answer to a request: ("Ok", what) or ("Err", refusal); ("Err", None) where the connection
        ended."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self.connection.sendmsg([json.dumps(request).encode()], rights)
            data, ancillary, *_ = self.connection.recvmsg(1 << 16, socket.CMSG_SPACE(4 * 16))
        except (BrokenPipeError, ConnectionResetError):
            return "Err", None
        for _, _, received in ancillary:
            self.descriptors += array.array("i", received[: len(received) // 4 * 4])
        return next(iter(json.loads(data).items())) if data else ("Err", None)

    def make(self, request, descriptors=()):
        """Makes what is asked for; fails where it is refused."""
        kind, what = self.ask(request, descriptors)
        if kind != "Ok":
            raise Refused(what)
        return what

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


class Refused(Exception):
    """The device does not do it, or ended the connection."""


def has_everything(program):
    """Makes an object of each kind; all that is shared with a program is shared then."""
    pd = program.make("alloc_pd")["handle"]
    channel = program.make("create_channel")["handle"]
    cq = program.make({"create_cq": {"entries": 16, "channel": channel, "timestamps": False}})["cq"]["cq"]
    srq = program.make({"create_srq": {"pd": pd, "max_wr": 16, "max_sge": 1}})["srq"]["srq"]
    capacity = {"max_send_wr": 16, "max_recv_wr": 16, "max_send_sge": 1, "max_recv_sge": 1, "max_inline_data": 64}
    for shared in (None, srq):
        asked = {"pd": pd, "qp_type": "rc", "send_cq": cq, "recv_cq": cq, "srq": shared, "capacity": capacity}
        program.make({"create_qp": asked | {"sq_sig_all": True}})


def serves(device):
    """Fails unless a program that comes now gets all that it asks for."""
    with Program(device) as program:
        has_everything(program)


def kind(descriptor):
    return os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0]


def test_the_descriptor_that_wakes_its_thread_blocks(host):
    """A program clears O_NONBLOCK of the eventfd it shares, and fills it: who writes to it would sleep for ever."""
    with unharmed(host, host.a1, host.a2):
        with Program(host.mean) as program:
            has_everything(program)
            for descriptor in program.descriptors:
                if kind(descriptor) == "anon_inode":
                    spoil(descriptor)
            for _ in range(3):
                host.mean.shown()
                serves(host.mean)
        host.mean.expect_free()


def test_the_descriptor_that_wakes_its_thread_is_never_readable(host):
    """The same holds the other way round: the device's thread would wait for ever."""
    with unharmed(host, host.a1, host.a2):
        with Program(host.mean) as program:
            for descriptor in program.descriptors:
                if kind(descriptor) == "anon_inode":
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
            for _ in range(200):
                for descriptor in program.descriptors:
                    if kind(descriptor) == "anon_inode":
                        # Wakes it, and takes away what it would read.
                        os.eventfd_write(descriptor, 1)
                        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK)
                        try:
                            os.eventfd_read(descriptor)
                        except BlockingIOError:
                            pass
                        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
            host.mean.shown()
        host.mean.expect_free()


def test_sockets_that_nobody_reads(host):
    """Events and replies are not taken: they wait, are lost, or end that program."""
    with unharmed(host, host.a1, host.a2):
        with Program(host.mean) as program:
            program.connection.setblocking(False)
            for _ in range(20000):
                try:
                    program.connection.send(b'"query_port"')
                except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                    break
            for descriptor in program.descriptors:
                if kind(descriptor) == "socket":
                    with socket.socket(fileno=os.dup(descriptor)) as events:
                        events.setblocking(False)
                        try:
                            for _ in range(10000):
                                events.send(b"x" * 8)
                        except OSError:
                            pass
            serves(host.mean)
            host.mean.shown()
        host.mean.expect_free()


@pytest.mark.parametrize("how", ["truncate", "punch"])
def test_memory_it_shares_goes_away(host, how):
    """A program that takes the files of its queues away harms itself only."""
    with unharmed(host, host.a1, host.a2):
        with Program(host.mean) as program:
            has_everything(program)
            for descriptor in program.descriptors:
                if kind(descriptor) == "/memfd":
                    take_away(descriptor, how)
            host.mean.shown()
            program.ask("query_port")
            program.ask({"create_channel": None})
            serves(host.mean)
        host.mean.expect_free()


def take_away(descriptor, how):
    length = os.fstat(descriptor).st_size
    try:
        if how == "truncate":
            os.ftruncate(descriptor, 0)
        else:
            libc.fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length))
    except PermissionError:
        pass  # sealed, as it should be


@contextmanager
def pool_of_huge_pages(count):
    """Makes a pool of so many huge pages to take from, or of none where the machine has no memory for them."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    before = pool.read_text()
    pool.write_text(str(count))
    try:
        yield int(pool.read_text())
    finally:
        pool.write_text(before)


@pytest.mark.xdist_group("huge pages")
def test_a_file_of_huge_pages_with_holes(host):
    """Huge pages that can go away are refused: sealed against shrinking, the file may still be punched, and with the
    pool empty a touch of the hole is a SIGBUS."""
    with pool_of_huge_pages(1), unharmed(host, host.a1, host.a2), Program(host.mean) as program:
        pd = program.make("alloc_pd")["handle"]
        file = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        try:
            os.ftruncate(file, 2 << 20)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            buffer = ctypes.create_string_buffer(2 << 20)
            region = {"pd": pd, "address": ctypes.addressof(buffer), "length": 2 << 20, "iova": 0, "access": 7}
            pages = [{"address": region["address"], "len": 2 << 20, "backing": "file"}]
            kind_of, _ = program.ask({"reg_mr": region | {"pages": pages}}, [file])
            assert kind_of == "Err", "a region of huge pages that can go away is taken"
        finally:
            os.close(file)


def one_after_the_other(device, make, programs=300, each=5000):
    """Has programs make things until no program gets anything any more; returns them."""
    with ExitStack() as stack:
        for _ in range(programs):
            try:
                program = stack.enter_context(Program(device))
            except (Refused, OSError):
                break
            made = 0
            while made < each and program.ask(make)[0] == "Ok":
                made += 1
                # They stay the daemon's, whether we keep ours or not.
                for descriptor in program.descriptors:
                    os.close(descriptor)
                program.descriptors = []
            if made == 0:
                break
        return stack.pop_all()


GREEDY = {
    "channels": "create_channel",
    "completion queues": {"create_cq": {"entries": 1, "channel": None, "timestamps": False}},
    "large completion queues": {"create_cq": {"entries": 1 << 16, "channel": None, "timestamps": False}},
}


def limit_of_descriptors(pid):
    line = next(
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open files")
    )
    return int(line.split()[3])


@pytest.mark.parametrize("what", GREEDY)
def test_one_takes_all_that_there_is(host, what):
    """The limits are of a device, all its programs together: others of the daemon find what they need."""
    pid = daemon_pid(host)
    with unharmed(host, host.a1, host.a2):
        before = Account.of(pid)
        with one_after_the_other(host.mean, GREEDY[what]):
            now = Account.of(pid)
            # Not half of what the daemon may have.
            assert (now.descriptors - before.descriptors).total() < limit_of_descriptors(pid) / 2
            assert now.mappings - before.mappings < MAPPINGS / 2
            with Driver(host.socket("b3")) as driver:
                driver.post_buffers()
            serves(host.other)
        host.mean.expect_free()
        serves(host.mean)


def test_regions_by_the_thousand_of_many_programs(host):
    """All programs of a device together get as many regions as `rdma_limits` says, and no more."""
    with unharmed(host, host.a1, host.a2):
        programs = []
        with ExitStack() as stack:
            limit = host.mean.shown()["limits"]["mrs"]
            made = 0
            while made <= limit + 10:
                program = stack.enter_context(Program(host.mean))
                programs.append(program)
                pd = program.make("alloc_pd")["handle"]
                buffer = ctypes.create_string_buffer(4096)
                region = {
                    "pd": pd,
                    "address": ctypes.addressof(buffer),
                    "length": 4096,
                    "iova": 0,
                    "access": 1,
                    "pages": [],
                }
                here = 0
                while here < 1000 and program.ask({"reg_mr": region})[0] == "Ok":
                    here += 1
                made += here
                if here < 1000:
                    break
            assert made <= limit, f"{made} regions"
        host.mean.expect_free()


def test_connections_that_say_nothing(host):
    """All places are taken by programs that never greet: VMs and other devices have theirs."""
    with unharmed(host, host.a1, host.a2):
        with ExitStack() as stack:
            for _ in range(300):
                connection = stack.enter_context(stranger(host.mean))
                connection.setblocking(False)
            with Driver(host.socket("b3")) as driver:
                driver.post_buffers()
            serves(host.other)
            host.mean.shown()
        eventually(lambda: can_serve(host.mean), "places again")


def can_serve(device):
    try:
        serves(device)
        return True
    except (Refused, OSError):
        return False
