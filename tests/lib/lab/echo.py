"""Has a virtual machine return the UDP datagrams of a `Stream`."""

from .host import REPOSITORY
from .shell import PATIENCE, eventually, run
from .stream import PORT

_WAY = 7001


def echoes(vm, address, peer, directory):
    """Starts a program in the virtual machine that returns what comes to `PORT`. It gets there by the network, from the
    namespace `peer`."""
    program = directory / "echo"
    run(["cc", "-static", "-Os", "-s", "-o", program, REPOSITORY / "tests/vm/echo.c"])
    vm.shell(f"(nc -l -p {_WAY} > /tmp/echo && chmod +x /tmp/echo && exec /tmp/echo {PORT}) > /dev/null &")
    listens = lambda file, port: f":{port:04X} " in vm.shell(f"cat {file}").stdout
    eventually(lambda: listens("/proc/net/tcp*", _WAY), "the guest listens")
    with peer.socket() as way:
        way.settimeout(PATIENCE)
        way.connect((address, _WAY))
        way.sendall(program.read_bytes())
    eventually(lambda: listens("/proc/net/udp", PORT), "the guest returns datagrams")
