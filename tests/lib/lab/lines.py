"""A TCP stream of numbered lines to a virtual machine, of which none may be lost, doubled or changed."""

from .shell import Failed, eventually

PORT = 7000
# Some megabytes a second at most.
_SEND = """
import itertools, socket, time
out = socket.create_connection(("{address}", {port}), timeout=600)
for i in itertools.count():
    numbers = range(100 * i, 100 * i + 100)
    out.sendall(b"".join(b"line %09d of what a guest receives while it is moved\\n" % number for number in numbers))
    time.sleep(0.002)
"""
# Keeps nothing of it but the number of good lines, or the first bad one.
_RECEIVE = f"""nc -l -p {PORT} | awk '
    $2 != sprintf("%09d", NR - 1) || NF != 11 {{ print "bad line " NR ": " $0 > "/tmp/received"; exit }}
    NR % 500 == 0 {{ print NR > "/tmp/received"; close("/tmp/received") }}' &"""


class Lines:
    """The stream from a container to a VM. `vm` may be replaced by the one that goes on in its place."""

    def __init__(self, container, vm, address):
        self.vm = vm
        vm.shell("echo 0 > /tmp/received; " + _RECEIVE)
        eventually(lambda: f":{PORT:04X} " in vm.shell("cat /proc/net/tcp*").stdout, "the guest listens")
        send = _SEND.format(address=address, port=PORT)
        self.sender = container.background(["/usr/bin/python3", "-c", send], f"lines-{vm.name}")
        self.more(1000)

    def received(self):
        """Counts the good lines that arrived. The file may be written anew meanwhile: the part that is read first
        counts."""
        return int(self.vm.shell("head -n 1 /tmp/received").stdout or 0)

    def more(self, lines=1000):
        """Waits until more lines have arrived."""
        if not self.sender.running():
            raise Failed(f"the stream ended: {self.sender.describe()}")
        before = self.received()
        # After several losses TCP waits up to two minutes before it sends again (Linux, TCP_RTO_MAX).
        eventually(lambda: self.received() >= before + lines, "lines arrive", timeout=600)
